"""The harness tested on stand-ins: a harness that cannot see a fault would make every other test worthless.

A tiny guest (tests/lib/standin_guest) speaks the contract's console and exit codes; Linux on a tap device
(tests/lib/linux_peer.py) is what the raw-frame host talks to.
"""
import contextlib
import os
import sys

import pytest

import frames
import rawtcp
import rawtraffic
import standin
import traffic
import wires
from rslib.netns import Netns
from rslib.qemu import EXIT_PANIC, Guest, GuestError, Machine

needs_tap = pytest.mark.skipif(not wires.have_tap(), reason='no rights to /dev/net/tun')


@pytest.fixture(scope='module')
def elf(tmp_path_factory):
    """The stand-in guest."""
    return standin.build(tmp_path_factory.mktemp('standin'))


def machine(elf, **kwargs):
    """A machine with user networking for the stand-in."""
    return Machine(elf, netdev=['-netdev', 'user,id=n0,hostfwd=tcp:127.0.0.1:0-:7'], **kwargs)


@pytest.mark.parametrize('boot,loader', [('kernel', 'multiboot1'), ('pvh', 'pvh'), ('iso', 'multiboot2')])
def test_boot_ways(elf, boot, loader):
    """Each way of booting reaches the image by the loader it should, with the boot line; power button and trace work."""
    with Guest(machine(elf, boot=boot, append='ip=dhcp log=debug', trace=['virtio_set_status'])) as guest:
        words = guest.wait_ready()
        assert words['cores'] == '1' and words['features'] == ['mac', 'status']
        assert f'by {loader}, line' in guest.console and 'ip=dhcp log=debug' in guest.console
        assert guest.forwards()['tcp', 7] > 0
        guest.finish()
    assert 'virtio_set_status' in guest.trace
    assert not guest.workdir


def test_panic_is_noticed(elf):
    """A panic ends waiting at once; its exit code is the panic code, and no other will do."""
    with Guest(machine(elf, append='panic')) as guest:
        with pytest.raises(GuestError, match='panic: bad value'):
            guest.wait_ready(60)
        guest.expect_exit(EXIT_PANIC)
        with pytest.raises(GuestError, match='ended with 3, expected 1'):
            guest.expect_exit(1)


def test_deaf_guest_is_noticed(elf):
    """A guest that ignores the power button fails finish(), and is gone after the block."""
    with Guest(machine(elf, append='hang')) as guest:
        guest.wait_ready()
        pid = guest.pid
        with pytest.raises(GuestError, match='still running'):
            guest.finish(timeout=1)
    assert not os.path.exists(f'/proc/{pid}')


def test_qemu_stderr_is_noticed(elf):
    """A warning of QEMU's fails the block even if all else went well; a refused command line is reported with its text."""
    with pytest.raises(GuestError, match='wrote to stderr'):
        with Guest(machine(elf, extra=['-netdev', 'user,id=unused'])) as guest:
            guest.wait_ready()
    with pytest.raises(GuestError, match='expected 0(.|\n)*no-such'):
        with Guest(machine(elf, props={'no-such': 1})) as guest:
            guest.expect_exit(0)


def test_netns_leaves_nothing():
    """Processes and the name go with the namespace, also when the block fails."""
    with pytest.raises(ZeroDivisionError):
        with Netns(visible=True) as ns:
            child = ns.popen(['sleep', '1000'])
            with ns.socket() as sock:
                sock.bind(('127.0.0.1', 0))
            raise ZeroDivisionError
    assert child.poll() is not None
    assert not os.path.exists(f'/run/netns/{ns.name}')


@contextlib.contextmanager
def linux_behind_raw_host(*flags, **options):
    """A RawHost whose guest is Linux on a tap."""
    with wires.raw_wire(**options) as host, Netns() as ns:
        script = os.path.join(os.path.dirname(wires.__file__), 'linux_peer.py')
        child = ns.popen([sys.executable, script, host.link.mine, host.link.theirs, *flags], stdout=-1)
        assert child.stdout.readline() == b'up\n'
        with child.stdout:
            yield host


@needs_tap
def test_raw_host_talks():
    """ARP, ND, ping, UDP up to the largest datagram, TCP with window zero, half-close and close: against Linux."""
    with linux_behind_raw_host() as host:
        for address in (wires.GUEST4, wires.GUEST6):
            assert host.resolve(address) == bytes.fromhex('525400123456')
            rawtraffic.ping(host, address, 200, sizes=(0, 56, 1452, 4000, 65000), window=4)
            rawtraffic.udp_echo(host, address, count=300, sizes=(0, 4, 64, 1452, 1472, 8192, 65507), window=1)
            rawtcp.echo(host, address, 7, traffic.content(2_000_000), 30)
            rawtcp.echo(host, address, 7, traffic.content(100_000), 30, half_close=True)
            closed = rawtcp.RawTcp(host, address, 7, traffic.content(8_000_000), window=0).start()
            closed.wait(lambda: closed.zero_windows, 20, 'peer window to close')
            closed.open_window()
            closed.wait_echo(30)
            closed.close()
            rawtcp.RawTcp(host, address, 9, traffic.content(300_000), echo=False).start().close()
        host.check()


@needs_tap
def test_raw_host_survives_a_bad_wire():
    """Loss, repetition and reordering both ways: TCP still brings every byte."""
    with linux_behind_raw_host() as host:
        host.resolve(wires.GUEST4)
        for side in (host.to_guest, host.from_guest):
            side.drop, side.repeat, side.reorder = 0.02, 0.02, 0.05
        result = rawtcp.echo(host, wires.GUEST4, 7, traffic.content(400_000), 20)
        assert result.retransmits
        host.check()


@needs_tap
def test_peers_notice_wrong_bytes():
    """Every comparing peer fails when one byte of an echo is changed on the far side."""
    with linux_behind_raw_host('corrupt') as host:
        host.resolve(wires.GUEST4)
        with pytest.raises(AssertionError, match='differs'):
            rawtcp.echo(host, wires.GUEST4, 7, traffic.content(10_000), 5)
        with pytest.raises(AssertionError, match='other bytes'):
            rawtraffic.udp_echo(host, wires.GUEST4, count=3, timeout=5)


def test_malformed_frames_are_noticed():
    """Wrong sums, lengths and addresses in what the guest sends are errors."""
    a, b = frames.ip('198.18.0.2'), frames.ip('198.18.0.1')
    good = frames.ip4(a, b, frames.UDP, frames.udp(a, b, 1, 2, b'hello'))
    assert frames.check_transport(frames.parse_ip4(good)).payload == b'hello'
    for at in range(len(good)):
        bad = good[:at] + bytes([good[at] ^ 0x5A]) + good[at + 1:]
        with pytest.raises(frames.Malformed):
            frames.check_transport(frames.parse_ip4(bad))
    for size in range(len(good)):
        with pytest.raises(frames.Malformed):
            frames.check_transport(frames.parse_ip4(good[:size]))
