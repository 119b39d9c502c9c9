"""One guest under measurement: a tap device in a namespace of its own, QEMU with the counting plugin and trace events."""
import contextlib
import dataclasses
import os
import tempfile
import time

from ..netns import Netns
from ..qemu import Guest, Machine
from . import clients
from .counter import Count, Counter

QUEUE_EVENTS = ('virtio_queue_notify', 'virtio_notify', 'virtio_notify_irqfd')
QUIET_SECONDS = 3.5     # after it is ready a guest still has address detection and announcements to do


@dataclasses.dataclass
class Wanted:
    """What to boot: the image, its boot line, the machine."""
    image: str
    append: str = ''
    cpus: int = 1
    memory: str = '256M'
    props: dict = dataclasses.field(default_factory=dict)
    trace: bool = False


@contextlib.contextmanager
def running(wanted, plugin):
    """Boots it; yields (netns, guest, counter) once it is ready and quiet. Nothing is left afterwards."""
    with tempfile.TemporaryDirectory(prefix='ringside-bench-') as work, Netns() as netns:
        netns.tap('tap0', [f'{clients.HOST}/{clients.PREFIX}', 'fd00::1/64', 'fe80::1/64'], wanted.cpus)
        counter = Counter(plugin, work, wanted.cpus)
        queues = f',queues={wanted.cpus}' if wanted.cpus > 1 else ''
        props = {'mq': 'on', 'vectors': 2 * wanted.cpus + 2} if wanted.cpus > 1 else {}
        machine = Machine(wanted.image, smp=wanted.cpus, memory=wanted.memory,
                          append=f'ip={clients.GUEST}/{clients.PREFIX},gw={clients.HOST} ip6=fd00::2/64 {wanted.append}'.strip(),
                          netdev=['-netdev', f'tap,id=n0,ifname=tap0,script=no,downscript=no{queues}'],
                          props={**props, **wanted.props}, extra=counter.argv(),
                          trace=list(QUEUE_EVENTS) if wanted.trace else [],
                          trace_file=os.path.join(work, 'trace') if wanted.trace else '')
        with Guest(machine, netns=netns) as guest:
            guest.wait_ready(30)
            time.sleep(QUIET_SECONDS)
            yield netns, guest, counter
