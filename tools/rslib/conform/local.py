"""Boots the guest with `conform` under this machine's QEMU and does what it asks for meanwhile."""
import collections
import contextlib
import dataclasses
import re
import shlex
import shutil
import tempfile
import time

from ..netns import Netns, NetnsError
from ..qemu import Guest, GuestError, Machine
from ..run import kvm_usable, qemu_version, usable

GUEST, HOST, PREFIX = '198.18.0.2', '198.18.0.1', 24
WORDS = f'ip={GUEST}/{PREFIX},gw={HOST}'
MEMORY = '256M'
END_SECONDS = 10            # from its last line to QEMU's end

_ASKED = re.compile(r'^# please: ([^\r\n]*)\r?\n', re.MULTILINE)


class Unavailable(Exception):
    """A backend cannot be had on this machine; the text says why, in one line."""


@dataclasses.dataclass
class Ask:
    """What is wanted of a run. words: of the user, for the boot line; qemu: program ('' picks the backend's own)."""
    image: str
    area: str = ''
    words: str = ''
    qemu: str = ''
    queues: int = 1         # of a backend of the user's own
    seconds: int = 180      # for the guest, from start to end

    def append(self, words):
        """The boot line; the user's words come last and so win."""
        return ' '.join(filter(None, [f'conform={self.area}' if self.area else 'conform', words, self.words]))


@dataclasses.dataclass
class Raw:
    """What a run left: the guest's console, QEMU's exit code (None: ended by us), what was wrong outside the guest, and facts about the
    backend as (key, value)."""
    console: str = ''
    exit_code: int = None
    faults: list = dataclasses.field(default_factory=list)
    facts: list = dataclasses.field(default_factory=list)
    command: str = ''       # QEMU's


@dataclasses.dataclass
class Place:
    """Where the guest is put. after(): facts that are known at the end; check(): faults of the run that the backend saw."""
    netdev: list
    words: str = WORDS
    queues: int = 1
    shared: bool = False            # another process works in the guest's memory
    netns: object = None
    props: dict = dataclasses.field(default_factory=dict)
    warnings: tuple = ()            # what QEMU may say on stderr: regular expressions of whole lines
    after: object = None
    check: object = None


def program(ask):
    """The QEMU to run. Unavailable if it is not there."""
    found = shutil.which(ask.qemu or 'qemu-system-x86_64')
    if not found:
        raise Unavailable(f'there is no program {ask.qemu or "qemu-system-x86_64"}')
    return found


def machine(ask, place):
    """The Machine for a place."""
    qemu, kvm = program(ask), kvm_usable()
    props = dict(place.props)
    if place.queues > 1:
        props = {'mq': 'on', 'vectors': 2 * place.queues + 2, **props}
    if place.shared and not kvm and qemu_version(qemu) < (10, 0):
        props['vectors'] = 0        # QEMU 7.2 without KVM crashes at DRIVER_OK when vhost-user and MSI-X meet
    netdev = (['-object', f'memory-backend-memfd,id=mem0,size={MEMORY},share=on'] if place.shared else []) + place.netdev
    return Machine(ask.image, qemu=qemu, machine='q35' + (',memory-backend=mem0' if place.shared else ''), memory=MEMORY,
                   accel='kvm' if kvm else 'tcg', smp=place.queues, append=ask.append(place.words), netdev=netdev, props=props,
                   warnings=place.warnings)


def help_out(guest, wish):
    """Does what the guest asks for with "# please: "; returns whether it is something we know."""
    if wish in ('link down', 'link up'):
        guest.qmp('set_link', name='nic0', up=wish == 'link up')
    elif wish == 'announce':
        guest.qmp('announce-self', initial=50, max=550, rounds=2, step=100)
    else:
        return False
    return True


def qemu_says(lines):
    """Faults for QEMU's complaints; the same one many times over is one."""
    return [f'QEMU says: {line}' + (f' ({times} times)' if times > 1 else '') for line, times in collections.Counter(lines).items()]


def _follow(guest, seconds, raw, say):
    """Lives with the guest until its console ends."""
    deadline, at = time.monotonic() + seconds, 0
    reader = guest.console_reader
    while match := reader.wait(_ASKED, max(deadline - time.monotonic(), 0), at):
        at = match.end()
        say(match[1])
        try:
            if not help_out(guest, match[1]):
                raw.facts.append(('asked for, and not known here', match[1]))
        except GuestError as e:
            raw.faults.append(str(e).splitlines()[0])
    if not reader.ended:
        raw.faults.append(f'it had not ended after {seconds} s')
        return
    if guest.ended(END_SECONDS):
        raw.exit_code = guest.exit_code
    else:
        raw.faults.append('its console ended, and QEMU did not')


def boot(ask, place, say):
    """Runs the guest in a place; returns the Raw."""
    raw = Raw()
    m = machine(ask, place)
    raw.command = shlex.join(m.argv())
    raw.facts.append(('QEMU', '{}.{}'.format(*qemu_version(m.qemu)) + f', {m.accel}'))
    try:
        with Guest(m, netns=place.netns) as guest:
            try:
                _follow(guest, ask.seconds, raw, say)
            finally:
                raw.console = guest.console
            stderr = guest.stderr.strip()
    except GuestError as e:
        first = str(e).splitlines()[0]
        if first != 'QEMU wrote to stderr':
            raw.faults.append(first)
            stderr = ''
            raw.faults += [line.strip() for line in str(e).split('QEMU stderr:', 1)[1:] for line in line.splitlines() if line.strip()]
    raw.faults += qemu_says(stderr.splitlines())
    if place.after:
        raw.facts += place.after()
    if place.check:
        raw.faults += place.check()
    return raw


def runs(make):
    """A Backend's run() from a function that makes the Place: make(ask, folder, stack) with an ExitStack for what must be undone."""
    def run(ask, say):
        with contextlib.ExitStack() as stack:
            folder = tempfile.mkdtemp(prefix='ringside-')
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            program(ask)
            place = make(ask, folder, stack)
            return boot(ask, place, say)
    return run


def namespace(stack):
    """A network namespace that goes with the stack. Unavailable if there are no rights."""
    try:
        return stack.enter_context(Netns())
    except (NetnsError, OSError) as e:
        raise Unavailable(str(e).splitlines()[0]) from None


# QEMU asks for RSS in the kernel first, by eBPF, and says so when it has to do it itself.
RSS_WARNINGS = ('libbpf: .*', r"qemu-system-.*: warning: Can't load eBPF RSS - fallback to software RSS")


def tap(queues=1, vhost=False, rss=False):
    """A tap device in a namespace; the host's stack is at its other end."""
    def make(_, folder, stack):
        if not usable('/dev/net/tun'):
            raise Unavailable('/dev/net/tun cannot be opened here')
        if vhost and not usable('/dev/vhost-net'):
            raise Unavailable('there is no /dev/vhost-net that opens here (nested-vhost-net brings its own)')
        netns = namespace(stack)
        try:
            netns.tap('tap0', f'{HOST}/{PREFIX}', queues=queues)
        except NetnsError as e:
            raise Unavailable(str(e)) from None
        more = (f',queues={queues}' if queues > 1 else '') + (',vhost=on' if vhost else '')
        return Place(['-netdev', 'tap,id=n0,ifname=tap0,script=no,downscript=no' + more], queues=queues, netns=netns,
                     props={'rss': 'on', 'hash': 'on'} if rss else {}, warnings=RSS_WARNINGS if rss else ())
    return make
