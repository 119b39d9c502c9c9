"""ringside.elf under real KVM, with the kernel's vhost-net and with QEMU's own device behind a tap.

A row boots the image in the lab (docs/nested-kvm.md), drives its echo servers with drive.sh, and wants besides equal
contents the evidence that it was the real thing: who raised the interrupts, and that no kick left the kernel.
"""
import dataclasses
import re
from pathlib import Path

import pytest

from rslib import kvmlab

DRIVE = (Path(__file__).parent / 'drive.sh').read_text()
GUEST_ENDED_WELL = '1'      # QEMU's exit code when the guest writes 0 to isa-debug-exit
KVM_EXIT_MMIO = 6           # <linux/kvm.h>: the access goes to user space
KVM_TRACE_MMIO_WRITE = 2    # arch/x86/kvm: the type of a kvm_mmio tracepoint
ENOUGH = 10                 # kicks and interrupts that the traffic of a row causes at the very least
FLOWS_PER_QUEUE = 10        # TCP connections, so that each queue owns some
SECONDS = 150               # for a row; it takes about 8 on an idle machine


@dataclasses.dataclass
class Row:
    """A row of the table. processors are the guest's, and as many has the machine it runs on."""
    id: str
    vhost: bool
    machine: str = 'q35'
    processors: int = 1
    queues: int = 1
    append: str = ''    # boot line
    extra: str = ''     # QEMU's arguments
    nic: str = ''       # the card's properties
    full: bool = False


ROWS = [
    Row('vhost', vhost=True),
    Row('qemu-device', vhost=False),
    Row('vhost-2-queues', vhost=True, processors=2, queues=2),
    Row('vhost-4-queues', vhost=True, processors=4, queues=4, full=True),
    Row('vhost-pc-smp2', vhost=True, machine='pc', processors=2, full=True),
]


@dataclasses.dataclass
class Told:
    """What drive.sh told: facts, the guest's console, tracepoint counts as (keys, number) by event."""
    facts: dict
    console: str
    events: dict

    @classmethod
    def of(cls, output):
        """From the output of the job."""
        facts = dict(re.findall(r'^@(\w+) ?(.*)$', output, re.M))
        facts['stderr'] = re.findall(r'^@stderr (.*)$', output, re.M)
        events = {}
        for event, keys, count in re.findall(r'^@kvm/(\w+) \{(.*)\} hitcount: (\d+)$', output, re.M):
            fields = dict(f.strip().split(': ', 1) for f in keys.split(','))
            events.setdefault(event, []).append((fields, int(count)))
        return cls(facts, '\n'.join(re.findall(r'^guest: (.*)$', output, re.M)), events)

    def count(self, event, wanted):
        """How often an event was seen with keys for which wanted(keys) holds."""
        return sum(n for keys, n in self.events.get(event, []) if wanted(keys))

    def interrupts(self, by):
        """Message-signalled interrupts raised by threads whose name starts so."""
        return self.count('kvm_msi_set_irq', lambda k: k['common_pid'].startswith(by))


@pytest.mark.parametrize('row', [pytest.param(r, id=r.id, marks=[pytest.mark.full] if r.full else []) for r in ROWS])
def test_kvm(row, lab, image):
    """Boots the row and checks what it is about."""
    variables = {'MACHINE': row.machine, 'SMP': row.processors, 'VHOST': 'on' if row.vhost else 'off',
                 'QUEUES': row.queues, 'APPEND': row.append, 'EXTRA': row.extra,
                 'NIC': row.nic, 'TCP_BYTES': 400_000, 'UDP_DATAGRAMS': 300,
                 'FLOWS': FLOWS_PER_QUEUE * row.queues if row.queues > 1 else 1}
    result = kvmlab.run(DRIVE, [image], variables, timeout=SECONDS, smp=row.processors, lab=lab)
    print(result.output)
    assert result.status == 0, f'the job ended with {result.status}: {result.meaning}'
    assert result.stderr == '', 'the QEMU that emulates the machine complains'
    told = Told.of(result.output)
    check_guest(told, row)
    check_traffic(told)
    check_backend(told, row)
    check_kicks(told)
    check_queues(told, row)


def check_guest(told, row):
    """It came up as asked, on KVM's clock and interrupt controller, and ended well."""
    ready = re.findall(r'^ringside: ready (.*)$', told.console, re.M)
    assert len(ready) == 1, f'{len(ready)} ready lines'
    assert 'ip=198.18.9.2 ' in ready[0] and f'queues={row.queues} ' in ready[0], ready[0]
    assert re.search(r'clock: pvclock\b', told.console), 'the clock is not the hypervisor\'s'
    assert re.search(r'\bx2apic\b', told.console), 'KVM always has an x2APIC, and it is not used'
    assert 'panic' not in told.console
    assert told.facts['stderr'] == [], 'the guest\'s QEMU complains'
    assert told.facts['exit'] == GUEST_ENDED_WELL, 'the power button did not end it well'


def check_traffic(told):
    """All came back, and equal."""
    assert told.facts['ping'].startswith('10 packets transmitted, 10 packets received')
    assert told.facts['tcp'] == '0', 'TCP echo (echocheck\'s line says what)'
    assert told.facts['udp'] == '0', 'UDP echo (echocheck\'s line says what)'


def check_backend(told, row):
    """It is vhost that works, in the kernel, or it is not."""
    vhost, qemu = told.interrupts('vhost-'), told.interrupts('qemu-system')
    assert ('vhost-' in told.facts['threads']) == row.vhost, f'threads: {told.facts["threads"]}'
    if row.vhost:
        assert vhost >= ENOUGH and qemu == 0, f'{vhost} interrupts raised by vhost, {qemu} by QEMU'
    else:
        assert vhost == 0 and qemu >= ENOUGH, f'{vhost} interrupts raised by vhost, {qemu} by QEMU'


def check_kicks(told):
    """Kicks are writes to the notification area that KVM hands to an eventfd: none reaches user space."""
    first, last = (int(n, 16) for n in told.facts['notify'].split())
    kicks = told.count('kvm_mmio', lambda k: int(k['type']) == KVM_TRACE_MMIO_WRITE and
                       first <= int(k['gpa'], 16) <= last)
    outside = told.count('kvm_userspace_exit', lambda k: int(k['reason']) == KVM_EXIT_MMIO)
    assert kicks >= ENOUGH, f'{kicks} kicks'
    assert outside == 0, f'{outside} memory-mapped accesses left the kernel'


def check_queues(told, row):
    """Every transmit queue was kicked, each at its own place; every pair has its vhost thread, and each raised interrupts."""
    if row.queues == 1:
        return
    first = int(told.facts['notify'].split()[0], 16)
    for pair in range(row.queues):
        at = first + 4 * (2 * pair + 1)
        kicks = told.count('kvm_mmio', lambda k, at=at: int(k['type']) == KVM_TRACE_MMIO_WRITE and int(k['gpa'], 16) == at)
        assert kicks > 0, f'no kick of transmit queue {2 * pair + 1}'
    threads = len(re.findall(r'vhost-\d+', told.facts['threads']))
    assert threads >= row.queues, f'{row.queues} pairs, threads: {told.facts["threads"]}'
    assert re.search(rf'queue pairs: {row.queues} in use', told.console), 'not all pairs are in use'
