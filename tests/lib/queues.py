"""Queue pairs, vectors and what QEMU tells of them: expectations worked out apart from the guest, and counts by queue."""
import collections
import re

# Trace events that count doorbells and interrupts by queue.
NOTIFY, INTERRUPT = 'virtio_queue_notify', 'virtio_notify'
EVENTS = ['virtio_set_status', NOTIFY, INTERRUPT]

# With rss=on QEMU tries to load a program into the tap device; the one in QEMU 7.2 is of a form that the distribution's
# libbpf does not take any more. It says so and steers in software.
RSS_WARNINGS = (
    r"libbpf: elf: legacy map definitions in 'maps' section are not supported by libbpf v1\.0\+",
    r"libbpf: failed to initialize skeleton BPF object 'rss_bpf': -95",
    r"qemu-system-x86_64: warning: Can't load eBPF RSS - fallback to software RSS",
)


def interrupts_text(vectors, pairs):
    """What the console must say of the interrupts with so many vectors and pairs."""
    if vectors >= 2 * pairs + 1:
        return 'msix per queue'
    if vectors >= pairs + 1:
        return 'msix per pair'
    return {0: 'intx', 1: 'msix, one vector'}.get(vectors, 'msix for all queues')


def doorbells(guest):
    """{queue number: notifications of it that reached QEMU}. Several may have been folded into one."""
    return collections.Counter(int(n) for n in re.findall(rf'^{NOTIFY} vdev \S+ n (\d+) vq', guest.trace, re.MULTILINE))


def interrupts(guest):
    """{queue number: interrupts for it}. A queue that was never notified has no number and counts under None."""
    number = {vq: int(n) for n, vq in re.findall(rf'^{NOTIFY} vdev \S+ n (\d+) vq (\S+)', guest.trace, re.MULTILINE)}
    return collections.Counter(number.get(vq) for vq in re.findall(rf'^{INTERRUPT} vdev \S+ vq (\S+)', guest.trace, re.MULTILINE))


def check_doorbells(guest, pairs, control):
    """Every pair in use sent, and only queues in use were notified; control: the control queue's number, or None."""
    rung = doorbells(guest)
    silent = [pair for pair in range(pairs) if not rung[2 * pair + 1]]
    assert not silent, f'cores {silent} have sent nothing: {dict(rung)}'
    wrong = set(rung) - set(range(2 * pairs)) - {control}
    assert not wrong, f'queues {sorted(wrong)} were notified, in use are {2 * pairs} and the control queue {control}'
