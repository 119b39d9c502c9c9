"""Frames no honest peer sends: made by hand, at random, and ones that make a receiver hold on to its buffers."""
import random
import struct

import frames as f
import rawtcp
import traffic


def by_hand(host, target):
    """(name, frame) pairs, each wrong in one way, addressed to the guest."""
    src, dst, src6, dst6 = host.ip, f.ip('198.18.0.2'), host.ip6, f.ip('fd00::2')
    udp = f.udp(src, dst, 1234, 7, b'x' * 32)
    tcp = f.tcp(src, dst, 1234, 7, 1, 0, f.SYN, 1000)
    echo = f.icmp_echo(src, dst, 1, 1, b'y' * 32)

    def four(packet):
        return f.ether(target, host.MAC, f.ETH_IP4, packet)

    def six(proto, body):
        return f.ether(target, host.MAC, f.ETH_IP6, f.ip6(src6, dst6, proto, body))

    def patched(packet, at, value, fix=True):
        packet = packet[:at] + bytes([value]) + packet[at + 1:]
        if fix:
            packet = packet[:10] + b'\0\0' + packet[12:]
            packet = packet[:10] + struct.pack('!H', f.checksum(packet[:20])) + packet[12:]
        return packet

    good = f.ip4(src, dst, f.UDP, udp)
    yield from (
        ('only addresses', target + host.MAC), ('header only', f.ether(target, host.MAC, f.ETH_IP4, b'')),
        ('one byte of IPv4', four(good[:1])), ('19 bytes of IPv4', four(good[:19])),
        ('unknown ethertype', f.ether(target, host.MAC, 0x88B5, b'z' * 46)), ('802.3 length', f.ether(target, host.MAC, 46, b'z' * 46)),
        ('VLAN tag', f.ether(target, host.MAC, 0x8100, b'\0\5\x08\0' + good)),
        ('header length 0', four(patched(good, 0, 0x40))), ('header length 60', four(patched(good, 0, 0x4F))),
        ('IP version 5', four(patched(good, 0, 0x55))), ('total beyond frame', four(patched(good, 2, 0x40))),
        ('total below header', four(patched(patched(good, 3, 10), 2, 0))), ('header sum', four(patched(good, 10, good[10] ^ 1, False))),
        ('TTL 0', four(patched(good, 8, 0))), ('unknown protocol', four(f.ip4(src, dst, 200, b'q' * 40))),
        ('source is broadcast', four(f.ip4(b'\xff' * 4, dst, f.UDP, udp))), ('source is the guest', four(f.ip4(dst, dst, f.UDP, udp))),
        ('source is loopback', four(f.ip4(f.ip('127.0.0.1'), dst, f.UDP, udp))), ('to loopback', four(f.ip4(src, f.ip('127.0.0.1'), f.UDP, udp))),
        ('to another host', four(f.ip4(src, f.ip('198.18.0.77'), f.UDP, udp))),
        ('options that do not end', four(f.ip4(src, dst, f.UDP, udp, options=b'\x07\xff\x04\0'))),
        ('source route', four(f.ip4(src, dst, f.UDP, udp, options=b'\x83\x07\x04' + dst + b'\0'))),
        ('UDP length 7', four(f.ip4(src, dst, f.UDP, udp[:4] + b'\0\7' + udp[6:]))),
        ('UDP length beyond', four(f.ip4(src, dst, f.UDP, udp[:4] + b'\xff\xff' + udp[6:]))),
        ('UDP cut', four(f.ip4(src, dst, f.UDP, udp[:5]))), ('UDP sum', four(f.ip4(src, dst, f.UDP, udp[:6] + b'\1\1' + udp[8:]))),
        ('TCP cut', four(f.ip4(src, dst, f.TCP, tcp[:13]))), ('TCP offset 0', four(f.ip4(src, dst, f.TCP, tcp[:12] + b'\0' + tcp[13:]))),
        ('TCP offset 15', four(f.ip4(src, dst, f.TCP, tcp[:12] + b'\xf0' + tcp[13:]))),
        ('TCP option length 0', four(f.ip4(src, dst, f.TCP, f.tcp(src, dst, 1, 7, 1, 0, f.SYN, 9, options=b'\2\0\0\0')))),
        ('TCP option beyond', four(f.ip4(src, dst, f.TCP, f.tcp(src, dst, 2, 7, 1, 0, f.SYN, 9, options=b'\1\1\1\x08')))),
        ('TCP all flags', four(f.ip4(src, dst, f.TCP, f.tcp(src, dst, 3, 7, 1, 1, 0xFF, 9)))),
        ('TCP no flags', four(f.ip4(src, dst, f.TCP, f.tcp(src, dst, 3, 7, 1, 1, 0, 9)))),
        ('TCP to nobody', four(f.ip4(src, dst, f.TCP, f.tcp(src, dst, 3, 9999, 1, 1, f.ACK, 9)))),
        ('TCP from port 0', four(f.ip4(src, dst, f.TCP, f.tcp(src, dst, 0, 7, 1, 1, f.SYN, 9)))),
        ('TCP to broadcast', four(f.ip4(src, b'\xff' * 4, f.TCP, tcp))),
        ('land', four(f.ip4(dst, dst, f.TCP, f.tcp(dst, dst, 7, 7, 1, 0, f.SYN, 9)))),
        ('ICMP cut', four(f.ip4(src, dst, f.ICMP, echo[:6]))), ('ICMP sum', four(f.ip4(src, dst, f.ICMP, echo[:2] + b'\0\0' + echo[4:]))),
        ('ICMP unreachable about nothing', four(f.ip4(src, dst, f.ICMP, _icmp(3, 4, b'\0\0\0\x10' + b'\0' * 8)))),
        ('ICMP too big to 68', four(f.ip4(src, dst, f.ICMP, _icmp(3, 4, b'\0\0\0\x44' + f.ip4(dst, src, f.TCP, tcp)[:28])))),
        ('ICMP redirect', four(f.ip4(src, dst, f.ICMP, _icmp(5, 1, f.ip('198.18.0.66') + good[:28])))),
        ('ping to broadcast', four(f.ip4(src, f.ip('198.18.0.255'), f.ICMP, echo))),
        ('fragment beyond 64K', four(f.ip4(src, dst, f.UDP, b'w' * 1000, 5, 65528, False))),
        ('empty fragment', four(f.ip4(src, dst, f.UDP, b'', 6, 0, True))), ('fragment of 7', four(f.ip4(src, dst, f.UDP, b'1234567', 7, 0, True))),
        ('teardrop 1', four(f.ip4(src, dst, f.UDP, udp[:32], 8, 0, True))), ('teardrop 2', four(f.ip4(src, dst, f.UDP, udp[:8], 8, 8, False))),
        ('overlap 1', four(f.ip4(src, dst, f.UDP, udp[:24], 9, 0, True))), ('overlap 2', four(f.ip4(src, dst, f.UDP, udp[16:], 9, 16, False))),
        ('last twice', four(f.ip4(src, dst, f.UDP, udp[16:], 9, 24, False))),
        ('ARP cut', f.ether(target, host.MAC, f.ETH_ARP, f.arp(1, host.MAC, src, bytes(6), dst)[:20])),
        ('ARP for tokens', f.ether(f.BROADCAST, host.MAC, f.ETH_ARP, struct.pack('!HHBBH', 9, f.ETH_IP4, 8, 9, 1) + b'a' * 34)),
        ('ARP operation 9', f.ether(f.BROADCAST, host.MAC, f.ETH_ARP, f.arp(9, host.MAC, src, bytes(6), dst))),
        ('IPv6 cut', f.ether(target, host.MAC, f.ETH_IP6, f.ip6(src6, dst6, f.UDP, b'')[:30])),
        ('IPv6 length beyond', f.ether(target, host.MAC, f.ETH_IP6, f.ip6(src6, dst6, f.UDP, b'u' * 100)[:60])),
        ('IPv6 from multicast', f.ether(target, host.MAC, f.ETH_IP6, f.ip6(f.ip('ff02::1'), dst6, f.UDP, b'u' * 20))),
        ('hop-by-hop beyond', six(f.HOPOPT, b'\x11\xff' + b'\0' * 6)), ('hop-by-hop cut', six(f.HOPOPT, b'\x11')),
        ('jumbo option', six(f.HOPOPT, b'\x11\0\xc2\x04\0\1\0\0')), ('unknown option', six(f.DSTOPT6, b'\x11\0\xbf\x04\0\0\0\0' + udp)),
        ('routing type 0', six(f.ROUTING6, b'\x11\x02\0\1\0\0\0\0' + src6)), ('no next header', six(f.NONEXT6, b'')),
        ('60 destination options', six(f.DSTOPT6, b'\x3c\0\1\4\0\0\0\0' * 60 + b'\x3b\0\1\4\0\0\0\0')),
        ('fragment header cut', six(f.FRAGMENT6, b'\x11\0\0')), ('IPv6 fragment beyond', six(f.FRAGMENT6, f.fragment6(f.UDP, 65528, False, 1, b'v' * 100))),
        ('IPv6 empty fragment', six(f.FRAGMENT6, f.fragment6(f.UDP, 0, True, 2, b''))),
        ('fragment in fragment', six(f.FRAGMENT6, f.fragment6(f.FRAGMENT6, 0, False, 3, f.fragment6(f.UDP, 0, False, 4, b'u' * 16)))),
        ('solicitation with hop limit 64', six(f.ICMP6, f.icmp6(src6, dst6, 135, 0, bytes(4) + dst6))),
        ('solicitation with option length 0', f.ether(target, host.MAC, f.ETH_IP6, f.ip6(
            src6, dst6, f.ICMP6, f.icmp6(src6, dst6, 135, 0, bytes(4) + dst6 + b'\1\0' + host.MAC), 255))),
        ('advertisement cut', f.ether(target, host.MAC, f.ETH_IP6, f.ip6(src6, dst6, f.ICMP6, f.icmp6(src6, dst6, 136, 0, b'\0' * 6), 255))),
        ('router advertisement with option length 0', f.ether(target, host.MAC, f.ETH_IP6, f.ip6(
            f.ip('fe80::1'), f.ip('ff02::1'), f.ICMP6, f.icmp6(f.ip('fe80::1'), f.ip('ff02::1'), 134, 0, b'\x40\0\7\x08' + bytes(8) + b'\3\0'), 255))),
        ('ICMPv6 too big to 0', six(f.ICMP6, f.icmp6(src6, dst6, 2, 0, bytes(4) + f.ip6(dst6, src6, f.UDP, b'u' * 20)))),
        ('ICMPv6 cut', six(f.ICMP6, b'\x80\0')), ('DHCP out of the blue', four(f.ip4(src, dst, f.UDP, f.udp(src, dst, 67, 68, b'\2\1\6\0' + bytes(300))))),
    )


def _icmp(kind, code, body):
    message = struct.pack('!BBH', kind, code, 0) + body
    return message[:2] + struct.pack('!H', f.checksum(message)) + message[4:]


def random_ones(host, target, start, count):
    """count frames made from good ones by changing, cutting and stretching; the same ones for the same start."""
    rng = random.Random(1000 + start)
    src, dst, src6, dst6 = host.ip, f.ip('198.18.0.2'), host.ip6, f.ip('fd00::2')
    for _ in range(count):
        size = rng.choice((0, 1, 16, 100, 1400))
        body = rng.randbytes(size)
        seed = rng.randrange(6)
        if seed == 0:
            frame = f.ether(target, host.MAC, f.ETH_ARP, f.arp(rng.choice((1, 2)), host.MAC, src, bytes(6), dst))
        elif seed == 1:
            frame = f.ether(target, host.MAC, f.ETH_IP4, f.ip4(src, dst, f.UDP, f.udp(src, dst, 5, rng.choice((7, 9, 19, 68)), body)))
        elif seed == 2:
            frame = f.ether(target, host.MAC, f.ETH_IP4, f.ip4(src, dst, f.TCP, f.tcp(
                src, dst, rng.randrange(65536), rng.choice((7, 9, 19)), rng.getrandbits(32), rng.getrandbits(32), rng.randrange(64), 1000, body,
                rng.choice((b'', b'\2\4\5\xb4', b'\1\3\3\7', b'\4\2\5\x0a' + rng.randbytes(8))))))
        elif seed == 3:
            frame = f.ether(target, host.MAC, f.ETH_IP6, f.ip6(src6, dst6, f.UDP, f.udp(src6, dst6, 5, 7, body)))
        elif seed == 4:
            frame = f.ether(target, host.MAC, f.ETH_IP6, f.ip6(src6, dst6, f.ICMP6, f.icmp6(
                src6, dst6, rng.choice((1, 2, 3, 4, 128, 130, 133, 134, 135, 136, 137)), 0, body), 255))
        else:
            frame = f.ether(target, host.MAC, f.ETH_IP4, f.ip4(src, dst, rng.choice((1, 6, 17)), body, rng.getrandbits(8),
                                                              rng.randrange(0, 65536, 8), rng.random() < 0.5))
        frame = bytearray(frame)
        for _ in range(rng.choice((0, 1, 1, 2, 8))):
            frame[rng.randrange(12, len(frame))] = rng.getrandbits(8)
        if rng.random() < 0.2:
            frame = frame[:rng.randrange(14, len(frame) + 1)]
        if rng.random() < 0.1:
            frame += rng.randbytes(rng.randrange(64))
        if frame[6] & 1 or len(frame) > 1514:
            continue
        yield bytes(frame)


def unfinished_datagrams(host, target, count):
    """First fragments of datagrams that never end, of both IP versions. The IPv4 ones are another station's: their identifications
    must not be taken for those of the host's own datagrams."""
    src, dst, src6, dst6 = f.ip('198.18.0.77'), f.ip('198.18.0.2'), host.ip6, f.ip('fd00::2')
    for n in range(count):
        if n % 4:
            packet = f.ip4(src, dst, f.UDP, b'f' * 1400, n & 0xFFFF, 8 * (n % 3), True)
            yield f.ether(target, host.MAC, f.ETH_IP4, packet)
        else:
            packet = f.ip6(src6, dst6, f.FRAGMENT6, f.fragment6(f.UDP, 0, True, n, b'f' * 1400))
            yield f.ether(target, host.MAC, f.ETH_IP6, packet)


def streams_with_holes(host, count):
    """Opens connections and sends each a window's worth of segments whose first one is missing, then vanishes."""
    target = f.ip('198.18.0.2')
    for n in range(count):
        stream = rawtcp.RawTcp(host, '198.18.0.2', 7, b'', echo=False).start()
        stream.wait(lambda stream=stream: stream.state == 'open', 20, 'handshake')
        body = traffic.content(1400, n)
        for at in range(1400, 40_000, 1400):
            host.send_ip(target, f.TCP, f.tcp(host.ip, target, stream.lport, 7, stream.iss + 1 + at, stream.rcv_next, f.ACK, 1000, body))
        stream.abandon()
