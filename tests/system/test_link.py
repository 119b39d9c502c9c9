"""Links and backends that stop: link changes, a stopped QEMU, a backend that does not take frames, a long idle time.

A segment whose buffer a device's descriptor still holds must not block its retransmission, nor be changed by it."""
import threading
import time

import pytest

import rawtcp
import rows
import traffic
import trafficmix
from rows import Row
from rslib.qemu import Guest
from trafficmix import MB

DOWN, UP = r'\] net: link (is )?down', r'\] net: link (is )?up'


def set_link(guest, up):
    """Changes the NIC's link; returns the console position before."""
    mark = guest.mark()
    guest.qmp('set_link', name='nic0', up=up)
    return mark


class InBackground:
    """Runs a traffic function in a thread; join() raises what it raised."""

    def __init__(self, call):
        self._error = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call):
        try:
            call()
        except BaseException as e:
            self._error = e

    def join(self, timeout=90):
        """Waits for the end of the traffic."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f'traffic still running after {timeout} s'
        if self._error:
            raise self._error

    def running(self):
        """The traffic is not over yet (a row that interrupts finished traffic would prove nothing)."""
        assert self._thread.is_alive(), 'the traffic was over before it could be disturbed'


def link_flap(wire, guest):
    """Down: said on the console, nothing passes. Up: said, traffic passes; a connection from before lives on."""
    with wire.tcp(7) as sock:
        sock.settimeout(20)
        sock.sendall(b'before')
        assert sock.recv(100) == b'before'
        guest.wait_for(DOWN, 5, set_link(guest, False))
        sock.sendall(b'while down')
        assert wire.ping(count=3, wait=1)[1] == 0
        guest.wait_for(UP, 5, set_link(guest, True))
        assert sock.recv(100) == b'while down'
    trafficmix.smoke(wire, guest)
    for _ in range(5):
        set_link(guest, False)
        set_link(guest, True)
    time.sleep(0.5)
    trafficmix.smoke(wire, guest)


def flap_without_status(wire, guest):
    """Without the status feature nothing is said of the link, and traffic goes on after it."""
    mark = set_link(guest, False)
    guest.never(DOWN, 1, mark)
    set_link(guest, True)
    trafficmix.smoke(wire, guest)


def disturbed(disturb):
    """Traffic kind: disturbs an echo of some MB in its middle for 3 s; contents must still be right."""
    def kind(wire, guest):
        if trafficmix.is_raw(wire):
            wire.resolve(wire.guest4)
            size = 6 * MB
            connection = rawtcp.RawTcp(wire, wire.guest4, 7, traffic.content(size)).start()
            for part in (3, 2):
                connection.wait(lambda part=part: connection.received >= size // part // 2, 60, 'the first half')
                assert connection.received < size
                disturb(wire, guest)
            connection.wait_echo(90)
            connection.close()
        else:
            sock = wire.tcp(7)
            begun = threading.Event()
            echo = InBackground(lambda: traffic.tcp_echo(sock, 32 * MB, timeout=90, passing=(MB, begun.set)))
            assert begun.wait(30)
            echo.running()
            disturb(wire, guest)
            echo.join()
        trafficmix.smoke(wire, guest)
    kind.__name__ = f'disturbed_by_{disturb.__name__}'
    return kind


def stop_qemu(wire, guest):
    """QEMU's stop and cont: the guest's time jumps with the host's or stands still; descriptors are held meanwhile."""
    guest.qmp('stop')
    time.sleep(3)
    guest.qmp('cont')


def stall_peer(wire, guest):
    """The peer reads nothing for 3 s: QEMU keeps what the guest sent, and takes no more."""
    wire.stall(True)
    time.sleep(3)
    wire.stall(False)


def tap_down(wire, guest):
    """The host's end of the tap goes down for 3 s."""
    wire.link(False)
    time.sleep(3)
    wire.link(True)


def stalled_senders(wire, guest):
    """Many senders in the guest (chargen) while the peer takes nothing for 3 s: the transmit ring and the queue behind it
    fill; afterwards every stream goes on, right to the byte."""
    wire.resolve(wire.guest4)
    wanted = traffic.chargen_pattern(400_000)
    streams = [rawtcp.RawTcp(wire, wire.guest4, 19, b'', echo=False, expect=wanted, endless=True).start() for _ in range(8)]
    for stream in streams:
        stream.wait(lambda stream=stream: stream.received, 20, 'the first bytes')
    stall_peer(wire, guest)
    for stream in streams:
        stream.wait_echo(60)
        stream.reset()
    trafficmix.smoke(wire, guest)


def idle_then_receive(wire, guest):
    """Nothing at all for 10 s, then the guest receives first; it answers at once."""
    time.sleep(10)
    begin = time.monotonic()
    trafficmix.ping(wire, 1, (56,))
    took = time.monotonic() - begin
    assert took < 1.0, f'the first answer after 10 s of silence took {took:.2f} s'
    trafficmix.smoke(wire, guest)


LINK = [
    Row('flap', traffic=(link_flap,)),
    Row('flap-vectors-0', props={'vectors': 0}, traffic=(link_flap,)),
    Row('flap-vectors-1', props={'vectors': 1}, traffic=(link_flap,), full=True),
    Row('flap-vectors-2', props={'vectors': 2}, traffic=(link_flap,), full=True),
    Row('flap-status-off', words='features=-status', without=('status',), traffic=(flap_without_status,)),
]

HELD = [
    Row('stop-cont-tap', traffic=(disturbed(stop_qemu),)),
    Row('stop-cont-dgram', wire='dgram', traffic=(disturbed(stop_qemu),), full=True),
    Row('peer-stalls', wire='dgram', traffic=(disturbed(stall_peer), stalled_senders)),
    Row('peer-stalls-ring-16', wire='dgram', words='ring=16', traffic=(disturbed(stall_peer), stalled_senders)),
    Row('peer-stalls-ring-2', wire='dgram', words='ring=2', traffic=(disturbed(stall_peer), stalled_senders), full=True),
    Row('peer-stalls-event-idx-off', wire='dgram', words='features=-event_idx', without=('event_idx',),
        traffic=(disturbed(stall_peer), stalled_senders), full=True),
    Row('peer-stalls-indirect-off', wire='dgram', words='features=-indirect_desc', without=('indirect_desc',),
        traffic=(disturbed(stall_peer), stalled_senders), full=True),
    Row('stream-peer-stalls', wire='stream', traffic=(disturbed(stall_peer), stalled_senders)),
    Row('tap-down', traffic=(disturbed(tap_down),)),
]

IDLE = [
    Row('tap', traffic=(idle_then_receive,)),
    Row('dgram-vectors-0', wire='dgram', props={'vectors': 0}, traffic=(idle_then_receive,), full=True),
    Row('dgram', wire='dgram', traffic=(idle_then_receive,), full=True),
    Row('event-idx-off', words='features=-event_idx', without=('event_idx',), traffic=(idle_then_receive,), full=True),
]


@rows.table(LINK)
def test_link(row, image):
    """The link goes down and up while the guest runs."""
    rows.run(row, image)


@rows.table([Row('before-boot')])
def test_link_down_before_boot(row, image):
    """A link that is down at boot: said, no answers; once it comes up, ready (if not before) and traffic."""
    with rows.wires.make(row.wire) as wire:
        machine = rows.machine_for(row, image, wire)
        machine.extra.append('-S')
        with Guest(machine, netns=wire.netns) as guest:
            guest.qmp('set_link', name='nic0', up=False)
            guest.qmp('cont')
            guest.wait_for(DOWN, rows.SHORT)
            assert wire.ping(count=2, wait=1)[1] == 0
            guest.wait_for(UP, 5, set_link(guest, True))
            guest.wait_ready(rows.SHORT)
            trafficmix.smoke(wire, guest)
            guest.finish()
        rows.after(row, guest, wire)


@rows.table(HELD)
def test_held_descriptors(row, image):
    """Backends and QEMU stopped for 3 s in the middle of a transfer."""
    rows.run(row, image)


@rows.table(IDLE)
def test_idle(row, image):
    """A guest that is idle and then receives first."""
    rows.run(row, image)


@pytest.mark.full
@rows.table([Row('reset', wire='dgram')])
def test_peer_comes_back_on_the_same_ports(row, image):
    """A client that reset its connections and uses the same ports again is served."""
    def check(wire, guest):
        wire.resolve(wire.guest4)
        for _ in range(3):
            first = rawtcp.RawTcp(wire, wire.guest4, 7, traffic.content(50_000)).start()
            first.wait_echo(20)
            first.reset()
            again = rawtcp.RawTcp(wire, wire.guest4, 7, traffic.content(50_000))
            again.lport = first.lport
            again.start().wait_echo(20)
            again.close()
    row.traffic = (check,)
    rows.run(row, image)
