"""A guest whose iperf servers are tested: booted on a tap device, and watched for what tests leave behind in it."""
import contextlib
import shutil
import time

import pytest

import iperfclient as ip
import leaks
import rows
import wires
from npguest import fill_time_wait
from rslib.qemu import Guest

ENDS = (r'c(\d+)\] iperf3: a connection without a cookie ends; now (\d+) newcomers, (\d+) tests, (\d+) legs; heap (\d+)')
tap = pytest.mark.skipif(not wires.have_tap(), reason='no rights to /dev/net/tun')
CORES = (pytest.param(1, marks=pytest.mark.full), 2)


def client_program(name):
    """The path of a client; skips the test where there is none."""
    path = shutil.which(name)
    if not path:
        pytest.skip(f'no {name}: tools/packages.sh test installs it')
    return path


@contextlib.contextmanager
def running(image, cores=1, words=''):
    """A guest on a tap device with so many cores and queues; yields (wire, guest)."""
    props = {'mq': 'on', 'vectors': 2 * cores + 2} if cores > 1 else {}
    row = rows.Row('iperf', machine={'smp': cores, 'memory': '256M'}, props=props, words=f'log=debug {words}')
    with wires.make('tap', queues=cores) as wire:
        with Guest(rows.machine_for(row, image, wire), netns=wire.netns) as guest:
            assert int(guest.wait_ready(rows.SHORT)['cores']) == cores
            yield wire, guest
            guest.finish(row.expect)


def dial_on(wire, address=wires.GUEST4):
    """dial() for iperfclient on a tap wire."""
    return lambda port, udp: (wire.udp if udp else wire.tcp)(port, address)


def quiet(wire, guest):
    """Opens and closes a connection until the core that got it says that nothing is left; returns (core, heap bytes used)."""
    for _ in range(100):
        since = guest.mark()
        wire.tcp(ip.PORT).close()
        match = guest.wait_for(ENDS, 10, since)
        if match.groups()[1:4] == ('0', '0', '0'):
            return int(match.group(1)), int(match.group(5))
        time.sleep(0.1)
    raise AssertionError(f'still there: {match.group(0)}')


def settled(wire, guest, cores):
    """Heap bytes of each core once it keeps as many connections in TIME_WAIT as it ever will."""
    fill_time_wait(wire, cores)

    def tests():
        for number in range(50):
            ip.short_test(dial_on(wire), number % 2 == 0)
    return leaks.settled(lambda: quiet(wire, guest), cores, tests)


def wait_heaps(wire, guest, before):
    """Waits until every core's heap is what it was, or nearly."""
    leaks.wait(lambda: quiet(wire, guest), before)
