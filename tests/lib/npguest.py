"""A guest whose netserver is tested: booted on a tap device, and watched for what tests leave behind in it."""
import contextlib
import os
import subprocess
import time

import pytest

import leaks
import npclient
import rows
import wires
from npclient import Control
from rslib.qemu import Guest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ENDS = r'c(\d+)\] netserver: control connection ends; now (\d+) of them, (\d+) tests, (\d+) legs; heap (\d+)'
CORES = (1, 2)
tap = pytest.mark.skipif(not wires.have_tap(), reason='no rights to /dev/net/tun')


def netperf_client():
    """Path of a netperf client; skips the test where there is none."""
    done = subprocess.run([os.path.join(ROOT, 'tools', 'netperf.sh')], capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        pytest.skip('no netperf client: ' + ' / '.join(done.stderr.strip().splitlines()))
    return done.stdout.strip()


@contextlib.contextmanager
def running(image, cores=1, words='', end=True, extra=(), memory='256M'):
    """A guest on a tap device with so many cores and queues; yields (wire, guest)."""
    props = {'mq': 'on', 'vectors': 2 * cores + 2} if cores > 1 else {}
    row = rows.Row('netserver', machine={'smp': cores, 'memory': memory}, props=props, words=f'log=debug {words}', extra=extra)
    with wires.make('tap', queues=cores) as wire:
        with Guest(rows.machine_for(row, image, wire), netns=wire.netns) as guest:
            assert int(guest.wait_ready(rows.SHORT)['cores']) == cores
            yield wire, guest
            if end:
                guest.finish(row.expect)


def dial_on(wire, address=wires.GUEST4):
    """dial() for npclient on a tap wire."""
    return lambda port, udp: (wire.udp if udp else wire.tcp)(port, address)


def control_on(wire, address=wires.GUEST4):
    """A control connection on a tap wire."""
    return Control(dial_on(wire, address))


def quiet(wire, guest):
    """Opens and closes a control connection until the core that got it says that nothing is left; returns (core, heap bytes
    used there)."""
    for _ in range(100):
        since = guest.mark()
        with control_on(wire) as control:
            control.finish()
        match = guest.wait_for(ENDS, 10, since)
        if match.groups()[1:4] == ('0', '0', '0'):
            return int(match.group(1)), int(match.group(5))
        time.sleep(0.1)
    raise AssertionError(f'still there: {match.group(0)}')


def short_tests(wire, count):
    """`count` tests of two transactions each: one half on control connections of their own by fives, one half on one."""
    for _ in range(count // 10):
        with control_on(wire) as control:
            for _ in range(5):
                npclient.rr(control, 2)
            control.finish()
    with control_on(wire) as control:
        for _ in range(count // 2):
            npclient.rr(control, 2)


def fill_time_wait(wire, cores):
    """Afterwards each core keeps as many connections in TIME_WAIT as it ever will."""
    with control_on(wire) as control:
        npclient.crr(control, 2 * cores * leaks.TIME_WAITS)
        control.finish()


def settled(wire, guest, cores):
    """Heap bytes of each core once it keeps as many connections in TIME_WAIT as it ever will."""
    fill_time_wait(wire, cores)
    return leaks.settled(lambda: quiet(wire, guest), cores, lambda: short_tests(wire, 100))


def wait_heaps(wire, guest, before, more):
    """Waits until no core uses more than `more` bytes above what it used before."""
    leaks.wait(lambda: quiet(wire, guest), before, more)
