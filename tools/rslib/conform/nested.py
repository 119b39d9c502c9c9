"""The guest with `conform` under real KVM with the kernel's real vhost-net, in a machine that QEMU emulates (docs/nested-kvm.md)."""
import os
import re
import shutil
import tempfile

from .. import kvmlab
from .local import WORDS, Raw, Unavailable, qemu_says

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'nested.sh')
LAB_SECONDS = 120           # for the emulated machine, beside the guest's own time
KVM_TRACE_MMIO_WRITE = 2    # arch/x86/kvm: the type of a kvm_mmio tracepoint
COUNTERS = ('exits', 'io_exits', 'mmio_exits', 'irq_exits', 'irq_injections', 'halt_exits', 'signal_exits')


def run_with(queues, vhost=True):
    """A Backend's run() for so many queue pairs, with vhost-net or QEMU's own device."""
    def run(ask, say):
        try:
            lab = kvmlab.setup()
        except (kvmlab.Unavailable, kvmlab.LabError) as e:
            raise Unavailable(str(e).splitlines()[0]) from None
        with open(SCRIPT, encoding='utf-8') as f:
            script = f.read()
        variables = {'VHOST': 'on' if vhost else 'off', 'QUEUES': queues, 'APPEND': ask.append(WORDS), 'SECONDS_MAX': ask.seconds}
        say('the emulated machine boots')
        with tempfile.TemporaryDirectory(prefix='ringside-') as folder:
            image = shutil.copy(ask.image, os.path.join(folder, 'ringside.elf'))
            result = kvmlab.run(script, [image], variables, timeout=ask.seconds + LAB_SECONDS, smp=queues, lab=lab)
        return raw_from(result, queues, vhost)
    return run


def raw_from(result, queues, vhost):
    """The Raw in a job's Result. KVM's own numbers show that it was the real thing, or the run has failed."""
    raw = Raw(console='\n'.join(re.findall(r'^guest: (.*)$', result.output, re.M)) + '\n')
    raw.command = ' '.join(['tools/rslib/kvmlab.py -- # with tools/rslib/conform/nested.sh:', f'VHOST={"on" if vhost else "off"}',
                            f'QUEUES={queues}'])
    if result.status != 0:
        raw.faults.append(f'the job in the emulated machine ended with {result.status}: {result.meaning}')
    raw.faults += qemu_says(result.stderr.splitlines() + re.findall(r'^@stderr (.*)$', result.output, re.M))
    facts = dict(re.findall(r'^@(\w+) ?(.*)$', result.output, re.M))
    code = facts.get('exit', '').strip()
    if code.isdigit():
        raw.exit_code = int(code)
    elif not raw.faults:
        raw.faults.append('it had not ended in time')
    raw.facts += _evidence(result.output, facts, vhost, raw.faults)
    return raw


def _events(output, event):
    """Counts of a tracepoint: (keys as a dict, number)."""
    found = re.findall(rf'^@{event} \{{(.*)\}} hitcount: (\d+)$', output, re.M)
    return [(dict(field.strip().split(': ', 1) for field in keys.split(',')), int(count)) for keys, count in found]


def _evidence(output, facts, vhost, faults):
    """What KVM counted: who raised interrupts, where kicks went."""
    raised = {'vhost': 0, 'QEMU': 0}
    for keys, count in _events(output, 'kvm/kvm_msi_set_irq'):
        raised['vhost' if keys['common_pid'].startswith('vhost-') else 'QEMU'] += count
    lines = [('interrupts', f'{raised["vhost"]} raised by vhost threads (irqfd), {raised["QEMU"]} by QEMU')]
    ends = facts.get('notify', '').split()
    if len(ends) == 2:
        first, last = (int(end, 16) for end in ends)
        kicks = sum(count for keys, count in _events(output, 'kvm/kvm_mmio')
                    if int(keys['type']) == KVM_TRACE_MMIO_WRITE and first <= int(keys['gpa'], 16) <= last)
        taken = sum(count for keys, count in _events(output, 'kprobes/ioeventfd') if keys['taken'] == '0')
        lines.append(('kicks', f'{kicks} writes to the notification area; {taken} were taken by an ioeventfd, in the kernel'))
        if vhost and not taken:
            faults.append('no kick was taken by an ioeventfd')
    lines.append(('threads', facts.get('threads', '')))
    counted = dict(word.split('=', 1) for word in facts.get('counters', '').split())
    lines.append(('KVM counted, to its last second', ', '.join(f'{name} {counted[name]}' for name in COUNTERS if name in counted)))
    if vhost and not raised['vhost']:
        faults.append('no interrupt was raised by a vhost thread: it was not vhost-net')
    return lines
