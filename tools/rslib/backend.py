"""How a guest is put under QEMU: the command line for each network backend. Pure functions: nothing is run or looked up.

What QEMU needs for which backend, and which of its versions has which bug, was found by trial with 7.2 and 10.0.
"""
import dataclasses
import os
import re

from .common import UsageError

# Backend -> what follows its name after a colon ('' for nothing).
BACKENDS = {'user': '', 'tap': '', 'vhost-net': '', 'vhost-user': 'SOCKET', 'passt': '', 'dgram': 'PATH'}
VALID = ', '.join(name + (f':{value}' if value else '') for name, value in BACKENDS.items())
ONE_QUEUE = ('user', 'passt', 'dgram')
SHARED_MEMORY = ('vhost-user', 'passt')     # another process reads and writes the guest's memory
ON_TAP = ('tap', 'vhost-net')
UNIX_PATH_MAX = 107                         # sun_path less its final zero, unix(7)

# The tap network: the host's end, the guest's end. 198.18.0.0/15 is for tests between devices (RFC 2544).
TAP_NAME, TAP_HOST, TAP_GUEST, TAP_PREFIX = 'tap0', '198.18.0.1', '198.18.0.2', 24

# Guest port, port on 127.0.0.1, protocols of the server there. netperf's control and data ports and iperf's are named
# in what client and server say to each other, so they stay as they are.
FORWARDS = (
    (7, 10007, ('tcp', 'udp')),             # echo
    (9, 10009, ('tcp', 'udp')),             # discard
    (19, 10019, ('tcp', 'udp')),            # chargen
    (80, 8080, ('tcp',)),                   # http
    (5001, 5001, ('tcp', 'udp')),           # iperf2
    (5201, 5201, ('tcp', 'udp')),           # iperf3
    (12865, 12865, ('tcp',)),               # netperf, control
    (12866, 12866, ('tcp', 'udp')),         # netperf, data
)


@dataclasses.dataclass(frozen=True)
class Backend:
    """A backend as named on the command line: its kind, one of BACKENDS, and the SOCKET or PATH if it has one."""
    kind: str
    path: str = ''

    def __str__(self):
        return self.kind + (f':{self.path}' if self.path else '')


@dataclasses.dataclass(frozen=True)
class Forward:
    """One forwarded port: proto 'tcp' or 'udp', port of the host's 127.0.0.1, port of the guest."""
    proto: str
    host: int
    guest: int


@dataclasses.dataclass(frozen=True)
class Setup:
    """Everything the command line is made of."""
    backend: Backend
    image: str
    qemu: str = 'qemu-system-x86_64'
    machine: str = 'q35'
    memory: str = '128M'
    cpus: int = 1
    queues: int = 1
    append: str = ''
    kvm: bool = False
    version: tuple = (7, 2)                 # of QEMU
    ifname: str = TAP_NAME                  # tap, vhost-net
    forwards: tuple = ()                    # user; for passt they are on its own command line
    passt_socket: str = ''
    passt_vhost: bool = True                # passt speaks vhost-user; older ones only QEMU's stream protocol


def parse(text):
    """The Backend a user named. UsageError if there is no such thing."""
    kind, colon, path = text.partition(':')
    if kind not in BACKENDS:
        raise UsageError(f"backend '{text}' is not known; valid: {VALID}")
    wanted = BACKENDS[kind]
    if wanted and not path:
        raise UsageError(f"backend '{text}' lacks its {wanted.lower()}; valid: {kind}:{wanted}")
    if colon and not wanted:
        raise UsageError(f"backend '{text}': nothing may follow '{kind}'; valid: {VALID}")
    room = UNIX_PATH_MAX - len('.peer')
    if len(os.fsencode(path)) > room:
        raise UsageError(f"backend '{kind}': the path has {len(os.fsencode(path))} bytes; at most {room} fit a socket")
    return Backend(kind, path)


def parse_memory(text):
    """A memory size as QEMU takes it. UsageError unless it is a number of M or G, 64M or more."""
    match = re.fullmatch(r'([1-9][0-9]{0,6})([MmGg])', text)
    if not match or int(match[1]) * (1024 if match[2] in 'Gg' else 1) < 64:
        raise UsageError(f"'{text}' is not a memory size; valid: 64M or more, such as 128M or 2G")
    return text.upper()


def parse_ifname(text):
    """The name of a network device. UsageError if it cannot be one."""
    if not re.fullmatch(r'[A-Za-z0-9_.-]{1,15}', text):
        raise UsageError(f"'{text}' is not a device name; valid: up to 15 letters, digits, '_', '.', '-'")
    return text


def parse_forward(text):
    """(guest port, host port) from GUEST:HOST. UsageError if it is not that."""
    match = re.fullmatch(r'([0-9]{1,5}):([0-9]{1,5})', text)
    if not match or not 1 <= int(match[1]) <= 65535 or int(match[2]) > 65535:
        raise UsageError(f"'{text}' is not a forward; valid: GUEST:HOST, two ports up to 65535 (HOST 0: none), such as 80:8081")
    return int(match[1]), int(match[2])


def forwards(changes=()):
    """The forwards with changes, (guest port, host port) pairs: moved, added (TCP and UDP), or left out (host port 0).
    UsageError if two ask for one port of the host."""
    table = {guest: (host, protos) for guest, host, protos in FORWARDS}
    for guest, host in changes:
        table[guest] = (host, table[guest][1] if guest in table else ('tcp', 'udp'))
    made = [Forward(proto, host, guest) for guest, (host, protos) in table.items() if host for proto in protos]
    seen = {}
    for f in made:
        other = seen.setdefault((f.proto, f.host), f)
        if other.guest != f.guest:
            raise UsageError(f'host port {f.host} is asked for twice, for the guest\'s ports {other.guest} and {f.guest}')
    return tuple(made)


def settle_queues(backend, queues, cpus):
    """The number of queue pairs: what was asked for, else one per processor where the backend can."""
    if queues is None:
        return 1 if backend.kind in ONE_QUEUE else cpus
    if queues > 1 and backend.kind in ONE_QUEUE:
        many = ', '.join(kind for kind in BACKENDS if kind not in ONE_QUEUE)
        raise UsageError(f"backend '{backend.kind}' has one queue pair, not {queues}; more have: {many}")
    return queues


def boot_line(append, backend, own_namespace):
    """The boot line, with the guest's address on the tap network we made unless the user gave one: no DHCP server there."""
    words = append.split()
    if own_namespace and backend.kind in ON_TAP and not any(word.startswith('ip=') for word in words):
        words.insert(0, f'ip={TAP_GUEST}/{TAP_PREFIX},gw={TAP_HOST}')
    return ' '.join(words)


def _escape(value):
    """A value inside a QEMU option list: a comma is written twice."""
    return value.replace(',', ',,')


def _netdev(s):
    """The arguments that make the network backend n0."""
    kind, path = s.backend.kind, _escape(s.backend.path)
    queues = f',queues={s.queues}' if s.queues > 1 else ''
    if kind == 'user':
        fwd = ''.join(f',hostfwd={f.proto}:127.0.0.1:{f.host}-:{f.guest}' for f in s.forwards)
        return ['-netdev', 'user,id=n0' + fwd]
    if kind in ON_TAP:
        vhost = ',vhost=on' if kind == 'vhost-net' else ''
        return ['-netdev', f'tap,id=n0,ifname={s.ifname},script=no,downscript=no{vhost}{queues}']
    if kind == 'dgram':
        return ['-netdev', f'dgram,id=n0,local.type=unix,local.path={path},remote.type=unix,remote.path={path}.peer']
    if kind == 'passt' and not s.passt_vhost:
        return ['-netdev', f'stream,id=n0,server=off,addr.type=unix,addr.path={_escape(s.passt_socket)}']
    socket = path or _escape(s.passt_socket)
    return ['-chardev', f'socket,id=c0,path={socket}', '-netdev', f'vhost-user,id=n0,chardev=c0{queues}']


def _device(s, shared):
    """The network card."""
    words = ['virtio-net-pci', 'netdev=n0', 'romfile=']
    if s.queues > 1:
        # One vector per queue, one for the control queue, one for configuration changes.
        words += ['mq=on', f'vectors={2 * s.queues + 2}']
    if shared and not s.kvm and s.version < (10, 0):
        # QEMU 7.2 without KVM crashes at DRIVER_OK when vhost-user and MSI-X meet.
        words = [word for word in words if not word.startswith('vectors=')] + ['vectors=0']
    return ','.join(words)


def command(s):
    """The QEMU command line for a Setup, as a list."""
    shared = s.backend.kind in SHARED_MEMORY and (s.backend.kind != 'passt' or s.passt_vhost)
    machine = f'{s.machine},accel=' + ('kvm:tcg' if s.kvm else 'tcg')
    argv = [s.qemu, '-nodefaults', '-no-user-config', '-no-reboot', '-display', 'none', '-serial', 'mon:stdio',
            '-machine', machine + (',memory-backend=mem0' if shared else ''), '-cpu', 'max', '-smp', str(s.cpus),
            '-m', s.memory]
    if shared:
        argv += ['-object', f'memory-backend-memfd,id=mem0,size={s.memory},share=on']
    if s.image.endswith('.iso'):
        if s.append:
            raise UsageError(f"an ISO holds its own boot line, '{s.append}' cannot be handed to {s.image}; boot the ELF")
        argv += ['-cdrom', s.image]
    else:
        argv += ['-kernel', s.image] + (['-append', s.append] if s.append else [])
    return argv + [*_netdev(s), '-device', _device(s, shared), '-device', 'isa-debug-exit,iobase=0xf4,iosize=0x4']


def passt_command(passt, socket, vhost, forwarded, root):
    """passt's command line: in the foreground, one connection, ports of 127.0.0.1 forwarded to the guest."""
    argv = [passt, '--foreground', '--quiet', '--one-off', '--socket', socket]
    if vhost:
        argv += ['--vhost-user']
    if root:
        argv += ['--runas', '0']    # nobody, its choice for root, could not reach the socket's folder
    for proto, option in (('tcp', '-t'), ('udp', '-u')):
        ports = [f'{f.host}:{f.guest}' for f in forwarded if f.proto == proto]
        if ports:
            argv += [option, '127.0.0.1/' + ','.join(ports)]
    return argv


def exit_status(code, complained):
    """Exit status for a QEMU that ended with code. isa-debug-exit makes 2v+1 of the guest's v, so that "ended well" is 1,
    as are QEMU's own failures: those are known by what it wrote to stderr (complained)."""
    if code < 0:
        return 128 - code
    if code == 1 and not complained:
        return 0
    return code
