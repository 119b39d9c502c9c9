"""Builds and takes apart Ethernet frames: ARP, IPv4, IPv6, ICMP, UDP, TCP. Bytes in, bytes out; no state."""
import collections
import ipaddress
import struct

ETH_IP4, ETH_ARP, ETH_IP6 = 0x0800, 0x0806, 0x86DD
ICMP, TCP, UDP, ICMP6, FRAGMENT6 = 1, 6, 17, 58, 44
HOPOPT, ROUTING6, DSTOPT6, NONEXT6 = 0, 43, 60, 59
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
BROADCAST = b'\xff' * 6

Tcp = collections.namedtuple('Tcp', 'sport dport seq ack flags window options payload')
Udp = collections.namedtuple('Udp', 'sport dport payload')


class Malformed(Exception):
    """A received frame breaks its protocol's rules; the text says which."""


def mac(text):
    """Six bytes from "52:54:00:12:34:56"."""
    return bytes.fromhex(text.replace(':', ''))


def ip(text):
    """4 or 16 bytes from an address in text."""
    return ipaddress.ip_address(text).packed


def show(packed):
    """Text from a packed address."""
    return str(ipaddress.ip_address(packed))


def _sum(data):
    # The Internet checksum's one's complement sum is the number modulo 65535 (RFC 1071); Python does that in one go.
    if len(data) & 1:
        data += b'\0'
    return int.from_bytes(data, 'big') % 0xFFFF


def checksum(data):
    """The Internet checksum of data whose checksum field is 0; data holds at least one bit set."""
    return 0xFFFF - (_sum(data) or 0xFFFF)


def sums_right(data):
    """True if data with its checksum in place adds up."""
    return _sum(data) == 0


def pseudo(src, dst, proto, length):
    """Pseudo header for TCP, UDP and ICMPv6, either IP version."""
    if len(src) == 4:
        return src + dst + struct.pack('!BBH', 0, proto, length)
    return src + dst + struct.pack('!IHBB', length, 0, 0, proto)


def ether(dst, src, ethertype, payload):
    """A frame, unpadded: what -netdev dgram carries."""
    return dst + src + struct.pack('!H', ethertype) + payload


def arp(op, sha, spa, tha, tpa):
    """ARP request (1) or reply (2) for IPv4 over Ethernet."""
    return struct.pack('!HHBBH', 1, ETH_IP4, 6, 4, op) + sha + spa + tha + tpa


def ip4(src, dst, proto, payload, ident=0, frag=0, more=False, ttl=64, options=b'', df=False):
    """An IPv4 packet. frag: offset of the payload in bytes."""
    words = 5 + len(options) // 4
    flags = (0x4000 if df else 0) | (0x2000 if more else 0) | frag >> 3
    head = struct.pack('!BBHHHBBH', 0x40 | words, 0, words * 4 + len(payload), ident, flags, ttl, proto, 0) + src + dst + options
    return head[:10] + struct.pack('!H', checksum(head)) + head[12:] + payload


def ip6(src, dst, proto, payload, hops=64):
    """An IPv6 packet; proto may be the first extension header's number."""
    return struct.pack('!IHBB', 0x60000000, len(payload), proto, hops) + src + dst + payload


def fragment6(proto, offset, more, ident, payload):
    """IPv6 fragment header (RFC 8200, 4.5) and what follows it."""
    return struct.pack('!BBHI', proto, 0, offset | more, ident) + payload


def ip_fragments(src, dst, proto, payload, mtu, ident, hops=64):
    """One IP packet, or the fragments it takes at that MTU."""
    v4 = len(src) == 4
    if len(payload) <= mtu - (20 if v4 else 40):
        return [ip4(src, dst, proto, payload, ident & 0xFFFF, ttl=hops) if v4 else ip6(src, dst, proto, payload, hops)]
    size = (mtu - (20 if v4 else 48)) & ~7
    packets = []
    for at in range(0, len(payload), size):
        more = at + size < len(payload)
        part = payload[at:at + size]
        if v4:
            packets.append(ip4(src, dst, proto, part, ident & 0xFFFF, at, more, hops))
        else:
            packets.append(ip6(src, dst, FRAGMENT6, fragment6(proto, at, more, ident, part), hops))
    return packets


def icmp_echo(src, dst, ident, seq, data, reply=False):
    """ICMP or ICMPv6 echo request (or reply), by the addresses' length."""
    if len(src) == 4:
        body = struct.pack('!BBHHH', 0 if reply else 8, 0, 0, ident, seq) + data
        return body[:2] + struct.pack('!H', checksum(body)) + body[4:]
    return icmp6(src, dst, 129 if reply else 128, 0, struct.pack('!HH', ident, seq) + data)


def icmp6(src, dst, kind, code, body):
    """An ICMPv6 message; body starts after the checksum."""
    message = struct.pack('!BBH', kind, code, 0) + body
    total = checksum(pseudo(src, dst, ICMP6, len(message)) + message)
    return message[:2] + struct.pack('!H', total) + message[4:]


def udp(src, dst, sport, dport, payload):
    """A UDP datagram with checksum."""
    head = struct.pack('!HHHH', sport, dport, 8 + len(payload), 0)
    total = checksum(pseudo(src, dst, UDP, 8 + len(payload)) + head + payload) or 0xFFFF
    return head[:6] + struct.pack('!H', total) + payload


def tcp(src, dst, sport, dport, seq, ack, flags, window, payload=b'', options=b''):
    """A TCP segment with checksum; options padded to a multiple of four by the caller."""
    head = struct.pack('!HHIIBBHHH', sport, dport, seq & 0xFFFFFFFF, ack & 0xFFFFFFFF, (5 + len(options) // 4) << 4, flags,
                       window, 0, 0) + options
    total = checksum(pseudo(src, dst, TCP, len(head) + len(payload)) + head + payload)
    return head[:16] + struct.pack('!H', total) + head[18:] + payload


# ---- taking apart: every parser checks lengths and sums and raises Malformed

Ip = collections.namedtuple('Ip', 'src dst proto hops ident offset more payload')


def parse_ip4(packet):
    """An IPv4 packet's fields; Ethernet padding after it is cut."""
    if len(packet) < 20 or packet[0] >> 4 != 4:
        raise Malformed('IPv4: no header')
    header = (packet[0] & 15) * 4
    total, ident, flags = struct.unpack_from('!HHH', packet, 2)
    if header < 20 or total < header or total > len(packet):
        raise Malformed(f'IPv4: header {header}, total {total}, frame carries {len(packet)}')
    if not sums_right(packet[:header]):
        raise Malformed('IPv4: header checksum wrong')
    if packet[8] == 0:
        raise Malformed('IPv4: TTL 0')
    if flags & 0x8000:
        raise Malformed('IPv4: reserved flag set')
    return Ip(packet[12:16], packet[16:20], packet[9], packet[8], ident, (flags & 0x1FFF) << 3, bool(flags & 0x2000),
              packet[header:total])


def parse_ip6(packet):
    """An IPv6 packet's fields; a fragment header and hop-by-hop options are taken off."""
    if len(packet) < 40 or packet[0] >> 4 != 6:
        raise Malformed('IPv6: no header')
    length, proto, hops = struct.unpack_from('!HBB', packet, 4)
    if length > len(packet) - 40:
        raise Malformed(f'IPv6: payload {length}, frame carries {len(packet) - 40}')
    src, dst, body = packet[8:24], packet[24:40], packet[40:40 + length]
    if src[0] == 0xFF:
        raise Malformed('IPv6: multicast source')
    ident = offset = 0
    more = False
    if proto == HOPOPT:                                 # MLD carries a router alert
        if len(body) < 8 or (body[1] + 1) * 8 > len(body):
            raise Malformed('IPv6: hop-by-hop options cut')
        proto, body = body[0], body[(body[1] + 1) * 8:]
    if proto == FRAGMENT6:
        if len(body) < 8:
            raise Malformed('IPv6: fragment header cut')
        proto, _, place, ident = struct.unpack_from('!BBHI', body)
        offset, more, body = place & ~7, bool(place & 1), body[8:]
    return Ip(src, dst, proto, hops, ident, offset, more, body)


def check_transport(packet):
    """Checks a whole (reassembled) IP packet's TCP, UDP or ICMP checksum and length fields; returns a Tcp, Udp or None."""
    src, dst, proto, body = packet.src, packet.dst, packet.proto, packet.payload
    if proto == ICMP:
        if len(body) < 8 or not sums_right(body):
            raise Malformed('ICMP: checksum wrong or cut')
        return None
    if proto == ICMP6:
        if len(body) < 4 or not sums_right(pseudo(src, dst, proto, len(body)) + body):
            raise Malformed('ICMPv6: checksum wrong or cut')
        return None
    if proto == UDP:
        return _parse_udp(src, dst, body)
    if proto == TCP:
        return _parse_tcp(src, dst, body)
    return None


def _parse_udp(src, dst, body):
    if len(body) < 8:
        raise Malformed('UDP: header cut')
    sport, dport, length, total = struct.unpack_from('!HHHH', body)
    if length != len(body):
        raise Malformed(f'UDP: length {length}, packet carries {len(body)}')
    if total == 0:
        raise Malformed('UDP: no checksum')
    if not sums_right(pseudo(src, dst, UDP, length) + body):
        raise Malformed('UDP: checksum wrong')
    return Udp(sport, dport, body[8:])


def _parse_tcp(src, dst, body):
    if len(body) < 20:
        raise Malformed('TCP: header cut')
    sport, dport, seq, ack, words, flags, window = struct.unpack_from('!HHIIBBH', body)
    header = (words >> 4) * 4
    if header < 20 or header > len(body):
        raise Malformed(f'TCP: header {header}, segment {len(body)}')
    if not sums_right(pseudo(src, dst, TCP, len(body)) + body):
        raise Malformed('TCP: checksum wrong')
    return Tcp(sport, dport, seq, ack, flags, window, body[20:header], body[header:])


def tcp_mss(options):
    """The MSS option's value, 536 without one (RFC 9293, 3.7.1). Malformed if the options do not parse."""
    at, mss = 0, 536
    while at < len(options) and options[at] != 0:
        if options[at] == 1:
            at += 1
            continue
        if at + 1 >= len(options) or options[at + 1] < 2 or at + options[at + 1] > len(options):
            raise Malformed('TCP: options do not parse')
        if options[at] == 2:
            mss = struct.unpack_from('!H', options, at + 2)[0]
        at += options[at + 1]
    return mss


class Reassembly:
    """Puts fragments of either IP version together; add() returns the whole packet once its last piece is in."""

    def __init__(self, limit=256):
        self._limit = limit
        self._parts = collections.OrderedDict()

    def add(self, packet):
        """Adds one parsed packet; a packet that is no fragment comes straight back."""
        if not packet.offset and not packet.more:
            return packet
        if packet.more and len(packet.payload) % 8:
            raise Malformed(f'fragment of {len(packet.payload)} bytes that is not the last')
        key = (packet.src, packet.dst, packet.proto, packet.ident)
        parts = self._parts.setdefault(key, {})
        parts[packet.offset] = packet
        while len(self._parts) > self._limit:
            self._parts.popitem(last=False)
        at, body = 0, []
        while at in parts:
            body.append(parts[at].payload)
            if not parts[at].more:
                self._parts.pop(key, None)
                return packet._replace(offset=0, more=False, payload=b''.join(body))
            at += len(parts[at].payload)
        return None
