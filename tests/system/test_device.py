"""The virtio device in its variants: vectors, ring sizes, each feature off in turn, transport, MTU."""
import re

import pytest

import checks
import rawtcp
import rows
import trafficmix
import wires
from rows import Row
from rslib.qemu import EXIT_PANIC, Guest, Machine

IMPLEMENTED = ('event_idx', 'indirect_desc', 'mrg_rxbuf', 'csum', 'guest_csum', 'status')

VECTORS = [Row(f'vectors-{n}', props={'vectors': n}, traffic=('smoke', 'wake')) for n in range(4)] + [
    Row(f'vectors-{n}-pc', machine={'machine': 'pc'}, props={'vectors': n}, traffic=('smoke', 'wake'), full=n > 0) for n in range(4)
] + [Row('vectors-0-uefi', machine={'boot': 'iso-uefi'}, props={'vectors': 0}, traffic=('smoke', 'wake'), full=True,
         firmware_touches_nic=True),
     Row('vectors-64', props={'vectors': 64}, full=True)]


def ring_is(rx, tx):
    """Traffic kind that checks the ring sizes QEMU was given."""
    def check(wire, guest):
        assert checks.ring_sizes(guest) == (rx, tx)
    return check


RINGS = [
    Row(f'ring-{n}', words=f'ring={n}', props={'rx_queue_size': 1024}, traffic=(ring_is(n, min(n, 256)), 'smoke', 'discard_chargen', 'full_ring'))
    for n in (2, 4, 16, 64, 256, 1024)
] + [
    Row('ring-as-offered', traffic=(ring_is(256, 256), 'smoke')),
    Row('ring-above-offer', words='ring=32768', traffic=(ring_is(256, 256), 'smoke')),
    Row('ring-8-offered-512', words='ring=8', props={'rx_queue_size': 512}, traffic=(ring_is(8, 8), 'smoke'), full=True),
    Row('ring-2-10mb', words='ring=2', traffic=('tcp_10mb', 'udp_10000'), full=True),
    Row('ring-1024-10mb', words='ring=1024', props={'rx_queue_size': 1024}, traffic=('tcp_10mb', 'udp_10000'), full=True),
] + [
    Row(f'ring-{n}-{name}-off', words=f'ring={n} features=-{name}', without=(name,), traffic=('smoke', 'full_ring'), full=n != 2)
    for n in (2, 4, 16) for name in ('indirect_desc', 'event_idx', 'mrg_rxbuf')
]

# Checksums differ with the IP version: those rows pass IPv6 too.
WITH_SIX = {name: ('smoke', 'smoke6') if 'csum' in name else ('smoke',) for name in IMPLEMENTED}

OFF = [Row(f'{name}-off-by-device', props={name: 'off'}, without=(name,), traffic=WITH_SIX[name]) for name in IMPLEMENTED] + [
    Row(f'{name}-off-by-word', words=f'features=-{name}', without=(name,), traffic=WITH_SIX[name]) for name in IMPLEMENTED
] + [
    Row('mtu-off-by-word', props={'host_mtu': 1400}, wire_options={'mtu': 1400}, words='features=-mtu', without=('mtu',)),
    Row('ring-features-off', words='features=-event_idx,-indirect_desc', without=('event_idx', 'indirect_desc')),
    Row('all-off-by-word', words='features=' + ','.join('-' + n for n in IMPLEMENTED), without=IMPLEMENTED,
        traffic=('smoke', 'wake', 'discard_chargen')),
    Row('all-off-by-device', props={n: 'off' for n in IMPLEMENTED}, without=IMPLEMENTED, full=True),
    Row('all-off-vectors-0', words='features=' + ','.join('-' + n for n in IMPLEMENTED), props={'vectors': 0}, without=IMPLEMENTED,
        traffic=('smoke', 'wake'), full=True),
    Row('event-idx-off-10mb', words='features=-event_idx', without=('event_idx',), traffic=('tcp_10mb', 'udp_10000'), full=True),
    Row('mrg-rxbuf-off-10mb', words='features=-mrg_rxbuf', without=('mrg_rxbuf',), traffic=('tcp_10mb', 'udp_10000'), full=True),
    Row('csum-off-10mb', words='features=-csum,-guest_csum', without=('csum', 'guest_csum'), traffic=('tcp_10mb', 'udp_10000'), full=True),
    Row('required-and-there', words='features=+event_idx,+indirect_desc'),
] + [
    Row(f'{a}-{b}-off', words=f'features=-{a},-{b}', without=(a, b), full=True)
    for i, a in enumerate(IMPLEMENTED) for b in IMPLEMENTED[i + 1:] if (a, b) != ('event_idx', 'indirect_desc')
]

TRANSPORT = [
    Row('transitional', props={'disable-legacy': 'off', 'disable-modern': 'off'}),
    Row('modern-only', props={'disable-legacy': 'on'}),
    Row('modern-only-pc', machine={'machine': 'pc'}, props={'disable-legacy': 'on'}, full=True),
    Row('non-transitional-device', machine={'device': 'virtio-net-pci-non-transitional'}),
    Row('transitional-device', machine={'device': 'virtio-net-pci-transitional'}, full=True),
    Row('page-per-vq', props={'disable-legacy': 'on', 'page-per-vq': 'on'}),    # another notify multiplier
    Row('pio-notify', props={'disable-legacy': 'on', 'modern-pio-notify': 'on'}),
    Row('ioeventfd-off', props={'ioeventfd': 'off'}, full=True),
    Row('other-mac', props={'mac': '02:12:34:56:78:9a'}, console=(r'ringside: ready .*mac=02:12:34:56:78:9a ',)),
]


def mtu_is(mtu):
    """Traffic kind: both sides use that MTU: the MSS offered, the largest frame in each direction, one byte beyond."""
    def check(wire, guest):
        wire.resolve(wire.guest4)
        rawtcp.echo(wire, wire.guest4, 7, trafficmix.traffic.content(300_000), 30)
        probe = rawtcp.RawTcp(wire, wire.guest4, 7).start()
        probe.wait(lambda: probe.state == 'open', 10, 'handshake')
        assert probe.peer_mss == mtu - 40, f'MSS {probe.peer_mss} at MTU {mtu}'
        probe.close()
        sizes = sorted({mtu - 28, mtu - 27, mtu - 100, 2 * mtu, 4 * mtu})
        trafficmix.udp_echo(wire, 60, sizes, window=2)
        trafficmix.ping(wire, 2, sizes)
    return check


MTU = [
    Row(f'mtu-{mtu}', wire='dgram', props={'host_mtu': mtu}, wire_options={'mtu': mtu}, with_=('mtu',), traffic=(mtu_is(mtu),))
    for mtu in (576, 1280, 1500, 9000)
] + [
    Row('mtu-68', wire='dgram', props={'host_mtu': 68}, wire_options={'mtu': 68}, with_=('mtu',),
        traffic=(lambda wire, guest: trafficmix.ping(wire, 5, (0, 40, 41, 100)),)),
    Row('mtu-9000-mrg-rxbuf-off', wire='dgram', props={'host_mtu': 9000}, wire_options={'mtu': 9000}, words='features=-mrg_rxbuf',
        with_=('mtu',), without=('mrg_rxbuf',), traffic=(mtu_is(9000),)),
    Row('mtu-9000-tap', props={'host_mtu': 9000}, wire_options={'mtu': 9000}, with_=('mtu',), traffic=('smoke', 'tcp_10mb'), full=True),
    Row('mtu-65535', wire='dgram', props={'host_mtu': 65535}, wire_options={'mtu': 65535}, with_=('mtu',),
        traffic=(lambda wire, guest: trafficmix.ping(wire, 5, (56, 1472, 9000)),), full=True),
    Row('mtu-off-by-word-9000', wire='dgram', props={'host_mtu': 9000}, words='features=-mtu', without=('mtu',), traffic=(mtu_is(1500),), full=True),
]


@rows.table(VECTORS)
def test_vectors(row, image):
    """MSI-X with enough vectors, with few, and INTx."""
    rows.run(row, image)


@rows.table(RINGS)
def test_ring(row, image):
    """Ring sizes asked for by ring=."""
    rows.run(row, image)


@rows.table(OFF)
def test_features(row, image):
    """Each implemented feature off, by the device and by the boot line."""
    rows.run(row, image)


@rows.table(TRANSPORT)
def test_transport(row, image):
    """Modern and transitional devices and their layouts."""
    rows.run(row, image)


@rows.table(MTU)
def test_mtu(row, image):
    """The device's MTU is the interface's."""
    rows.run(row, image)


@pytest.mark.parametrize('mtu', [1, 67])
def test_mtu_below_68_is_refused(image, mtu):
    """An MTU below 68 (virtio 1.3, 5.1.4.1) is not used, the console says so with the value, and the guest works at 1500."""
    row = Row('mtu', wire='dgram', props={'host_mtu': mtu}, without=('mtu',), console=(rf'\] (net|virtio): .*\b[mM][tT][uU]\b.*\b{mtu}\b',))
    rows.run(row, image)


@pytest.mark.parametrize('words,said', [
    ('features=+packed', 'packed'),
    ('features=+event_idx,+mq', 'mq'),
    ('features=+mtu', 'mtu'),               # implemented, not offered
])
def test_missing_feature_is_refused(image, words, said):
    """features=+x refuses to run where x is not to be had: one panic line that names it, the panic code."""
    with Guest(Machine(image, append=f'ip=10.0.2.15/24 {words}', netdev=['-netdev', 'user,id=n0'])) as guest:
        guest.expect_exit(EXIT_PANIC, rows.SHORT)
    text = checks.panic_console(guest)
    assert re.search(rf'\b{said}\b', text), text
    assert 'ringside: ready' not in guest.console


def test_features_ok_refused(image):
    """A device that insists on a feature we lack (ACCESS_PLATFORM) clears FEATURES_OK: one line with register and value."""
    props = {'iommu_platform': 'on', 'disable-legacy': 'on'}
    with Guest(Machine(image, append='ip=10.0.2.15/24', netdev=['-netdev', 'user,id=n0'], props=props,
                       trace=['virtio_set_status'])) as guest:
        guest.expect_exit(EXIT_PANIC, rows.SHORT)
    text = checks.panic_console(guest)
    assert re.search(r'FEATURES_OK', text) and re.search(r'status.*\b(0x)?0?3\b', text), text
    assert not re.search(r'val 15\b', guest.trace)
