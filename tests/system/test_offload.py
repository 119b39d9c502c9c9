"""Segmentation offload on and off, both ways: contents whole, the offload really used where it was agreed on, and really not where it was
not; fresh data in order; small windows, small and large segments, loss, and connections that end with much under way."""
import itertools
import re
import socket
import time

import pytest

import pairwise
import prometheus
import tapwatch
import traffic
import trafficmix
import wires
from rslib.netns import Netns
from rslib.qemu import Guest, Machine
from trafficmix import MB

# Values of guest_tso and host_tso: the IP versions.
FEATURES = {'mrg_rxbuf': (True, False), 'guest_tso': ('46', '4', '6', ''), 'host_tso': ('46', '4', '6', ''), 'csum': (True, False),
            'guest_csum': (True, False), 'indirect_desc': (True, False), 'cores': (1, 2)}


def allowed(row):
    """Segmentation needs checksums: without them it is off whatever is asked for."""
    return (row['csum'] or not row['host_tso']) and (row['guest_csum'] or not row['guest_tso'])


COVER = pairwise.cover(FEATURES, allowed)


def name(row):
    """A test's id."""
    return '-'.join(f'{key}={value}' if isinstance(value, int) and key == 'cores' else f'{key}{value}' if isinstance(value, str)
                    else key if value else 'no_' + key for key, value in row.items())


def everything():
    """Every combination; those that differ by IP version on one core or two, the others on each."""
    rows, done = list(COVER), {name({**row, 'cores': 0}) for row in COVER}
    for number, row in enumerate(pairwise.product(FEATURES, allowed)):
        features = name({**row, 'cores': 0})
        mixed = {row['host_tso'], row['guest_tso']} & {'4', '6'}
        if mixed and (features in done or number // 2 % 2 == row['cores'] - 1) or row in COVER:
            continue
        rows.append(row)
    return rows


def words(row):
    """The boot line's features word."""
    off = [f for f in ('mrg_rxbuf', 'csum', 'guest_csum', 'indirect_desc') if not row[f]]
    off += [f'{side}_tso{version}' for side in ('guest', 'host') for version in '46' if version not in row[side + '_tso']]
    return 'features=' + ','.join('-' + f for f in off) if off else ''


def metrics(wire):
    """What the guest counts."""
    return prometheus.parse(prometheus.ask(wire.tcp(80), prometheus.get_request('/metrics'), reset=True).body.decode())


def check_used(watch, row, version):
    """Large frames on the wire, in the directions agreed on only."""
    for who, side in (('guest', 'host_tso'), ('host', 'guest_tso')):
        seen, large = watch.seen[who, version], watch.large[who, version]
        assert seen, f'no TCP of the {who} over IPv{version} seen'
        if str(version) in row[side]:
            assert large * 5 > seen or large > 50, f'{side}{version} is hardly used: {large} of {seen} frames of the {who} are large'
        else:
            assert not large, f'{side}{version} is off, {large} of {seen} frames of the {who} are larger than the MTU'


def check_order(watch):
    """The guest left nothing out; which only tells something if all was seen."""
    watch.look()
    assert not watch.lost(), f'{watch.lost()} frames not seen'
    assert not watch.faults, f'{len(watch.faults)}: {watch.faults[:3]}'


def combination(image, row, size):
    """Echoes `size` bytes over each IP version, and streams some from the guest and to it."""
    cores = row['cores']
    with wires.make('tap', queues=cores) as wire:
        machine = Machine(image, append=f'{wire.words()} {words(row)}'.strip(), netdev=wire.netdev(), smp=cores,
                          props={'mq': 'on'} if cores > 1 else {})
        with Guest(machine, netns=wire.netns) as guest, tapwatch.TapWatch(wire.netns) as watch:
            guest.wait_ready(30)
            for version, address in ((4, wires.GUEST4), (6, wires.GUEST6)):
                trafficmix.reach(wire, address)
                before = metrics(wire)
                traffic.tcp_echo(wire.tcp(7, address), size, timeout=200)
                watch.look()
                traffic.tcp_chargen(wire.tcp(19, address), 4 * MB, timeout=200)
                traffic.tcp_discard(wire.tcp(9, address), 4 * MB, timeout=200)
                after = metrics(wire)
                check_used(watch.look(), row, version)
                for metric, side in (('rx', 'guest_tso'), ('tx', 'host_tso')):
                    # The questions themselves are asked over IPv4, and the page takes more than one frame.
                    used = after.total(f'ringside_{metric}_gso_total') - before.total(f'ringside_{metric}_gso_total')
                    if str(version) in row[side]:
                        assert used > 20, f'{metric}_gso: {used}'
                    elif version == 6 and '4' in row[side]:
                        assert used < 20, f'{metric}_gso: {used} though IPv6 is off'
                    else:
                        assert used == 0, f'{metric}_gso: {used} though it is off'
            check_order(watch)
            assert metrics(wire).total('ringside_tx_dropped_total') == 0
            guest.finish()


@pytest.mark.seconds(400)
@pytest.mark.parametrize('row', COVER, ids=name)
def test_combinations(image, row):
    """Every pair of settings."""
    combination(image, row, 8 * MB)


@pytest.mark.full
@pytest.mark.seconds(900)
@pytest.mark.parametrize('row', everything(), ids=name)
def test_all_combinations(image, row):
    """All of them, 100 MB each way."""
    combination(image, row, 100 * MB)


# ---- one guest, peers of every kind

@pytest.fixture(scope='module')
def lan(image):
    """A guest on a tap, everything on."""
    with wires.make('tap') as wire:
        with Guest(Machine(image, append=wire.words(), netdev=wire.netdev()), netns=wire.netns) as guest:
            guest.wait_ready(30)
            trafficmix.reach(wire, wires.GUEST6)
            yield wire
            guest.finish()


def connect(wire, port, address=wires.GUEST4, receive=0, mss=0):
    """A TCP socket to the guest with a small receive buffer or small segments."""
    six = ':' in address
    sock = wire.netns.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_STREAM)
    if receive:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    if mss:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, mss)
    sock.settimeout(10)
    sock.connect((address, port))
    return sock


ADDRESSES = pytest.mark.parametrize('address', [wires.GUEST4, wires.GUEST6], ids=['4', '6'])


@ADDRESSES
@pytest.mark.parametrize('receive', [1, 2048, 4096, 16384])
def test_small_windows(lan, address, receive):
    """A peer with little room gets its stream all the same, also when it stops reading now and then."""
    begin = time.monotonic()
    traffic.tcp_chargen(connect(lan, 19, address, receive), 500_000, timeout=60)
    traffic.tcp_echo(connect(lan, 7, address, receive), 300_000, pauses=((50_000, 0.5), (100_000, 0.5)))
    traffic.tcp_chargen(connect(lan, 19, address, receive), 100_000, pause=1.5)
    assert time.monotonic() - begin < 30


@ADDRESSES
@pytest.mark.parametrize('mss', [88, 536, 1220])
def test_small_segments(lan, address, mss):
    """The peer's MSS is kept to, by pieces of large segments as well; what comes in small pieces is acknowledged in time."""
    with tapwatch.TapWatch(lan.netns) as watch:
        traffic.tcp_chargen(connect(lan, 19, address, mss=mss), 3 * MB)
        seconds = traffic.tcp_echo(connect(lan, 7, address, mss=mss), 3 * MB)
        assert watch.look().large['guest', 6 if ':' in address else 4] > 10
    assert seconds < 20


@ADDRESSES
def test_closed_with_much_under_way(lan, address):
    """The end of the stream comes behind all of it: the echo's peer ends at once, everything still comes back, of any size."""
    for size in itertools.chain(range(1, 20_000, 1237), (65_536, 70_001, 131_071, 400_000, 2_000_003)):
        traffic.tcp_echo(lan.tcp(7, address), size)


def test_reset_in_mid_stream(lan):
    """Resets with large segments under way leave nothing behind."""
    for _ in range(30):
        with lan.tcp(19) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, traffic.LINGER_RESET)
            sock.recv(100_000)
        traffic.tcp_reset(lan.tcp(7), 1_000_000)
    trafficmix.tcp_echo(lan, MB)


@ADDRESSES
@pytest.mark.parametrize('mtu', [1280, 1400])
def test_route_with_a_smaller_mtu(image, address, mtu):
    """The host's route to the guest has a smaller MTU: it announces smaller segments."""
    with wires.make('tap') as wire:
        with Guest(Machine(image, append=wire.words(), netdev=wire.netdev()), netns=wire.netns) as guest:
            guest.wait_ready(30)
            trafficmix.reach(wire, address)
            six = ['-6'] if ':' in address else []
            wire.netns.run(['ip', *six, 'route', 'replace', address, 'dev', 'tap0', 'mtu', mtu, 'advmss', mtu - (60 if six else 40)])
            traffic.tcp_echo(wire.tcp(7, address), 3 * MB)
            traffic.tcp_chargen(wire.tcp(19, address), 3 * MB)
            guest.finish()


@ADDRESSES
@pytest.mark.parametrize('mss', [0, 1220, 8940])
def test_large_frames(image, address, mss):
    """An interface MTU of 9,000, and peers whose segments are as large, or smaller."""
    with wires.make('tap', mtu=9000) as wire:
        machine = Machine(image, append=wire.words(), netdev=wire.netdev(), props={'host_mtu': 9000})
        with Guest(machine, netns=wire.netns) as guest, tapwatch.TapWatch(wire.netns, mtu=9000) as watch:
            guest.wait_ready(30)
            trafficmix.reach(wire, address)
            traffic.tcp_echo(connect(wire, 7, address, mss=mss), 10 * MB)
            traffic.tcp_chargen(connect(wire, 19, address, mss=mss), 10 * MB)
            version = 6 if ':' in address else 4
            watch.look()
            assert watch.large['guest', version] > 10 and watch.large['host', version] > 10
            check_order(watch)
            guest.finish()


# ---- loss

class Bottleneck(wires.TapWire):
    """The tap is a port of a bridge; the host's stack is behind a slow link with little room in front of it, both ways: it
    cuts large packets into their pieces and drops those that it has no room for."""

    RATE, ROOM = '60mbit', 50_000

    def __enter__(self):
        super().__enter__()
        run = self.netns.run
        try:
            run(['ip', 'addr', 'flush', 'dev', 'tap0'])
            run(['ip', 'link', 'add', 'port', 'type', 'veth', 'peer', 'name', 'far'])
            run(['ip', 'link', 'add', 'br0', 'type', 'bridge'])
            for device in ('port', 'far'):
                self.netns.sysctl(f'net.ipv6.conf.{device}.accept_dad', 0)
                run(['tc', 'qdisc', 'add', 'dev', device, 'root', 'tbf', 'rate', self.RATE, 'burst', 6000, 'limit', self.ROOM])
            for device in ('port', 'tap0'):
                run(['ip', 'link', 'set', device, 'master', 'br0'])
            for address in (f'{wires.HOST4}/{wires.MASK}', f'{wires.HOST6}/64'):
                run(['ip', 'addr', 'add', address, 'dev', 'far'] + (['nodad'] if ':' in address else []))
            for device in ('br0', 'port', 'far'):
                run(['ip', 'link', 'set', device, 'up'])
        except BaseException:
            self.netns.close()
            raise
        return self

    def dropped(self, device):
        """Packets that the queue in front of the slow link has dropped, and all that it has sent."""
        text = self.netns.run(['tc', '-s', 'qdisc', 'show', 'dev', device]).stdout
        sent, dropped = re.search(r'Sent \d+ bytes (\d+) pkt \(dropped (\d+)', text).groups()
        return int(dropped), int(sent)


@ADDRESSES
def test_loss(image, address):
    """Any piece of a large segment may be lost, both ways."""
    with Bottleneck() as wire:
        with Guest(Machine(image, append=wire.words(), netdev=wire.netdev()), netns=wire.netns) as guest, \
                tapwatch.TapWatch(wire.netns) as watch:
            guest.wait_ready(30)
            trafficmix.reach(wire, address)
            traffic.tcp_chargen(wire.tcp(19, address), 20 * MB, timeout=100)
            traffic.tcp_echo(wire.tcp(7, address), 5 * MB, timeout=100)
            dropped, sent = wire.dropped('port')
            watch.look()
            assert dropped > 30 and watch.again > 10, f'{dropped} of {sent} dropped, {watch.again} sent again'
            assert watch.large['guest', 6 if ':' in address else 4] > 100
            check_order(watch)
            guest.finish()


# ---- a router with a narrow link behind it

@pytest.mark.parametrize('mtu', [1280, 1400])
@pytest.mark.parametrize('version', [4, 6])
def test_narrow_path(image, version, mtu):
    """The peer is behind a router whose further link takes less than either end's: what the guest sends gets there, by IPv6 once
    the router has said so, by IPv4 in fragments that are not mixed up."""
    guest_words = f'ip={wires.GUEST4}/24,gw={wires.HOST4} ip6={wires.GUEST6}/64,gw={wires.HOST6}'
    address, near, far = {4: (wires.GUEST4, '198.18.1.1', '198.18.1.2'), 6: (wires.GUEST6, 'fd01::1', 'fd01::2')}[version]
    bits = 24 if version == 4 else 64
    with wires.make('tap') as wire, Netns() as behind:
        wire.netns.run(['ip', 'link', 'add', 'near', 'type', 'veth', 'peer', 'name', 'far', 'netns', f'/proc/{behind.pid}/ns/net'])
        for netns, device, end in ((wire.netns, 'near', near), (behind, 'far', far)):
            netns.sysctl(f'net.ipv6.conf.{device}.accept_dad', 0)
            netns.run(['ip', 'addr', 'add', f'{end}/{bits}', 'dev', device] + (['nodad'] if version == 6 else []))
            netns.run(['ip', 'link', 'set', device, 'up'])
        wire.netns.run(['ip', 'link', 'set', 'near', 'mtu', mtu])
        behind.run(['ip', f'-{version}', 'route', 'add', 'default', 'via', near])
        wire.netns.sysctl('net.ipv4.ip_forward', 1)
        wire.netns.sysctl('net.ipv6.conf.all.forwarding', 1)
        with Guest(Machine(image, append=guest_words, netdev=wire.netdev()), netns=wire.netns) as guest, \
                tapwatch.TapWatch(wire.netns) as watch:
            guest.wait_ready(30)
            trafficmix.reach(wire, address)

            def connected(port):
                sock = behind.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_STREAM)
                sock.settimeout(20)
                sock.connect((address, port))
                return sock

            for port in (19, 7, 19):            # the first connection finds out, later ones know
                sock = connected(port)
                if port == 19:
                    traffic.tcp_chargen(sock, 5 * MB)
                else:
                    traffic.tcp_echo(sock, 2 * MB)
            assert watch.look().large['guest', version] > 10
            check_order(watch)
            guest.finish()
