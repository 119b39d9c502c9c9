"""Network namespaces for tests and tools: made, used and gone again, whatever happens.

A small keeper process holds the namespace and hands out sockets made inside it. It ends when its control socket closes,
so even a killed parent leaves no namespace behind: the kernel removes it, with its devices, when the last process in it
ends. Processes started inside get SIGKILL when their parent thread dies. Without root a user namespace is used as well.
"""
import array
import itertools
import os
import socket
import subprocess
import sys

_numbers = itertools.count(1)

# Runs inside the namespace. One request datagram "family type proto" is answered with the socket, or with an error text.
_KEEPER = r"""
import array, socket, sys
s = socket.socket(fileno=int(sys.argv[1]))
s.send(b'up')
while True:
    request = s.recv(64)
    if not request:
        break
    try:
        made = socket.socket(*map(int, request.split()))
    except OSError as e:
        s.send(b'!' + str(e).encode())
        continue
    s.sendmsg([b'.'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [made.fileno()]))])
    made.close()
"""


class NetnsError(Exception):
    """A command that sets up a namespace failed; the text is the command and its message."""


def end_process(process, seconds=5):
    """Ends one child process: SIGTERM, then SIGKILL after so many seconds. Returns its exit status."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


def dies_with_parent(argv):
    """argv for a process that gets SIGKILL when the thread that started it dies (setpriv is in util-linux: always there)."""
    return ['setpriv', '--pdeathsig', 'KILL', '--'] + [str(a) for a in argv]


class Netns:
    """A network namespace with a unique name, loopback up, removed on exit with every process popen() started in it.

    visible=True also gives it its name under /run/netns (root only), for `ip netns exec NAME ...` from a terminal.
    """

    def __init__(self, visible=False):
        self.name = f'ringside-{os.getpid()}-{next(_numbers)}'
        self.visible = visible and os.geteuid() == 0
        self._rootless = os.geteuid() != 0
        self._keeper = None
        self._control = None
        self._children = []

    def __enter__(self):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            unshare = ['unshare', '--net'] + (['--user', '--map-root-user'] if self._rootless else [])
            argv = unshare + [sys.executable, '-I', '-S', '-c', _KEEPER, str(theirs.fileno())]
            self._keeper = subprocess.Popen(dies_with_parent(argv), pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                                            stderr=subprocess.PIPE)
            theirs.close()
            self._control = ours
            ours.settimeout(60)
            if ours.recv(16) != b'up':
                raise NetnsError('no network namespace: ' + self._keeper.stderr.read().decode(errors='replace').strip())
            if self.visible:
                _check(['ip', 'netns', 'attach', self.name, str(self._keeper.pid)])
            self.run(['ip', 'link', 'set', 'lo', 'up'])
        except BaseException:
            theirs.close()
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends what popen() started, the keeper, and with it the namespace. May be called twice."""
        for child in reversed(self._children):
            end_process(child)
        self._children.clear()
        if self.visible and os.path.exists(f'/run/netns/{self.name}'):
            subprocess.run(['ip', 'netns', 'delete', self.name], check=False, timeout=10)
        if self._control:
            self._control.close()
            self._control = None
        if self._keeper:
            try:
                self._keeper.wait(5)
            except subprocess.TimeoutExpired:
                self._keeper.kill()
                self._keeper.wait()
            self._keeper.stderr.close()
            self._keeper = None

    @property
    def pid(self):
        """A process inside, by which others name the namespace: /proc/PID/ns/net."""
        return self._keeper.pid

    def enter(self, argv):
        """The same command, run inside the namespace. The process keeps its pid: nsenter becomes the command."""
        if not self._keeper:
            raise NetnsError(f'namespace {self.name} is not open')
        how = ['--user', '--preserve-credentials'] if self._rootless else []
        return ['nsenter', '-t', str(self._keeper.pid), '--net', *how, '--'] + [str(a) for a in argv]

    def run(self, argv, timeout=30, check=True):
        """Runs a command to its end inside; returns its CompletedProcess with text output. NetnsError if it fails."""
        return _check(self.enter(argv), timeout, check)

    def popen(self, argv, **kwargs):
        """Starts a command inside; it is ended when the namespace closes, or earlier by the caller."""
        kwargs.setdefault('stdin', subprocess.DEVNULL)
        child = subprocess.Popen(self.enter(dies_with_parent(argv)), **kwargs)
        self._children.append(child)
        return child

    def socket(self, family=socket.AF_INET, kind=socket.SOCK_STREAM, proto=0):
        """A socket that lives in the namespace; the caller closes it."""
        self._control.send(f'{int(family)} {int(kind)} {proto}'.encode())
        text, ancillary, _, _ = self._control.recvmsg(256, socket.CMSG_SPACE(4))
        for level, what, data in ancillary:
            if level == socket.SOL_SOCKET and what == socket.SCM_RIGHTS:
                return socket.socket(fileno=array.array('i', data)[0])
        raise NetnsError(f'no socket in {self.name}: {text[1:].decode(errors="replace")}')

    def tap(self, name, addr=None, queues=1, mtu=None):
        """Makes a tap device, up. addr: one "A.B.C.D/N" or "X::Y/N", or a list of them. queues > 1: multi_queue (QEMU must
        then be given the same number of queues). No packet of its own (DAD, router solicitation) leaves it."""
        multi = ['multi_queue'] if queues > 1 else []
        self.run(['ip', 'tuntap', 'add', 'dev', name, 'mode', 'tap', *multi])
        for key, value in (('accept_dad', 0), ('router_solicitations', 0), ('accept_ra', 0)):
            self.sysctl(f'net.ipv6.conf.{name}.{key}', value)
        if mtu:
            self.run(['ip', 'link', 'set', name, 'mtu', mtu])
        for one in [addr] if isinstance(addr, str) else addr or []:
            self.run(['ip', 'addr', 'add', one, 'dev', name] + (['nodad'] if ':' in one else []))
        self.run(['ip', 'link', 'set', name, 'up'])

    def sysctl(self, key, value):
        """Sets one network variable of the namespace. NetnsError if the kernel refuses it."""
        path = '/proc/sys/' + key.replace('.', '/')
        self.run(['sh', '-c', 'printf %s "$1" > "$2"', 'sh', str(value), path])


def _check(argv, timeout=30, check=True):
    argv = [str(a) for a in argv]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False)
    if check and done.returncode:
        raise NetnsError(f'{" ".join(argv)}: exit {done.returncode}: {(done.stderr or done.stdout).strip()}')
    return done
