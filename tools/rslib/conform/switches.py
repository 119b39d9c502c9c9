"""The vhost-user switches that the guest is put behind: DPDK's testpmd, passt, Open vSwitch, and our own device."""
import contextlib
import os
import re
import select
import socket
import subprocess
import sys
import threading
import time

from ..common import ROOT
from ..netns import NetnsError, dies_with_parent, end_process
from ..run import usable
from . import peer
from .local import HOST, GUEST, PREFIX, Place, Unavailable, knows_guest, namespace

START_SECONDS = 60
SETUP_SECONDS = 1500


def from_script(name):
    """The path that tools/NAME prints; it gets what is missing. Unavailable with its words if it cannot. What it says goes on to the
    user."""
    done = subprocess.run([os.path.join(ROOT, 'tools', name)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=SETUP_SECONDS, check=False)
    said = done.stderr.strip().splitlines()
    if done.returncode:
        raise Unavailable(said[-1] if said else f'tools/{name} ended with {done.returncode}')
    for line in said:
        print(f'  {line}', flush=True)
    return done.stdout.strip()


def chardev(path, queues, server=False):
    """QEMU's arguments for a vhost-user device at a socket."""
    return ['-chardev', f'socket,id=c0,path={path}' + (',server=on,wait=on' if server else ''),
            '-netdev', f'vhost-user,id=n0,chardev=c0,queues={queues}']


class Program:
    """A switch's process, its output in a file."""

    def __init__(self, name, argv, folder, netns, stack):
        self.name, self.log = name, os.path.join(folder, f'{name}.log')
        with open(self.log, 'wb') as out:
            argv = dies_with_parent(argv)
            # testpmd ends at a line on its standard input: a pipe that nobody writes to
            self.process = subprocess.Popen(netns.enter(argv) if netns else argv, stdin=subprocess.PIPE, stdout=out, stderr=out)
        stack.callback(self.close)

    def close(self):
        """Ends it."""
        end_process(self.process, 3)
        self.process.stdin.close()

    def said(self):
        """Its first line that tells of an error, else its last."""
        with open(self.log, encoding='utf-8', errors='replace') as f:
            lines = [line.strip() for line in f if line.strip()]
        told = [line for line in lines if re.search(r'error|fatal|cannot|fail', line, re.IGNORECASE)]
        return (told or lines[-1:] or ['nothing'])[0]

    def wait(self, there, what):
        """Waits until there() is true. Unavailable if it ends first, or at the deadline."""
        deadline = time.monotonic() + START_SECONDS
        while not there():
            if self.process.poll() is not None:
                raise Unavailable(f'{self.name} ended with {self.process.returncode} before {what}; it said: {self.said()}')
            if time.monotonic() > deadline:
                raise Unavailable(f'{self.name}: no {what} after {START_SECONDS} s; it said: {self.said()}')
            time.sleep(0.05)

    def failed(self):
        """A fault if it did not end well, for one that ends with QEMU."""
        try:
            code = self.process.wait(5)
        except subprocess.TimeoutExpired:
            return [f'{self.name} did not notice that QEMU ended']
        return [f'{self.name} ended with {code}; it said: {self.said()}'] if code else []

    def gone(self):
        """A fault if it did not last."""
        code = self.process.poll()
        return [] if code is None else [f'{self.name} ended with {code} while the guest ran; it said: {self.said()}']


def _host_end(netns, device):
    """Gives the namespace's end of a switch its address."""
    for key, value in (('accept_dad', 0), ('router_solicitations', 0), ('accept_ra', 0)):
        netns.sysctl(f'net.ipv6.conf.{device}.{key}', value)
    netns.run(['ip', 'addr', 'add', f'{HOST}/{PREFIX}', 'dev', device])
    netns.run(['ip', 'link', 'set', device, 'up'])
    knows_guest(netns, device)


def testpmd(queues=1, macswap=False):
    """DPDK's testpmd: between the guest and a tap device of the namespace, or (macswap) sending every frame back with its Ethernet
    addresses changed over."""
    def make(_, folder, stack):
        if not macswap and not usable('/dev/net/tun'):
            raise Unavailable('/dev/net/tun cannot be opened here')
        tools, path = from_script('switches.sh'), os.path.join(folder, 'pmd.sock')
        netns = None if macswap else namespace(stack)
        last = max(os.cpu_count() - 1, 0)
        # RUNTIME_DIRECTORY: where DPDK's library puts what it tells other processes, else under /var/run.
        argv = ['env', f'RUNTIME_DIRECTORY={folder}', f'{tools}/dpdk-testpmd', '--lcores',
                f'(0,1)@(0-{last})' if last else '(0,1)@0', '--no-huge', '-m', '512', '--no-pci', '--no-telemetry', '--vdev', f'net_vhost0,iface={path},queues={queues}']
        argv += [] if macswap else ['--vdev', 'net_tap0,iface=dtap0']
        argv += ['--', '--nb-cores=1', f'--rxq={queues}', f'--txq={queues}', '--total-num-mbufs=8192', '--auto-start',
                 '--forward-mode=' + ('macswap' if macswap else 'io')]
        program = Program('testpmd', argv, folder, netns, stack)
        program.wait(lambda: os.path.exists(path), 'socket')
        if netns:
            program.wait(lambda: not netns.run(['ip', 'link', 'show', 'dtap0'], check=False).returncode, 'device dtap0')
            try:
                _host_end(netns, 'dtap0')
            except NetnsError as e:
                raise Unavailable(str(e)) from None
        words = f'ip={GUEST}/{PREFIX}' + ('' if macswap else f',gw={HOST}')
        return Place(chardev(path, queues), words, queues=queues, shared=True, netns=netns, check=program.gone)
    return make


def passt_route(netns):
    """An interface with a default route, which passt takes its addresses and route from; nothing is behind it."""
    netns.run(['ip', 'link', 'add', 'p0', 'type', 'veth', 'peer', 'name', 'p1'])
    netns.run(['ip', 'addr', 'add', f'198.18.1.2/{PREFIX}', 'dev', 'p0'])
    for device in ('p0', 'p1'):
        netns.run(['ip', 'link', 'set', device, 'up'])
    netns.run(['ip', 'route', 'add', 'default', 'via', '198.18.1.1'])


def passt(_, folder, stack):
    """passt, which translates to sockets of the namespace; it answers ARP itself, and pings to the gateway reach the namespace."""
    program = from_script('passt.sh')
    netns, path = namespace(stack), os.path.join(folder, 'passt.sock')
    passt_route(netns)
    netns.sysctl('net.ipv4.ping_group_range', '0 0')        # it sends pings by sockets that need this
    argv = [program, '--vhost-user', '--foreground', '--one-off', '-4', '-i', 'p0', '-a', GUEST, '-n', str(PREFIX), '-g', HOST,
            '-s', path, '--runas', '0']     # inside the namespace we are root in any case
    process = Program('passt', argv, folder, netns, stack)
    process.wait(lambda: os.path.exists(path), 'socket')
    return Place(chardev(path, 1), shared=True, netns=netns, check=process.failed)


def _ovs_start(tools, folder, netns, stack):
    """Its database and its daemon, in the foreground; returns the daemon and a function that runs ovs-vsctl."""
    db = f'unix:{folder}/db.sock'
    subprocess.run([f'{tools}/ovsdb-tool', 'create', f'{folder}/conf.db', f'{tools}/vswitch.ovsschema'], check=True, timeout=60,
                   capture_output=True)
    server = Program('ovsdb-server', [f'{tools}/ovsdb-server', f'{folder}/conf.db', f'--remote=p{db}', f'--unixctl={folder}/db.ctl',
                                      '--no-chdir'], folder, netns, stack)
    server.wait(lambda: os.path.exists(f'{folder}/db.sock'), 'socket')

    def vsctl(*args, wait=True):
        how = ['--timeout=40'] if wait else ['--no-wait']
        done = subprocess.run([f'{tools}/ovs-vsctl', f'--db={db}', *how, *args], capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise Unavailable(f'ovs-vsctl {" ".join(args[:3])}: {done.stderr.strip().splitlines()[-1:] or done.returncode}')
        return done.stdout.strip()
    vsctl('init', wait=False)
    # One buffer pool per port, or the pool for all is too large without huge pages and the port drops out without a word.
    vsctl('set', 'Open_vSwitch', '.', 'other_config:dpdk-init=true', 'other_config:per-port-memory=true',
          f'other_config:dpdk-extra=--no-huge --legacy-mem -m 1024 --no-pci --no-telemetry -d {tools}/pmds',
          f'other_config:pmd-cpu-mask={1 << max(os.cpu_count() - 1, 0):#x}', 'other_config:dpdk-lcore-mask=0x1', wait=False)
    daemon = Program('ovs-vswitchd', ['env', f'OVS_RUNDIR={folder}', f'RUNTIME_DIRECTORY={folder}', f'{tools}/ovs-vswitchd', db,
                                      f'--unixctl={folder}/vswitchd.ctl', '--no-chdir', f'--pidfile={folder}/vswitchd.pid'],
                     folder, netns, stack)
    daemon.wait(lambda: os.path.exists(f'{folder}/vswitchd.ctl'), 'control socket')
    return daemon, vsctl


def ovs(queues=1):
    """Open vSwitch with DPDK: a bridge in user space, the guest at one port, the namespace at the bridge's own."""
    def make(_, folder, stack):
        if not usable('/dev/net/tun'):
            raise Unavailable('/dev/net/tun cannot be opened here')
        tools, path, netns = from_script('switches.sh'), f'{folder}/vu0.sock', namespace(stack)
        daemon, vsctl = _ovs_start(tools, folder, netns, stack)
        vsctl('add-br', 'br0', '--', 'set', 'bridge', 'br0', 'datapath_type=netdev')
        vsctl('add-port', 'br0', 'vu0', '--', 'set', 'Interface', 'vu0', 'type=dpdkvhostuserclient',
              f'options:vhost-server-path={path}', 'mtu_request=1500')
        daemon.wait(lambda: not netns.run(['ip', 'link', 'show', 'br0'], check=False).returncode, 'device br0')
        trouble = vsctl('get', 'Interface', 'vu0', 'error')
        if trouble not in ('', '[]'):
            raise Unavailable(f'its port did not come up: {trouble}')
        _host_end(netns, 'br0')
        return Place(chardev(path, queues, server=True), queues=queues, shared=True, netns=netns, check=daemon.gone,
                     warnings=('qemu-system-.*: info: QEMU waiting for connection on: .*',))
    return make


def own(queues=1):
    """The vhost-user device that the tests lie with (tests/lib/liar.py), telling the truth, with peer.py behind it."""
    def make(_, folder, stack):
        lib = os.path.join(ROOT, 'tests', 'lib')
        if not os.path.exists(os.path.join(lib, 'liar.py')):
            raise Unavailable('tests/lib/liar.py is not there')
        if lib not in sys.path:
            sys.path.append(lib)
        import liar  # pylint: disable=import-outside-toplevel
        device = liar.Liar(f'{folder}/own.sock', pairs=queues)
        device.strict = False
        device.open()
        stack.callback(device.close)
        stack.callback(_answering(device).set)
        return Place(chardev(device.path, queues), queues=queues, shared=True,
                     after=lambda: [(f'queue {r.index}', f'{r.kicks} kicks, {r.calls} interrupts') for r in device.rings],
                     check=lambda: [f'the device says: {e}' for e in device.errors[:10]])
    return make


def _answering(device):
    """Answers what comes out of the device, in a thread, until the Event that it returns is set."""
    stop, address = threading.Event(), socket.inet_aton(HOST)

    def serve():
        while not stop.is_set():
            while device.from_guest:
                reply = peer.answer(bytes(device.from_guest.popleft()), address)
                if reply:
                    device.send(reply)
            if select.select([device.readable], [], [], 0.2)[0]:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(device.readable)
    threading.Thread(target=serve, name='peer', daemon=True).start()
    return stop
