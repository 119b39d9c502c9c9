"""Bad input: boot words, values, machines and frames nobody should give a guest."""
import re

import pytest

import badframes
import checks
import rows
import trafficmix
import wires
from rows import Row
from rslib.qemu import EXIT_PANIC, Guest, Machine

USER = ['-netdev', 'user,id=n0']


UNKNOWN = [
    ('ipp=dhcp', 'ip='), ('ringg=16', 'ring='), ('feature=-csum', 'features='), ('quit', None), ('IP=dhcp', 'ip='), ('=', None),
    ('a' * 200, None),
]


def test_unknown_words(image):
    """Each unknown word: one line with the nearest valid word; ignored; the guest serves."""
    with wires.make('user') as wire:
        line = ' '.join(word for word, _ in UNKNOWN)
        row = Row('unknown', words=line)
        with Guest(rows.machine_for(row, image, wire)) as guest:
            wire.attach(guest)
            guest.wait_ready(rows.SHORT)
            trafficmix.tcp_echo(wire, 10_000)
            guest.finish()
        rows.after(row, guest, wire)
    for word, nearest in UNKNOWN:
        shown = word[:40]
        lines = [text for text in guest.console.splitlines() if 'unknown word' in text and f'"{shown}' in text]
        assert len(lines) == 1, f'{word[:40]}: {lines}'
        assert 'nearest' in lines[0] and (nearest is None or re.search(rf'nearest[^"]*\b{nearest}', lines[0])), lines[0]


BAD_VALUES = [
    'ip=300.1.1.1/24', 'ring=3', 'cores=0',
    'ip=', 'ip=1.2.3.4', 'ip=1.2.3.4/33', 'ip=1.2.3/24', 'ip=1.2.3.4/24,gw=5', 'ip=1.2.3.4/24,gate=1.2.3.1', 'ip=0.0.0.0/0',
    'ip=224.0.0.1/24', 'ip=static', 'ip6=::g/64', 'ip6=fd00::1', 'ip6=fd00::1/129', 'ip6=on', 'ip6=1::2::3/64',
    'ring=0', 'ring=1', 'ring=65536', 'ring=-2', 'ring=0x10', 'ring=', 'cores=-1', 'cores=one', 'cores=4294967297', 'queues=0',
    'features=csum', 'features=-nosuch', 'features=+', 'features=', 'poll=never', 'poll=-1', 'apps=nosuch', 'apps=', 'log=loud',
]
QUICK = 6


@pytest.mark.parametrize('word', [pytest.param(w, marks=[pytest.mark.full] if n >= QUICK and n % 3 else []) for n, w in enumerate(BAD_VALUES)])
def test_bad_value(image, word):
    """panic: bad value, naming word, value and what is valid; the panic code; nothing served."""
    append = ('' if word.startswith('ip=') else 'ip=10.0.2.15/24 ') + word
    with Guest(Machine(image, append=append, netdev=USER)) as guest:
        guest.expect_exit(EXIT_PANIC, rows.SHORT)
    text = checks.panic_console(guest)
    assert text.startswith(f'bad value {word}'), text
    assert 'valid' in text[len(word):], text
    assert 'ringside: ready' not in guest.console


NO_NIC = [
    ('none-q35', {'device': '', 'netdev': []}, r'8086:29c0'),
    ('none-pc', {'device': '', 'netdev': [], 'machine': 'pc'}, r'8086:1237'),
    ('e1000', {'device': 'e1000', 'netdev': USER}, r'8086:100e'),
    ('other-virtio', {'device': 'virtio-rng-pci', 'netdev': [], 'props': {'romfile': None}}, r'1af4:1005'),
]


@pytest.mark.parametrize('fields,listed', [pytest.param(*row[1:], id=row[0]) for row in NO_NIC])
def test_no_nic(image, fields, listed):
    """No virtio NIC: says so, lists what PCI holds, ends with the panic code."""
    with Guest(Machine(image, append='ip=10.0.2.15/24', **fields)) as guest:
        guest.expect_exit(EXIT_PANIC, rows.SHORT)
    checks.panic_console(guest)
    assert re.search(r'panic: no .*\b(NIC|network|virtio-net)\b', guest.console), 'the panic does not say what is missing'
    assert re.search(listed, guest.console), f'{listed} is not listed'


def test_legacy_only_device(image):
    """A device without modern registers: one line that says so and why, the panic code."""
    with Guest(Machine(image, append='ip=10.0.2.15/24', netdev=USER, props={'disable-modern': 'on'})) as guest:
        guest.expect_exit(EXIT_PANIC, rows.SHORT)
    text = checks.panic_console(guest)
    assert re.search(r'virtio|modern|legacy', text), text


def test_long_boot_line(image):
    """A boot line of 5,000 characters: what is too much is said to be, the words in front count."""
    with wires.make('user') as wire:
        row = Row('long', words='log=info ' + 'x' * 5000)
        with Guest(rows.machine_for(row, image, wire)) as guest:
            wire.attach(guest)
            guest.wait_ready(rows.SHORT)
            trafficmix.tcp_echo(wire, 10_000)
            guest.finish()
        rows.after(row, guest, wire)


def bad_frames(count):
    """Traffic kind: every hand-made malformed frame, then random ones; the guest answers between them and afterwards."""
    def kind(wire, guest):
        wire.resolve(wire.guest4)
        wire.resolve(wire.guest6)
        target = wire.guest_mac
        wire.any_destination = True
        for name, frame in badframes.by_hand(wire, target):
            wire.send_frame(frame)
            trafficmix.ping(wire, 1, (56,), timeout=5)
            assert guest.exit_code is None, name
        for start in range(0, count, 500):
            for frame in badframes.random_ones(wire, target, start, 500):
                wire.send_frame(frame)
            assert wire.wait(lambda: not wire.queued(), 30), 'QEMU takes no more frames'
            wire.neighbours.clear()             # some of them poisoned the guest's tables: introduce ourselves again
            trafficmix.reach(wire, wire.guest4)
            trafficmix.reach(wire, wire.guest6)
            trafficmix.ping(wire, 3, (56, 1400), timeout=10)
        trafficmix.smoke(wire, guest)
    return kind


def starving_fragments(wire, guest):
    """Datagrams and streams whose missing piece never comes, enough to hold every receive buffer: the guest goes on."""
    wire.resolve(wire.guest4)
    for frame in badframes.unfinished_datagrams(wire, wire.guest_mac, 3000):
        wire.send_frame(frame)
    assert wire.wait(lambda: not wire.queued(), 60), 'QEMU takes no more frames: receive buffers are gone'
    trafficmix.ping(wire, 3, (56, 1400), timeout=20)
    badframes.streams_with_holes(wire, 40)
    assert wire.wait(lambda: not wire.queued(), 60), 'QEMU takes no more frames: receive buffers are gone'
    trafficmix.smoke(wire, guest)


FRAMES = [
    Row('malformed', wire='dgram', traffic=(bad_frames(2000),)),
    Row('starving', wire='dgram', traffic=(starving_fragments,)),
    Row('starving-ring-16', wire='dgram', words='ring=16', traffic=(starving_fragments,), full=True),
    Row('starving-64M', wire='dgram', machine={'memory': '64M'}, traffic=(starving_fragments,), full=True),
    Row('malformed-many', wire='dgram', traffic=(bad_frames(60_000),), full=True),
    Row('malformed-mrg-off', wire='dgram', words='features=-mrg_rxbuf', without=('mrg_rxbuf',), traffic=(bad_frames(5000),), full=True),
]


@rows.table(FRAMES)
def test_frames(row, image):
    """Malformed frames and frames that hold on to buffers."""
    rows.run(row, image)
