"""`conform`: the device's checks run, print what docs/conform.md promises, and end with the right exit code."""
import re

import pytest

import rows
import wires
from rslib.qemu import EXIT_PANIC, EXIT_WELL, Guest, Machine

AREAS = ['features', 'reset', 'config', 'queues', 'ring', 'events', 'receive', 'control', 'steering', 'link']
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
        assert self.sums[1] == len(self.failed()) and self.sums[2] == sum(bool(line[4]) for line in self.lines)

    def failed(self):
        """[(area, text)] of what failed."""
        return [(line[1], line[3]) for line in self.lines if line[0] == 'not ok']

    def areas(self):
        """The areas, in order."""
        return list(dict.fromkeys(line[1] for line in self.lines))

    def skipped(self):
        """{text: reason}"""
        return {line[3]: line[4] for line in self.lines if line[4]}


def run(image, wire, words='conform', expect=EXIT_WELL, seconds=120, **machine):
    """Boots, waits for the end, returns what was said. A check that failed shows with its evidence."""
    with Guest(Machine(**{'image': image, 'append': f'{words} {wire.words()}', 'netdev': wire.netdev(), **machine}),
               netns=wire.netns) as guest:
        guest.expect_exit(expect, seconds)
    return Report(guest.console)


def test_user(image):
    """All areas on user networking: nothing fails, what is not offered is skipped, somebody answers."""
    with wires.UserWire() as wire:
        report = run(image, wire)
    assert report.areas() == AREAS
    assert report.head['peer'] == '10.0.2.2 answers' and report.head['queues'] == '3'
    assert 'event_idx' in report.head['features offered'].split(',')
    assert 'no peer' not in report.skipped().values()
    assert report.skipped()['mtu is at least 68'] == 'not offered: mtu'


@pytest.mark.parametrize('area', AREAS)
def test_area(image, area):
    """One area, alone."""
    with wires.UserWire() as wire:
        assert run(image, wire, f'conform={area}').areas() == [area]


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
