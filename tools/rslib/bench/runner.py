"""Runs the cells of a bench: boots the guests of each set-up side by side, measures them in turn, A B A B, and keeps what
came of it."""
import contextlib
import dataclasses
import subprocess
import time

from ..netns import NetnsError
from ..qemu import GuestError
from . import clients, station, stats

IDLE_SECONDS = 3
COUNTED_SECONDS = 2.0       # about what a run by count takes, for the estimate
BOOT_SECONDS = 8


@dataclasses.dataclass
class Results:
    """What was measured: samples by (cell, guest's name), errors in the same way, facts by (set-up, guest's name), and
    lines that say what disturbed it."""
    samples: dict = dataclasses.field(default_factory=dict)
    errors: dict = dataclasses.field(default_factory=dict)
    facts: dict = dataclasses.field(default_factory=dict)
    disturbed: list = dataclasses.field(default_factory=list)
    seconds: float = 0

    def values(self, cell, name, what):
        """The Spread of one value over the samples of a cell; None if there are none."""
        return stats.spread([getattr(s, what) for s in self.samples.get((cell, name), ())])


class Runner:
    """kinds: the guests, ours first. rounds: how often each cell is measured on each. say: shows a line of progress."""

    def __init__(self, kinds, netperf, plugin, polling, rounds, seconds, scale, say):
        self.kinds, self.netperf, self.plugin, self.polling = kinds, netperf, plugin, polling
        self.rounds, self.seconds, self.scale, self.say = rounds, seconds, scale, say
        self.results = Results()
        self._done = self._all = 0
        self._began = 0
        self._own = 0           # processor seconds of guests that have ended

    def _kinds_for(self, cells):
        return [k for k in self.kinds if k.ours or any(not cell.ours for cell in cells)]

    def _weight(self, cell):
        each = {'rate': self._length(cell) * 1.2 + 0.5 + cell.sessions / 50, 'cost': COUNTED_SECONDS * self.scale, 'idle': IDLE_SECONDS + 0.3}[cell.mode]
        return each * self.rounds * len(self._kinds_for([cell]))

    def estimate(self, cells):
        """Seconds that the cells will take, roughly."""
        setups = {cell.setup for cell in cells}
        return sum(map(self._weight, cells)) + BOOT_SECONDS * len(setups)

    def run(self, cells):
        """Measures the cells, grouped by set-up; returns the Results."""
        self._began, before, own = time.monotonic(), stats.load(), stats.own_seconds()
        self._all = self.estimate(cells)
        groups = {}
        for cell in cells:
            groups.setdefault(cell.setup, []).append(cell)
        for setup, group in groups.items():
            self._group(setup, group)
        self.results.seconds = time.monotonic() - self._began
        ours = self._own + stats.own_seconds() - own
        self.results.disturbed += stats.disturbances(before, stats.load(), self.results.seconds, ours, stats.cores())
        return self.results

    def _group(self, setup, cells):
        with contextlib.ExitStack() as stack:
            places = []
            for kind in self._kinds_for(cells):
                try:
                    place = stack.enter_context(station.running(kind, setup, self.netperf, self.plugin, self.polling))
                except (GuestError, NetnsError) as e:
                    self._fail([(cell, kind.name) for cell in cells if kind.ours or not cell.ours], e)
                    continue
                self.results.facts[setup, kind.name] = place.facts
                places.append(place)
            time.sleep(station.QUIET_SECONDS if places else 0)
            self._done += BOOT_SECONDS
            for cell in cells:
                self._cell(cell, [p for p in places if p.kind.ours or not cell.ours])
            self._own += sum(self._used(p) for p in places)

    @staticmethod
    def _used(place):
        try:
            return stats.process_seconds(place.guest.pid)
        except OSError:
            return 0

    def _cell(self, cell, places):
        test = clients.TESTS.get(cell.test)
        for number in range(self.rounds):
            for place in places:
                key = cell, place.kind.name
                if key in self.results.errors:
                    continue
                try:
                    sample = self._measure(cell, test, place)
                except (GuestError, NetnsError, clients.ClientError, OSError, subprocess.SubprocessError) as e:
                    self._fail([key], e)
                    continue
                self.results.samples.setdefault(key, []).append(sample)
            self._done += self._weight(cell) / self.rounds
            if number == self.rounds - 1:
                self._progress(cell, places)

    def _measure(self, cell, test, place):
        if cell.mode == 'idle':
            return place.idle(IDLE_SECONDS)
        if cell.mode == 'cost':
            return place.cost(test, cell.sessions, cell.size, int(test.count * self.scale))
        return place.rate(test, self._length(cell), cell.sessions, cell.size)

    def _length(self, cell):
        """Seconds of a run for a rate: longer with many sessions, which need a while to start."""
        return self.seconds + cell.sessions // 32

    def _fail(self, keys, error):
        text = str(error).split('\n', 1)[0]
        for key in keys:
            self.results.errors[key] = text
        self.say(f'{keys[0][1]}: {text}')

    def _progress(self, cell, places):
        what = 'rate' if cell.mode == 'rate' else 'instructions'
        unit = {'rate': lambda: clients.TESTS[cell.test].rate, 'idle': lambda: 'instructions/s',
                'cost': lambda: f'instructions per {clients.TESTS[cell.test].unit}'}[cell.mode]()
        told = []
        for place in places:
            value = self.results.values(cell, place.kind.name, what)
            told.append(f'{place.kind.name} {value.median:,.0f}' if value else f'{place.kind.name} failed')
        spent = time.monotonic() - self._began
        left = spent / max(self._done, 1) * max(self._all - self._done, 0)
        self.say(f'[{clock(spent)}, about {clock(left)} left] {describe(cell.setup)}: {cell}: {", ".join(told)} {unit}')


def clock(seconds):
    """Seconds as minutes:seconds."""
    return f'{int(seconds) // 60}:{int(seconds) % 60:02}'


def describe(setup):
    """A set-up in a few words."""
    words = [f'{setup.cpus} core{"s" if setup.cpus > 1 else ""}']
    words += [f'{name}={value}' for name, value in setup.props]
    words += setup.words.split() + (['counted'] if setup.counted else []) + (['vhost-user'] if setup.switched else [])
    return ' '.join(words)
