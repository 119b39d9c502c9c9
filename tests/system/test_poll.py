"""How a core waits, by the guest's own counters: a busy session of requests and responses is served without interrupts, an
idle core sleeps, few wakes and few instructions a second."""
import contextlib
import socket
import time

import pytest

import prometheus
import rows
import wires
from prometheus import ask, get_request
from rslib.bench.counter import Counter, build_plugin
from rslib.qemu import Guest, Machine

pytestmark = pytest.mark.skipif(not wires.have_tap(), reason='no rights to /dev/net/tun')

TRANSACTIONS = 5000
IDLE_SECONDS = 4
QUIET_SECONDS = 3.5             # after it is ready a guest still has address detection and announcements to do
WAKES, INSTRUCTIONS = 15, 50_000        # the most an idle core may take a second


@contextlib.contextmanager
def counted_guest(image, workdir, words=''):
    """A guest with one core on a tap, counted by the plugin; gives (wire, counter)."""
    counter = Counter(build_plugin(str(workdir)), str(workdir))
    with wires.TapWire() as wire:
        told = Machine(image, append=f'{wire.words()} {words}', netdev=wire.netdev(), extra=counter.argv())
        with Guest(told, netns=wire.netns) as guest:
            guest.wait_ready(rows.SHORT)
            time.sleep(QUIET_SECONDS)
            yield wire, counter
            guest.finish()


def scrape(wire):
    """The guest's counters by name, one core's."""
    sample = prometheus.parse(ask(wire.tcp(80), get_request('/metrics')).body.decode())
    names = ('rx_packets', 'rx_interrupts', 'tx_interrupts', 'halts', 'halted_seconds', 'polled_seconds')
    return {name: float(sample.total(f'ringside_{name}_total')) for name in names}


def session(wire, count):
    """Echoes one byte so many times; returns the seconds it took."""
    with wire.tcp(7) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began = time.monotonic()
        for _ in range(count):
            sock.sendall(b'x')
            assert sock.recv(2) == b'x'
        return time.monotonic() - began


def during(wire, work):
    """What the counters grow by while work() runs."""
    before = scrape(wire)
    work()
    return {name: value - before[name] for name, value in scrape(wire).items()}


def test_busy_session(image, tmp_path):
    """poll=auto, the default: the guest looks for the next request instead of halting. Only where the host lets the client
    wait (its processors are shared) does an interrupt come in between. With poll=0 there is one a transaction."""
    with counted_guest(image, tmp_path) as (wire, _):
        session(wire, 200)
        grown = during(wire, lambda: session(wire, TRANSACTIONS))
        assert grown['rx_packets'] >= TRANSACTIONS
        assert grown['rx_interrupts'] + grown['tx_interrupts'] < TRANSACTIONS / 4, grown
        assert grown['polled_seconds'] > grown['halted_seconds'] / 4, grown
    with counted_guest(image, tmp_path, 'poll=0') as (wire, _):
        grown = during(wire, lambda: session(wire, 1000))
        assert grown['rx_interrupts'] > 1000 / 2, 'without polling there would be interrupts: the figure above means nothing'
        assert grown['rx_interrupts'] < 1000 + 100, grown
        assert grown['polled_seconds'] == 0


@pytest.mark.parametrize('words', ['', 'poll=0'])
def test_idle_core(image, tmp_path, words):
    """Idle from the start, and idle again right after a busy session."""
    with counted_guest(image, tmp_path, words) as (wire, counter):
        for busy in (0, 2000):
            session(wire, busy)
            time.sleep(0.5)
            began, instructions = time.monotonic(), counter.total().instructions
            time.sleep(IDLE_SECONDS)
            per_second = (counter.total().instructions - instructions) / (time.monotonic() - began)
            assert per_second <= INSTRUCTIONS, f'{per_second:.0f} instructions a second'

            grown = during(wire, lambda: time.sleep(IDLE_SECONDS))
            assert grown['halts'] <= WAKES * IDLE_SECONDS + 20, grown        # and those of the two scrapes
            assert grown['halted_seconds'] > 0.9 * IDLE_SECONDS, grown
            assert grown['polled_seconds'] < 0.02 * IDLE_SECONDS, grown
