#!/usr/bin/python3
"""Runs a job on real KVM with kernel vhost-net, inside an emulated AMD machine (docs/nested-kvm.md).

    result = run('tap tap0 198.18.9.1/24; ls /dev/vhost-net', files=['build/ringside.elf'], timeout=60)

The same by hand:  tools/rslib/kvmlab.py [-f FILE]... [-e NAME=VALUE]... [-s CPUS] [-T SECONDS] [-i SHIFT] -- JOB
"""
import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

SETUP = Path(__file__).resolve().parent.parent / 'kvmlab' / 'setup.sh'
CANNOT = 77       # setup.sh's status for "not on this machine"
NO_KVM = 122      # Result.status, beside the job's own, 0..119
TIMED_OUT = 124
DIED = 125


class Unavailable(Exception):
    """The lab cannot be had on this machine; the text says why, in one line."""


class LabError(Exception):
    """The lab should work here and does not."""


@dataclass
class Result:
    """What became of a job. status: the job's own (0..119), NO_KVM, TIMED_OUT or DIED. output: the emulated machine's
    console, job and all. stderr: of the QEMU that emulates it. seconds: of real time."""
    status: int
    output: str
    stderr: str
    seconds: float

    @property
    def meaning(self):
        """The status in words."""
        return {TIMED_OUT: 'the time was up', DIED: 'the emulated machine ended without a status',
                NO_KVM: 'the emulated machine has no KVM or no vhost-net'}.get(self.status, 'the job\'s own status')


def cpio_archive(entries):
    """The bytes of a cpio archive (newc, what Linux unpacks as initramfs). entries: (name, mode, data)."""
    out = bytearray()
    for inode, (name, mode, data) in enumerate([*entries, ('TRAILER!!!', 0, b'')], 1):
        path = name.encode() + b'\0'
        fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
        out += b'070701' + b''.join(b'%08x' % f for f in fields) + path
        out += bytes(-len(out) % 4) + data
        out += bytes(-len(out) % 4)
    return bytes(out)


def setup():
    """The lab's folder; makes it first if need be (once, needs the network). Raises Unavailable or LabError."""
    done = subprocess.run([SETUP], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1200, check=False)
    said = done.stderr.strip().splitlines() or ['it says nothing']
    if done.returncode == CANNOT:
        raise Unavailable(said[-1])
    if done.returncode != 0:
        raise LabError(f'{SETUP.name} ended with {done.returncode}:\n' + '\n'.join(said[-20:]))
    return Path(done.stdout.strip().splitlines()[-1])


def job_files(job, files, env):
    """The part of the initramfs that belongs to one job: /job with its files, variables and commands."""
    variables = ''.join(f'export {k}={shlex.quote(str(v))}\n' for k, v in (env or {}).items())
    entries = [('job', 0o040755, b''), ('job/env', 0o100644, variables.encode()),
               ('job/job', 0o100644, job.encode() + b'\n')]
    for f in map(Path, files):
        entries.append((f'job/{f.name}', 0o100755, f.read_bytes()))
    return cpio_archive(entries)


def machine(lab, initrd, smp, memory, icount):
    """QEMU's command line for the emulated machine."""
    accel = ['-accel', 'tcg,thread=' + (lab / 'thread').read_text().strip()]
    if icount is not None:  # virtual time counts instructions; QEMU then has one thread, so it must be a patched one
        if accel[1].endswith('multi'):
            raise LabError('-icount needs a QEMU without the double-delivery fault (docs/nested-kvm.md)')
        accel += ['-icount', f'shift={icount},sleep=off']
    # tsc=reliable: else the kernel distrusts the emulated clock and takes the HPET, a VM exit per reading.
    kernel = 'console=ttyS0 quiet panic=-1 tsc=reliable mitigations=off audit=0 nowatchdog'
    return [str(lab / 'l0'), '-M', 'q35', *accel, '-cpu', 'max', '-smp', str(smp), '-m', memory,
            '-nodefaults', '-no-user-config', '-no-reboot', '-display', 'none', '-serial', 'stdio',
            '-kernel', str(lab / 'vmlinux'), '-initrd', initrd, '-append', kernel,
            '-device', 'isa-debug-exit,iobase=0xf4,iosize=1']


def run(job, files=(), env=None, timeout=120, smp=1, memory='1G', icount=None, live=False, lab=None):
    """Boots the emulated machine, runs job (shell text) there in a folder that holds files, with the variables env,
    and returns a Result. timeout: seconds of real time for all. smp, memory: of the emulated machine. icount: shift of
    QEMU's -icount, for figures that do not depend on this machine's load. live: also print the console as it comes.
    Nothing stays behind: the initramfs is in anonymous memory, and QEMU dies with the thread that called run()."""
    lab = lab or setup()
    started = time.monotonic()
    initrd = os.memfd_create('kvmlab-initrd')
    output = bytearray()
    try:
        with open(initrd, 'wb', closefd=False) as f:
            f.write((lab / 'initrd').read_bytes())
            f.write(job_files(job, files, env))
        argv = machine(lab, f'/proc/self/fd/{initrd}', smp, memory, icount)
        with tempfile.TemporaryFile() as errors, subprocess.Popen(
                ['setpriv', '--pdeathsig', 'KILL', *argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=errors, pass_fds=[initrd], start_new_session=True) as qemu:
            reader = threading.Thread(target=collect, args=(qemu.stdout, output, live))
            reader.start()
            try:
                status = job_status(qemu.wait(timeout))
            except subprocess.TimeoutExpired:
                status = TIMED_OUT
            finally:
                qemu.kill()
                reader.join()
            errors.seek(0)
            said = errors.read().decode(errors='replace')
    finally:
        os.close(initrd)
    text = output.decode(errors='replace').replace('\r\n', '\n')
    return Result(status, text, said, time.monotonic() - started)


def collect(stream, output, live):
    """Reads stream to its end into output, and onto standard output if live."""
    while chunk := os.read(stream.fileno(), 65536):
        output += chunk
        if live:
            sys.stdout.write(chunk.decode(errors='replace').replace('\r\n', '\n'))
            sys.stdout.flush()


def job_status(code):
    """The status in QEMU's exit code: isa-debug-exit makes (2 * value + 1) of the value the lab's init writes, which
    is the status plus one, so that QEMU's own failure (1) is not taken for a status."""
    return (code >> 1) - 1 if code > 1 and code & 1 else DIED


def main():
    parser = argparse.ArgumentParser(description='Runs JOB on real KVM with vhost-net in an emulated machine; '
                                     'ends with its status.', epilog='JOB may use what tools/kvmlab/lib.sh defines.')
    parser.add_argument('-f', '--file', action='append', default=[], help='put FILE into the job\'s folder')
    parser.add_argument('-e', '--env', action='append', default=[], metavar='NAME=VALUE', help='a variable for JOB')
    parser.add_argument('-s', '--smp', type=int, default=1, help='processors of the emulated machine (1)')
    parser.add_argument('-m', '--memory', default='1G', help='its memory (1G)')
    parser.add_argument('-T', '--timeout', type=float, default=300, help='seconds for all (300)')
    parser.add_argument('-i', '--icount', type=int, metavar='SHIFT', help='count instructions instead of time')
    parser.add_argument('job', nargs='+', metavar='JOB', help='shell commands, joined by blanks')
    args = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as other tools end when nobody reads on
    try:
        variables = dict(e.split('=', 1) for e in args.env)
    except ValueError:
        parser.error('--env wants NAME=VALUE')
    try:
        result = run(' '.join(args.job), args.file, variables, args.timeout, args.smp, args.memory, args.icount, True)
    except (Unavailable, LabError, OSError) as e:
        print(e, file=sys.stderr)
        return CANNOT if isinstance(e, Unavailable) else DIED
    sys.stderr.write(result.stderr)
    if result.status >= NO_KVM:
        print(f'kvmlab: {result.meaning}', file=sys.stderr)
    return result.status


if __name__ == '__main__':
    sys.exit(main())
