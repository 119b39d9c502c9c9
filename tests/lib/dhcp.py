"""A DHCP server for a RawHost (RFC 2131), that can also misbehave: late, refusing, silent."""
import collections
import struct

import frames as f

DISCOVER, OFFER, REQUEST, DECLINE, ACKNOWLEDGE, NAK, RELEASE = 1, 2, 3, 4, 5, 6, 7
_MAGIC = b'\x63\x82\x53\x63'


def options(data):
    """DHCP options as a dict from number to bytes. Malformed if they do not parse or have no end."""
    found, at = {}, 0
    while at < len(data):
        kind = data[at]
        if kind == 255:
            return found
        if kind == 0:
            at += 1
            continue
        if at + 1 >= len(data) or at + 2 + data[at + 1] > len(data):
            break
        found[kind] = data[at + 2:at + 2 + data[at + 1]]
        at += 2 + data[at + 1]
    raise f.Malformed('DHCP: options do not end')


class DhcpServer:
    """Offers one address. Attributes may be changed while it runs.

    lease: seconds. delay: seconds before an answer. ignore: how many messages to leave unanswered. naks: how many requests to refuse.
    """

    def __init__(self, address='198.18.0.2', prefix=24, lease=3600, delay=0.0, ignore=0, naks=0, router=True):
        self.address, self.prefix, self.lease = f.ip(address), prefix, lease
        self.delay, self.ignore, self.naks, self.router = delay, ignore, naks, router
        self.counts = collections.Counter()     # 'discover', 'request', 'renew', 'nak', 'ack', 'other'

    def request(self, host, mac, data):
        """One message from a client, called in the host's thread."""
        if len(data) < 240 or data[0] != 1 or data[236:240] != _MAGIC:
            raise f.Malformed('DHCP: no BOOTREQUEST with the magic cookie')
        if data[28:34] != mac:
            raise f.Malformed(f'DHCP: chaddr {data[28:34].hex(":")}, frame from {mac.hex(":")}')
        found = options(data[240:])
        kind = found.get(53, b'\0')[0]
        renewing = data[12:16] != bytes(4)
        name = {DISCOVER: 'discover', REQUEST: 'renew' if renewing else 'request'}.get(kind, 'other')
        self.counts[name] += 1
        if name == 'other' or self.ignore > 0:
            self.ignore -= name != 'other'
            return
        answer = OFFER if kind == DISCOVER else ACKNOWLEDGE
        if kind == REQUEST and self.naks > 0:
            self.naks -= 1
            answer = NAK
        wanted = data[12:16] if renewing else found.get(50, self.address)
        if kind == REQUEST and wanted != self.address:
            answer = NAK
        reply = self._reply(host, data, answer)
        if self.delay:
            host.after(self.delay, lambda: self._send(host, mac, reply))
        else:
            self._send(host, mac, reply)
        self.counts[{OFFER: 'offer', ACKNOWLEDGE: 'ack', NAK: 'nak'}[answer]] += 1

    def _reply(self, host, data, answer):
        mine = self.address if answer != NAK else bytes(4)
        head = struct.pack('!BBBB', 2, 1, 6, 0) + data[4:8] + bytes(4) + data[12:16] + mine + host.ip + bytes(4) + data[28:44]
        mask = struct.pack('!I', (0xFFFFFFFF << (32 - self.prefix)) & 0xFFFFFFFF)
        opts = bytes([53, 1, answer, 54, 4]) + host.ip
        if answer != NAK:
            opts += bytes([51, 4]) + struct.pack('!I', self.lease) + bytes([1, 4]) + mask
            opts += (bytes([3, 4]) + host.ip) if self.router else b''
        return (head + bytes(192) + _MAGIC + opts + b'\xff').ljust(300, b'\0')

    def _send(self, host, mac, reply):
        packet = f.ip4(host.ip, b'\xff' * 4, f.UDP, f.udp(host.ip, b'\xff' * 4, 67, 68, reply))
        host.send_frame(f.ether(mac, host.MAC, f.ETH_IP4, packet))
