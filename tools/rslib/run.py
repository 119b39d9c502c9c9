"""`ringside run`: a guest under QEMU on this terminal, with everything its backend needs made before and removed after."""
import contextlib
import dataclasses
import os
import re
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import termios
import threading
import time

from . import backend
from .backend import TAP_HOST, TAP_PREFIX
from .common import UsageError, build_dir, need_program, shown
from .netns import Netns, NetnsError, dies_with_parent, end_process

IFF_MULTI_QUEUE = 0x0100    # linux/if_tun.h, in /sys/class/net/NAME/tun_flags


def usable(device):
    """Whether a device node is there and can be opened for reading and writing."""
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def kvm_usable(device='/dev/kvm', cpuinfo='/proc/cpuinfo'):
    """Whether KVM can run the guest: the device opens, and the processor has hardware virtualisation. There are kernels
    that offer /dev/kvm without it, and emulate: such a KVM stops at the guest's first SSE instruction."""
    try:
        with open(cpuinfo, encoding='ascii', errors='replace') as f:
            flags = next((line.split() for line in f if line.startswith('flags')), [])
    except OSError:
        return False
    return bool({'vmx', 'svm'} & set(flags)) and usable(device)


def qemu_version(program):
    """QEMU's version as a tuple, (7, 2) for 7.2.22; the oldest known here if it cannot be told."""
    try:
        done = subprocess.run([program, '--version'], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20,
                              check=False)
    except (OSError, subprocess.TimeoutExpired):
        return (7, 2)
    match = re.search(r'version (\d+)\.(\d+)', done.stdout)
    return (int(match[1]), int(match[2])) if match else (7, 2)


def passt_speaks_vhost(program):
    """Whether this passt has --vhost-user (since 2025); older ones have QEMU's stream protocol only."""
    if not shutil.which(program):
        return True
    done = subprocess.run([program, '--help'], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20,
                          check=False)
    return '--vhost-user' in done.stdout + done.stderr


def setup_from(options):
    """The Setup that the command line asks for. UsageError if its parts do not go together."""
    b = options.backend if isinstance(options.backend, backend.Backend) else backend.parse(options.backend)
    if options.ifname and b.kind not in backend.ON_TAP:
        raise UsageError(f"--ifname is for the backends {' and '.join(backend.ON_TAP)}, not for '{b.kind}'")
    if options.forward and b.kind not in ('user', 'passt'):
        raise UsageError(f"--forward is for the backends user and passt, not for '{b.kind}'")
    image = options.image or shown(os.path.join(build_dir(), 'ringside.elf'))
    append = ' '.join(options.append.split())
    if not image.endswith('.iso'):
        append = backend.boot_line(append, b, own_namespace=not options.ifname)
    shared = b.kind in backend.SHARED_MEMORY
    return backend.Setup(
        backend=b, image=image, qemu=options.qemu, machine=options.machine, memory=options.memory, cpus=options.cpus,
        queues=backend.settle_queues(b, options.queues, options.cpus), append=append, kvm=kvm_usable(),
        version=qemu_version(options.qemu) if shared else (7, 2), ifname=options.ifname or backend.TAP_NAME,
        forwards=backend.forwards(options.forward) if b.kind in ('user', 'passt') else (),
        passt_socket='passt.sock', passt_vhost=b.kind != 'passt' or passt_speaks_vhost('passt'))


def taken(forwards):
    """Those forwards whose port of 127.0.0.1 another program has."""
    found = []
    for f in forwards:
        kind = socket.SOCK_STREAM if f.proto == 'tcp' else socket.SOCK_DGRAM
        with socket.socket(socket.AF_INET, kind) as s:
            if f.proto == 'tcp':    # as QEMU does: what is left of closed connections is no hindrance
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(('127.0.0.1', f.host))
                if f.proto == 'tcp':
                    s.listen(1)
            except OSError:
                found.append(f)
    return found


def check(s, own_namespace):
    """Looks for everything the run needs, before anything is made. UsageError for the first thing that is missing.

    A taken port ends the run: were another one chosen instead, a script that talks to the documented port would talk to
    whatever program has it, and not notice."""
    need_program(s.qemu, 'run' if s.qemu == backend.Setup.qemu else None, '; valid for --qemu: a name or a path of QEMU')
    if not os.path.isfile(s.image):
        raise UsageError(f"there is no image {s.image}; 'make' builds build/ringside.elf, --image names another")
    kind, path = s.backend.kind, s.backend.path
    if s.forwards:
        lost = taken(s.forwards)
        if lost:
            ports = ', '.join(f'{f.host} ({f.proto.upper()})' for f in lost)
            raise UsageError(f"taken on 127.0.0.1 by another program: port {ports}; end it, or move the forward with "
                             f'--forward {lost[0].guest}:PORT (0: none)')
    if kind in backend.ON_TAP:
        if not usable('/dev/net/tun'):
            raise UsageError(f"backend '{kind}' needs /dev/net/tun, which cannot be opened here")
        if kind == 'vhost-net' and not usable('/dev/vhost-net'):
            raise UsageError("backend 'vhost-net' needs /dev/vhost-net, which cannot be opened here (module vhost_net)")
        if own_namespace:
            need_program('ip', 'run')
        else:
            check_tap(s.ifname, s.queues)
    elif kind == 'vhost-user':
        if not os.path.exists(path) or not stat.S_ISSOCK(os.stat(path).st_mode):
            raise UsageError(f"backend 'vhost-user': no socket at {path}; start the switch that listens there first")
    elif kind == 'passt':
        need_program('passt', why=", which backend 'passt' needs: apt-get install passt")
    elif kind == 'dgram':
        folder = os.path.dirname(path) or '.'
        if not os.path.isdir(folder):
            raise UsageError(f"backend 'dgram': there is no folder {folder}")
        if os.path.exists(path):
            raise UsageError(f"backend 'dgram': {path} is there already; QEMU makes this socket")


def check_tap(name, queues):
    """Looks at a tap device that the user made. UsageError if it does not fit: QEMU only says "Invalid argument"."""
    try:
        with open(f'/sys/class/net/{name}/tun_flags', encoding='ascii') as f:
            multi = bool(int(f.read(), 0) & IFF_MULTI_QUEUE)
    except OSError:
        raise UsageError(f"there is no tap device '{name}' here") from None
    if multi != (queues > 1):
        how = 'with multi_queue' if multi else 'without multi_queue'
        raise UsageError(f"tap device '{name}' was made {how}, which does not go with --queues {queues}")


def hints(s, namespace):
    """Lines that tell the user what to try, for a guest of this setup."""
    kind = s.backend.kind
    if kind in ('user', 'passt'):
        ports = {(f.proto, f.guest): ('127.0.0.1', f.host) for f in s.forwards}
        prefix = ''
    elif kind in backend.ON_TAP:
        words = [w[3:] for w in s.append.split() if w.startswith('ip=') and w != 'ip=dhcp']
        if not words:
            return ['Its address is in the line "ringside: ready".']
        address = words[-1].split('/')[0]
        ports = {(proto, guest): (address, guest) for guest, _, protos in backend.FORWARDS for proto in protos}
        prefix = ' '.join(enter_words(namespace)) + ' ' if namespace else ''
    elif kind == 'dgram':
        path = s.backend.path
        return [f'Each datagram is one Ethernet frame: the guest\'s go to {path}.peer, send yours to {path}.']
    else:
        return ['Its address is in the line "ringside: ready".']
    lines = []
    if prefix:
        lines.append((f'{prefix}ping -c 3 {ports["tcp", 7][0]}', ''))
    for proto, guest, text, form in (
            ('tcp', 7, 'echo over TCP', 'echo hello | {p}nc -N {a} {n}'),
            ('udp', 7, 'echo over UDP', 'echo hello | {p}nc -u -w 1 {a} {n}'),
            ('tcp', 9, 'discard', 'head -c 10M /dev/zero | {p}nc -N {a} {n}'),
            ('tcp', 19, 'chargen', '{p}timeout 1 nc -d {a} {n} | head -n 5'),
            ('tcp', 80, 'counters; the same address in a browser: status page', '{p}curl http://{a}:{n}/metrics'),
            ('tcp', 12865, 'netperf', '{p}netperf -H {a}{o} -t TCP_RR{d}'),
            ('tcp', 5201, 'iperf3; -R, --bidir, -u -b 100M, -P 8, ...', '{p}iperf3 -c {a}{o}'),
            ('tcp', 5001, 'iperf 2; -u, -R, ...', '{p}iperf -c {a}{o}')):
        if (proto, guest) in ports:
            address, port = ports[proto, guest]
            option = '' if port == guest else f' -p {port}'
            lines.append((form.format(p=prefix, a=address, n=port, o=option, d=netperf_data(ports, kind)), text))
    if not shutil.which('nc'):
        lines = [(line, f'{text} (nc is in the package netcat-openbsd)' if 'nc ' in line else text) for line, text in lines]
    width = max((len(line) for line, _ in lines), default=0)
    return [f'    {line:{width}}  {text}'.rstrip() for line, text in lines]


def netperf_data(ports, kind):
    """The words that make netperf use a forwarded data port; none where all ports can be reached."""
    if kind in backend.ON_TAP or ports.get(('tcp', 12866), ('', 0))[1] != 12866:
        return ''
    return ' -- -P ,12866'


def enter_words(namespace):
    """The words that run a command in the namespace from another terminal."""
    if namespace.visible:
        return ['ip', 'netns', 'exec', namespace.name]
    return namespace.enter([])[:-1]


@contextlib.contextmanager
def name_removed(namespace):
    """Sees to it that the namespace's name goes even if this process is killed: a shell waits for its standard input to
    end, which happens when we do. Devices and processes in the namespace end with us anyway."""
    if not namespace.visible:
        yield
        return
    script = 'cat >/dev/null; [ ! -e "/run/netns/$1" ] || ip netns delete "$1"'
    guard = subprocess.Popen(['sh', '-c', script, 'sh', namespace.name], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                             start_new_session=True)
    try:
        yield
    finally:
        guard.stdin.close()
        try:
            guard.wait(10)
        except subprocess.TimeoutExpired:
            guard.kill()
            guard.wait()


@contextlib.contextmanager
def tap_network(s):
    """A namespace with a tap device and the host's address on it; removed at the end, whatever happens."""
    with contextlib.ExitStack() as stack:
        try:
            namespace = stack.enter_context(Netns(visible=True))
            stack.enter_context(name_removed(namespace))
            namespace.tap(s.ifname, f'{TAP_HOST}/{TAP_PREFIX}', queues=s.queues)
        except (NetnsError, OSError, subprocess.SubprocessError) as e:
            raise UsageError(f"backend '{s.backend.kind}': {e}; as root it works") from None
        yield namespace


@contextlib.contextmanager
def passt_running(s):
    """passt, listening on a socket of its own; yields that socket. Ended, and its folder removed, at the end."""
    folder = tempfile.mkdtemp(prefix='ringside-')
    path = os.path.join(folder, 'passt.sock')
    argv = backend.passt_command('passt', path, s.passt_vhost, s.forwards, os.geteuid() == 0)
    with open(os.path.join(folder, 'log'), 'w', encoding='utf-8', errors='replace') as log:
        process = subprocess.Popen(dies_with_parent(argv), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 10
        while not os.path.exists(path):
            if process.poll() is not None or time.monotonic() > deadline:
                with open(log.name, encoding='utf-8', errors='replace') as f:
                    said = [line for line in f.read().splitlines() if line and not line.startswith('Failed to send')]
                raise UsageError(f"backend 'passt': it did not start: {said[-1] if said else shlex.join(argv)}")
            time.sleep(0.02)
        yield path
    finally:
        end_process(process)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def terminal_kept():
    """Puts the terminal back as it was: a QEMU that is killed leaves it without echo."""
    if not sys.stdin or not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def run_qemu(argv):
    """Runs QEMU on this terminal; returns its exit code and whether it complained on stderr (warnings are no complaint)."""
    complaints = []
    with terminal_kept():
        process = subprocess.Popen(argv, stderr=subprocess.PIPE)

        def copy():
            for line in process.stderr:
                sys.stderr.buffer.write(line)
                sys.stderr.buffer.flush()
                if line.strip() and b'warning:' not in line:
                    complaints.append(line)
        copier = threading.Thread(target=copy, daemon=True)
        copier.start()
        try:
            code = process.wait()
        finally:
            end_process(process)
            copier.join(5)
    return code, bool(complaints)


def boot(s, own_namespace):
    """Makes what the backend needs, says what to try, runs the guest; returns the exit status."""
    with contextlib.ExitStack() as stack:
        kind, namespace = s.backend.kind, None
        if kind in backend.ON_TAP and own_namespace:
            namespace = stack.enter_context(tap_network(s))
        elif kind == 'passt':
            s = dataclasses.replace(s, passt_socket=stack.enter_context(passt_running(s)))
        elif kind == 'dgram':
            stack.callback(lambda: os.path.exists(s.backend.path) and os.unlink(s.backend.path))
        argv = dies_with_parent(backend.command(s))
        if namespace:
            argv = namespace.enter(argv)
        where = f', in the network namespace {namespace.name}' if namespace and namespace.visible else ''
        print(f'Booting {s.image}, backend {s.backend}{where}. Ctrl-A X ends it.')
        print('After the line "ringside: ready", try from another terminal:')
        print('\n'.join(hints(s, namespace)), flush=True)
        code, complained = run_qemu(argv)
    return backend.exit_status(code, complained)


def main(options):
    """The command: returns the exit status."""
    s = setup_from(options)
    argv = backend.command(s)
    if options.print:
        print(shlex.join(argv))
        return 0
    check(s, own_namespace=not options.ifname)
    return boot(s, own_namespace=not options.ifname)
