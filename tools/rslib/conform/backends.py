"""The backends that `ringside conform` knows, one row each."""
import dataclasses

from .. import backend as run_backend
from ..common import UsageError
from ..qemu import NoQemu, qemu10
from ..run import qemu_version
from . import nested, peer, switches
from .local import HOST, GUEST, PREFIX, Place, Unavailable, program, runs, tap


@dataclasses.dataclass(frozen=True)
class Backend:
    """name: on the command line and in the report; about: what it is, one line; run(ask, say): boots the guest on it, returns a Raw or
    raises Unavailable; say is told of progress. apart: it is known to die of a check, so each area gets a run of its own."""
    name: str
    about: str
    run: object
    apart: bool = False


def _user(*_):
    return Place(['-netdev', 'user,id=n0'], 'ip=10.0.2.15/24,gw=10.0.2.2')


def _dgram(_, folder, stack):
    mine, theirs = f'{folder}/peer', f'{folder}/qemu'
    counts = stack.enter_context(peer.on_datagrams(mine, theirs, HOST))
    return Place(['-netdev', f'dgram,id=n0,local.type=unix,local.path={theirs},remote.type=unix,remote.path={mine}'],
                 after=lambda: [(f'peer: {key}', str(value)) for key, value in counts.items()])


def _ten(run):
    """The same under QEMU 10."""
    def ten(ask, say):
        if not ask.qemu:
            if qemu_version(program(ask)) >= (10, 0):
                raise Unavailable('the installed QEMU is as new: see the row without qemu10-')
            say('QEMU 10 is looked for')
            try:
                ask = dataclasses.replace(ask, qemu=qemu10())
            except NoQemu as e:
                raise Unavailable(str(e)) from None
        return run(ask, say)
    return ten


def _named(text):
    """Backends of the user's own: vhost-user:SOCKET, dgram:PATH."""
    b = run_backend.parse(text)

    def make(ask, *_):
        if b.kind == 'vhost-user':
            return Place(switches.chardev(b.path.replace(',', ',,'), ask.queues), '', queues=ask.queues, shared=True)
        path = b.path.replace(',', ',,')
        return Place(['-netdev', f'dgram,id=n0,local.type=unix,local.path={path},remote.type=unix,remote.path={path}.peer'],
                     f'ip={GUEST}/{PREFIX},gw={HOST}')
    return Backend(text, 'of your own', runs(make))


BACKENDS = (
    Backend('user', "QEMU's user networking", runs(_user)),
    Backend('tap', 'a tap device', runs(tap(1))),
    Backend('tap-2', 'a tap device, 2 queue pairs', runs(tap(2))),
    Backend('tap-4', 'a tap device, 4 queue pairs', runs(tap(4))),
    Backend('tap-rss', 'a tap device, 2 queue pairs, the card with RSS and hash reports', runs(tap(2, rss=True))),
    Backend('dgram', 'bare frames over unix datagrams, to a peer that answers ARP and ping', runs(_dgram)),
    Backend('own', "the tests' own vhost-user device, honest", runs(switches.own(1))),
    Backend('own-2', "the tests' own vhost-user device, honest, 2 queue pairs", runs(switches.own(2))),
    Backend('testpmd', "DPDK's testpmd over vhost-user, to a tap device", runs(switches.testpmd(1))),
    Backend('testpmd-2', "DPDK's testpmd over vhost-user, to a tap device, 2 queue pairs", runs(switches.testpmd(2))),
    Backend('testpmd-macswap', "DPDK's testpmd over vhost-user, which sends every frame back", runs(switches.testpmd(1, macswap=True))),
    Backend('passt', 'passt over vhost-user', runs(switches.passt), apart=True),
    Backend('ovs', 'Open vSwitch with DPDK over vhost-user', runs(switches.ovs(1))),
    Backend('ovs-2', 'Open vSwitch with DPDK over vhost-user, 2 queue pairs', runs(switches.ovs(2))),
    Backend('vhost-net', "the kernel's vhost-net of this machine", runs(tap(1, vhost=True))),
    Backend('nested-vhost-net', 'kernel vhost-net under real KVM, in an emulated machine', nested.run_with(1)),
    Backend('nested-vhost-net-2', 'kernel vhost-net under real KVM, in an emulated machine, 2 queue pairs', nested.run_with(2)),
    Backend('nested-vhost-net-4', 'kernel vhost-net under real KVM, in an emulated machine, 4 queue pairs', nested.run_with(4)),
    Backend('nested-tap', "QEMU's own device under real KVM, in an emulated machine", nested.run_with(1, vhost=False)),
    Backend('qemu10-user', "QEMU 10's user networking", _ten(runs(_user))),
    Backend('qemu10-tap', 'a tap device, QEMU 10', _ten(runs(tap(1)))),
    Backend('qemu10-tap-2', 'a tap device, QEMU 10, 2 queue pairs', _ten(runs(tap(2)))),
    Backend('qemu10-testpmd', "DPDK's testpmd, QEMU 10 (MSI-X)", _ten(runs(switches.testpmd(1)))),
    Backend('qemu10-testpmd-2', "DPDK's testpmd, QEMU 10 (MSI-X), 2 queue pairs", _ten(runs(switches.testpmd(2)))),
)
OWN = ('vhost-user:SOCKET', 'dgram:PATH')


def find(text):
    """The Backend of a name. UsageError, with the valid ones, if there is none."""
    for b in BACKENDS:
        if b.name == text:
            return b
    if text.split(':', 1)[0] in ('vhost-user', 'dgram'):
        return _named(text)
    raise UsageError(f"backend '{text}' is not known; valid: {', '.join([b.name for b in BACKENDS] + list(OWN))}")
