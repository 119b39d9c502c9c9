"""Traffic kinds by name for rows: each takes (wire, guest) and works on whatever wire it is given."""
import re
import statistics
import time

import rawtcp
import rawtraffic
import traffic
import wires

MB = 1 << 20
SMALL_SIZES = (0, 1, 4, 18, 64, 200, 1000, 1472)
FRAGMENTS = (1473, 1480, 2960, 4000, 8192)
LARGEST4, LARGEST6 = 65507, 65487   # of a ping or datagram: 65,535 with IPv4's header; with IPv6's too, lwIP counts in 16 bits


def is_raw(wire):
    """True on the dgram wire."""
    return isinstance(wire, wires.RawWire)


def reach(wire, address, timeout=10):
    """Waits until an address answers: an IPv6 address may be tentative for the first second or two."""
    if is_raw(wire):
        wire.resolve(address, timeout)
        return
    end = time.monotonic() + timeout
    while wire.ping(address, wait=1, unresolved=True)[1] == 0:
        assert time.monotonic() < end, f'{address} does not answer within {timeout} s'


def tcp_echo(wire, size, address=None, timeout=60, **options):
    """One echo connection of so many bytes on any wire."""
    if is_raw(wire):
        target = address or wire.guest4
        wire.resolve(target)
        rawtcp.echo(wire, target, 7, traffic.content(size), timeout, half_close=options.get('half_close', True))
    else:
        traffic.tcp_echo(wire.tcp(7, address) if address else wire.tcp(7), size, timeout=timeout, **options)


def udp_echo(wire, count, sizes, address=None, timeout=60, window=16):
    """So many datagrams on any wire; none may be lost."""
    if is_raw(wire):
        target = address or wire.guest4
        wire.resolve(target)
        return rawtraffic.udp_echo(wire, target, count=count, sizes=sizes, timeout=timeout, window=window)
    result = traffic.udp_echo(wire.udp(7, address) if address else wire.udp(7), count, sizes, window, timeout=timeout)
    assert result.lost == 0 and result.repeated == 0, f'UDP echo {address or ""}: {result}'
    return result


def ping(wire, count, sizes, address=None, timeout=60):
    """So many echo requests of each size on tap and dgram; none may be lost."""
    target = address or wire.guest4
    if is_raw(wire):
        wire.resolve(target)
        return rawtraffic.ping(wire, target, count * len(sizes), sizes=sizes, window=4, timeout=timeout)
    for size in sizes:
        sent, received = wire.ping(target, count, size, timeout=timeout)
        assert sent == received == count, f'ping {target} size {size}: {received} of {sent}'
    return None


def discard_chargen(wire, guest):
    """The other two servers, a little of each."""
    if is_raw(wire):
        wire.resolve(wire.guest4)
        sink = rawtcp.RawTcp(wire, wire.guest4, 9, traffic.content(50_000), echo=False).start()
        sink.close()
        assert not sink.got, 'discard answered'
        source = rawtcp.RawTcp(wire, wire.guest4, 19, b'', echo=False, expect=traffic.chargen_pattern(100_000), endless=True)
        source.start().wait_echo(20)
        source.reset()
        return
    traffic.tcp_discard(wire.tcp(9), 200_000)
    traffic.tcp_chargen(wire.tcp(19), 200_000)
    traffic.udp_expect_silence(wire.udp(9), seconds=0.2)
    traffic.udp_chargen(wire.udp(19))


def smoke(wire, guest):
    """A little of everything: enough to pass each path of the driver in both directions."""
    tcp_echo(wire, MB // 2)
    udp_echo(wire, 400, SMALL_SIZES[2:])
    udp_echo(wire, 20, SMALL_SIZES[:2], window=1)
    udp_echo(wire, 20, FRAGMENTS, window=2)
    if not isinstance(wire, wires.UserWire):
        ping(wire, 5, (0, 56, 1472, 4000))


def smoke6(wire, guest):
    """A little of everything over IPv6; waits for duplicate address detection first."""
    reach(wire, wire.guest6)
    ping(wire, 3, (56, 1400, 4000), wire.guest6)
    tcp_echo(wire, MB // 4, wire.guest6)
    udp_echo(wire, 100, (4, 64, 1000, 1452), wire.guest6)


def wake(wire, guest):
    """Answers come by interrupt: single pings to a halted guest, their middle round trip far below any timer's period."""
    if is_raw(wire):
        wire.resolve(wire.guest4)
        trips = []
        for _ in range(9):
            time.sleep(0.15)
            trips += rawtraffic.ping(wire, wire.guest4).round_trips
    else:
        done = wire.netns.run(['ping', '-n', '-c', 9, '-i', '0.15', wire.guest4])
        trips = [float(ms) / 1000 for ms in re.findall(r'time=([\d.]+) ms', done.stdout)]
    assert len(trips) == 9, f'{len(trips)} of 9 pings answered'
    assert statistics.median(trips) < 0.03, f'a halted guest answers after {sorted(round(t, 4) for t in trips)} s'


def full_ring(wire, guest):
    """Answers of 45 frames through a smaller ring: completions wake the guest, not its timers. The middle round trip of
    nine is far below what waiting for a timer at each refill would take."""
    trips = []
    for _ in range(9):
        begin = time.monotonic()
        udp_echo(wire, 1, (LARGEST4,), window=1)
        trips.append(time.monotonic() - begin)
    assert statistics.median(trips) < 0.15, f'datagrams of {LARGEST4} bytes take {sorted(round(t, 3) for t in trips)} s'


def tcp_10mb(wire, guest):
    """The echo of 10 MB."""
    tcp_echo(wire, 10 * MB, timeout=120)


def udp_10000(wire, guest):
    """10,000 datagrams, all sizes up to one frame, then some that take fragments."""
    udp_echo(wire, 10_000, SMALL_SIZES[2:], timeout=120)
    udp_echo(wire, 100, FRAGMENTS, window=2)


KINDS = {kind.__name__: kind for kind in (smoke, smoke6, wake, full_ring, discard_chargen, tcp_10mb, udp_10000)}
