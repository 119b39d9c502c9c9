"""Runs a guest under QEMU: its command line (Machine) and its life from start to exit code (Guest).

    with Guest(Machine('build/ringside.elf', netdev=['-netdev', 'user,id=n0'], append='ip=dhcp')) as guest:
        words = guest.wait_ready()
        ...
        guest.finish()

Console, QMP and QEMU's stderr are captured in full. Nothing outlives the with block: neither QEMU nor files nor sockets.
"""
import dataclasses
import json
import os
import re
import select
import shutil
import socket
import subprocess
import tempfile
import threading
import time

from .netns import dies_with_parent, end_process

EXIT_WELL, EXIT_PANIC, EXIT_CONFORM = 1, 3, 5  # isa-debug-exit turns value v into QEMU exit code 2v+1

MULTIBOOT1_MAGIC = (0x1BADB002).to_bytes(4, 'little')
MULTIBOOT1_SEARCH = 8192  # multiboot 1, section 3.1: the header lies within the first 8 KiB

OVMF_CODE = '/usr/share/OVMF/OVMF_CODE_4M.fd'
OVMF_VARS = '/usr/share/OVMF/OVMF_VARS_4M.fd'

BOOTS = ('kernel', 'pvh', 'iso', 'iso-uefi')

# Every Guest that runs or ran since the list was last cleared: a test runner attaches their consoles to its report.
started = []


class NoQemu(Exception):
    """QEMU 10 cannot be had on this machine; the text says why in one line."""


def qemu10():
    """A program for Machine's qemu that is QEMU 10 or later: Debian 12 has 7.2, which lacks UDP segmentation and in_order.
    By tools/qemu10.sh: the first time it may fetch one. NoQemu where there is none to be had."""
    script = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), 'qemu10.sh')
    done = subprocess.run([script], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1500, check=False)
    if done.returncode:
        raise NoQemu(done.stderr.strip())
    return done.stdout.strip()


class GuestError(Exception):
    """A guest did not do what was asked of it. The text ends with its console and QEMU's stderr."""


@dataclasses.dataclass
class Machine:
    """What QEMU is to emulate. argv() is the command line; nothing is made or run here except by prepare()."""

    image: str                          # ELF; for the iso boots an ELF (an ISO is made around it) or a ready .iso
    boot: str = 'kernel'                # one of BOOTS
    qemu: str = 'qemu-system-x86_64'
    machine: str = 'q35'
    accel: str = 'tcg'
    cpu: str = 'max'
    smp: int = 1
    memory: str = '128M'
    append: str = ''                    # boot line; goes into the ISO for the iso boots
    netdev: list = dataclasses.field(default_factory=list)   # whole arguments: ['-netdev', 'user,id=n0']
    device: str = 'virtio-net-pci'      # '' for a machine without NIC
    props: dict = dataclasses.field(default_factory=dict)    # NIC properties; None as value leaves one out
    extra: list = dataclasses.field(default_factory=list)    # more arguments, before the NIC (bridges for it to sit on)
    trace: list = dataclasses.field(default_factory=list)    # QEMU trace events, written to trace_file
    warnings: tuple = ()                # regular expressions of whole lines that QEMU's stderr may have: known and harmless
    exit_port: bool = True              # isa-debug-exit at 0xf4
    trace_file: str = ''
    pflash: list = dataclasses.field(default_factory=list)   # UEFI: code (read-only) and a copy of the variables

    def argv(self):
        """The QEMU command line as a list, console on stdio, no QMP (Guest adds that)."""
        if self.boot not in BOOTS:
            raise ValueError(f'boot={self.boot}: one of {", ".join(BOOTS)}')
        argv = [self.qemu, '-nodefaults', '-no-user-config', '-no-reboot', '-display', 'none', '-serial', 'stdio',
                '-machine', self.machine, '-accel', self.accel, '-cpu', self.cpu, '-smp', str(self.smp),
                '-m', self.memory]
        if self.boot in ('kernel', 'pvh'):
            argv += ['-kernel', self.image] + (['-append', self.append] if self.append else [])
        else:
            argv += ['-cdrom', self.image]
        for unit, path in enumerate(self.pflash):
            ro = ',readonly=on' if unit == 0 else ''
            argv += ['-drive', f'if=pflash,format=raw,unit={unit}{ro},file={path}']
        if self.exit_port:
            argv += ['-device', 'isa-debug-exit,iobase=0xf4,iosize=0x4']
        argv += [*self.netdev, *self.extra]
        if self.device:
            argv += ['-device', self._device()]
        for event in self.trace:
            argv += ['-trace', event]
        if self.trace_file:
            argv += ['-D', self.trace_file]
        return argv

    def _device(self):
        props = {'netdev': 'n0' if self.netdev else None, 'id': 'nic0', 'romfile': '', **self.props}
        return ','.join([self.device] + [f'{k}={v}' for k, v in props.items() if v is not None])

    def prepare(self, workdir):
        """The same machine with the files its boot needs made in workdir: the PVH copy, the ISO, the flash copies."""
        made = {}
        if self.boot == 'pvh':
            made['image'] = without_multiboot1(self.image, os.path.join(workdir, 'pvh.elf'))
        elif self.boot in ('iso', 'iso-uefi') and not self.image.endswith('.iso'):
            made['image'] = make_iso(self.image, os.path.join(workdir, 'guest.iso'), self.append)
        if self.boot == 'iso-uefi' and not self.pflash:
            made['pflash'] = [OVMF_CODE, shutil.copy(OVMF_VARS, workdir)]
        if self.trace and not self.trace_file:
            made['trace_file'] = os.path.join(workdir, 'trace')
        return dataclasses.replace(self, **made)


def without_multiboot1(image, copy):
    """Writes a copy of an ELF whose multiboot 1 magic is overwritten, so that QEMU takes its PVH note; returns its path.
    QEMU prefers multiboot 1 when an image has both. ValueError if there is no magic to overwrite."""
    with open(image, 'rb') as f:
        data = bytearray(f.read())
    at = data.find(MULTIBOOT1_MAGIC, 0, MULTIBOOT1_SEARCH)
    if at < 0:
        raise ValueError(f'{image}: no multiboot 1 header in its first {MULTIBOOT1_SEARCH} bytes')
    data[at:at + 4] = b'\0\0\0\0'
    with open(copy, 'wb') as f:
        f.write(data)
    return copy


def make_iso(image, iso, append):
    """Makes a bootable ISO around an ELF with tools/make-iso.sh; returns its path."""
    script = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), 'make-iso.sh')
    done = subprocess.run([script, image, iso, append], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60, check=False)
    if done.returncode:
        raise GuestError(f'{script} failed with {done.returncode}: {done.stderr.strip()}')
    return iso


class Qmp:
    """QEMU's machine protocol over one end of a unix socket pair: one command at a time, events kept in order."""

    def __init__(self, sock):
        self._sock = sock
        self._buffer = b''
        self.events = []

    def close(self):
        """Closes the socket."""
        self._sock.close()

    def start(self, timeout=20):
        """Reads the greeting and leaves negotiation mode."""
        self._read(time.monotonic() + timeout)
        self.execute('qmp_capabilities', {}, timeout)

    def execute(self, command, arguments, timeout=20):
        """Runs one command; returns its result. GuestError with QEMU's words if it fails, or on no answer in time."""
        self._sock.sendall(json.dumps({'execute': command, 'arguments': arguments}).encode())
        deadline = time.monotonic() + timeout
        while True:
            message = self._read(deadline)
            if 'event' in message:
                self.events.append(message)
            elif 'error' in message:
                raise GuestError(f'QMP {command}: {message["error"]["desc"]}')
            elif 'return' in message:
                return message['return']

    def wait_event(self, name, timeout=20):
        """The next event of that name, seen already or to come; earlier events are dropped."""
        deadline = time.monotonic() + timeout
        while True:
            while self.events:
                event = self.events.pop(0)
                if event['event'] == name:
                    return event
            message = self._read(deadline)
            if 'event' in message:
                self.events.append(message)

    def drain(self):
        """All events so far that nobody has waited for, also those QEMU sent before it ended."""
        try:
            while True:
                message = self._read(time.monotonic() + 0.05)
                if 'event' in message:
                    self.events.append(message)
        except GuestError:
            return self.events

    def _read(self, deadline):
        while b'\n' not in self._buffer:
            wait = deadline - time.monotonic()
            if wait <= 0 or not select.select([self._sock], [], [], wait)[0]:
                raise GuestError('QMP: no answer in time')
            try:
                data = self._sock.recv(65536)
            except OSError:
                data = b''
            if not data:
                raise GuestError('QMP: QEMU closed the connection')
            self._buffer += data
        line, self._buffer = self._buffer.split(b'\n', 1)
        return json.loads(line)


class Console:
    """Reads a guest's serial output in a thread, keeps all of it and lets others wait for lines in it."""

    def __init__(self, pipe, copy_to=None):
        self._pipe = pipe
        self._copy_to = copy_to
        self._data = bytearray()
        self._changed = threading.Condition()
        self._arrivals = []             # (offset after this chunk, monotonic time)
        self.ended = False
        self._thread = threading.Thread(target=self._read, name='console', daemon=True)
        self._thread.start()

    def _read(self):
        while True:
            try:
                chunk = os.read(self._pipe.fileno(), 65536)
            except OSError:
                chunk = b''
            with self._changed:
                if not chunk:
                    self.ended = True
                self._data += chunk
                self._arrivals.append((len(self._data), time.monotonic()))
                self._changed.notify_all()
            if not chunk:
                return
            if self._copy_to:
                self._copy_to.write(chunk.decode(errors='replace'))
                self._copy_to.flush()

    def join(self, timeout=5):
        """Waits for the end of output, after QEMU has ended."""
        self._thread.join(timeout)

    @property
    def text(self):
        """All output so far; carriage returns are kept, one character per byte (so offsets are byte offsets)."""
        with self._changed:
            return self._data.decode('latin-1')

    def mark(self):
        """The present end of the output, for wait_for(since=)."""
        with self._changed:
            return len(self._data)

    def arrived(self, offset):
        """Monotonic time at which the byte at that offset had been read."""
        with self._changed:
            return next(when for end, when in self._arrivals if end > offset)

    def wait(self, pattern, timeout, since=0, stop=None):
        """First match of pattern at or after since; None at the deadline, at the end of output, or once stop matches."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                text = self._data.decode('latin-1')
                match = pattern.search(text, since)
                if match or self.ended or (stop and stop.search(text, since)):
                    return match
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)


class Guest:
    """A running Machine: a context manager. netns: the Netns to start QEMU in; echo: a text file that gets a copy of the
    console. Leaving the block stops QEMU, checks that it wrote nothing to stderr (unless another error is on its way) and
    removes all files."""

    def __init__(self, machine, netns=None, echo=None):
        self.machine = machine
        self.netns = netns
        self.exit_code = None
        self.started_at = None
        self.workdir = None
        self.console_reader = None
        self._echo = echo
        self._process = None
        self._qmp = None
        self._stderr = ''
        self._trace = ''

    def __enter__(self):
        self.workdir = tempfile.mkdtemp(prefix='ringside-')
        try:
            self.machine = self.machine.prepare(self.workdir)
            self._start()
        except BaseException:
            self._clean_up()
            raise
        started.append(self)
        return self

    def _start(self):
        ours, theirs = socket.socketpair()
        self._qmp = Qmp(ours)
        argv = self.machine.argv() + ['-chardev', f'socket,id=qmp0,fd={theirs.fileno()}',
                                      '-mon', 'chardev=qmp0,mode=control']
        argv = dies_with_parent(argv)
        if self.netns:
            argv = self.netns.enter(argv)
        self.started_at = time.monotonic()
        try:
            with open(os.path.join(self.workdir, 'stderr'), 'wb') as err:
                self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err,
                                                 pass_fds=[theirs.fileno()])
        finally:
            theirs.close()
        self.console_reader = Console(self._process.stdout, self._echo)
        try:
            self._qmp.start()
        except GuestError as e:
            self._qmp.close()
            self._qmp = None
            # A refused command line or a guest that has already ended: what QEMU left behind tells which.
            if not self._wait_end(5):
                raise self._error(str(e)) from None

    def __exit__(self, kind, value, trace):
        try:
            self.stop()
        finally:
            self._clean_up()
        if kind is None and self._stderr:
            raise self._error('QEMU wrote to stderr')

    def _clean_up(self):
        if self._process:
            end_process(self._process)
            self.exit_code = self._process.returncode
            self.console_reader.join()
            self._process.stdout.close()
        if self._qmp:
            self._qmp.close()
            self._qmp = None
        if self.workdir:
            self._stderr = self._stderr or self._read_stderr()
            self._trace = self._trace or self._read_file('trace')
            shutil.rmtree(self.workdir, ignore_errors=True)
            self.workdir = None

    def _read_file(self, name):
        path = os.path.join(self.workdir, name)
        if not os.path.exists(path):
            return ''
        with open(path, encoding='utf-8', errors='replace') as f:
            return f.read()

    def _read_stderr(self):
        lines = self._read_file('stderr').splitlines(keepends=True)
        return ''.join(line for line in lines if not any(re.fullmatch(known, line.rstrip('\n')) for known in self.machine.warnings))

    # ---- what the guest says

    @property
    def console(self):
        """All of the console so far, without carriage returns."""
        return self.console_reader.text.replace('\r', '') if self.console_reader else ''

    @property
    def stderr(self):
        """What QEMU wrote to stderr so far, without the warnings that its machine allows."""
        return self._read_stderr() if self.workdir else self._stderr

    @property
    def trace(self):
        """The lines of the trace events asked for with Machine.trace."""
        return self._read_file('trace') if self.workdir else self._trace

    def mark(self):
        """A position in the console to wait from."""
        return self.console_reader.mark()

    def wait_for(self, pattern, timeout=10, since=0):
        """Waits for a regular expression on the console (multi-line mode); returns the match. GuestError at the deadline,
        or at once when the guest ends or panics with something else."""
        wanted = re.compile(pattern, re.MULTILINE)
        match = self.console_reader.wait(wanted, timeout, since, re.compile(r'panic: .*\n'))
        if match is None and self.console_reader.ended:
            match = self.console_reader.wait(wanted, 0, since)
        if match is None:
            why = 'the guest ended' if self.console_reader.ended else f'not there after {timeout} s, or a panic came first'
            raise self._error(f'waited for /{pattern}/: {why}')
        return match

    def never(self, pattern, seconds, since=0):
        """Watches for so long and fails if the expression turns up."""
        match = self.console_reader.wait(re.compile(pattern, re.MULTILINE), seconds, since)
        if match:
            raise self._error(f'unexpected on the console: {match.group(0)!r}')

    def wait_ready(self, timeout=20):
        """Waits for the ready line; returns its words as a dict, features as a list."""
        line = self.wait_for(r'ringside: ready ([^\r\n]*)\r?\n', timeout)
        words = dict(word.split('=', 1) for word in line.group(1).split())
        words['features'] = [f for f in words.get('features', '').split(',') if f]
        return words

    def seconds_to(self, pattern):
        """Seconds from starting QEMU to the end of the first match on the console."""
        match = self.wait_for(pattern, 0)
        return self.console_reader.arrived(match.end() - 1) - self.started_at

    # ---- what is done to it

    @property
    def pid(self):
        """QEMU's process id."""
        return self._process.pid

    def qmp(self, command, arguments=None, timeout=20, **more):
        """Runs a QMP command: g.qmp('set_link', name='nic0', up=False). In keyword arguments _ stands for -."""
        if self._qmp is None:
            raise self._error(f'QMP {command}: QEMU has ended')
        arguments = {**(arguments or {}), **{k.replace('_', '-'): v for k, v in more.items()}}
        try:
            return self._qmp.execute(command, arguments, timeout)
        except GuestError as e:
            raise self._error(str(e)) from None

    def monitor(self, line):
        """Runs a line of QEMU's human monitor; returns its text."""
        return self.qmp('human-monitor-command', command_line=line)

    def wait_event(self, name, timeout=20):
        """Waits for a QMP event, e.g. SHUTDOWN or NIC_RX_FILTER_CHANGED; returns it."""
        return self._qmp.wait_event(name, timeout)

    def events(self):
        """QMP events so far that were not waited for, as dicts."""
        return list(self._qmp.drain()) if self._qmp else []

    def forwards(self):
        """Host ports of user networking's forwards, as {('tcp', guest port): host port}."""
        found = re.findall(r'(TCP|UDP)\[HOST_FORWARD\]\s+\d+\s+\S+\s+(\d+)\s+\S+\s+(\d+)', self.monitor('info usernet'))
        return {(proto.lower(), int(guest)): int(host) for proto, host, guest in found}

    def expect_exit(self, code, timeout=20):
        """Waits for QEMU to end by itself with that exit code and nothing on stderr."""
        if not self._wait_end(timeout):
            raise self._error(f'still running after {timeout} s, expected to end with {code}')
        if self.exit_code != code:
            raise self._error(f'QEMU ended with {self.exit_code}, expected {code}')
        if self.stderr:
            raise self._error('QEMU wrote to stderr')

    def finish(self, expect=EXIT_WELL, timeout=20):
        """Presses the power button and expects the guest to end well."""
        try:
            self.qmp('system_powerdown')
        except GuestError:              # the guest may be gone before QEMU has answered
            if not self._wait_end(1):
                raise
        self.expect_exit(expect, timeout)

    def ended(self, timeout):
        """Whether QEMU ends by itself within so long; exit_code is known then."""
        return self._wait_end(timeout)

    def _wait_end(self, timeout):
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        self.exit_code = self._process.returncode
        self.console_reader.join()
        return True

    def stop(self):
        """Ends QEMU whatever the guest does: QMP quit, then signals. No check of anything."""
        if self._process is None or self._process.poll() is not None:
            return
        if self._qmp:
            try:
                self._qmp.execute('quit', {}, 5)
                self._process.wait(5)
            except (GuestError, OSError, subprocess.TimeoutExpired):
                pass
        end_process(self._process)

    def report(self):
        """Everything there is to know about this run, for a failing test's message."""
        return (f'$ {" ".join(self.machine.argv())}\nexit code: {self.exit_code}\n'
                f'--- console\n{self.console}\n--- stderr\n{self.stderr}')

    def _error(self, text):
        lines = self.console.splitlines()[-40:]
        tail = '\n'.join(f'    {line}' for line in lines) or '    (nothing)'
        err = '\nQEMU stderr:\n    ' + self.stderr.strip().replace('\n', '\n    ') if self.stderr else ''
        return GuestError(f'{text}\nend of the console:\n{tail}{err}')
