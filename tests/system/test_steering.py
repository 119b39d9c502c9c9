"""One guest on many cores looks like one host: each flow served by its owner, ARP and neighbour discovery answered once and
learned by all, link and addresses the same everywhere; and no core is forgotten by an interrupt."""
import collections
import concurrent.futures
import dataclasses
import itertools
import select
import statistics
import time

import pytest

import frames
import many
import queues
import rows
import stations
import steering
import test_metrics
import test_traffic
import traffic
import trafficmix
import wires
from dnsmasq import Dnsmasq, have
from rows import Row
from rslib.qemu import Guest
from test_cores import many_row, run, serves
from test_link import DOWN, UP, set_link

GUEST4, GUEST6 = frames.ip(wires.GUEST4), frames.ip(wires.GUEST6)
TAP4 = Row('tap4', machine={'smp': 4, 'memory': '256M', 'trace': queues.EVENTS}, props={'mq': 'on'}, with_=('mq',),
           wire_options={'queues': 4})
RSS = {'rss': 'on'}
KIB = 1024


def owned(wire, each, **ends):
    """Fresh source ports, `each` for every one of four cores, in one list."""
    return sum(wire.sources(4, each, **ends).values(), [])


def on_four(traffic_, name, **fields):
    """A row: four cores, four queues, this traffic."""
    return many_row(name, 4, 4, traffic=traffic_, **fields)


def test_published_hash():
    """The tests' own hash gives the published values (the verification suite that comes with the standard key)."""
    for source, sport, destination, dport, without, with_ports in (
            ('66.9.149.187', 2794, '161.142.100.80', 1766, 0x323E8FC2, 0x51CCC178),
            ('199.92.111.2', 14230, '65.69.140.83', 4739, 0xD718262A, 0xC626B0EA),
            ('24.19.198.95', 12898, '12.22.207.184', 38024, 0xD2D0A5DE, 0x5C2B394A),
            ('38.27.205.30', 48228, '209.142.163.6', 2217, 0x82989176, 0xAFC7327F),
            ('153.39.163.191', 44251, '202.188.127.2', 1303, 0x5D1809C5, 0x10E828A2),
            ('3ffe:2501:200:1fff::7', 2794, '3ffe:2501:200:3::1', 1766, 0x2CC18CD5, 0x40207D3D),
            ('3ffe:501:8::260:97ff:fe40:efab', 14230, 'ff02::1', 4739, 0x0F0C461C, 0xDDE51BBF),
            ('3ffe:1900:4545:3:200:f8ff:fe21:67cf', 44251, 'fe80::200:f8ff:fe21:67cf', 38024, 0x4B61E985, 0x02D1FEEF)):
        assert steering.flow_hash(source, destination) == without
        assert steering.flow_hash(source, destination, sport, dport) == with_ports


# ---- many connections

def two_hundred(wire, guest):
    """200 connections open at once, 50 to each core, 40 KiB both ways on each."""
    many.echo(wire, 40 * KIB, sources=owned(wire, 50))


def two_hundred_six(wire, guest):
    """The same over IPv6."""
    trafficmix.reach(wire, wires.GUEST6)
    many.echo(wire, 40 * KIB, sources=owned(wire, 50, host=wires.HOST6, guest=wires.GUEST6), address=wires.GUEST6)


def idle(wire, guest):
    """Connections that are quiet for longer than the tap remembers which queue they belong to (3 s): their next packets may
    come by another queue, and are handed over."""
    with many.Connections(wire, sources=owned(wire, 6)) as connections:
        for _ in range(2):
            connections.exchange(20_000)
            time.sleep(4)
        connections.exchange(20_000)
        connections.finish()


def one_after_another(wire, guest):
    """Connections opened and closed in turn, on all cores: nothing is used up by it."""
    for port in owned(wire, 60):
        with wire.tcp(7, source=port) as sock:
            sock.sendall(b'%d' % port)
            assert sock.recv(100) == b'%d' % port


def link_flap(wire, guest):
    """20 connections run while the link goes down and up: nothing passes, then all cores go on."""
    with many.Connections(wire, sources=owned(wire, 5)) as connections:
        running = many.Background(connections, 10_000)
        for _ in range(2):
            running.progress()
            guest.wait_for(DOWN, 5, set_link(guest, False))
            time.sleep(0.3)
            before = running.rounds
            time.sleep(1)
            assert running.rounds <= before + 1, 'traffic passes although the link is down'
            guest.wait_for(UP, 5, set_link(guest, True))
        running.progress(3)
        running.stop()
        connections.finish()


def stopped(wire, guest):
    """QEMU stopped for 3 s under 40 connections."""
    with many.Connections(wire, sources=owned(wire, 10)) as connections:
        running = many.Background(connections, 10_000)
        running.progress()
        guest.qmp('stop')
        time.sleep(3)
        guest.qmp('cont')
        running.progress(3)
        running.stop()
        connections.finish()


def bursts(wire, guest):
    """Datagrams in bursts that no receive ring can hold, then every flow is served as before."""
    socks = [wire.udp(7, source=port) for port in owned(wire, 8)]
    for _ in range(20):
        for sock in socks:
            sock.setblocking(False)
            for _ in range(40):
                try:
                    sock.send(bytes(700))
                except BlockingIOError:
                    break
    while select.select(socks, [], [], 1)[0]:       # what was answered after all
        for sock in socks:
            while select.select([sock], [], [], 0)[0]:
                sock.recv(2000)
    for sock in socks:
        result = traffic.udp_echo(sock, 20, (64,), window=1)
        assert result.lost == 0, f'after the bursts: {result}'
    serves(4)(wire, guest)


def fragments(wire, guest):
    """Datagrams and echo requests in fragments, up to the largest, to every core."""
    sizes = (1473, 4000, 20000, trafficmix.LARGEST4)
    trafficmix.ping(wire, 3, sizes)
    for port in owned(wire, 3):
        result = traffic.udp_echo(wire.udp(7, source=port), 12, sizes, window=1)
        assert result.lost == result.repeated == 0, result
    trafficmix.reach(wire, wires.GUEST6)
    trafficmix.ping(wire, 3, (1453, 8000, trafficmix.LARGEST6), wires.GUEST6)
    for port in owned(wire, 2, host=wires.HOST6, guest=wires.GUEST6):
        result = traffic.udp_echo(wire.udp(7, wires.GUEST6, port), 9, (1453, 8192, trafficmix.LARGEST6), window=1)
        assert result.lost == result.repeated == 0, result


def connects_in_fragments(wire, guest):
    """A connection to each core whose SYN comes in fragments and whose data does not: the fragments are put together where
    the addresses hash to, and the whole belongs where the ports do."""
    station = stations.stations(1)[0]
    with stations.Tap(wire) as tap:
        for target, source in ((GUEST4, station.ip4), (GUEST6, station.ip6)):
            ask = stations.arp_request if len(target) == 4 else stations.solicitation
            tap.send(ask(station, target))
            tap.collect(0.2)        # every core has learned where the station is: where the device steers, the rest may overtake
            kind, parse = (b'\x08\x00', frames.parse_ip4) if len(target) == 4 else (b'\x86\xdd', frames.parse_ip6)

            def answer(port):
                def found(got):
                    for packet in (parse(f[14:]) for f in got if f[:6] == station.mac and f[12:14] == kind):
                        if packet.proto == frames.TCP and packet.payload[2:4] == port.to_bytes(2, 'big'):
                            return packet.payload
                    return None
                return found(tap.collect(5, found))

            for port in sum(wire.sources(4, 2, frames.show(source), frames.show(target)).values(), []):
                for frame in stations.segment(station, target, port, 1000, 0, frames.SYN, pieces=True):
                    tap.send(frame)
                syn = answer(port)
                assert syn and syn[13] == frames.SYN | frames.ACK, f'{frames.show(target)} port {port}: {syn}'
                theirs = int.from_bytes(syn[4:8], 'big') + 1
                for frame in stations.segment(station, target, port, 1001, theirs, frames.ACK, b'hello'):
                    tap.send(frame)
                data = answer(port)
                while data and not data[(data[12] >> 4) * 4:] and not data[13] & frames.RST:
                    data = answer(port)
                assert data and data.endswith(b'hello'), f'{frames.show(target)} port {port}: {data}'
                for frame in stations.segment(station, target, port, 1006, theirs + 5, frames.RST):
                    tap.send(frame)


LOAD = [
    on_four((two_hundred, one_after_another, two_hundred_six), '200-connections'),
    on_four((two_hundred, one_after_another, two_hundred_six), '200-connections-rss', props=RSS, steers='rss'),
    on_four((two_hundred,), '200-connections-hash', props={'rss': 'on', 'hash': 'on'}, steers='rss'),
    on_four((idle, stopped), 'idle-and-stopped'),
    on_four((idle, stopped), 'idle-and-stopped-rss', props=RSS, steers='rss', full=True),
    on_four((link_flap, serves(4)), 'link'),
    on_four((link_flap, serves(4)), 'link-intx', vectors=0),
    on_four((link_flap, serves(4)), 'link-one-vector', vectors=1, full=True),
    on_four((link_flap, serves(4)), 'link-rss', props=RSS, steers='rss', full=True),
    on_four((bursts,), 'bursts'),
    on_four((bursts,), 'bursts-rss', props=RSS, steers='rss'),
    on_four((bursts,), 'bursts-rss-ring-16', props=RSS, steers='rss', words='ring=16'),
    on_four((bursts,), 'bursts-rss-event-idx-off', props={'rss': 'on', 'event_idx': 'off'}, steers='rss', full=True),
    on_four((fragments, connects_in_fragments), 'fragments'),
    on_four((fragments, connects_in_fragments), 'fragments-rss', props=RSS, steers='rss'),
    on_four((fragments,), 'fragments-csum-off', props={'csum': 'off', 'guest_csum': 'off'}, full=True),
]


@rows.table(LOAD)
def test_load(row, image):
    """Many connections, bursts, fragments, changes of the link: every core serves, every byte is right."""
    run(row, image, 4, 4)


# ---- the boot words

WORDS = [       # cores of the machine, queues of the device, words, pairs
    (4, 4, 'cores=2', 2), (4, 4, 'queues=2', 2), (4, 4, 'cores=3 queues=2', 2), (4, 4, 'cores=8', 4), (4, 4, 'queues=8', 4),
    (4, 8, '', 4), (8, 3, '', 3), (4, 4, 'cores=1', 1), (4, 4, 'queues=1', 1), (2, 8, 'cores=2 queues=8', 2),
]


@rows.table([many_row(f'smp{smp}-queues{have_}-{words.replace(" ", "-") or "as-is"}', smp, pairs, queues_=have_, words=words, steers=None)
             for smp, have_, words, pairs in WORDS])
def test_words(row, image):
    """cores= and queues= are upper limits; of cores and queues the fewer count."""
    smp, have_, _, pairs = WORDS[[f'smp{w[0]}-queues{w[1]}-{w[2].replace(" ", "-") or "as-is"}' for w in WORDS].index(row.id)]
    row.console = (rf'\] smp: {pairs} of {smp} cores used: ',) if pairs < smp else ()
    guest = run(row, image, pairs, have_)
    assert (f'of {smp} cores used' in guest.console) == (pairs < smp)


# ---- wake-ups

def flood(wire, guest):
    """2,000 pings one after another, to a guest that sleeps in between: a lost wake-up costs ping 10 ms each."""
    begin = time.monotonic()
    assert wire.ping(count=2000, flood=True)[1] == 2000
    took = time.monotonic() - begin
    assert took < 8, f'2,000 pings took {took:.1f} s'


def round_trips(wire, guest):
    """One datagram after another to each core in turn, and to all at once."""
    for port in owned(wire, 1):
        result = traffic.udp_echo(wire.udp(7, source=port), 500, (64,), window=1)
        assert result.lost == 0 and result.seconds < 4, f'port {port}: {result}'
    with many.Connections(wire, sources=owned(wire, 1)) as connections:
        begin = time.monotonic()
        for _ in range(300):
            connections.exchange(100)
        assert time.monotonic() - begin < 6, '300 small exchanges to all cores take too long'
        connections.finish()


ARRANGEMENTS = [        # vectors, by what they give with four pairs
    ('per-queue', 9), ('per-pair', 5), ('per-pair-8', 8), ('two', 2), ('two-4', 4), ('one', 1), ('intx', 0),
]


@rows.table([on_four((flood, round_trips), f'{name}{"-" + more if more else ""}', vectors=vectors, words=words, full=full)
             for name, vectors in ARRANGEMENTS
             for more, words, full in (('', '', False), ('poll-0', 'poll=0', True), ('event-idx-off', 'features=-event_idx', True))
             if not more.startswith('event')])
def test_wake_ups(row, image):
    """In no arrangement of interrupts does a wake-up get lost."""
    run(row, image, 4, 4)


# ---- ARP and neighbour discovery

UNASKED = {('icmp6', 131), ('icmp6', 133), ('icmp6', 143)}


def collected(tap, sent, wanted, seconds=5):
    """Sends the frames; returns a Counter of what the guest sends until `wanted` answers are there and 0.3 s after. What it
    says of itself (routers asked for, groups reported) is left out."""
    for frame in sent:
        tap.send(frame)
    got = tap.collect(seconds, until=lambda got: len(got) >= wanted)
    told = collections.Counter(stations.describe(frame) for frame in got + tap.collect(0.3))
    return collections.Counter({what: n for what, n in told.items() if what[:2] not in UNASKED})


def answers_once(wire, guest):
    """100 requests from 25 stations: one answer each. Then each station's datagrams are answered by every core, and none
    asks for an address that was in the requests."""
    guest.wait_for(r'\] net: ip6=fd00::2', 10)
    who = stations.stations(25)
    with stations.Tap(wire) as tap:
        tap.collect(0.1)
        for ask, target, answer in ((stations.arp_request, GUEST4, lambda s: ('arp reply', frames.show(s.ip4))),
                                    (stations.solicitation, GUEST6, lambda s: ('icmp6', 136, frames.show(s.ip6)))):
            told = collected(tap, [ask(s, target) for _ in range(4) for s in who], 100)
            assert told == {answer(s): 4 for s in who}, f'not each request answered once: {told}'
            ports = {s: wire.sources(4, 2, frames.show(s.ip4 if len(target) == 4 else s.ip6), frames.show(target)) for s in who[:5]}
            sent = [(s, port) for s in ports for port in sum(ports[s].values(), [])]
            told = collected(tap, [stations.datagram(s, target, port, b'echo') for s, port in sent], len(sent))
            assert told == {('udp', frames.show(s.ip4 if len(target) == 4 else s.ip6), port): 1 for s, port in sent}, told


@rows.table([on_four((answers_once,), 'tap'), on_four((answers_once,), 'rss', props=RSS, steers='rss'),
             on_four((answers_once,), 'intx', vectors=0, full=True)])
def test_answered_once(row, image):
    """ARP requests and neighbour solicitations are answered exactly once, and learned by every core."""
    run(row, image, 4, 4)


def said_of_itself(image, row, pairs, words):
    """What a guest with so many cores sends unasked, as a Counter: at start, and when the link comes back."""
    one = dataclasses.replace(row, props=row.props if pairs > 1 else {}, addresses=words)
    with wires.make('tap', queues=pairs) as wire, stations.Tap(wire) as tap, \
            Guest(rows.machine_for(one, image, wire), netns=wire.netns) as guest:
        assert guest.wait_ready(rows.SHORT)['cores'] == str(pairs)
        got = tap.collect(3.6)
        set_link(guest, False)
        time.sleep(0.5)
        set_link(guest, True)
        got += tap.collect(3.6)
        guest.finish()
    return collections.Counter(stations.describe(frame) for frame in got)


@pytest.mark.parametrize('words', ['ip=198.18.0.2/24 ip6=fd00::2/64', pytest.param('ip=198.18.0.2/24 ip6=auto', marks=pytest.mark.full)])
@rows.table([TAP4])
def test_says_of_itself_once(image, row, words):
    """Gratuitous ARP, duplicate address detection, router solicitations, listener reports: the same frames from four cores
    as from one, at start and when the link comes back."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        told = list(pool.map(lambda pairs: said_of_itself(image, row, pairs, words), (1, 4)))
    for kind in ('arp request', 'icmp6'):
        assert any(key[0] == kind for key in told[0]), f'a single core says nothing of itself by {kind}: {told[0]}'
    assert told[0] == told[1], f'one core: {told[0]}; four: {told[1]}'


# ---- addresses

@pytest.mark.skipif(not have(), reason='dnsmasq is not installed')
@rows.table([TAP4])
def test_lease_reaches_all_cores(image, tmp_path, row):
    """DHCP's address, which core 0 gets, serves on every core."""
    with wires.make('tap', queues=4) as wire:
        server = Dnsmasq(wire, tmp_path)
        with Guest(rows.machine_for(dataclasses.replace(row, addresses='ip=dhcp'), image, wire), netns=wire.netns) as guest:
            address = guest.wait_ready(rows.SHORT)['ip']
            server.wait_log(f'DHCPACK(tap0) {address}')
            assert server.text().count('DHCPDISCOVER') == 1, 'more than one core asked for a lease'
            many.echo(wire, 20_000, sources=owned(wire, 4, guest=address), address=address)
            guest.finish()
        rows.after(row, guest, wire)


@rows.table([TAP4])
def test_advertised_prefix_reaches_all_cores(image, row):
    """A router's prefix, advertised once, gives every core the address made of it."""
    address = 'fd55::5054:ff:fe12:3456'
    with wires.make('tap', queues=4) as wire:
        wire.netns.run(['ip', 'addr', 'add', 'fd55::1/64', 'dev', 'tap0', 'nodad'])
        with stations.Tap(wire) as tap, Guest(rows.machine_for(dataclasses.replace(row, addresses='ip=198.18.0.2/24'), image, wire),
                                              netns=wire.netns) as guest:
            guest.wait_ready(rows.SHORT)
            tap.send(stations.advertisement('fd55::'))
            guest.wait_for(rf'\] net: ip6={address}', 10)
            many.echo(wire, 20_000, sources=owned(wire, 4, host='fd55::1', guest=address), address=address)
            guest.finish()
        rows.after(row, guest, wire)


# ---- everything a single core is tested with

TRAFFIC = [
    on_four(('smoke', 'smoke6', 'wake', 'discard_chargen', 'tcp_10mb', 'udp_10000'), 'mix'),
    on_four((test_traffic.half_close_and_pauses, test_traffic.resets, test_traffic.parallel, test_traffic.many_short,
             test_traffic.udp_any_size, test_traffic.six), 'peers'),
    on_four(('smoke', 'smoke6', 'wake', 'discard_chargen', 'tcp_10mb', 'udp_10000'), 'mix-rss', props=RSS, steers='rss', full=True),
    on_four((test_traffic.half_close_and_pauses, test_traffic.resets, test_traffic.parallel, test_traffic.many_short,
             test_traffic.udp_any_size, test_traffic.six, test_traffic.flood), 'peers-rss', props=RSS, steers='rss', full=True),
    on_four((test_traffic.flood, test_traffic.ping_sizes), 'ping', full=True),
    on_four((test_traffic.wrap_indices, 'wake'), 'wrap', words=test_traffic.ONE_BY_ONE, full=True),
] + [
    on_four((serves(4), two_hundred, bursts, 'discard_chargen'), f'{"-".join(off)}-off{"-" + words if words else ""}',
            words=f'features=-{",-".join(off)} {words}'.strip(), without=off, full=full)
    for off, words, full in ((('event_idx',), '', False), (('indirect_desc',), '', True), (('mrg_rxbuf',), '', True),
                             (('csum', 'guest_csum'), '', True), (('event_idx', 'indirect_desc', 'mrg_rxbuf'), 'ring=2', True))
] + [
    on_four((serves(4), two_hundred, bursts, 'discard_chargen'), f'ring-{n}', words=f'ring={n}', full=n != 4) for n in (2, 4, 16, 64)
]


@rows.table(TRAFFIC)
def test_traffic_on_four(row, image):
    """The peers and features of the single core, on four."""
    run(row, image, 4, 4)


# ---- what the guest's own counters say

def handed_over(before, after):
    """Share of the frames received between two scrapes that came in by another queue than their owner's."""
    received = after.total('ringside_rx_packets_total') - before.total('ringside_rx_packets_total')
    return (after.total('ringside_handed_over_total') - before.total('ringside_handed_over_total')) / received


def counted(wire, guest):
    """Bytes sent by each core are those of the connections it owns; busy flows come in by their owner's queue; after a
    silence longer than the tap's memory they do not, and are handed over; nothing is dropped on the way."""
    with many.Connections(wire, sources=owned(wire, 8)) as connections:
        connections.exchange(2_000)
        start = test_metrics.scrape(wire)
        for _ in range(5):
            connections.exchange(100_000)
        busy = test_metrics.scrape(wire)
        time.sleep(4)
        connections.exchange(2_000)
        quiet = test_metrics.scrape(wire)
        connections.finish()
    for core in range(4):
        sent = [s.get_one('ringside_tx_bytes_total', core=core, queue=core) for s in (start, busy)]
        assert 4_000_000 < sent[1] - sent[0] < 5_000_000, f'core {core} sent {sent[1] - sent[0]} bytes, its flows have 4,000,000'
    share, later = handed_over(start, busy), handed_over(busy, quiet)
    if any(labels['steering'] == 'rss' for labels in quiet.labels('ringside_info')):
        assert share == later == 0, f'RSS: {share} of the frames handed over, {later} after a silence'
    else:
        assert share < 0.05, f"{100 * share:.1f} % of busy flows' frames are handed over"
        assert later > 0, 'no frame was handed over after the silence: the row tests nothing'
    for name in ('steer_dropped', 'mailbox_overflows', 'hash_mismatches', 'rx_dropped', 'tx_dropped'):
        assert quiet.total(f'ringside_{name}_total') == 0, name
    test_metrics.settle(wire)           # as many taken over as handed over


@rows.table([on_four((counted,), 'automatic'), on_four((counted,), 'rss', props=RSS, steers='rss'),
             on_four((counted,), 'rss-hash', props={'rss': 'on', 'hash': 'on'}, steers='rss')])
def test_counters(row, image):
    """Shares of the cores and of what is handed over."""
    run(row, image, 4, 4)


# ---- long

@pytest.mark.full
@pytest.mark.seconds(900)
@pytest.mark.parametrize('seconds', [600])
@rows.table([on_four((), 'automatic'), on_four((), 'rss', props=RSS, steers='rss')])
def test_long(row, image, seconds):
    """Ten minutes of connections of every size on all cores at once, some of them opened anew each time, datagrams, fragments:
    contents compared, no memory lost."""
    def check(wire, guest):
        end = time.monotonic() + seconds
        used = []
        with many.Connections(wire, sources=owned(wire, 16)) as connections:
            for size in itertools.cycle((1, 100, 1460, 30_000, 200_000)):
                connections.exchange(size)
                many.echo(wire, size, sources=owned(wire, 2))
                for port in owned(wire, 1):
                    assert traffic.udp_echo(wire.udp(7, source=port), 40, (4, 1472, 9000), window=1).lost == 0
                if size == 1:
                    used.append(int(test_metrics.scrape(wire, reset=True).total('ringside_heap_used_bytes')))
                if time.monotonic() > end:
                    break
            connections.finish()
        first, last = (statistics.median(part) for part in (used[:len(used) // 4], used[-len(used) // 4:]))
        assert last < 1.05 * first, f'memory in use grows: {used}'
    row.traffic += (check,)
    run(row, image, 4, 4)
