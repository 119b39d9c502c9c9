"""tools/ringside: the command lines it builds, what it refuses, how it ends."""
import os
import shlex
import signal
import socket
import subprocess
import time

import pytest
from helpers import ROOT, TOOLS, one_line, script, tool

from rslib import backend, run
from rslib.common import UsageError

EXIT_PORT = ['-device', 'isa-debug-exit,iobase=0xf4,iosize=0x4']


def printed(*args, env=None):
    """The QEMU command line that `run --print` prints, as a list."""
    done = tool('ringside', 'run', '--print', *args, env=env)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    return shlex.split(done.stdout)


def after(argv, option):
    """The argument after an option that is there once."""
    assert argv.count(option) == 1, argv
    return argv[argv.index(option) + 1]


def device(argv):
    """The words of the network card."""
    return next(word for word in argv if word.startswith('virtio-net-pci')).split(',')


def make_setup(kind, **kwargs):
    """A Setup for the backend of that name."""
    return backend.Setup(backend=backend.parse(kind), image='a.elf', **kwargs)


# ---- the command line it builds

def test_default_run():
    argv = printed()
    assert argv[0] == 'qemu-system-x86_64'
    assert after(argv, '-serial') == 'mon:stdio'
    assert after(argv, '-display') == 'none'
    assert after(argv, '-cpu') == 'max'
    assert after(argv, '-kernel') == 'build/ringside.elf'
    assert after(argv, '-machine').split(',')[0] == 'q35'
    assert '-append' not in argv
    assert argv[-2:] == EXIT_PORT


def test_forwards_are_those_of_the_contract():
    words = after(printed(), '-netdev').split(',')
    assert words[:2] == ['user', 'id=n0']
    expected = {f'hostfwd={proto}:127.0.0.1:{host}-:{guest}' for guest, host, protos in (
        (7, 10007, 'tcp udp'), (9, 10009, 'tcp udp'), (19, 10019, 'tcp udp'), (80, 8080, 'tcp'), (5001, 5001, 'tcp udp'),
        (5201, 5201, 'tcp udp'), (12865, 12865, 'tcp'), (12866, 12866, 'tcp udp')) for proto in protos.split()}
    assert set(words[2:]) == expected
    assert len(words[2:]) == len(expected)


def test_forwards_can_be_moved_left_out_and_added():
    words = after(printed('--forward', '80:18080', '--forward', '7:0', '--forward', '22:2222'), '-netdev').split(',')
    assert 'hostfwd=tcp:127.0.0.1:18080-:80' in words
    assert not any(word.endswith('-:7') for word in words)
    assert 'hostfwd=tcp:127.0.0.1:2222-:22' in words and 'hostfwd=udp:127.0.0.1:2222-:22' in words


def test_accelerator_follows_kvm():
    assert 'accel=kvm:tcg' in after(backend.command(make_setup('user', kvm=True)), '-machine')
    assert 'accel=tcg' in after(backend.command(make_setup('user', kvm=False)), '-machine').split(',')


@pytest.mark.parametrize('cpuinfo, device, usable', [
    ('flags\t\t: fpu vmx sse\n', '/dev/null', True), ('flags\t\t: fpu svm sse\n', '/dev/null', True),
    ('flags\t\t: fpu sse svm_lock\n', '/dev/null', False),      # a /dev/kvm that emulates
    ('flags\t\t: fpu vmx\n', '/nothing', False), ('', '/dev/null', False),
])
def test_kvm_needs_the_device_and_the_processor(tmp_path, cpuinfo, device, usable):
    (tmp_path / 'cpuinfo').write_text('processor\t: 0\n' + cpuinfo)
    assert run.kvm_usable(device, str(tmp_path / 'cpuinfo')) == usable


def test_machine_memory_image_boot_line():
    argv = printed('--machine', 'pc', '--memory', '2g', '--image', 'x y.elf', '--append', '  ip6=off   log=debug ',
                   '--qemu', '/opt/qemu', '--cpus', '3')
    assert argv[0] == '/opt/qemu'
    assert after(argv, '-machine').startswith('pc,')
    assert after(argv, '-m') == '2G'
    assert after(argv, '-smp') == '3'
    assert after(argv, '-kernel') == 'x y.elf'
    assert after(argv, '-append') == 'ip6=off log=debug'


def test_build_folder_from_the_environment():
    assert after(printed(env={'BUILD': 'build/clang'}), '-kernel') == 'build/clang/ringside.elf'


def test_iso():
    argv = printed('--image', 'build/ringside.iso', '--backend', 'tap')
    assert after(argv, '-cdrom') == 'build/ringside.iso'
    assert '-kernel' not in argv and '-append' not in argv


@pytest.mark.parametrize('append, expected', [
    ('', 'ip=198.18.0.2/24,gw=198.18.0.1'),
    ('ip6=off', 'ip=198.18.0.2/24,gw=198.18.0.1 ip6=off'),
    ('log=debug ip=dhcp', 'log=debug ip=dhcp'),
])
def test_tap_gives_an_address_unless_the_user_did(append, expected):
    assert after(printed('--backend', 'tap', '--append', append), '-append') == expected


def test_tap_of_the_user_gets_no_address():
    argv = printed('--backend', 'tap', '--ifname', 'mytap')
    assert '-append' not in argv
    assert after(argv, '-netdev') == 'tap,id=n0,ifname=mytap,script=no,downscript=no'


@pytest.mark.parametrize('kind', ['tap', 'vhost-net'])
def test_one_queue_pair_is_plain(kind):
    argv = printed('--backend', kind)
    assert 'queues=' not in after(argv, '-netdev')
    assert not {'mq=on'} & set(device(argv))
    assert ('vhost=on' in after(argv, '-netdev').split(',')) == (kind == 'vhost-net')


@pytest.mark.parametrize('args, queues', [(('--cpus', '4'), 4), (('--cpus', '4', '--queues', '2'), 2), (('--queues', '3'), 3)])
def test_queue_pairs(args, queues):
    argv = printed('--backend', 'tap', *args)
    assert f'queues={queues}' in after(argv, '-netdev').split(',')
    assert {'mq=on', f'vectors={2 * queues + 2}'} <= set(device(argv))


def test_user_networking_stays_at_one_queue_with_many_processors():
    argv = printed('--cpus', '4')
    assert 'mq=on' not in device(argv)


def test_vhost_user_shares_memory():
    argv = backend.command(make_setup('vhost-user:/run/a,b.sock', memory='256M', queues=2, kvm=True))
    assert 'memory-backend=mem0' in after(argv, '-machine').split(',')
    assert after(argv, '-object') == 'memory-backend-memfd,id=mem0,size=256M,share=on'
    assert after(argv, '-m') == '256M'
    assert after(argv, '-chardev') == 'socket,id=c0,path=/run/a,,b.sock'
    assert after(argv, '-netdev') == 'vhost-user,id=n0,chardev=c0,queues=2'
    assert 'vectors=6' in device(argv)


@pytest.mark.parametrize('version, kvm, none', [((7, 2), False, True), ((7, 2), True, False), ((10, 0), False, False)])
def test_vhost_user_without_msix_where_qemu_crashes(version, kvm, none):
    argv = backend.command(make_setup('vhost-user:/s', version=version, kvm=kvm))
    assert ('vectors=0' in device(argv)) == none
    assert 'vectors=0' not in device(backend.command(make_setup('tap', version=version, kvm=kvm)))


def test_passt_both_ways():
    new = backend.command(make_setup('passt', passt_socket='/t/p', passt_vhost=True))
    assert after(new, '-netdev') == 'vhost-user,id=n0,chardev=c0'
    assert after(new, '-chardev') == 'socket,id=c0,path=/t/p'
    old = backend.command(make_setup('passt', passt_socket='/t/p', passt_vhost=False))
    assert after(old, '-netdev') == 'stream,id=n0,server=off,addr.type=unix,addr.path=/t/p'
    assert '-object' not in old and 'vectors=0' not in device(old)


def test_passt_command_line():
    forwards = backend.forwards()
    argv = backend.passt_command('passt', '/t/p', True, forwards, root=True)
    assert '--vhost-user' in argv and after(argv, '--socket') == '/t/p' and after(argv, '--runas') == '0'
    assert after(argv, '-t') == '127.0.0.1/10007:7,10009:9,10019:19,8080:80,5001:5001,5201:5201,12865:12865,12866:12866'
    assert '8080' not in after(argv, '-u')
    assert '--runas' not in backend.passt_command('passt', '/t/p', False, forwards, root=False)


def test_dgram():
    argv = printed('--backend', 'dgram:/tmp/w,x')
    assert after(argv, '-netdev') == ('dgram,id=n0,local.type=unix,local.path=/tmp/w,,x,'
                                      'remote.type=unix,remote.path=/tmp/w,,x.peer')


# ---- what it refuses

@pytest.mark.parametrize('args, words', [
    (('run', '--backend', 'foo'), ["'foo'", backend.VALID]),
    (('run', '--backend', 'user:1'), ["'user:1'", backend.VALID]),
    (('run', '--backend', 'dgram'), ['dgram:PATH']),
    (('run', '--backend', 'vhost-user:'), ['vhost-user:SOCKET']),
    (('run', '--backend', 'dgram:/' + 'x' * 120), ['at most 102']),
    (('run', '--backend'), ['--backend']),
    (('run', '--cpus', '0'), ["'0'", '1 to 255']),
    (('run', '--cpus', 'many'), ["'many'", '1 to 255']),
    (('run', '--queues', '257'), ["'257'", '1 to 256']),
    (('run', '--queues', '2'), ['user', 'tap, vhost-net, vhost-user']),
    (('run', '--memory', '12'), ["'12'", '128M']),
    (('run', '--memory', '32M'), ["'32M'", '64M']),
    (('run', '--machine', 'microvm'), ["'microvm'", 'q35, pc']),
    (('run', '--forward', '80'), ["'80'", 'GUEST:HOST']),
    (('run', '--forward', '80:70000'), ['80:70000', 'GUEST:HOST']),
    (('run', '--forward', '80:5201'), ['5201', '80']),
    (('run', '--backend', 'tap', '--forward', '80:1'), ['--forward', 'tap']),
    (('run', '--ifname', 'x'), ['--ifname', 'user']),
    (('run', '--backend', 'tap', '--ifname', 'a b'), ["'a b'"]),
    (('run', '--image', 'a.iso', '--append', 'ip=dhcp', '--print'), ['a.iso', 'ip=dhcp']),
    (('run', '--nonsense'), ['--nonsense', '--help']),
    (('run', '--back', 'tap'), ['--back', '--help']),
    (('run', 'word'), ['word', '--help']),
    (('test', '--nonsense'), ['--nonsense', '--help']),
    (('walk',), ["'walk'", 'run, test, bench, conform']),
    ((), ['run, test, bench, conform']),
])
def test_bad_command_lines_take_one_line(args, words):
    line = one_line(tool('ringside', *args))
    assert line.startswith('ringside')
    for word in words:
        assert word in line


@pytest.mark.parametrize('command', ['run', 'test', 'bench', 'conform'])
def test_help(command):
    done = tool('ringside', command, '--help')
    assert done.returncode == 0 and done.stderr == ''
    assert f'usage: ringside {command}' in done.stdout


def test_version():
    done = tool('ringside', '--version')
    assert done.returncode == 0
    assert done.stdout.startswith('ringside ')


def test_missing_things_take_one_line(tmp_path):
    qemu = script(tmp_path / 'qemu', 'exit 1\n')
    image = script(tmp_path / 'image.elf', '')
    base = ('run', '--qemu', qemu, '--image', image)
    assert 'nothing.elf' in one_line(tool('ringside', 'run', '--qemu', qemu, '--image', tmp_path / 'nothing.elf'))
    assert "'no-such-qemu'" in one_line(tool('ringside', 'run', '--image', image, '--qemu', 'no-such-qemu'))
    assert '/no/socket' in one_line(tool('ringside', *base, '--backend', 'vhost-user:/no/socket'))
    assert image in one_line(tool('ringside', *base, '--backend', f'vhost-user:{image}'))
    assert '/no/folder' in one_line(tool('ringside', *base, '--backend', 'dgram:/no/folder/x'))
    assert 'there already' in one_line(tool('ringside', *base, '--backend', f'dgram:{image}'))
    assert 'rs-nothere' in one_line(tool('ringside', *base, '--backend', 'tap', '--ifname', 'rs-nothere'))
    path = {'PATH': bin_without(tmp_path, 'passt')}
    assert 'apt-get install passt' in one_line(tool('ringside', *base, '--backend', 'passt', env=path))
    if not os.path.exists('/dev/vhost-net'):
        assert '/dev/vhost-net' in one_line(tool('ringside', *base, '--backend', 'vhost-net'))


def bin_without(tmp_path, *missing):
    """A folder that stands for PATH, with every program of /usr/bin but some."""
    folder = tmp_path / 'bin'
    folder.mkdir(exist_ok=True)
    for name in os.listdir('/usr/bin'):
        if name not in missing and not (folder / name).exists():
            os.symlink(os.path.join('/usr/bin', name), folder / name)
    return str(folder)


@pytest.mark.parametrize('kind, port', [(socket.SOCK_STREAM, 10007), (socket.SOCK_DGRAM, 10009)])
def test_a_taken_port_is_named(tmp_path, kind, port):
    qemu = script(tmp_path / 'qemu', 'exit 1\n')
    with socket.socket(socket.AF_INET, kind) as s:
        try:
            s.bind(('127.0.0.1', port))
        except OSError:
            pass                # then another program has it, which serves as well
        if kind == socket.SOCK_STREAM:
            s.listen()
        line = one_line(tool('ringside', 'run', '--qemu', qemu, '--image', qemu))
    assert f'{port} ({"TCP" if kind == socket.SOCK_STREAM else "UDP"})' in line


# ---- how it ends

NO_FORWARDS = [word for guest, _, _ in backend.FORWARDS for word in ('--forward', f'{guest}:0')]


def run_fake(tmp_path, text, *args, **kwargs):
    """Runs with a shell script in QEMU's place, and no forwards."""
    qemu = script(tmp_path / 'qemu', text)
    return tool('ringside', 'run', '--qemu', qemu, '--image', qemu, *(args or NO_FORWARDS), **kwargs)


@pytest.mark.parametrize('text, status', [
    ('exit 1', 0),                                          # isa-debug-exit 0: ended well
    ('exit 0', 0),                                          # ACPI power-off, Ctrl-A X
    ('exit 3', 3), ('exit 5', 5), ('exit 7', 7),
    ('echo "qemu: Could not set up host forwarding" >&2; exit 1', 1),
    ('echo "qemu: warning: something" >&2; exit 1', 0),
    ('kill -SEGV $$', 139),
])
def test_exit_status(tmp_path, text, status):
    assert run_fake(tmp_path, text).returncode == status


def test_says_what_to_try(tmp_path):
    done = run_fake(tmp_path, 'exit 1', *NO_FORWARDS, '--forward', '7:39007')
    assert done.returncode == 0, done
    assert 'nc -N 127.0.0.1 39007' in done.stdout and 'nc -u -w 1 127.0.0.1 39007' in done.stdout
    assert 'Ctrl-A X' in done.stdout
    assert '10009' not in done.stdout and 'iperf' not in done.stdout
    done = run_fake(tmp_path, 'exit 1', *NO_FORWARDS, '--forward', '5201:39201', '--forward', '5001:39001')
    assert 'iperf3 -c 127.0.0.1 -p 39201' in done.stdout and 'iperf -c 127.0.0.1 -p 39001' in done.stdout


def test_says_the_exact_commands():
    lines = '\n'.join(run.hints(make_setup('user', forwards=backend.forwards()), None)) + '\n'
    for command in ('netperf -H 127.0.0.1 -t TCP_RR -- -P ,12866 ', 'iperf3 -c 127.0.0.1 ', 'iperf -c 127.0.0.1 '):
        assert f'    {command}' in lines, lines


def namespaces():
    """Names under /run/netns."""
    return set(os.listdir('/run/netns')) if os.path.isdir('/run/netns') else set()


needs_tap = pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists('/dev/net/tun'), reason='needs root and /dev/net/tun')


@needs_tap
def test_tap_runs_in_a_namespace_and_removes_it(tmp_path):
    before = namespaces()
    done = run_fake(tmp_path, 'ip -br addr show tap0; ip -d link show tap0; exit 1', '--backend', 'tap',
                    '--queues', '2')
    assert done.returncode == 0, done
    name = done.stdout.split('network namespace ')[1].split('.')[0]
    assert f'ip netns exec {name} ping -c 3 198.18.0.2' in done.stdout
    assert '198.18.0.1/24' in done.stdout and 'multi_queue' in done.stdout
    assert namespaces() == before
    assert not os.path.exists('/sys/class/net/tap0')


@needs_tap
@pytest.mark.parametrize('number, status', [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130),
                                            (signal.SIGKILL, -9)])
def test_tap_is_removed_however_it_ends(tmp_path, number, status):
    before = namespaces()
    qemu = script(tmp_path / 'qemu', f'echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; exec sleep 30\n')
    process = subprocess.Popen([os.path.join(TOOLS, 'ringside'), 'run', '--qemu', qemu, '--image', qemu, '--backend', 'tap'],
                               cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: os.path.exists(tmp_path / 'pid'))
        pid = int((tmp_path / 'pid').read_text())
        assert namespaces() - before
        process.send_signal(number)
        assert process.wait(20) == status
    finally:
        process.kill()
        process.wait()
    assert wait_until(lambda: namespaces() == before)
    assert wait_until(lambda: not os.path.exists(f'/proc/{pid}'))


def wait_until(condition, seconds=10):
    """Whether the condition comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_forwards_table_rejects_one_host_port_for_two():
    with pytest.raises(UsageError):
        backend.forwards([(7, 5001)])
    assert backend.forwards([(7, 5001), (5001, 0)])
