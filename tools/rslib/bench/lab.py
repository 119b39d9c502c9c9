"""`make bench LAB=kvm`: client, host kernel, vhost-net and guest together in the nested machine (docs/nested-kvm.md), in time
that counts their instructions, one nanosecond each. Rates then do not depend on the load of this machine, and ratios between
guests are exact to about a thousandth."""
import concurrent.futures
import dataclasses
import os
import re

from .. import kvmlab
from ..common import UsageError
from . import clients, exits, report, stats

HERE = os.path.dirname(os.path.realpath(__file__))
SECONDS = 1500          # of real time for one guest; a loaded machine takes three times as long as an idle one
AIMS = {'TCP_RR': 23000, 'UDP_RR': 25000, 'TCP_STREAM': 2500}           # with vhost-net
EXITS_AIM = 2           # per TCP_RR when the guest halts; 1.1 when it polls
COUNTS = {'TCP_RR': 3000, 'UDP_RR': 3000, 'TCP_CRR': 600, 'TCP_STREAM': 24 * 1024, 'TCP_MAERTS': 24 * 1024}
COUNTERS = ('exits', 'irq_injections', 'halt_exits', 'io_exits', 'mmio_exits')


@dataclasses.dataclass(frozen=True)
class Place:
    """One run of the lab: which guest, whether with vhost-net, processors and queue pairs of the guest, further words for
    our guest's boot line."""
    guest: str
    vhost: bool
    cpus: int = 1
    words: str = ''

    @property
    def name(self):
        """What tables call it."""
        words = ''.join(f' {w}' for w in self.words.split())
        return f'{self.guest}{words}, {"vhost-net" if self.vhost else "QEMU device"}'


def cases(counts):
    """CASES for lab.job: each test with one unit and with many."""
    out = []
    for name, count in counts.items():
        test = clients.TESTS[name]
        options = f'{test.sizes.format(test.size)} -k {",".join(clients.KEYS)}'
        for units in (1, count):
            length = -units * (clients.KIB if test.is_stream else 1)
            out.append(f'{name} {units} {length} {options}')
    return ';'.join(out)


def parse(output):
    """{test: {units: (Result, {counter: change})}} from the lab's output."""
    found = {}
    for name, units, values, changes in re.findall(r'^@bench (\S+) (\d+) (.*?); ?(.*)$', output, re.MULTILINE):
        text = '\n'.join(values.split(' '))
        counted = {k: int(v) for k, v in re.findall(r'(\w+)=(-?\d+)', changes)}
        found.setdefault(name, {})[int(units)] = clients.parse_netperf(clients.TESTS[name], text), counted
    return found


def per_unit(runs):
    """(rate, {counter: per unit}) of a test's runs: the long one's rate; changes without those of the short one."""
    (few, (less, base)), (many, (result, counted)) = min(runs.items()), max(runs.items())
    units = max(result.units - less.units, 1) if many != few else max(result.units, 1)
    names = set(counted) | set(COUNTERS)
    return result.rate, {n: max(counted.get(n, 0) - (base.get(n, 0) if many != few else 0), 0) / units for n in names}


def run(place, kinds, netperf, lab, icount):
    """Runs one place; returns ({test: (rate, counters per unit)}, exits.figures()). clients.ClientError if it fails."""
    kind = kinds[place.guest]
    extra = kind.extra()
    initrd = extra[extra.index('-initrd') + 1] if '-initrd' in extra else None
    variables = {'IMAGE': os.path.basename(kind.image), 'INITRD': os.path.basename(initrd) if initrd else '',
                 'APPEND': kind.append(place.words), 'READY': f'{place.guest}: ready', 'SMP': place.cpus,
                 'VHOST': 'on' if place.vhost else 'off', 'CASES': cases(COUNTS), 'TRACED': cases(exits.COUNTS)}
    with open(os.path.join(HERE, 'lab.job'), encoding='utf-8') as f:
        job = f.read()
    files = [kind.image, netperf] + ([initrd] if initrd else [])
    done = kvmlab.run(job, files, variables, timeout=SECONDS, smp=place.cpus, memory='1200M', icount=icount, lab=lab)
    if done.status or '@done ' not in done.output:
        said = [line for line in done.output.splitlines() if line.strip()][-1:] or ['it said nothing']
        raise clients.ClientError(f'{place.name}: {done.meaning} ({done.status}): {said[0]}')
    return {name: per_unit(runs) for name, runs in parse(done.output).items()}, exits.figures(done.output, place.cpus)


def places(names):
    """What is measured: our guest halting at once and polling, the Linux guest, each with and without vhost-net."""
    out = []
    for vhost in (True, False):
        out.append(Place('ringside', vhost, words='poll=0'))
        if vhost:
            out.append(Place('ringside', vhost))
        out += [Place(name, vhost) for name in names if name != 'ringside']
    return out


def tables(found, asked):
    """Blocks: rates with ratios, and exits and injections per unit. found: {(Place, test): [(rate, counters)]}."""
    base = next((p for p in asked if p.guest == 'linux'), None)
    rates = report.Block('Rates in instruction time', ['test', 'unit', 'aim', *(p.name for p in asked)], [])
    counts = report.Block('KVM exits / interrupts injected / halts, per unit', ['test', 'per', *(p.name for p in asked)], [],
                         [f'Aim for TCP_RR with vhost-net: at most {EXITS_AIM} exits when the guest halts, 1.1 when it polls.'])
    for name in COUNTS:
        test = clients.TESTS[name]
        line, counted = [name, test.rate, report.number(AIMS.get(name))], [name, test.unit]
        for place in asked:
            got = found.get((place, name))
            if not got:
                line.append('failed')
                counted.append('failed')
                continue
            rate = stats.spread([r for r, _ in got])
            linux = found.get((dataclasses.replace(base, vhost=place.vhost), name)) if base else None
            other = stats.spread([r for r, _ in linux]) if linux and place.guest != 'linux' else None
            line.append(report.spread(rate) + (f' = {report.times(stats.ratio(rate, other))}' if other else ''))
            counted.append(' / '.join(report.number(stats.spread([c.get(n, 0) for _, c in got]).median)
                                      for n in ('exits', 'irq_injections', 'halt_exits')))
        rates.rows.append(line)
        counts.rows.append(counted)
    if base:
        rates.notes.append('= is the ratio to the Linux guest on the same backend.')
    return [rates, counts]


def measure(kinds, netperf, rounds, say, workers):
    """Runs all places, several at a time; returns ({(Place, test): [(rate, counters)]}, {Place: [exits.figures()]}, the places,
    {Place: error})."""
    try:
        lab = kvmlab.setup()
    except kvmlab.Unavailable as e:
        raise UsageError(str(e)) from None
    if (lab / 'thread').read_text().strip() != 'single':
        raise UsageError('the lab has no QEMU that can count instructions here (docs/nested-kvm.md)')
    by_name = {k.name: k for k in kinds}
    asked, found, traced, errors = places(list(by_name)), {}, {}, {}

    def one(place):
        """One run, with what came of it."""
        try:
            return place, *run(place, by_name, netperf, lab, 0), None
        except (clients.ClientError, kvmlab.LabError, OSError) as e:
            return place, {}, {}, str(e)

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for number, (place, result, told, error) in enumerate(pool.map(one, asked * rounds), 1):
            for name, values in result.items():
                found.setdefault((place, name), []).append(values)
            if told:
                traced.setdefault(place, []).append(told)
            if error:
                errors[place] = error
            told = ', '.join(f'{name} {rate:,.0f}' for name, (rate, _) in result.items())
            say(f'[{number} of {len(asked) * rounds}] {place.name}: {error or told}')
    return found, traced, asked, errors
