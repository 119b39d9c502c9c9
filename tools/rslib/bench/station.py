"""One guest under measurement: a tap device in a namespace of its own, QEMU, and where wanted the counting plugin and trace
events. Measures the cost or the rate of a test on it."""
import contextlib
import dataclasses
import os
import re
import tempfile
import time

from ..netns import Netns
from ..qemu import Guest, Machine
from . import clients, stats, switch
from .counter import Counter
from .trace import EVENTS, Trace

QUIET_SECONDS = 3       # after it is ready a guest still has address detection and announcements to do
SETTLE_SECONDS = 0.05   # for a test's last packets
METRICS = ('rx_interrupts', 'tx_interrupts', 'rx_kicks', 'tx_kicks', 'halts', 'rx_packets', 'tx_packets', 'batches', 'handed_over')


@dataclasses.dataclass(frozen=True)
class Setup:
    """How guests are run, alike for all: processors, queue pairs (0: one per processor), properties of the network device,
    further words for our guest's boot line, whether it is to be counted: with the plugin, which slows a guest down, and
    trace events; and whether a vhost-user switch is its device."""
    cpus: int = 1
    queues: int = 0
    props: tuple = ()
    words: str = ''
    counted: bool = False
    switched: bool = False

    @property
    def pairs(self):
        """Queue pairs."""
        return self.queues or self.cpus

    @property
    def stack(self):
        """Whether our guest runs a stack and its servers, not an application of its own."""
        return 'apps=' not in self.words


@dataclasses.dataclass
class Sample:
    """One run of one test. Rates are per second; what follows is per unit of the test (transaction, KiB, packet), None where
    it was not measured: processor time of QEMU in microseconds, instructions, steps of repeated string instructions,
    instructions in the poll loop, kicks and interrupts by queue, wake-ups; guest: our guest's own counters."""
    units: float = 0
    rate: float = 0
    seconds: float = 0
    lost: float = 0
    mean_us: float = 0
    p99_us: float = 0
    cpu_us: float = None
    instructions: float = None
    rep_steps: float = None
    polled: float = None
    kicks_rx: float = None
    kicks_tx: float = None
    interrupts_rx: float = None
    interrupts_tx: float = None
    wakes: float = None
    guest: dict = dataclasses.field(default_factory=dict)

    @property
    def kicks(self):
        """Kicks of both directions."""
        return None if self.kicks_tx is None else self.kicks_rx + self.kicks_tx

    @property
    def interrupts(self):
        """Interrupts of both directions."""
        return None if self.interrupts_rx is None else self.interrupts_rx + self.interrupts_tx

    @property
    def working(self):
        """Instructions outside the poll loop."""
        return None if self.instructions is None else self.instructions - self.polled


def machine(kind, setup, workdir, counter=None):
    """The Machine for a guest of a kind."""
    queues = f',queues={setup.pairs}' if setup.pairs > 1 else ''
    netdev = ['-netdev', f'tap,id=n0,ifname={clients.DEVICE},script=no,downscript=no{queues}']
    props = {'mq': 'on', 'vectors': 2 * setup.pairs + 2} if setup.pairs > 1 else {}
    return Machine(kind.image, smp=setup.cpus, memory=switch.MEMORY, append=kind.append(setup.words),
                   machine='q35' + (',memory-backend=mem0' if setup.switched else ''),
                   netdev=switch.netdev(workdir, setup.pairs) if setup.switched else netdev,
                   props={**props, **dict(setup.props)}, extra=[*kind.extra(), *(counter.argv() if counter else [])],
                   trace=list(EVENTS) if setup.counted else [],
                   trace_file=os.path.join(workdir, 'trace') if setup.counted else '')


def parse_metrics(text):
    """Our guest's counters METRICS, summed over cores and queues, from its page /metrics."""
    return {name: sum(float(v) for v in re.findall(rf'^ringside_{name}_total(?:{{[^}}]*}})? (\S+)$', text, re.MULTILINE))
            for name in METRICS}


class Station:
    """A running guest and what is measured on it."""

    def __init__(self, kind, setup, netns, guest, counter, trace, netperf):
        self.kind, self.setup, self.netns, self.guest = kind, setup, netns, guest
        self.counter, self._trace, self._netperf = counter, trace, netperf
        self.facts = {}

    # ---- what is counted between two moments

    def metrics(self):
        """Our guest's own counters now; {} of others."""
        if not (self.kind.ours and self.setup.counted and self.setup.stack):
            return {}
        text = b''
        with self.netns.socket() as sock:
            sock.settimeout(10)
            sock.connect((clients.GUEST, 80))
            sock.sendall(b'GET /metrics HTTP/1.0\r\n\r\n')
            while chunk := sock.recv(65536):
                text += chunk
        return parse_metrics(text.decode('latin-1').replace('\r', ''))

    def frames(self, sent=False):
        """Frames that have gone to the guest (sent: have come from it) so far, as the tap device counts them."""
        text = self.netns.run(['cat', '/proc/net/dev']).stdout
        return int(re.search(rf'{clients.DEVICE}:(.*)', text)[1].split()[1 if sent else 9])

    def observe(self, action, metrics=True):
        """Runs action() and returns (its value, what was counted meanwhile as a dict of floats). metrics: our guest's own
        counters too, which costs some packets before and after."""
        before_metrics = self.metrics() if metrics else {}
        time.sleep(SETTLE_SECONDS)
        self._trace.read()
        frames, sent = self.frames(), self.frames(sent=True)
        cpu, before = stats.process_seconds(self.guest.pid), self.counter and self.counter.total()
        value = action()
        time.sleep(SETTLE_SECONDS)
        found = {'cpu_us': 1e6 * (stats.process_seconds(self.guest.pid) - cpu)}
        if self.counter:
            count = self.counter.total() - before
            found.update(instructions=count.instructions, rep_steps=count.rep_steps, polled=count.polled, wakes=count.wakes)
            events = self._trace.read()
            if not self.setup.switched:
                found.update({f'{what}_{way}': n for (what, way), n in events.items()})
        found['frames'], found['frames_sent'] = self.frames() - frames, self.frames(sent=True) - sent
        after = self.metrics() if metrics else {}
        found.update({f'guest_{name}': after[name] - before_metrics[name] for name in after})
        return value, found

    def run(self, test, length, sessions=1, size=0):
        """Runs clients; returns their Result."""
        return clients.run(self.netns, self._netperf, test, length, sessions, size)

    # ---- measurements

    def cost(self, test, sessions=1, size=0, count=0):
        """What a unit of a test costs, without what setting the test up costs: two runs, of few units and of many."""
        count = count or test.count
        if test.name in clients.LAYER2:
            return self._cost_of_frames(test, size, count)
        if test.count:
            _, base = self.observe(lambda: self.run(test, -sessions, sessions, size))
            result, whole = self.observe(lambda: self.run(test, -count, sessions, size))
            least = sessions * (max(1, (size or test.size) / clients.KIB) if test.is_stream else 1)
            units = result.units - (least if test.name not in clients.PING_UNDER_WAY else 1)
        else:                   # by time: an answer apart stands for the setting up
            _, base = self.observe(lambda: self.run(clients.TESTS['UDP_RR'], -sessions, sessions))
            result, whole = self.observe(lambda: self.run(test, 1, sessions, size))
            units = whole['frames'] - base['frames']
        return self._sample(result, {name: whole[name] - base[name] for name in whole}, max(units, 1))

    def _cost_of_frames(self, test, size, count):
        """The same without a stack: per frame that reached the guest, or that it sent in a second of its own accord."""
        if not count:
            result, found = self.observe(lambda: time.sleep(1) or clients.Result(0, 0, 1), metrics=False)
            return self._sample(result, found, max(found['frames_sent'], 1))
        _, base = self.observe(lambda: self.run(test, -1, 1, size))
        result, whole = self.observe(lambda: self.run(test, -count, 1, size))
        found = {name: whole[name] - base[name] for name in whole}
        return self._sample(result, found, max(found['frames'], 1))

    def rate(self, test, seconds, sessions=1, size=0):
        """How fast a test goes."""
        result, found = self.observe(lambda: self.run(test, seconds, sessions, size))
        return self._sample(result, found, max(result.units, 1))

    def idle(self, seconds):
        """What goes on without traffic, per second."""
        _, found = self.observe(lambda: time.sleep(seconds), metrics=False)
        return self._sample(clients.Result(seconds, 0, seconds), found, seconds)

    def _sample(self, result, found, units):
        each = {name: max(n, 0) / units for name, n in found.items()}      # below 0: the shorter run had one more of it
        own = {name.removeprefix('guest_'): n for name, n in each.items() if name.startswith('guest_')}
        counted = {name: n for name, n in each.items() if not name.startswith(('guest_', 'frames'))}
        if self.setup.switched and own:         # the guest's word; without MSI-X an interrupt counts for both queues
            counted.update(kicks_rx=own['rx_kicks'], kicks_tx=own['tx_kicks'], interrupts_rx=own['rx_interrupts'], interrupts_tx=0)
        return Sample(units, result.rate, result.seconds, result.lost, result.mean_us, result.p99_us, **counted, guest=own)


@contextlib.contextmanager
def running(kind, setup, netperf, plugin=None, polling=()):
    """Boots a guest; yields its Station once it is ready and quiet. Nothing is left afterwards."""
    with tempfile.TemporaryDirectory(prefix='ringside-bench-') as work, Netns() as netns, contextlib.ExitStack() as stack:
        addresses = [f'{clients.HOST}/{clients.PREFIX}', 'fd00::1/64', 'fe80::1/64']
        if setup.switched:
            stack.enter_context(switch.running(netns, work, clients.DEVICE, addresses, setup.pairs))
        else:
            netns.tap(clients.DEVICE, addresses, setup.pairs)
        counter = Counter(plugin, work, setup.cpus, polling if kind.ours else ()) if setup.counted else None
        with Guest(machine(kind, setup, work, counter), netns=netns) as guest:
            station = Station(kind, setup, netns, guest, counter, Trace(os.path.join(work, 'trace')), netperf)
            station.facts = kind.wait(guest, netns)
            yield station
