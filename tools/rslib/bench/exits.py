"""What KVM did for a guest, counted exactly by the kernel's tracepoints in the nested machine: exits by reason, interrupts,
notifications; per transaction, KiB and frame. lab.job counts, lab.py runs it; here the counts get their names.

Counting takes instructions, and so time in which more comes together: it is done in runs of its own, after those for rates."""
import collections
import re

from . import clients, report

COUNTS = {'TCP_RR': 1000, 'UDP_RR': 1000, 'TCP_STREAM': 6 * 1024, 'TCP_MAERTS': 6 * 1024}
FRAMES = {'TCP_STREAM': ('frame to the guest', 'frames_to_guest'), 'TCP_MAERTS': ('frame from the guest', 'frames_from_guest')}
WRITE = 2                       # kvm_mmio's type
# AMD64 Architecture Programmer's Manual, volume 2, appendix C.
REASONS = {0x60: 'external interrupt', 0x61: 'NMI', 0x64: 'interrupt window', 0x72: 'cpuid', 0x77: 'pause', 0x78: 'halt',
           0x7b: 'port I/O', 0x7c: 'MSR', 0x81: 'hypercall', 0x400: 'nested page fault'}
MSRS = {0x80b: 'end of interrupt', 0x830: 'interrupt to a core', 0x838: 'timer', 0x6e0: 'timer'}
USER = {2: 'port I/O', 5: 'halt', 6: 'MMIO', 10: 'signal'}      # linux/kvm.h, KVM_EXIT_*
SUMS = ('exits', 'msr', 'user_space', 'ioeventfd', 'raised')


def parse(output):
    """({test: {units: {name: change}}}, (first, last) address of the notification area) from the lab's output."""
    found = {}
    for name, units, changes in re.findall(r'^@exits (\S+) (\d+) (.*)$', output, re.MULTILINE):
        counted = {k: int(v) for k, v in (word.rsplit('=', 1) for word in changes.split())}
        found.setdefault(name, {})[int(units)] = counted
    area = re.search(r'^@notify ([0-9a-f]+) ([0-9a-f]+)$', output, re.MULTILINE)
    return found, tuple(int(n, 16) for n in area.groups()) if area else (0, -1)


def _keys(name):
    """The keys of a histogram's entry: {'type': '2', 'gpa': ...}."""
    return dict(key.split(':', 1) for key in name.split(','))


def name_counts(changes, area, cpus=1):
    """A run's changes by what they mean: {'exits': {reason: n}, 'msr': {name: n}, 'user_space': ..., 'ioeventfd': {'receive': n, ...}, 'raised':
    {'irqfd': n, 'QEMU': n}, 'injected': n, 'frames_to_guest': n, 'frames_from_guest': n}. area: the notification area, four bytes
    a queue."""
    out = {kind: collections.Counter() for kind in SUMS}
    out.update(injected=0, frames_to_guest=changes.get('tap/tx', 0), frames_from_guest=changes.get('tap/rx', 0))
    for name, n in changes.items():
        event, _, rest = name.partition('/')
        if not event.startswith('kvm_') or not rest:
            continue
        keys = _keys(rest)
        if event == 'kvm_exit':
            code = int(keys['exit_reason'], 16)
            out['exits'][REASONS.get(code, f'exit 0x{code:x}')] += n
        elif event == 'kvm_msr':
            code = int(keys['ecx'], 16)
            out['msr'][MSRS.get(code, f'MSR 0x{code:x}')] += n
        elif event == 'kvm_userspace_exit':
            out['user_space'][USER.get(int(keys['reason']), f'reason {keys["reason"]}')] += n
        elif event == 'kvm_inj_virq':
            out['injected'] += n
        elif event == 'kvm_msi_set_irq':
            out['raised']['irqfd' if keys['common_pid'].startswith('vhost') else 'QEMU'] += n
        elif event == 'kvm_mmio' and int(keys['type']) == WRITE and area[0] <= int(keys['gpa'], 16) <= area[1]:
            queue = (int(keys['gpa'], 16) - area[0]) // 4
            out['ioeventfd']['control' if queue >= 2 * cpus else ('receive', 'transmit')[queue % 2]] += n
    return out


def less(many, few):
    """The one's counts without the other's, none below 0."""
    out = {}
    for name, value in many.items():
        if isinstance(value, dict):
            rest = {k: max(n - few[name].get(k, 0), 0) for k, n in value.items()}
            out[name] = {k: n for k, n in sorted(rest.items()) if n}
        else:
            out[name] = max(value - few[name], 0)
    return out


def figures(output, cpus=1):
    """{test: counts of so many units} of a lab run: as name_counts(), with 'unit' and 'units'; what a run with a single unit has
    counted (the control connection) is subtracted."""
    runs, area = parse(output)
    out = {}
    for name, by_units in runs.items():
        (few, base), (many, counted) = min(by_units.items()), max(by_units.items())
        told = less(name_counts(counted, area, cpus), name_counts(base if few != many else {}, area, cpus))
        out[name] = {'unit': clients.TESTS[name].unit, 'units': many - few if few != many else many, **told}
    return out


def _rows(told):
    """[(what, n)] of one test's counts, sums first."""
    def parts(kind, text, last=None):
        return [(text.format(name), n) for name, n in sorted(told[kind].items(), key=lambda item: item[0] == last)]
    return [('exits', sum(told['exits'].values())), *parts('exits', '- {}', 'MSR'), *parts('msr', '-- {}'),
            ('exits to user space', sum(told['user_space'].values())), *parts('user_space', '- for {}'),
            ('notifications by ioeventfd', sum(told['ioeventfd'].values())), *parts('ioeventfd', '- {} queue'),
            ('interrupts injected', told['injected']), *parts('raised', '- raised by the device, through {}')]


def _order(lists):
    """All names of the lists, in an order that each of them has."""
    out = []
    for names in lists:
        at = 0
        for name in names:
            if name in out:
                at = out.index(name) + 1
            else:
                out.insert(at, name)
                at += 1
    return out


def lines(told, asked):
    """[[test, per, what, a number for each of asked]]: per unit, and of streams per frame. told: {one of asked: figures()}."""
    out = []
    for name in COUNTS:
        for per, key in filter(None, ((clients.TESTS[name].unit, 'units'), FRAMES.get(name))):
            of = {p: (dict(_rows(t[name])), t[name][key]) for p, t in told.items() if name in t}
            for what in _order(rows for rows, _ in of.values()):
                cells = [of.get(p) for p in asked]
                out.append([name, per, what] + ['failed' if c is None else report.number(c[0].get(what, 0) / c[1] if c[1] else None)
                                                for c in cells])
    return out


def table(found, asked):
    """A block: per unit, and of streams per frame. found: {Place: [figures()]}, of which the first round is shown."""
    block = report.Block('KVM by tracepoints: exits by reason, notifications, interrupts, per unit',
                         ['test', 'per', 'what', *(p.name for p in asked)], [],
                         ['Counted one by one, in runs of their own. An ioeventfd is written within the exit: a nested page fault that '
                          'KVM handles itself. Through irqfd: raised in the kernel, by vhost-net. Exits include those that KVM ends at '
                          'once, which its own counter leaves out.'])
    block.rows += lines({place: runs[0] for place, runs in found.items() if runs}, asked)
    return block


def as_json(found, head):
    """What kvm-exits.json holds (docs/bench.md)."""
    guests = [{'name': p.name, 'guest': p.guest, 'words': p.words, 'backend': 'vhost-net' if p.vhost else 'qemu', 'cpus': p.cpus,
               'tests': runs[0]} for p, runs in found.items() if runs]
    return {'head': head, 'guests': guests}
