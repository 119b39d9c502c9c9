"""Cores, queue pairs, vectors, steering: every pair of their values, and the boot words that limit them."""
import os

import pytest

import many
import pairwise
import queues
import rows
import test_metrics
import traffic
import trafficmix
import wires
from rows import Row
from rslib.qemu import EXIT_WELL, Guest, Machine

PARAMETERS = {
    'wire': ('tap', 'user'),
    'smp': (1, 2, 4, 8),
    'queues': (1, 2, 3, 4, 8),
    'vectors': ('0', '1', '2', '3', '2N', '2N+1', '2N+2'),      # N: the pairs in use
    'mq': (True, False),
    'rss': (True, False),
}
ROWS_MAX = 40


def exists(values):
    """User networking has one queue."""
    return values['wire'] == 'tap' or values['queues'] == 1


def said(pairs, steers, vectors, device):
    """Traffic kind: ready line and console name the pairs, how packets are steered, how interrupts are given out."""
    def check(wire, guest):
        ready = guest.wait_ready(0)
        assert (ready['cores'], ready['queues']) == (str(pairs), str(pairs)), f'ready says cores={ready["cores"]} queues={ready["queues"]}'
        guest.wait_for(rf'\] virtio: queue pairs: {pairs} in use, the device has {device}; steering: {steers}\r?$', 0)
        guest.wait_for(rf'\] virtio: net at pci .*, {queues.interrupts_text(vectors, pairs)};', 0)
    return check


def serves(pairs, connections=16, size=20_000):
    """Traffic kind: at least so many connections at once, at least six to each core, and UDP from a few ports to each."""
    def check(wire, guest):
        if isinstance(wire, wires.UserWire):
            many.echo(wire, size, count=connections)
            for _ in range(4):
                trafficmix.udp_echo(wire, 50, (4, 64, 1400))
            return
        assert wire.ping(count=20)[1] == 20
        owned = wire.sources(pairs, max(6, -(-connections // pairs)))
        many.echo(wire, size, sources=sum(owned.values(), []))
        for core in range(pairs):
            result = traffic.udp_echo(wire.udp(7, source=owned[core][0]), 60, (4, 64, 1400), window=1)
            assert result.lost == result.repeated == 0, result
            assert result.seconds < 3, f'60 datagrams one after another took {result.seconds:.1f} s: wake-ups are lost'
    return check


def many_row(name, smp, pairs, device=None, queues_=None, vectors=None, props=None, steers=None, words='', full=False, **fields):
    """A row for a machine of `smp` cores on a tap with `queues_` queues of which `pairs` come into use. device: what the
    device says it has; vectors: None for QEMU's own choice."""
    queues_ = queues_ or pairs
    device = device or queues_
    steers = steers or ('automatic' if pairs > 1 else 'none needed')
    props = {'mq': 'on', **(props or {})}
    if vectors is not None:
        props['vectors'] = vectors
    with_ = tuple(name for name in ('mq', 'rss', 'hash_report') if props.get('hash' if name == 'hash_report' else name) == 'on')
    machine = {'smp': smp, 'memory': '256M', 'trace': queues.EVENTS,
               'warnings': queues.RSS_WARNINGS if props.get('rss') == 'on' else (), **fields.pop('machine', {})}
    kinds = (said(pairs, steers, 2 * device + 2 if vectors is None else vectors, device), *fields.pop('traffic', (serves(pairs),)))
    if fields.get('wire', 'tap') == 'tap':
        fields['wire_options'] = {'queues': queues_}
    off = {word for word, value in props.items() if value == 'off'} | {'mq', 'rss'} - set(with_) | set(fields.pop('without', ()))
    return Row(name, machine=machine, props=props, with_=with_, without=tuple(off), words=words,
               traffic=kinds, full=full, **fields)


def run(row, image, pairs, device):
    """Runs a row; then every core must have sent, and no queue out of use have been notified."""
    guest = rows.run(row, image)
    queues.check_doorbells(guest, pairs, 2 * device)
    return guest


def cover_row(values, full):
    """The row for one combination, how many pairs it uses, and how many its device has."""
    several = values['mq'] or values['rss']
    device = values['queues'] if several else 1
    pairs = min(values['smp'], device)
    vectors = {'2N': 2 * pairs, '2N+1': 2 * pairs + 1, '2N+2': 2 * pairs + 2}.get(values['vectors'])
    vectors = int(values['vectors']) if vectors is None else vectors
    name = '-'.join((values['wire'], f'smp{values["smp"]}', f'queues{values["queues"]}', f'vectors{values["vectors"]}',
                     *(word for word in ('mq', 'rss') if values[word])))
    steers = 'none needed' if pairs == 1 else 'rss' if values['rss'] else 'automatic'
    row = many_row(name, values['smp'], pairs, device, values['queues'], vectors,
                   {word: 'on' if values[word] else 'off' for word in ('mq', 'rss')}, steers, full=full, wire=values['wire'])
    return row, pairs, device


def cover_table():
    """The pairwise cover, and behind it, for --full, the rest of the product."""
    chosen = pairwise.cover(PARAMETERS, exists)
    rest = [values for values in pairwise.product(PARAMETERS, exists) if values not in chosen]
    built = [cover_row(values, False) for values in chosen] + [cover_row(values, True) for values in rest]
    params = []
    for row, pairs, device in built:
        marks = [pytest.mark.full] if row.full else []
        if row.wire == 'tap':
            marks.append(pytest.mark.skipif(not wires.have_tap(), reason='no rights to /dev/net/tun'))
        params.append(pytest.param(row, pairs, device, id=row.id, marks=marks))
    return params


def test_cover_is_complete():
    """The rows in `make test` are few, are allowed, and hold every pair of values that the full product holds."""
    chosen = pairwise.cover(PARAMETERS, exists)
    assert len(chosen) <= ROWS_MAX
    assert all(exists(values) for values in chosen)
    wanted = {(a, b) for a in ((k, v) for k, values in PARAMETERS.items() for v in values)
              for b in ((k, v) for k, values in PARAMETERS.items() for v in values) if a[0] < b[0]}
    impossible = {(('queues', n), ('wire', 'user')) for n in PARAMETERS['queues'] if n != 1}
    held = {tuple(sorted(pair)) for values in chosen for pair in pairwise.pairs_of(values)}
    assert held == wanted - impossible
    assert len(pairwise.product(PARAMETERS, exists)) == 672


@pytest.mark.parametrize('row,pairs,device', cover_table())
def test_cover(row, pairs, device, image):
    """Boots, says what it uses, serves on every core, ends well."""
    run(row, image, pairs, device)


@pytest.fixture(name='test_image', scope='module')
def fixture_test_image(image):
    """The image with the checking applications in it."""
    path = image.replace('ringside.elf', 'ringside-test.elf')
    if not os.path.exists(path):
        pytest.fail(f'{path} is not there: build it with make guest-tests')
    return path


def app_machine(image, app, cores, **fields):
    """A machine of so many cores and queues (at least 64 MiB) that runs one application."""
    props = {'mq': 'on'} if cores > 1 else {}
    return Machine(image, smp=cores, props=props, **{'memory': '256M', 'append': f'ip=198.18.0.2/24 apps={app}', **fields})


SAYS = {'worlds': r'\] guest: worlds are private: {} cores',
        'mappings': r'\] guest: mappings are right: \d+, of them \d+ executable; {} cores'}


@rows.table([Row(f'{cores}', machine={'smp': cores}, full=cores > 8) for cores in (1, 2, 4, 8, 64)])
@pytest.mark.parametrize('app', SAYS)
def test_private_worlds(test_image, row, app):
    """Every core has its own copy of every variable, its text is the same and cannot be written, guard pages are there."""
    cores = row.machine['smp']
    with wires.make('tap', queues=cores) as wire:
        with Guest(app_machine(test_image, app, cores, netdev=wire.netdev()), netns=wire.netns) as guest:
            guest.expect_exit(EXIT_WELL, rows.LONG)
        guest.wait_for(SAYS[app].format(cores), 0)


def parked(memory, fewest, most):
    """A row: 64 cores in little memory; the cores that fit serve, the others are named."""
    def check(wire, guest):
        ready = guest.wait_ready(0)
        cores = int(ready['cores'])
        assert ready['queues'] == ready['cores'] and fewest <= cores <= most, ready
        if cores < 64:
            guest.wait_for(rf'\] smp: memory for {cores} cores of 64: the processors from APIC id {cores} on stay parked', 0)
        many.echo(wire, 10_000, sources=sum(wire.sources(cores, 2).values(), []))
        sample = test_metrics.scrape(wire)
        assert sample.get_one('ringside_queue_pairs') == cores
        silent = [core for core in range(cores) if sample.get_one('ringside_tx_packets_total', core=core, queue=core) < 10]
        assert not silent, f'cores {silent} have sent nothing'
    return Row(f'64-in-{memory}', machine={'smp': 64, 'memory': memory}, props={'mq': 'on'}, with_=('mq',), wire_options={'queues': 64},
               traffic=(check,), full=True)


@rows.table([parked('64M', 8, 40), parked('256M', 64, 64)])
def test_64_cores(row, image):
    """64 cores, with memory for all and for some of them."""
    rows.run(row, image)
