"""A backend that misbehaves: a vhost-user device of our own (tests/lib/liar.py) lies under traffic. Every row: the guest survives,
counts what it can see, serves again within a second after the lie, and no connection that was open is broken or gets a wrong byte.
"""
import contextlib
import dataclasses
import random
import re
import time

import pytest

import checks
import liar
import prometheus
import rawtcp
import rows
import steering
import traffic
import wires
from rawtraffic import UdpEcho
from rslib.qemu import Guest, Machine

SERVES = 1.0                    # seconds after the end of a lie
LIE_SECONDS = 2.5               # how long those last that have no count: longer than a lost notification takes to be noticed
OTHER_FEATURES = {name: liar.FEATURES & ~(1 << bit) for name, bit in (
    ('no_guest_csum', liar.F_GUEST_CSUM), ('no_event_idx', liar.F_EVENT_IDX), ('no_indirect', liar.F_INDIRECT), ('no_mrg', liar.F_MRG_RXBUF))}
NEEDS_RESET = 0x40
STALLED = r'queue \d+: the device has \d+ frames to send and returned none for a second'
BAD_ID, BAD_LENGTH = r'queue \d+: the device wrote used id \d+', r'queue \d+: the device wrote used length \d+'
BROKEN = r'queue \d+: the device wrote used index \d+, valid is up to \d+: the queue is broken'
RESET = r'the device was reset and runs again after \d+ us'


@dataclasses.dataclass
class Row:
    """One lie."""

    name: str                   # in liar.LIES
    side: str                   # rx or tx
    count: int = None           # told so many times; None: for LIE_SECONDS
    counter: tuple = ()         # (metric, {labels}) that must go up
    console: tuple = ()         # said once on the console for each queue that lied, or
    resets: int = 0             # (with a reset) once
    words: str = ''             # of the boot line
    features: str = ''          # of OTHER_FEATURES
    full: bool = False

    @property
    def id(self):
        """For pytest."""
        return '-'.join(filter(None, (self.name, self.side, str(self.count or ''), self.features, self.words.replace('=', ''))))


def counted(what, **labels):
    """A counter that goes up."""
    return f'ringside_{what}_total', labels


ROWS = [
    Row('drop_kick', 'tx', None, counted('tx_kicks_repeated'), (STALLED,)),
    Row('drop_kick', 'tx', None, counted('tx_kicks_repeated'), (STALLED,), features='no_event_idx', full=True),
    Row('drop_kick', 'rx', 1, counted('rx_kicks_repeated'), words='ring=8'),
    Row('drop_kick', 'rx', None, counted('rx_kicks_repeated'), words='ring=8', features='no_event_idx', full=True),
    Row('drop_kick', 'rx', None, counted('rx_kicks_repeated'), words='ring=8', full=True),
    Row('starve', 'tx', None, counted('tx_kicks_repeated'), (STALLED,)),
    Row('starve', 'rx'),
    Row('hold', 'tx', None, counted('tx_kicks_repeated'), (STALLED,)),
    Row('hold', 'tx', None, counted('tx_kicks_repeated'), (STALLED,), words='ring=8', full=True),
    Row('hold', 'rx'),
    Row('delay', 'tx'), Row('delay', 'rx'),
    Row('reorder', 'tx'), Row('reorder', 'rx'), Row('reorder', 'tx', features='no_indirect', full=True),
    Row('deaf', 'tx', words='ring=8'), Row('deaf', 'rx'),
    Row('chatty', 'rx'), Row('chatty', 'tx', None, counted('spurious_interrupts')),
    Row('id_range', 'tx', 3, counted('tx_bad_used'), (BAD_ID,)), Row('id_range', 'rx', 3, counted('rx_bad_used'), (BAD_ID,)),
    Row('id_idle', 'tx', 3, counted('tx_bad_used'), (BAD_ID,)),
    Row('twice', 'rx', 3, counted('rx_bad_used'), (BAD_ID,)),
    Row('twice', 'tx', 1, counted('tx_bad_used'), resets=1),
    Row('length', 'tx', 3, counted('tx_bad_used'), (BAD_LENGTH,)), Row('length', 'rx', 3, counted('rx_bad_used'), (BAD_LENGTH,)),
    Row('index_jump', 'tx', 1, counted('resets'), (BROKEN, RESET), resets=1),
    Row('index_jump', 'rx', 1, counted('resets'), (BROKEN, RESET), resets=1),
    Row('index_jump', 'rx', 1, counted('resets'), (BROKEN, RESET), resets=1, features='no_mrg', full=True),
    Row('index_back', 'tx', 1, counted('resets'), (BROKEN, RESET), resets=1),
    Row('index_back', 'rx', 1, counted('resets'), (BROKEN, RESET), resets=1),
    Row('scribble', 'tx'), Row('scribble', 'rx'), Row('scribble', 'tx', features='no_indirect', full=True),
    Row('short', 'rx', 5, counted('rx_dropped', reason='short_frame')), Row('empty', 'rx', 5, counted('rx_dropped', reason='short_frame')),
    Row('num_0', 'rx', 5, counted('rx_dropped', reason='num_buffers')),
    Row('num_2', 'rx', 20, counted('rx_dropped', reason='num_buffers')),
    Row('num_huge', 'rx', 5, counted('rx_dropped', reason='num_buffers')),
    Row('gso', 'rx', 5, counted('rx_dropped', reason='bad_header')), Row('gso_udp', 'rx', 5, counted('rx_dropped', reason='bad_header')),
    Row('gso_unknown', 'rx', 5, counted('rx_dropped', reason='bad_header')),
    Row('csum_start', 'rx', 5, counted('rx_dropped', reason='bad_header')),
    Row('csum_offset', 'rx', 5, counted('rx_dropped', reason='bad_header')),
    Row('needs_csum', 'rx', 5, counted('rx_dropped', reason='bad_header'), features='no_guest_csum'),
]
PAIRS = (1, 2)


def table():
    """Each row on one and two queue pairs; the covering subset has one pair only where the driver recovers by itself."""
    def full(row, pairs):
        return row.full or (pairs == 1 and not row.resets and row.name != 'drop_kick')
    return pytest.mark.parametrize('row, pairs', [
        pytest.param(row, pairs, id=f'{row.id}-{pairs}', marks=[pytest.mark.full] if full(row, pairs) else [])
        for row in ROWS for pairs in PAIRS])


@contextlib.contextmanager
def guest_on(image, pairs, words='', warnings=(), **options):
    """A guest on our device, ready and resolved; gives (wire, guest, device). Ends it in order and checks what is left."""
    with wires.raw_wire(link=liar.link(pairs=pairs, **options)) as wire:
        machine = Machine(image, append=f'{wire.words()} {words}', netdev=wire.netdev(), warnings=warnings, **wire.link.machine())
        with Guest(machine, netns=None) as guest:
            ready = guest.wait_ready(rows.SHORT)
            assert int(ready['queues']) == pairs
            wire.resolve(wires.GUEST4)
            yield wire, guest, wire.link.device
            guest.finish()
        checks.console(guest)
        wire.check()
        wire.link.device.check()


def source_of(core, pairs, start):
    """A UDP source port whose flow to the echo port belongs to that core."""
    return next(port for port in range(start, 65536) if steering.owner(pairs, wires.HOST4, wires.GUEST4, port, 7) == core)


def served(wire, pairs, start, patience=10):
    """Seconds until every core has answered a datagram."""
    begin = time.monotonic()
    for core in range(pairs):
        while True:
            asked = UdpEcho(wire, wires.GUEST4, count=1, sizes=(100,))
            asked.lport = start = source_of(core, pairs, start + 1)
            if asked.run(0.1).answered:
                break
            assert time.monotonic() - begin < patience, f'core {core} answers nothing {patience} s after the lie\n{wire.report()}'
    return time.monotonic() - begin


def scrape(wire):
    """A checked scrape of /metrics."""
    connection = rawtcp.RawTcp(wire, wires.GUEST4, 80, prometheus.get_request('/metrics'), echo=False).start()
    connection.wait(lambda: connection.peer_fin, 20, '/metrics')
    connection.close()
    answer = prometheus.Answer(bytes(connection.got))
    assert answer.status == 200
    return prometheus.parse(answer.body.decode('ascii'))


def streams(wire, pairs, size=100_000):
    """Echo connections under way, enough that each core has some."""
    return [rawtcp.RawTcp(wire, wires.GUEST4, 7, traffic.content(size, seed)).start() for seed in range(4 * pairs)]


def lie_under_traffic(wire, device, row, pairs):
    """Connections open, then the lie, with datagrams beside them so that it has its occasions; gives the connections."""
    device.lie(row.name, row.side, row.count)
    open_ones = streams(wire, pairs)
    end = time.monotonic() + LIE_SECONDS
    port = 30000
    while time.monotonic() < end and (row.count is None or sum(device.told.values()) < row.count):
        for core in range(pairs):
            asked = UdpEcho(wire, wires.GUEST4, count=20, sizes=(100, 1400), window=1)
            asked.lport = port = source_of(core, pairs, port + 1)
            asked.run(0.1)
    assert sum(device.told.values()) >= (row.count or 1), f'the lie was never told: {device.told}'
    if row.count is not None and row.name == 'drop_kick':
        time.sleep(0.5)         # nothing has ended: what was dropped stays dropped until the driver does something
    device.truth()
    return open_ones


@table()
def test_lie(image, row, pairs):
    """One lie, as a row says."""
    options = {'features': OTHER_FEATURES[row.features]} if row.features else {}
    with guest_on(image, pairs, row.words, **options) as (wire, guest, device):
        before = scrape(wire)
        open_ones = lie_under_traffic(wire, device, row, pairs)
        seconds = served(wire, pairs, 50000)
        assert seconds < (3 if row.count and row.name == 'drop_kick' else SERVES), f'served {seconds:.1f} s after the lie'
        for stream in open_ones:
            stream.wait_echo(40)
            stream.close()
        after = scrape(wire)
        if row.counter:
            name, labels = row.counter
            assert after.total(name, **labels) > before.total(name, **labels), f'{name} {labels} did not go up'
        assert after.total('ringside_resets_total') == row.resets
        if not row.resets and not row.counter:
            for name in ('rx_bad_used', 'tx_bad_used', 'rx_dropped'):
                assert after.total(f'ringside_{name}_total') == 0
        for pattern in row.console:
            said = re.findall(pattern, guest.console)
            assert 1 <= len(said) <= len(device.told), f'/{pattern}/ is {len(said)} times on the console'
        assert served(wire, pairs, 55000) < SERVES


@pytest.mark.parametrize('pairs', PAIRS)
def test_reconnect(image, pairs):
    """The backend dies with connections under way, and another comes in its place, twice: the guest sees the link go down and
    up, and serves on; what was open goes on. The new one says DEVICE_NEEDS_RESET: QEMU has no way to pass that on."""
    with guest_on(image, pairs, warnings=liar.GONE) as (wire, guest, device):
        open_ones = streams(wire, pairs, 400_000)
        for turn in range(2):
            said = guest.mark()
            device.unlisten()
            device.disconnect()
            guest.wait_for('net: link down', 5, said)
            device.status_lie = NEEDS_RESET * turn
            device.listen()
            guest.wait_for('net: link up', 5, said)
            assert served(wire, pairs, 40000 + 1000 * turn) < SERVES
        for stream in open_ones:
            stream.wait_echo(40)
            stream.close()
        assert device.statuses[-1] & NEEDS_RESET, 'QEMU writes back what it has read'
        told = guest.qmp('x-query-virtio-status', path='/machine/peripheral/nic0/virtio-backend')['status']['statuses']
        assert not any('NEEDS_RESET' in bit for bit in told), told
        assert scrape(wire).total('ringside_resets_total') == 0 and device.connections == 3


@pytest.mark.parametrize('pairs', PAIRS)
def test_link(image, pairs):
    """The link goes down with frames in the queues: the backend is stopped, and goes on from where it was."""
    with guest_on(image, pairs) as (wire, guest, device):
        open_ones = streams(wire, pairs, 400_000)
        for turn in range(3):
            said = guest.mark()
            device.lie('hold', 'tx', 10)
            guest.qmp('set_link', name='nic0', up=False)
            guest.wait_for('net: link down', 5, said)
            guest.qmp('set_link', name='nic0', up=True)
            guest.wait_for('net: link up', 5, said)
            device.truth()
            assert served(wire, pairs, 40000 + 1000 * turn) < SERVES
        for stream in open_ones:
            stream.wait_echo(40)
            stream.close()
        sample = scrape(wire)
        assert sample.total('ringside_resets_total') == sample.total('ringside_tx_bad_used_total') == 0


@pytest.mark.parametrize('pairs', PAIRS)
def test_storm(image, pairs):
    """Interrupts for nothing: they are counted, and cost time only."""
    with guest_on(image, pairs) as (wire, _, device):
        open_ones = streams(wire, pairs, 400_000)
        for _ in range(300):
            device.storm(3)
            time.sleep(0.001)
        assert served(wire, pairs, 40000) < SERVES
        for stream in open_ones:
            stream.wait_echo(40)
            stream.close()
        assert scrape(wire).total('ringside_spurious_interrupts_total') > 10


@pytest.mark.seconds(400)
@pytest.mark.parametrize('pairs', PAIRS)
@pytest.mark.parametrize('seed, lies, features', [
    (1, 30, ''), *(pytest.param(seed, 100, features, marks=pytest.mark.full)
                   for seed, features in ((2, ''), (3, 'no_event_idx'), (4, 'no_indirect'), (5, 'no_mrg'), (6, 'no_guest_csum')))])
def test_many_lies(image, pairs, seed, lies, features):
    """Lies of all kinds, several at a time, with the truth in between; in the end all is well, and no buffer is gone that a
    reset gives back."""
    rng = random.Random(seed)
    options = {'features': OTHER_FEATURES[features]} if features else {}
    with guest_on(image, pairs, **options) as (wire, guest, device):
        for turn in range(lies // 5):
            for _ in range(5):
                device.lie(rng.choice(sorted(liar.LIES)), [rng.randrange(2 * pairs)], rng.choice((1, 3, 20)))
            end = time.monotonic() + rng.random()
            while time.monotonic() < end:
                asked = UdpEcho(wire, wires.GUEST4, count=50, sizes=(100, 1400), window=10)
                asked.lport = 30000 + rng.randrange(10000)
                asked.run(0.05)
            device.truth()
            served(wire, pairs, 41000 + 100 * turn)
        assert len({name for name, _ in device.told}) > min(lies, 20) // 4, device.told
        time.sleep(1.2)                         # a device that has just been reset is not reset again within a second
        served(wire, pairs, 49000)
        said = len(guest.console)
        device.lie('index_jump', 'tx', 1)       # a reset gives back what was lost
        while not re.search(RESET, guest.console[said:]):
            served(wire, pairs, 50000)
            time.sleep(0.1)
        assert served(wire, pairs, 52000) < SERVES
        for stream in streams(wire, pairs):
            stream.wait_echo(40)
            stream.close()
        sample = scrape(wire)
        assert sample.total('ringside_rx_pool_size') - sample.total('ringside_rx_pool_free') <= pairs * 256 + 20
        assert sample.total('ringside_tx_ring_free') >= pairs * 256 - 20
