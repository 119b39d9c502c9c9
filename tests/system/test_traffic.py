"""Traffic in quantity and in its odd forms, on each wire. One boot serves many checks."""
import select
import socket
import time

import pytest

import frames
import rawtcp
import rawtraffic
import rows
import traffic
import trafficmix
from rows import Row
from trafficmix import LARGEST4, LARGEST6, MB

FRAME_SIZES = tuple(range(0, 1473))
PING_FRAGMENTS = (1473, 1480, 2000, 8000, 20000, 32768, 60000)


# ---- kinds on sockets (user, tap)

def half_close_and_pauses(wire, guest):
    """A client that stops reading while it sends (zero window both ways), and one that closes only at the end."""
    traffic.tcp_echo(wire.tcp(7), 4 * MB, half_close=True, pauses=((100_000, 1.5), (1_000_000, 1.5)))
    traffic.tcp_echo(wire.tcp(7), 200_000, half_close=False)
    traffic.tcp_chargen(wire.tcp(19), 2 * MB, pause=1.5)
    traffic.tcp_discard(wire.tcp(9), 4 * MB)


def resets(wire, guest):
    """Connections reset in the middle of an echo, one after another and many at once, leave the server serving."""
    for _ in range(10):
        traffic.tcp_reset(wire.tcp(7))
    many = [wire.tcp(7) for _ in range(12)]
    for sock in many:
        sock.setblocking(False)
        sock.send(traffic.content(20_000))
    time.sleep(0.3)
    for sock in many:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, traffic.LINGER_RESET)
        sock.close()
    for _ in range(3):
        with wire.tcp(19) as sock:      # chargen cut by a reset with data in flight
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, traffic.LINGER_RESET)
            sock.recv(1000)
    trafficmix.tcp_echo(wire, 100_000)


def parallel(wire, guest):
    """Twenty connections echo at once; each gets its own bytes back."""
    socks = {}
    for seed in range(20):
        sock = wire.tcp(7)
        sock.setblocking(False)
        socks[sock] = [traffic.content(100_000, seed), 0, 0]
    end = time.monotonic() + 60
    while socks:
        assert time.monotonic() < end, f'{len(socks)} of 20 connections not done'
        can_read, can_write, _ = select.select(list(socks), [s for s, v in socks.items() if v[1] < len(v[0])], [], 1)
        for sock in can_write:
            socks[sock][1] += sock.send(socks[sock][0][socks[sock][1]:socks[sock][1] + 16384])
        for sock in can_read:
            data, _, got = socks[sock]
            part = sock.recv(65536)
            traffic.compare(part, data[got:got + len(part)] or b'?', got, 'parallel echo')
            socks[sock][2] += len(part)
            if socks[sock][2] == len(data):
                del socks[sock]
                sock.close()


def many_short(wire, guest):
    """Three hundred connections one after another: nothing is used up by opening and closing."""
    for n in range(300):
        with wire.tcp(7) as sock:
            sock.settimeout(10)
            sock.sendall(b'%d' % n)
            assert sock.recv(100) == b'%d' % n


def hoarders(wire, guest):
    """Two hundred clients that send all they can and read nothing: more than the guest's memory. It answers ping all the
    time, and serves again once they are gone."""
    socks = []
    block = traffic.content(65536)
    try:
        for _ in range(200):
            try:
                sock = wire.tcp(7)
            except OSError:             # refused for want of memory: as good as served
                break
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, traffic.LINGER_RESET)
            socks.append(sock)
        assert len(socks) >= 20, f'only {len(socks)} connections'
        sent = 0
        end = time.monotonic() + 6
        while time.monotonic() < end:
            for sock in select.select([], socks, [], 0.2)[1]:
                try:
                    sent += sock.send(block)
                except BlockingIOError:
                    pass
                except OSError:         # given up by the guest
                    socks.remove(sock)
                    sock.close()
        assert sent > 30 * MB, f'only {sent} bytes could be left with the guest'
        trafficmix.ping(wire, 20, (56,))
    finally:
        for sock in socks:
            sock.close()
    time.sleep(0.5)
    trafficmix.smoke(wire, guest)


def udp_any_size(wire, guest):
    """Datagrams of every size the IP version has, empty ones too."""
    trafficmix.udp_echo(wire, 40, (0, 1, 2, 3), window=1)
    trafficmix.udp_echo(wire, 40, (LARGEST4, 30000, 16384, 9000), window=1)


def six(wire, guest):
    """The same over IPv6."""
    trafficmix.reach(wire, wire.guest6)
    trafficmix.tcp_echo(wire, 2 * MB, wire.guest6)
    trafficmix.udp_echo(wire, 500, trafficmix.SMALL_SIZES[2:-1] + (1452,), wire.guest6)
    trafficmix.udp_echo(wire, 40, (1453, 8192, 30000, LARGEST6), wire.guest6, window=1)


def flood(wire, guest):
    """ping -f, 20,000 packets: none lost. Half of them with a full frame."""
    for size, count in ((56, 10_000), (1472, 10_000)):
        sent, received = wire.ping(count=count, size=size, flood=True, timeout=120)
        assert sent == received == count, f'ping -f -s {size}: {received} of {sent}'


def wrap_indices(wire, guest):
    """More frames than a ring's 16-bit indices count, both ways, in bulk: discard and chargen of 110 MB."""
    before = wire.frames()
    traffic.tcp_discard(wire.tcp(9), 110 * MB, timeout=120)
    traffic.tcp_chargen(wire.tcp(19), 110 * MB, timeout=120)
    for way, (now, then) in zip(('to', 'from'), zip(wire.frames(), before)):
        assert now - then > 70_000, f'only {now - then} frames {way} the guest: no index wrapped'
    trafficmix.smoke(wire, guest)


def ping_sizes(wire, guest):
    """ping of odd sizes in fragments up to the largest, both IP versions, contents checked by ping itself."""
    trafficmix.ping(wire, 2, (0, 1, 17, 1472) + PING_FRAGMENTS + (LARGEST4,))
    trafficmix.reach(wire, wire.guest6)
    trafficmix.ping(wire, 2, (0, 1, 1452, 1453, 8000, 32768, LARGEST6), wire.guest6)


# ---- kinds on raw frames

def raw_ping_every_size(wire, guest):
    """Each size from 0 to 1472 once, unpadded on the wire, then fragments to the largest; IPv6 likewise."""
    trafficmix.ping(wire, 1, FRAME_SIZES)
    trafficmix.ping(wire, 2, PING_FRAGMENTS + (LARGEST4,))
    trafficmix.ping(wire, 1, FRAME_SIZES[:1453:7], wire.guest6)
    trafficmix.ping(wire, 2, (1453, 8000, 32768, LARGEST6), wire.guest6)


def raw_udp_six(wire, guest):
    """Datagrams over IPv6 to the largest."""
    trafficmix.udp_echo(wire, 300, (4, 64, 1452), wire.guest6)
    trafficmix.udp_echo(wire, 20, (0, 1), wire.guest6, window=1)
    trafficmix.udp_echo(wire, 20, (1453, 8192, LARGEST6), wire.guest6, window=1)


def raw_udp_largest(wire, guest):
    """Datagrams in many fragments over IPv4."""
    trafficmix.udp_echo(wire, 20, (9000, 30000, LARGEST4), window=1)


def raw_fragments_disordered(wire, guest):
    """Fragments that arrive in another order, twice, and some never: whole datagrams come back, the others do not."""
    wire.resolve(wire.guest4)
    wire.to_guest.reorder, wire.to_guest.repeat = 0.4, 0.2
    exchange = rawtraffic.UdpEcho(wire, wire.guest4, count=60, sizes=(4000, 8192, 20000), window=1).run(60)
    wire.to_guest.reorder = wire.to_guest.repeat = 0
    exchange.check(repeated=60)


def raw_zero_window(wire, guest):
    """A peer that offers no window: the guest's own window closes, it probes, and goes on when the peer opens."""
    wire.resolve(wire.guest4)
    closed = rawtcp.RawTcp(wire, wire.guest4, 7, traffic.content(600_000), window=0).start()
    closed.wait(lambda: closed.zero_windows, 20, "the guest's window to close")
    trafficmix.tcp_echo(wire, 200_000)      # others are served meanwhile
    time.sleep(2)
    closed.open_window()
    closed.wait_echo(60)
    closed.close()


def raw_vanish(wire, guest):
    """Peers that vanish in the middle of an echo and of chargen: others are served at once and later."""
    wire.resolve(wire.guest4)
    for port in (7, 19, 9):
        for _ in range(8):
            gone = rawtcp.RawTcp(wire, wire.guest4, port, traffic.content(100_000), echo=port == 7, endless=port == 19,
                                 expect=traffic.chargen_pattern(100_000) if port == 19 else None).start()
            gone.wait(lambda gone=gone: gone.received or (port == 9 and gone.acknowledged), 20, 'some data')
            gone.abandon()
    trafficmix.tcp_echo(wire, 200_000)
    trafficmix.udp_echo(wire, 100, (64,))


def half_open(wire, count):
    """Sends so many SYNs and nothing after them."""
    target = frames.ip(wire.guest4)
    for n in range(count):
        wire.send_ip(target, frames.TCP, frames.tcp(wire.ip, target, 1024 + n, 7, n * 1000, 0, frames.SYN, 1000))
    assert wire.wait(lambda: not wire.queued(), 30), 'QEMU takes no more frames'


def raw_many_vanish(wire, guest):
    """1,500 clients connect, say nothing and vanish; 200 more only send a SYN: the next client is served at once."""
    wire.resolve(wire.guest4)
    for _ in range(1500):
        gone = rawtcp.RawTcp(wire, wire.guest4, 7).start()
        gone.wait(lambda gone=gone: gone.state == 'open', 20, 'handshake')
        gone.abandon()
    half_open(wire, 200)
    begin = time.monotonic()
    trafficmix.tcp_echo(wire, 100_000)
    assert time.monotonic() - begin < 3, 'the next client waits'
    trafficmix.ping(wire, 5, (56,))


def raw_syn_flood(wire, guest):
    """More half-open connections than the backlog holds: clients are served again once those are given up."""
    wire.resolve(wire.guest4)
    half_open(wire, 3000)
    trafficmix.tcp_echo(wire, 100_000, timeout=60)


def raw_bad_wire(wire, guest):
    """Loss, repetition and reordering in both directions."""
    wire.resolve(wire.guest4)
    for side in (wire.to_guest, wire.from_guest):
        side.drop, side.repeat, side.reorder = 0.01, 0.02, 0.03
    rawtcp.echo(wire, wire.guest4, 7, traffic.content(300_000), 120)
    for side in (wire.to_guest, wire.from_guest):
        side.drop = side.repeat = side.reorder = 0


def raw_delay(wire, guest):
    """A wire 50 ms long."""
    wire.resolve(wire.guest4)
    wire.to_guest.delay = 0.05
    rawtcp.echo(wire, wire.guest4, 7, traffic.content(500_000), 60)
    wire.to_guest.delay = 0


ONE_BY_ONE = 'features=-guest_tso4,-guest_tso6,-host_tso4,-host_tso6'     # each segment a frame
TRAFFIC = [
    Row('user', wire='user', traffic=('tcp_10mb', 'udp_10000', half_close_and_pauses, resets, parallel)),
    Row('tap', traffic=('tcp_10mb', 'udp_10000', half_close_and_pauses, resets, parallel, many_short, udp_any_size, six)),
    Row('tap-ping', traffic=(ping_sizes, flood, 'wake')),
    Row('dgram', wire='dgram', traffic=('tcp_10mb', 'udp_10000', raw_udp_largest, raw_udp_six, 'discard_chargen')),
    Row('stream', wire='stream', traffic=('tcp_10mb', 'udp_10000', raw_udp_largest), full=True),
    Row('dgram-ping', wire='dgram', traffic=(raw_ping_every_size, 'wake')),
    Row('dgram-peers', wire='dgram', traffic=(raw_zero_window, raw_vanish, raw_bad_wire, raw_fragments_disordered, raw_delay, raw_many_vanish, 'smoke')),
    Row('tap-hoarders', machine={'memory': '64M'}, traffic=(hoarders,)),
    Row('tap-wrap', words=ONE_BY_ONE, traffic=(wrap_indices, 'wake')),
    Row('tap-wrap-event-idx-off', words=ONE_BY_ONE + ',-event_idx', without=('event_idx',), traffic=(wrap_indices, 'wake'), full=True),
    Row('tap-wrap-indirect-off', words=ONE_BY_ONE + ',-indirect_desc', without=('indirect_desc',), traffic=(wrap_indices,), full=True),
    Row('tap-wrap-ring-4', words='ring=4 ' + ONE_BY_ONE, traffic=(wrap_indices, 'wake'), full=True),
    Row('dgram-syn-flood', wire='dgram', traffic=(raw_syn_flood,), full=True),
    Row('tap-csum-off', words='features=-csum,-guest_csum', without=('csum', 'guest_csum'),
        traffic=(half_close_and_pauses, resets, parallel, six, ping_sizes), full=True),
    Row('tap-mrg-off', words='features=-mrg_rxbuf', without=('mrg_rxbuf',),
        traffic=(half_close_and_pauses, resets, parallel, six, ping_sizes, flood), full=True),
    Row('tap-ring-16', words='ring=16', traffic=(half_close_and_pauses, resets, parallel, six, flood), full=True),
    Row('tap-ring-2', words='ring=2', traffic=(half_close_and_pauses, resets, parallel, six, flood), full=True),
    Row('tap-intx', props={'vectors': 0}, traffic=('tcp_10mb', 'udp_10000', flood, parallel), full=True),
    Row('tap-64M', machine={'memory': '64M'}, traffic=(half_close_and_pauses, resets, parallel, many_short, udp_any_size, six, flood), full=True),
    Row('dgram-64M', wire='dgram', machine={'memory': '64M'}, traffic=(raw_zero_window, raw_vanish, raw_bad_wire, raw_udp_largest), full=True),
    Row('dgram-ring-4', wire='dgram', words='ring=4', traffic=('tcp_10mb', 'udp_10000', raw_udp_largest, raw_zero_window, raw_bad_wire), full=True),
]


@rows.table(TRAFFIC)
def test_traffic(row, image):
    """Echo in quantity, peers of every kind, ping of every size."""
    rows.run(row, image)


@pytest.mark.full
@rows.table([Row('apps-echo', words='apps=echo', traffic=())])
def test_only_the_apps_asked_for(row, image):
    """apps=echo starts echo and nothing else."""
    def check(wire, guest):
        trafficmix.tcp_echo(wire, 10_000)
        with pytest.raises(ConnectionRefusedError):
            wire.tcp(9)
    row.traffic = (check,)
    rows.run(row, image)
