"""The networks a guest can sit on, one class each, with one way to use them: netdev() for QEMU, words() for the boot line,
tcp() and udp() for connected sockets to the guest, ping() where there is one.

    with TapWire(workdir) as wire, Guest(machine(wire), netns=wire.netns) as guest: ...
"""
import contextlib
import itertools
import os
import re
import shutil
import socket
import tempfile
import time

from rslib.netns import Netns
import steering
from rawhost import RawHost
from rawlink import StreamLink

GUEST4, GUEST6, MASK = '198.18.0.2', 'fd00::2', 24
HOST4, HOST6 = '198.18.0.1', 'fd00::1'
PORTS = (('tcp', 7), ('udp', 7), ('tcp', 9), ('udp', 9), ('tcp', 19), ('udp', 19))


class UserWire:
    """QEMU's user networking: forwards on ports the kernel picks; no namespace, no privileges, IPv4 only from outside."""

    netns = None
    guest4 = '10.0.2.15'
    options = ''

    def __enter__(self):
        self._guest = None
        self._forwards = None
        return self

    def __exit__(self, *_):
        pass

    def netdev(self):
        """QEMU's arguments."""
        return ['-netdev', 'user,id=n0' + self.options + ''.join(f',hostfwd={proto}:127.0.0.1:0-:{port}' for proto, port in PORTS)]

    def words(self):
        """Static address words for the boot line."""
        return 'ip=10.0.2.15/24,gw=10.0.2.2 ip6=off'

    def attach(self, guest):
        """Called once the guest runs."""
        self._guest = guest
        self._forwards = guest.forwards()

    def tcp(self, port):
        """A TCP socket connected to the guest's port."""
        return socket.create_connection(('127.0.0.1', self._forwards['tcp', port]), 10)

    def udp(self, port):
        """A UDP socket connected to the guest's port."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.connect(('127.0.0.1', self._forwards['udp', port]))
        return sock


class TapWire:
    """A tap device in a namespace of its own; the host side is Linux's stack."""

    guest4, guest6 = GUEST4, GUEST6

    def __init__(self, queues=1, mtu=None):
        self._queues, self._mtu = queues, mtu
        # Below those that the kernel gives out; used again late, and not those of what was opened first.
        self._ports = itertools.chain(range(10000, 32768), itertools.cycle(range(12000, 32768)))
        self.netns = None

    def __enter__(self):
        self.netns = Netns()
        self.netns.__enter__()
        try:
            self.netns.tap('tap0', [f'{HOST4}/{MASK}', f'{HOST6}/64', 'fe80::1/64'], self._queues, self._mtu)
            # What the guest has no room for waits here; at the usual 1,000 frames the host itself would drop some.
            self.netns.run(['ip', 'link', 'set', 'tap0', 'txqueuelen', 20000])
            # Fragments of large datagrams come faster than they are read.
            self.netns.sysctl('net.ipv4.ipfrag_high_thresh', 16 << 20)
        except BaseException:
            self.netns.close()
            raise
        return self

    def __exit__(self, *_):
        self.netns.close()

    def netdev(self):
        """QEMU's arguments; QEMU must be started in self.netns."""
        return ['-netdev', 'tap,id=n0,ifname=tap0,script=no,downscript=no' +
                (f',queues={self._queues}' if self._queues > 1 else '')]

    def words(self):
        """Static address words for the boot line."""
        return f'ip={GUEST4}/{MASK},gw={HOST4} ip6={GUEST6}/64'

    def attach(self, guest):
        """Nothing to do."""

    def tcp(self, port, address=GUEST4, source=0):
        """A TCP socket connected to the guest's port, from port `source` if given."""
        return self._connected(socket.SOCK_STREAM, port, address, source)

    def sources(self, cores, each, host=HOST4, guest=GUEST4, port=7):
        """{core: `each` fresh source ports for it}: flows to the guest's port from them belong to that core."""
        found = {core: [] for core in range(cores)}
        while any(len(ports) < each for ports in found.values()):
            source = next(self._ports)
            ports = found[steering.owner(cores, host, guest, source, port)]
            if len(ports) < each:
                ports.append(source)
        return found

    def udp(self, port, address=GUEST4, source=0):
        """A UDP socket connected to the guest's port, from port `source` if given."""
        return self._connected(socket.SOCK_DGRAM, port, address, source)

    def _connected(self, kind, port, address, source):
        v6 = ':' in address
        sock = self.netns.socket(socket.AF_INET6 if v6 else socket.AF_INET, kind)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.settimeout(10)
            if source:
                sock.bind(('', source))
            scope = self.index() if address.startswith('fe80') else 0
            sock.connect((address, port, 0, scope) if v6 else (address, port))
        except BaseException:
            sock.close()
            raise
        return sock

    def index(self):
        """tap0's interface index in the namespace, for link-local addresses."""
        return int(self.netns.run(['ip', '-o', 'link', 'show', 'tap0']).stdout.split(':')[0])

    def link(self, up):
        """Takes the host's side of the link up or down."""
        self.netns.run(['ip', 'link', 'set', 'tap0', 'up' if up else 'down'])

    def ping(self, address=GUEST4, count=1, size=56, flood=False, timeout=60, wait=5, unresolved=False):
        """Runs ping(8), which compares contents; returns (sent, answered within `wait` seconds of its end). Counted by the
        kernel: ping itself waits only two round trips for the last answers, less than a loaded machine may take. unresolved: the host may find
        that it does not know the way yet, which is not the guest's error."""
        six = ':' in address
        sent, answered = self._echoes(six)
        argv = ['ping', '-q', '-n', '-c', count, '-s', size, '-W', 1] + (['-f'] if flood else ['-i', '0.01'])
        done = self.netns.run(argv + [address + ('%tap0' if address.startswith('fe80') else '')], timeout=timeout, check=False)
        assert re.search(r'\d+ packets transmitted', done.stdout), f'ping {address} -s {size}: {done.stdout}{done.stderr}'
        bad = r'corrupted|wrong data|duplicates' + ('' if unresolved else '|errors')
        assert not re.search(bad, done.stdout), done.stdout
        end = time.monotonic() + wait
        while True:
            now = self._echoes(six)
            if now[1] - answered >= now[0] - sent or time.monotonic() > end:
                return now[0] - sent, now[1] - answered
            time.sleep(0.02)

    def frames(self):
        """Frames so far (to the guest, from the guest), as the kernel counts them on the tap."""
        values = re.search(r'tap0:(.*)', self.netns.run(['cat', '/proc/net/dev']).stdout).group(1).split()
        return int(values[9]), int(values[1])

    def _echoes(self, six):
        """The kernel's counts of echo requests sent and replies received."""
        if six:
            text = self.netns.run(['cat', '/proc/net/snmp6']).stdout
            return tuple(int(re.search(rf'Icmp6{name}\s+(\d+)', text).group(1)) for name in ('OutEchos', 'InEchoReplies'))
        names, values = re.findall(r'^Icmp: (.*)$', self.netns.run(['cat', '/proc/net/snmp']).stdout, re.MULTILINE)
        counts = dict(zip(names.split(), map(int, values.split())))
        return counts['OutEchos'], counts['InEchoReps']


class RawWire(RawHost):
    """Raw frames over -netdev dgram or stream; the host side is RawHost."""

    netns = None
    guest4, guest6 = GUEST4, GUEST6

    def words(self):
        """Static address words for the boot line."""
        return f'ip={GUEST4}/{MASK},gw={HOST4} ip6={GUEST6}/64'

    def attach(self, guest):
        """Nothing to do."""


@contextlib.contextmanager
def raw_wire(**options):
    """A RawWire with a directory of its own for its sockets."""
    workdir = tempfile.mkdtemp(prefix='ringside-wire-')
    try:
        with RawWire(workdir, HOST4, HOST6, **options) as wire:
            yield wire
    finally:
        shutil.rmtree(workdir, ignore_errors=True)


def make(kind, **options):
    """A wire by name: user, tap, dgram or stream."""
    if kind == 'user':
        return UserWire()
    if kind == 'tap':
        return TapWire(**options)
    if kind == 'dgram':
        return raw_wire(**options)
    if kind == 'stream':
        return raw_wire(link=StreamLink, **options)
    raise ValueError(f'wire {kind}: one of user, tap, dgram, stream')


def have_tap():
    """True where a tap device can be made."""
    return os.access('/dev/net/tun', os.R_OK | os.W_OK)
