"""Medians, spreads, and what says that a measurement was disturbed."""
import dataclasses
import os
import statistics

APART = 1.25        # two runs of one cell that differ by more than this factor: something disturbed them
NOTHING = 0.002     # ... unless it is by less than this: of a few kicks more or less in thousands of packets
BUSY_CORES = 0.3    # cores kept busy by others before that is worth saying
TICKS = os.sysconf('SC_CLK_TCK')


@dataclasses.dataclass(frozen=True)
class Spread:
    """Median, least and greatest of some values."""
    median: float
    least: float
    most: float

    @property
    def steady(self):
        """Whether the values lie together: greatest and least within the factor APART."""
        return self.most <= self.least * APART + NOTHING


def spread(values):
    """The Spread of some values; None of none."""
    values = [v for v in values if v is not None]
    return Spread(statistics.median(values), min(values), max(values)) if values else None


def ratio(a, b):
    """a / b of two Spreads' medians; None where there is none."""
    return a.median / b.median if a and b and b.median else None


@dataclasses.dataclass(frozen=True)
class Load:
    """The machine's processors so far: seconds busy, seconds stolen by a hypervisor, and load average."""
    busy: float
    stolen: float
    average: float


def parse_stat(text, average):
    """/proc/stat's first line as a Load."""
    user, nice, system, _, _, irq, softirq, steal = [int(n) / TICKS for n in text.split('\n', 1)[0].split()[1:9]]
    return Load(user + nice + system + irq + softirq, steal, average)


def load():
    """The machine's Load now."""
    with open('/proc/stat', encoding='ascii') as f:
        return parse_stat(f.read(), os.getloadavg()[0])


def process_seconds(pid):
    """Processor time that a process has used so far, in seconds."""
    with open(f'/proc/{pid}/stat', encoding='utf-8', errors='replace') as f:
        fields = f.read().rpartition(')')[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def own_seconds():
    """Processor time of this process and of children that have ended."""
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


def disturbances(before, after, seconds, ours, cores):
    """Lines that say what else kept the machine busy between two Loads, `seconds` apart, when our own processes used
    `ours` seconds of processor time."""
    said = []
    if before.average > cores:
        said.append(f'when it began the load average was {before.average:.1f} on {cores} cores')
    others = (after.busy - before.busy - ours) / seconds if seconds else 0
    if others > BUSY_CORES:
        said.append(f'other programs kept {others:.1f} of {cores} cores busy')
    stolen = (after.stolen - before.stolen) / seconds if seconds else 0
    if stolen > BUSY_CORES / 3:
        said.append(f'{stolen:.1f} cores were taken away by the hypervisor (steal)')
    return said


def cores():
    """Processors of this machine that we may use."""
    return len(os.sched_getaffinity(0))
