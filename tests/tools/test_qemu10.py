"""tools/qemu10.sh and what the tests use of it: a newer QEMU beside the installed one, kept in the cache."""
import os
import re
import subprocess

import pytest

import wires
from helpers import one_line, script, tool
from rslib.qemu import Guest, Machine, NoQemu, qemu10


@pytest.fixture(scope='module', name='qemu')
def found():
    """The program, fetched if it is not there yet."""
    try:
        return qemu10()
    except NoQemu as e:
        pytest.skip(str(e))


def offline(tmp_path, installed='7.2.22'):
    """PATH with an apt-get that only leaves a mark, and an installed QEMU of that version."""
    script(tmp_path / 'apt-get', f'touch {tmp_path}/asked\nexit 100\n')
    script(tmp_path / 'qemu-system-x86_64', f'echo "QEMU emulator version {installed} (Debian)"\n')
    return f'{tmp_path}:/usr/bin:/bin'


def test_the_second_time_is_offline(qemu, tmp_path):
    """What it found is new enough; it finds it again without apt."""
    version = subprocess.run([qemu, '--version'], capture_output=True, text=True, timeout=60, check=True).stdout
    assert int(re.match(r'QEMU emulator version (\d+)\.', version).group(1)) >= 10, version
    if qemu.startswith('/usr/bin'):
        return                          # the installed one; the stand-in below is not
    done = tool('qemu10.sh', env={'PATH': offline(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr) == (0, qemu + '\n', '')
    assert not (tmp_path / 'asked').exists()


def test_an_installed_one_that_is_new_enough_is_taken(tmp_path):
    """Nothing is fetched then, and no cache is needed."""
    done = tool('qemu10.sh', env={'PATH': offline(tmp_path, '10.0.2'), 'RINGSIDE_CACHE': str(tmp_path / 'none')})
    assert (done.returncode, done.stdout, done.stderr) == (0, f'{tmp_path}/qemu-system-x86_64\n', '')
    assert not (tmp_path / 'none').exists()


def test_where_it_cannot_be_had(tmp_path):
    """An empty cache and an apt that knows no archive: one line, and no rest of the attempt."""
    cache = tmp_path / 'cache'
    line = one_line(tool('qemu10.sh', env={'PATH': offline(tmp_path), 'RINGSIDE_CACHE': str(cache)}))
    assert line.startswith('qemu10: cannot be had here: ')
    assert (tmp_path / 'asked').exists()
    assert os.listdir(cache) == ['qemu10.lock']
    one_line(tool('qemu10.sh', 'all'))


def test_it_runs_the_guest(qemu, image):
    """Its firmware and modules are found, and it has what the older one has not."""
    wire = wires.make('user')
    with wire, Guest(Machine(image, qemu=qemu, append=wire.words(), netdev=wire.netdev(), props={'in_order': 'on'})) as guest:
        guest.wait_ready(60)
        guest.finish()
