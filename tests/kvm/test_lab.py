"""The lab itself: what a row relies on when it says that something is equal, was in time, or cannot be had here."""
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rslib import kvmlab

TOOLS = Path(kvmlab.SETUP).parent
HOST = '127.0.0.1'


def test_job(lab, tmp_path):
    """Files and variables arrive, output and status come back, and it is KVM on an AMD processor with vhost-net."""
    (tmp_path / 'data').write_bytes(b'a file\n')
    result = kvmlab.run('cat data; echo "$WORD"; grep -m1 -o svm /proc/cpuinfo; cd /dev && ls -1d kvm vhost-net net/tun; exit 7',
                        [tmp_path / 'data'], {'WORD': "it's \"quoted\" $HOME"}, lab=lab)
    assert result.status == 7 and result.stderr == ''
    lines = re.search(r'^l1: up .*?\n(.*)^l1: job', result.output, re.M | re.S).group(1).splitlines()
    assert lines == ['a file', "it's \"quoted\" $HOME", 'svm', 'kvm', 'net/tun', 'vhost-net']


def test_time_up(lab):
    """A job that does not end is ended."""
    result = kvmlab.run('sleep 1000', timeout=5, lab=lab)
    assert result.status == kvmlab.TIMED_OUT and result.seconds < 15


@pytest.mark.full
def test_machine_dies(lab):
    """A machine that goes away without a status is told from a job that fails."""
    assert kvmlab.run('poweroff -f', lab=lab).status == kvmlab.DIED


def children(pid):
    """Process ids of the children of a process."""
    return [int(c) for t in Path(f'/proc/{pid}/task').iterdir() for c in (t / 'children').read_text().split()]


def test_nothing_left(lab):
    """QEMU ends with a caller that is killed."""
    caller = subprocess.Popen([sys.executable, kvmlab.__file__, 'sleep 1000'], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    qemu = []
    while not qemu and time.monotonic() < deadline:
        qemu = [c for c in children(caller.pid) if b'isa-debug-exit' in Path(f'/proc/{c}/cmdline').read_bytes()]
        time.sleep(0.05)
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    assert len(qemu) == 1
    while Path(f'/proc/{qemu[0]}/exe').exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f'/proc/{qemu[0]}/exe').exists()


def build_guest(name, folder):
    """Assembles and links guests/NAME.S; returns the ELF's path."""
    source = Path(__file__).parent / 'guests' / f'{name}.S'
    subprocess.run(['gcc', '-m32', '-c', source, '-o', folder / f'{name}.o'], check=True, timeout=60)
    subprocess.run(['ld', '-m', 'elf_i386', '-Ttext', '0x100000', '-n', '--no-warn-rwx-segments', '-o', folder / f'{name}.elf',
                    folder / f'{name}.o'], check=True, timeout=60)
    return folder / f'{name}.elf'


@pytest.mark.full
def test_halts(lab, tmp_path):
    """A guest's sti and hlt are one: no wake-up is lost in between. Without the third patch of mklab.py it stands still
    after some hundred to two thousand."""
    wanted = 8000
    job = f"""guest -M q35 -m 64 -kernel halt.elf
        i=0; until n=$(($(wc -c <$GUEST_LOG) * 256)); [ $n -ge {wanted} ] || [ $i -ge 60 ]; do sleep 1; i=$((i + 1)); done
        echo "@halts $n"; kill -9 $GUEST; [ $n -ge {wanted} ]"""
    result = kvmlab.run(job, [build_guest('halt', tmp_path)], timeout=150, lab=lab)
    assert result.status == 0, result.output


@pytest.mark.full
def test_exits(lab, tmp_path):
    """The machine's own timer survives a guest that leaves for the hypervisor all the time. Without the second patch of
    mklab.py it stands still, as a rule within some 100,000 exits."""
    job = """guest -M q35 -m 64 -kernel exits.elf
        i=0; while [ $i -lt 1500 ]; do usleep 5000; i=$((i + 1)); done
        echo "@exits $(cat /sys/kernel/debug/kvm/exits)"; kill -9 $GUEST"""
    result = kvmlab.run(job, [build_guest('exits', tmp_path)], timeout=150, lab=lab)
    assert result.status == 0, f'{result.meaning}: {result.output}'
    assert int(re.search(r'^@exits (\d+)', result.output, re.M).group(1)) > 50_000


def run_setup(cache, *prefix):
    """Runs setup.sh with this cache; returns the completed process."""
    return subprocess.run([*prefix, kvmlab.SETUP], env={**os.environ, 'RINGSIDE_CACHE': str(cache)}, capture_output=True,
                          text=True, timeout=200, check=False)


need_root = pytest.mark.skipif(os.geteuid() != 0, reason='unshare -n needs root')


@need_root
def test_second_time_offline(lab):
    """With the lab in the cache, setup needs no network and no time."""
    began = time.monotonic()
    done = run_setup(lab.parent, 'unshare', '-n')
    assert (done.returncode, done.stdout.strip()) == (0, str(lab))
    assert time.monotonic() - began < 5


@need_root
@pytest.mark.full
def test_no_network(lab, tmp_path):
    """Without cache and network: the status for "not here", one line, no address in it, nothing left in the cache."""
    done = run_setup(tmp_path, 'unshare', '-n')
    assert done.returncode == kvmlab.CANNOT and done.stdout == ''
    assert re.fullmatch(r'kvmlab: cannot be had here: .+\n', done.stderr) and '://' not in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ['kvmlab.lock']


def test_no_cache(lab):
    """A cache that cannot be written: the same status, one line."""
    done = run_setup('/proc/ringside')
    assert done.returncode == kvmlab.CANNOT
    assert done.stderr == 'kvmlab: cannot be had here: the cache folder /proc/ringside cannot be written\n'


@pytest.fixture(scope='module')
def echocheck(tmp_path_factory):
    """Path of echocheck, built for this machine."""
    program = tmp_path_factory.mktemp('echocheck') / 'echocheck'
    subprocess.run(['gcc', '-std=gnu17', '-O1', '-Wall', '-Wextra', '-Werror', '-fsanitize=address,undefined',
                    '-o', program, TOOLS / 'echocheck.c'], check=True, timeout=120)
    return program


def run_against(echocheck, kind, server, *amount):
    """Runs echocheck against server(socket), which has a thread; returns (exit status, what it printed)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM if kind == 'tcp' else socket.SOCK_DGRAM) as s:
        s.bind((HOST, 0))
        if kind == 'tcp':
            s.listen()
        threading.Thread(target=server, args=(s,), daemon=True).start()
        done = subprocess.run([echocheck, kind, HOST, str(s.getsockname()[1]), *map(str, amount)],
                              capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ''
    return done.returncode, done.stdout


def stream_echo(change, end=lambda c: c.shutdown(socket.SHUT_WR)):
    """A TCP echo server for one connection that sends change(all it got), then ends."""
    def serve(listener):
        connection, _ = listener.accept()
        with connection:
            got = bytearray()
            while chunk := connection.recv(65536):
                got += chunk
            connection.sendall(change(bytes(got)))
            end(connection)
            try:
                connection.recv(1)
            except OSError:     # reset, by either side
                pass
    return serve


def reset(connection):
    """Ends a connection with a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b'\1\0\0\0\0\0\0\0')
    connection.close()


TCP = [
    ('right', lambda b: b, 0, 'tcp 100000 bytes equal'),
    ('one-bit', lambda b: b[:70000] + bytes([b[70000] ^ 1]) + b[70001:], 1, 'byte 70000 is'),
    ('lost', lambda b: b[:50000] + b[50008:], 1, 'byte 50000 is'),
    ('doubled', lambda b: b[:50000] + b[49992:], 1, 'byte 50000 is'),
    ('swapped', lambda b: b[:8192] + b[16384:24576] + b[8192:16384] + b[24576:], 1, 'byte 8192 is'),
    ('short', lambda b: b[:-1], 1, 'the peer ended after 99999 of 100000 bytes'),
    ('long', lambda b: b + b'x', 1, 'byte 100000 is'),
]


@pytest.mark.parametrize('name, change, status, text', TCP, ids=[t[0] for t in TCP])
def test_echocheck_tcp(echocheck, name, change, status, text):
    """Right content passes, any wrong content fails and is said."""
    got, said = run_against(echocheck, 'tcp', stream_echo(change), 100000)
    assert got == status and text in said


def test_echocheck_tcp_reset(echocheck):
    """A reset is not an end."""
    got, said = run_against(echocheck, 'tcp', stream_echo(lambda b: b[:1000], reset), 100000)
    assert got == 1 and ('reset' in said or 'ended' in said)


def test_echocheck_tcp_silent(echocheck):
    """A server that never ends is not waited for longer than asked."""
    got, said = run_against(echocheck, 'tcp', stream_echo(lambda b: b, lambda c: time.sleep(4)), 1000, 1)
    assert got == 1 and 'time up with 1000 of 1000 bytes sent and 1000 back' in said


def datagram_echo(change):
    """A UDP echo server that answers datagram number n with each of change(n, datagram)."""
    def serve(s):
        number = 0
        try:
            while True:
                data, peer = s.recvfrom(65536)
                for answer in change(number, data):
                    s.sendto(answer, peer)
                number += 1
        except OSError:
            pass
    return serve


UDP = [
    ('right', lambda n, d: [d], 0, 'udp 50 datagrams of 4 to 1472 bytes equal'),
    ('one-bit', lambda n, d: [d[:-1] + bytes([d[-1] ^ 1])] if n == 20 and len(d) > 8 else [d], 1, 'differs at byte'),
    ('short', lambda n, d: [d[:-1]] if n == 20 else [d], 1, 'datagram 20 has'),
    ('lost', lambda n, d: [] if n == 20 else [d], 1, 'sent 49 came back'),
    ('doubled', lambda n, d: [d, d] if n == 49 else [d], 1, 'datagram 49 came back twice'),
    ('invented', lambda n, d: [b'\xff' * 20] if n == 20 else [d], 1, 'came back, only'),
]


@pytest.mark.parametrize('name, change, status, text', UDP, ids=[u[0] for u in UDP])
def test_echocheck_udp(echocheck, name, change, status, text):
    """Right datagrams pass, any wrong, lost or doubled one fails and is said."""
    got, said = run_against(echocheck, 'udp', datagram_echo(change), 50)
    assert got == status and text in said


def test_echocheck_nobody(echocheck):
    """A port where nobody listens."""
    with socket.socket() as s:
        s.bind((HOST, 0))
        done = subprocess.run([echocheck, 'tcp', HOST, str(s.getsockname()[1]), '10'], capture_output=True, text=True,
                              timeout=60, check=False)
    assert done.returncode == 1 and 'refused' in done.stdout


@pytest.mark.parametrize('words', [[], ['tcp', HOST, '7'], ['tcp', 'host', '7', '1'], ['tcp', HOST, '0', '1'],
                                   ['udp', HOST, '7', '1', '3'], ['udp', HOST, '7', 'many']], ids=' '.join)
def test_echocheck_usage(echocheck, words):
    """A wrong command line: one line, status 2."""
    done = subprocess.run([echocheck, *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and done.stdout == '' and len(done.stderr.splitlines()) == 1
