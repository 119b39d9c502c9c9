"""`conform`: the device's checks run, print what docs/conform.md promises, and end with the right exit code."""
import re

import pytest

import liar
import rows
import wires
from rslib.conform.local import help_out
from rslib.qemu import EXIT_CONFORM, EXIT_PANIC, EXIT_WELL, Guest, Machine

AREAS = ['features', 'reset', 'config', 'queues', 'ring', 'events', 'receive', 'control', 'steering', 'link']
# What QEMU 7.2 does not do (docs/conform.md): with its own device, and Linux's tap behind it.
CHAIN, ONE_BUFFER = 'a chain may end in an indirect table', 'num_buffers is 1 without mergeable buffers'
QEMU = {CHAIN, ONE_BUFFER}
TAP = QEMU | {'hdr_len need not be right'}
STRICT = {'flags that do not exist are ignored'}         # our own device takes them for an error of the driver's
PLEASE = re.compile(r'^# please: (.*?)\r?\n', re.MULTILINE)
LINE = re.compile(r'(ok|not ok) (\d+) - (\w+) ([\d.]+) (.*?)(?: # SKIP (.+))?')


class Report:
    """The console of a guest that ran checks, read."""

    def __init__(self, console):
        self.lines, self.evidence, self.head = [], {}, {}
        numbers, self.sums = None, None
        for line in console.splitlines():
            if line.startswith('['):
                continue
            if match := LINE.fullmatch(line):
                assert int(match[2]) == len(self.lines) + 1, line
                self.lines.append((match[1], match[3], match[4], match[5], match[6]))
            elif match := re.fullmatch(r'1\.\.(\d+)', line):
                numbers = int(match[1])
            elif match := re.fullmatch(r'# passed (\d+), failed (\d+), skipped (\d+)', line):
                self.sums = tuple(map(int, match.groups()))
            elif match := re.fullmatch(r'# ([^:]+): (.*)', line):
                where = self.evidence.setdefault(len(self.lines), []) if self.lines else self.head
                where.append(match.groups()) if self.lines else where.update([match.groups()])
            else:
                assert line == 'TAP version 14' and not self.lines, f'no line of a report: {line!r}'
        assert numbers == len(self.lines) == sum(self.sums)
        assert self.sums[1] == sum(line[0] == 'not ok' for line in self.lines) and self.sums[2] == sum(bool(line[4]) for line in self.lines)

    def failed(self):
        """The texts of what failed."""
        return {line[3] for line in self.lines if line[0] == 'not ok'}

    def number(self, text):
        """The number of the check of that text."""
        return next(i for i, line in enumerate(self.lines, 1) if line[3] == text)

    def areas(self):
        """The areas, in order."""
        return list(dict.fromkeys(line[1] for line in self.lines))

    def skipped(self):
        """{text: reason}"""
        return {line[3]: line[4] for line in self.lines if line[4]}


def run(image, wire, words='conform', fails=frozenset(), seconds=120, **machine):
    """Boots, waits for the end, returns what was said. Exactly the checks named in `fails` must fail."""
    with Guest(Machine(**{'image': image, 'append': f'{words} {wire.words()}', 'netdev': wire.netdev(), **machine}),
               netns=wire.netns) as guest:
        at = 0
        while asked := guest.console_reader.wait(PLEASE, seconds, at):
            at = asked.end()
            assert help_out(guest, asked[1]), asked[0]
        guest.expect_exit(EXIT_CONFORM if fails else EXIT_WELL, seconds)
    report = Report(guest.console)
    assert report.failed() == set(fails), guest.console
    return report


def test_user(image):
    """All areas on user networking: what QEMU is known for fails, what is not offered is skipped, somebody answers."""
    with wires.UserWire() as wire:
        report = run(image, wire, fails=QEMU)
    assert report.areas() == AREAS
    assert report.head['peer'] == '10.0.2.2 answers' and report.head['queues'] == '3'
    assert 'event_idx' in report.head['features offered'].split(',')
    assert not any(reason.startswith('no peer') for reason in report.skipped().values())
    assert report.skipped()['mtu is at least 68'] == 'not offered: mtu'
    got, expected = (next(e for e in report.evidence[report.number(ONE_BUFFER)] if e[0] == key) for key in ('got', 'expected'))
    assert got[1].startswith('num_buffers 50629') and expected[1] == '1'


@pytest.mark.parametrize('area', AREAS[:4])
def test_area(image, area):
    """One area, alone."""
    with wires.UserWire() as wire:
        assert run(image, wire, f'conform={area}').areas() == [area]


@pytest.mark.parametrize('props', [{'vectors': '0'}, {'vectors': '2'}, {'event_idx': 'off'}, {'indirect_desc': 'off'}], ids=str)
def test_events(image, props):
    """INTx, few vectors; features that are missing are skipped, with their name."""
    with wires.UserWire() as wire:
        skipped = run(image, wire, 'conform=events', props=props).skipped()
    assert ('not offered: event_idx' in skipped.values()) == ('event_idx' in props)
    assert ('not offered: msix' in skipped.values()) == (props.get('vectors') == '0')


def test_without(image):
    """A feature that the boot line switches off is not used, though offered."""
    with wires.UserWire() as wire:
        report = run(image, wire, 'conform=events features=-event_idx')
    assert 'event_idx' in report.head['features offered'] and 'not offered: event_idx' in report.skipped().values()


def test_dhcp(image):
    """Without an address on the boot line the router of a DHCP offer is asked."""
    with wires.UserWire() as wire:
        wire.words = lambda: ''
        assert run(image, wire, 'conform=reset').head['peer'] == '10.0.2.2 answers'


def test_no_peer(image):
    """Nobody answers: checks that need it are skipped."""
    with wires.UserWire() as wire:
        report = run(image, wire, 'conform=reset peer=10.0.2.77')
    assert report.head['peer'] == 'none' and 'no peer' in report.skipped().values()


def test_unknown_area(image):
    """One line that says what is valid."""
    with wires.UserWire() as wire, Guest(Machine(image=image, append='conform=rinng', netdev=wire.netdev())) as guest:
        guest.expect_exit(EXIT_PANIC, rows.SHORT)
    said = re.search(r'^panic: (.*)$', guest.console, re.MULTILINE)[1]
    assert said == f'bad value conform=rinng: valid is conform alone or conform= and one of {", ".join(AREAS)}'


@pytest.mark.full
@pytest.mark.skipif(not wires.have_tap(), reason='no rights to /dev/net/tun')
def test_tap(image):
    """Linux's tap: offloads are offered, TCP is answered, an MTU is named."""
    with wires.TapWire(mtu=1400) as wire:
        report = run(image, wire, fails=TAP, props={'host_mtu': '1400'})
    assert not any(reason.startswith('no peer') for reason in report.skipped().values())


# ---- a device that lies: the checks see it

def run_on_liar(image, words, fails, *lies):
    with wires.raw_wire(link=liar.link()) as wire:
        for name, queues in lies:
            wire.link.device.lie(name, queues)
        report = run(image, wire, words, fails, **wire.link.machine())
        assert not lies or wire.link.device.told
    return report


@pytest.mark.full
def test_honest(image):
    """The same device does all that is asked while it does not lie."""
    assert run_on_liar(image, 'conform', STRICT).areas() == AREAS


NO_CHECKSUM, NO_GSO = 'without guest_csum flags are 0 and checksums complete', 'gso_type is only what was negotiated'
FULL_BUFFERS = {'num_buffers says over how many buffers a frame lies', 'all buffers of a frame but the last are full',
                'the buffers of a frame are used together'}
COMES = {"each used buffer's interrupt comes (no event index)", 'used_event says nothing without the event index',
         'the interrupt that used_event asks for comes', 'an interrupt asked for late comes then and not before',
         'the flag says nothing with the event index', 'INTx: ISR status tells of a used buffer, and is 0 once read'}
NOT_ASKED = {'no interrupt comes while the flag says none (no event index)', 'no interrupt comes while used_event asks for none',
             'an interrupt asked for late comes then and not before'}
LIES = [
    ('events', 'deaf', 'tx', COMES),
    ('events', 'chatty', 'tx', NOT_ASKED),
    ('receive', 'num_0', 'rx', STRICT | FULL_BUFFERS | {ONE_BUFFER}),
    ('receive', 'needs_csum', 'rx', STRICT | FULL_BUFFERS | {NO_CHECKSUM, 'with guest_csum checksums are as flags say', NO_GSO}),
    ('receive', 'gso', 'rx', STRICT | FULL_BUFFERS | {NO_CHECKSUM, 'with guest_csum checksums are as flags say', NO_GSO}),
]


@pytest.mark.parametrize('area, name, queues, fails', [
    pytest.param(*row, id=f'{row[1]}-{row[2]}', marks=[pytest.mark.full] if row[1] != 'chatty' else []) for row in LIES])
def test_lie(image, area, name, queues, fails):
    """A lie makes the checks fail that it concerns, and no others; the guest ends with the value of failures."""
    run_on_liar(image, f'conform={area}', fails, (name, queues))


@pytest.mark.parametrize('name, text, evidence', [
    ('length', 'used lengths do not exceed what the buffers have room for', r'queue 1: length \d+, room 0; \d+ of \d+ entries'),
    pytest.param('id_range', 'used ids are of buffers that were made available', r'queue 1: id 65600, size 64; .*', marks=pytest.mark.full),
    pytest.param('index_jump', 'the used index does not run ahead of the available index', r'queue 1: used idx \d+, avail idx \d+',
                 marks=pytest.mark.full),
])
def test_ring_lie(image, name, text, evidence):
    """Lies about used entries: the check whose matter it is says what was seen. Others that use the ring fail too."""
    with wires.raw_wire(link=liar.link()) as wire:
        wire.link.device.lie(name, 'tx')
        with Guest(Machine(image=image, append=f'conform=ring {wire.words()}', netdev=wire.netdev(), **wire.link.machine())) as guest:
            guest.expect_exit(EXIT_CONFORM, 120)
    report = Report(guest.console)
    assert text in report.failed()
    assert re.fullmatch(evidence, dict(report.evidence[report.number(text)])['got'])
