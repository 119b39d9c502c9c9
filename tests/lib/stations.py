"""Raw frames on a tap wire beside Linux's own stack: stations with addresses of their own, and a view of all that the guest
sends."""
import collections
import select
import socket
import time

import frames

ETH_P_ALL, PACKET_OUTGOING = 3, 4
GUEST_MAC = bytes.fromhex('525400123456')       # QEMU's default for the first NIC
ALL_NODES = frames.ip('ff02::1')

Station = collections.namedtuple('Station', 'mac ip4 ip6')


def stations(count):
    """So many stations, each with its own MAC, IPv4 and IPv6 address."""
    return [Station(bytes.fromhex('0200000001') + bytes([n]), frames.ip(f'198.18.0.{20 + n}'), frames.ip(f'fd00::1:{n:x}'))
            for n in range(count)]


class Tap:
    """All frames the guest sends, from the moment it is made; and a way to send frames to it. A context manager."""

    def __init__(self, wire):
        self._sock = wire.netns.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self._sock.bind(('tap0', ETH_P_ALL))
        self._sock.setblocking(False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._sock.close()

    def send(self, frame):
        """Sends a frame to the guest."""
        self._sock.send(frame)

    def collect(self, seconds, until=None):
        """What the guest sends within so many seconds, or until the list of frames satisfies `until`."""
        got, end = [], time.monotonic() + seconds
        while not (until and until(got)) and (left := end - time.monotonic()) > 0:
            if not select.select([self._sock], [], [], left)[0]:
                break
            try:
                frame, origin = self._sock.recvfrom(70000)
            except BlockingIOError:
                continue
            if origin[2] != PACKET_OUTGOING:
                got.append(frame)
        return got


def arp_request(station, target):
    """Who has `target`? By broadcast."""
    return frames.ether(frames.BROADCAST, station.mac, frames.ETH_ARP, frames.arp(1, station.mac, station.ip4, bytes(6), target))


def solicitation(station, target):
    """A neighbour solicitation for `target`, to its solicited-node group (RFC 4861, 7.2.2)."""
    group = frames.ip('ff02::1:ff00:0')[:13] + target[13:]
    option = b'\x01\x01' + station.mac
    body = frames.icmp6(station.ip6, group, 135, 0, bytes(4) + target + option)
    return frames.ether(b'\x33\x33' + group[12:], station.mac, frames.ETH_IP6, frames.ip6(station.ip6, group, frames.ICMP6, body, 255))


def advertisement(prefix, router=frames.ip('fe80::99'), mac=bytes.fromhex('020000000099')):
    """A router's advertisement of a /64 prefix, to all nodes (RFC 4861, 4.2)."""
    option = bytes.fromhex('030440c0') + (1800).to_bytes(4, 'big') * 2 + bytes(4) + frames.ip(prefix)
    body = frames.icmp6(router, ALL_NODES, 134, 0, bytes.fromhex('40000708') + bytes(8) + option)
    return frames.ether(b'\x33\x33' + ALL_NODES[12:], mac, frames.ETH_IP6, frames.ip6(router, ALL_NODES, frames.ICMP6, body, 255))


def datagram(station, target, sport, payload):
    """A UDP datagram to the guest's echo port, either IP version."""
    src = station.ip4 if len(target) == 4 else station.ip6
    body = frames.udp(src, target, sport, 7, payload)
    kind, packet = (frames.ETH_IP4, frames.ip4) if len(target) == 4 else (frames.ETH_IP6, frames.ip6)
    return frames.ether(GUEST_MAC, station.mac, kind, packet(src, target, frames.UDP, body))


def segment(station, target, sport, seq, ack, flags, payload=b'', pieces=False):
    """A TCP segment to the guest's echo port; in `pieces` it has 40 bytes of options and comes in two fragments.
    A list of frames."""
    src = station.ip4 if len(target) == 4 else station.ip6
    body = frames.tcp(src, target, sport, 7, seq, ack, flags, 8192, payload, b'\x01' * 40 if pieces else b'')
    mtu = (52 if len(target) == 4 else 80) if pieces else 1500
    kind = frames.ETH_IP4 if len(target) == 4 else frames.ETH_IP6
    return [frames.ether(GUEST_MAC, station.mac, kind, packet)
            for packet in frames.ip_fragments(src, target, frames.TCP, body, mtu, sport)]


def describe(frame):
    """What a frame of the guest is: ('arp request', target), ('arp reply', to whom), ('icmp6', type, destination),
    ('udp', destination, its port) or ('other', Ethernet type). Malformed if it is wrong."""
    kind = int.from_bytes(frame[12:14], 'big')
    if kind == frames.ETH_ARP:
        op = int.from_bytes(frame[20:22], 'big')
        return ('arp request' if op == 1 else 'arp reply', frames.show(frame[38:42]))
    if kind not in (frames.ETH_IP4, frames.ETH_IP6):
        return ('other', kind)
    packet = (frames.parse_ip4 if kind == frames.ETH_IP4 else frames.parse_ip6)(frame[14:])
    if packet.proto == frames.ICMP6:
        return ('icmp6', packet.payload[0], frames.show(packet.dst))
    if packet.proto == frames.UDP:
        return ('udp', frames.show(packet.dst), int.from_bytes(packet.payload[2:4], 'big'))
    return ('other', packet.proto)
