"""How a guest comes by its addresses: DHCP in fair and foul weather, IPv6 link-local, router advertisements, static."""
import re
import time

import pytest

import checks
import frames
import rawtraffic
import rows
import trafficmix
import wires
from dhcp import DhcpServer
from dnsmasq import Dnsmasq, have
from rows import Row
from rslib.qemu import Guest

LINK_LOCAL = 'fe80::5054:ff:fe12:3456'          # from QEMU's default MAC (RFC 4291, appendix A)
SLAAC = 'fd00::5054:ff:fe12:3456'
NO_LEASE = r'\] net: no (DHCP answer|lease)\b.*\b10 s'
NEW_IP = r'\] net: ip=198\.18\.0\.2\b'

needs_dnsmasq = pytest.mark.skipif(not have(), reason='dnsmasq is not installed')


def ends_well(row, guest, wire):
    """finish() and what must hold after it; called inside the with blocks."""
    guest.finish()
    rows.after(row, guest, wire)


def start(image, net, words, **fields):
    """A Guest on a wire with these address words, and its Row."""
    row = Row('address', addresses=words, **fields)
    return Guest(rows.machine_for(row, image, net), netns=net.netns), row


# ---- DHCP

def test_dhcp_from_user_networking(image):
    """QEMU's own server: address, ready line, echo; without any word on the boot line too."""
    for words in ('ip=dhcp', ''):
        with wires.make('user') as wire:
            guest, row = start(image, wire, words or ' ')
            with guest:
                wire.attach(guest)
                ready = guest.wait_ready(rows.SHORT)
                assert ready['ip'] == '10.0.2.15'
                trafficmix.smoke(wire, guest)
                ends_well(row, guest, wire)


@needs_dnsmasq
@pytest.mark.parametrize('renewal', [False, pytest.param(True, marks=pytest.mark.full)])
@rows.table([Row('tap')])
def test_dhcp_from_dnsmasq(image, tmp_path, row, renewal):
    """dnsmasq in the namespace: lease, echo, and (--full) the renewal after half of its two minutes."""
    with wires.make('tap') as wire:
        server = Dnsmasq(wire, tmp_path)
        guest, row = start(image, wire, 'ip=dhcp')
        with guest:
            ready = guest.wait_ready(rows.SHORT)
            assert re.fullmatch(r'198\.18\.0\.5\d', ready['ip'])
            server.wait_log(f'DHCPACK(tap0) {ready["ip"]}')
            wire.guest4 = ready['ip']
            assert wire.ping(ready['ip'], 20)[1] == 20
            trafficmix.tcp_echo(wire, 100_000, ready['ip'])
            if renewal:
                server.wait_log(f'DHCPREQUEST(tap0) {ready["ip"]}', 130, count=2)
                assert wire.ping(ready['ip'], 20)[1] == 20
            ends_well(row, guest, wire)


DHCP = [
    ('late', {'delay': 3.0}, None, {'offer': 1}),
    ('first-two-unanswered', {'ignore': 2}, None, {'discover': 3}),
    ('refused-once', {'naks': 1}, None, {'nak': 1, 'discover': 2}),
    ('without-router', {'router': False}, None, {'ack': 1}),
]


@pytest.mark.parametrize('server,ready_ip,counts', [pytest.param(*row[1:], id=row[0]) for row in DHCP])
def test_dhcp_in_foul_weather(image, server, ready_ip, counts):
    """Late answers, lost answers, a NAK: in the end a lease, and echo over it."""
    with wires.raw_wire() as wire:
        wire.dhcp = DhcpServer(**server)
        guest, row = start(image, wire, 'ip=dhcp', wire='dgram')
        with guest:
            ready = guest.wait_ready(rows.SHORT)
            if ready['ip'] == 'none':
                guest.wait_for(NEW_IP, rows.LONG)
            else:
                assert ready['ip'] == '198.18.0.2'
            for name, least in counts.items():
                assert wire.dhcp.counts[name] >= least, wire.dhcp.counts
            trafficmix.smoke(wire, guest)
            ends_well(row, guest, wire)


def test_no_dhcp_answer(image):
    """No answer in 10 s: said, ready with ip=none, link-local IPv6 answers meanwhile; a later lease is printed and works."""
    with wires.raw_wire() as wire:
        guest, row = start(image, wire, 'ip=dhcp', wire='dgram')
        with guest:
            begin = time.monotonic()
            ready = guest.wait_ready(rows.SHORT)
            took = time.monotonic() - begin
            assert ready['ip'] == 'none' and 9 < took < 14, f'ip={ready["ip"]} after {took:.1f} s'
            assert re.search(NO_LEASE, guest.console), 'nothing said of the missing lease'
            trafficmix.reach(wire, LINK_LOCAL)
            trafficmix.ping(wire, 20, (56, 1400), LINK_LOCAL)
            trafficmix.tcp_echo(wire, 100_000, LINK_LOCAL)
            wire.dhcp = DhcpServer()
            guest.wait_for(NEW_IP, rows.LONG)
            trafficmix.smoke(wire, guest)
            ends_well(row, guest, wire)


def test_no_dhcp_and_no_ip6(image):
    """Neither a lease nor IPv6: still ready after 10 s, and a later lease serves."""
    with wires.raw_wire() as wire:
        guest, row = start(image, wire, 'ip=dhcp ip6=off', wire='dgram')
        with guest:
            assert guest.wait_ready(rows.SHORT)['ip'] == 'none'
            wire.dhcp = DhcpServer()
            guest.wait_for(NEW_IP, rows.LONG)
            trafficmix.tcp_echo(wire, 100_000)
            ends_well(row, guest, wire)


@pytest.mark.full
def test_lease_runs_out(image):
    """A server that gives a two-minute lease and dies: the address is given up and said so, then asked for again."""
    with wires.raw_wire() as wire:
        wire.dhcp = DhcpServer(lease=120)
        guest, row = start(image, wire, 'ip=dhcp', wire='dgram')
        with guest:
            guest.wait_ready(rows.SHORT)
            wire.dhcp.ignore = 1 << 30
            guest.wait_for(r'\] net: .*(ip=none|lease)', 200, guest.mark())
            mark = guest.mark()
            wire.dhcp.ignore = 0
            guest.wait_for(NEW_IP, rows.LONG, mark)
            trafficmix.tcp_echo(wire, 100_000)
            ends_well(row, guest, wire)


# ---- IPv6

def test_link_local_and_router_advertisement(image):
    """ip6=auto: link-local by duplicate address detection, a router's prefix when it is advertised; both answer."""
    with wires.raw_wire() as wire:
        probes = []
        wire.watch(lambda kind, packet, _: probes.append(packet) if rawtraffic.packet_kind(packet) == 135 else None)
        wire.router = ('fd00::', 1800)
        guest, row = start(image, wire, 'ip=198.18.0.2/24 ip6=auto', wire='dgram')
        with guest:
            ready = guest.wait_ready(rows.SHORT)
            assert LINK_LOCAL in ready['ip6']
            guest.wait_for(rf'ip6=\S*{SLAAC}', rows.SHORT)
            for address in (LINK_LOCAL, SLAAC):
                trafficmix.reach(wire, address)
            assert wire.counts['solicitations'] >= 1, 'no router solicitation'
            dad = {frames.show(p.payload[8:24]) for p in probes if p.src == bytes(16)}
            assert {LINK_LOCAL, SLAAC} <= dad, f'duplicate address detection only for {dad}'
            for address in (LINK_LOCAL, SLAAC):
                trafficmix.ping(wire, 20, (56, 1400), address)
                trafficmix.tcp_echo(wire, 200_000, address)
                trafficmix.udp_echo(wire, 100, (64, 1400), address)
            ends_well(row, guest, wire)


@needs_dnsmasq
@rows.table([Row('tap')])
def test_router_advertisement_from_dnsmasq(image, tmp_path, row):
    """dnsmasq --enable-ra: an address from its prefix, echo over it."""
    with wires.make('tap') as wire:
        Dnsmasq(wire, tmp_path, '--enable-ra', '--dhcp-range=fd00::,ra-only,64,600', pool='')
        guest, row = start(image, wire, 'ip=198.18.0.2/24 ip6=auto')
        with guest:
            guest.wait_ready(rows.SHORT)
            guest.wait_for(rf'ip6=\S*{SLAAC}', rows.SHORT)
            for address in (SLAAC, LINK_LOCAL):
                trafficmix.reach(wire, address)
                assert wire.ping(address, 20)[1] == 20
                trafficmix.tcp_echo(wire, 200_000, address)
                trafficmix.udp_echo(wire, 100, (64, 1400), address)
            ends_well(row, guest, wire)


def test_ip6_static(image):
    """ip6=ADDR/N,gw=: that address answers, is in the ready line, and link-local beside it."""
    with wires.raw_wire() as wire:
        guest, row = start(image, wire, 'ip=198.18.0.2/24 ip6=fd00::2/64,gw=fd00::1', wire='dgram')
        with guest:
            ready = guest.wait_ready(rows.SHORT)
            assert 'fd00::2' in ready['ip6']
            for address in ('fd00::2', LINK_LOCAL):
                trafficmix.reach(wire, address)
                trafficmix.ping(wire, 20, (56, 1400), address)
                trafficmix.tcp_echo(wire, 200_000, address)
            ends_well(row, guest, wire)


def test_duplicate_address(image):
    """Another station has our static IPv6 address (RFC 4862, 5.4): said on the console, and the address is not used."""
    with wires.raw_wire() as wire:
        wire.claimed.add(frames.ip('fd00::2'))
        guest, row = start(image, wire, 'ip=198.18.0.2/24 ip6=fd00::2/64', wire='dgram')
        with guest:
            guest.wait_ready(rows.SHORT)
            guest.wait_for(r'\] net: .*\bfd00::2\b.*duplicate|\] net: .*duplicate.*\bfd00::2\b', 10)
            wire.claimed.clear()
            with pytest.raises(TimeoutError):
                wire.resolve('fd00::2', 2)
            trafficmix.reach(wire, LINK_LOCAL)
            trafficmix.smoke(wire, guest)
            ends_well(row, guest, wire)


def test_ip6_off(image):
    """ip6=off: the ready line says so, and not one IPv6 frame leaves the guest, whatever asks for it."""
    with wires.raw_wire() as wire:
        seen = []
        wire.watch(lambda kind, packet, _: seen.append(packet) if kind == frames.ETH_IP6 else None)
        guest, row = start(image, wire, 'ip=198.18.0.2/24 ip6=off', wire='dgram')
        with guest:
            ready = guest.wait_ready(rows.SHORT)
            assert ready['ip6'] in ('off', 'none')
            trafficmix.tcp_echo(wire, 100_000)
            with pytest.raises(TimeoutError):
                wire.resolve(LINK_LOCAL, 2)
            assert not seen, f'{len(seen)} IPv6 frames'
            ends_well(row, guest, wire)


def test_gateway_is_used(image):
    """What is not on the link goes to the gateway, by both protocols: echo from an address behind it."""
    with wires.raw_wire() as wire:
        guest, row = start(image, wire, 'ip=198.18.0.2/24,gw=198.18.0.1 ip6=fd00::2/64,gw=fd00::1', wire='dgram')
        with guest:
            guest.wait_ready(rows.SHORT)
            for target, source in (('198.18.0.2', '198.19.7.7'), ('fd00::2', 'fd07::7')):
                wire.resolve(target)
                exchange = rawtraffic.UdpEcho(wire, target, count=5, window=1)
                exchange.src = frames.ip(source)
                exchange.run(10).check()
            ends_well(row, guest, wire)


@pytest.mark.parametrize('words', ['ip=198.18.0.2/24', 'ip=dhcp'])
def test_sequence_numbers_and_ports_are_not_fixed(image, words):
    """Two boots of the same image: other initial sequence numbers (RFC 6528), other DHCP transaction."""
    seen = []
    for _ in range(2):
        with wires.raw_wire() as wire:
            first = []
            wire.watch(lambda kind, packet, part: first.append(
                part.seq if isinstance(part, frames.Tcp) else part.payload[4:8] if isinstance(part, frames.Udp) else None))
            wire.dhcp = DhcpServer()
            guest, row = start(image, wire, words, wire='dgram')
            with guest:
                guest.wait_ready(rows.SHORT)
                trafficmix.tcp_echo(wire, 1000)
                trafficmix.tcp_echo(wire, 1000)
                ends_well(row, guest, wire)
            seen.append([v for v in first if v is not None])
    assert seen[0][0] != seen[1][0], f'the same number in two boots: {seen[0][0]}'
