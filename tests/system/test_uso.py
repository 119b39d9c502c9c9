"""UDP segmentation, both ways: datagrams that the peer sends as one packet (UDP_SEGMENT, GUEST_USO4 and 6) come to the servers as
the datagrams they are, and what these send in a row leaves as one packet (HOST_USO) and comes to the peer as datagrams. It takes QEMU 10 and a tap of Linux 6.2 or later."""
import json
import os
import re
import socket
import struct

import pytest

import frames as f
import prometheus
import trafficmix
import wires
from rslib.qemu import Guest, Machine, NoQemu, qemu10

UDP_SEGMENT, UDP_GRO = 103, 104         # linux/udp.h, socket options of level SOL_UDP
SO_RCVBUFFORCE = 33
SOL_PACKET, PACKET_VNET_HDR = 263, 15    # linux/if_packet.h
NEEDS_CSUM, GSO_UDP_L4 = 1, 5           # of a virtio-net header
ADDRESSES = ((4, wires.GUEST4), (6, wires.GUEST6))
ON = {'host_uso': 'on', 'guest_uso4': 'on', 'guest_uso6': 'on'}


@pytest.fixture(scope='module', name='qemu')
def newer():
    """A QEMU that has the features; and a kernel whose tap devices have them."""
    if tuple(map(int, re.match(r'(\d+)\.(\d+)', os.uname().release).groups())) < (6, 2):
        pytest.skip(f'Linux {os.uname().release}: tap devices segment UDP since 6.2')
    try:
        return qemu10()
    except NoQemu as e:
        pytest.skip(str(e))


def machine(image, qemu, wire, words='', cores=1, **props):
    """A guest on the tap that is offered all of it."""
    return Machine(image, qemu=qemu, append=f'{wire.words()} {words}'.strip(), netdev=wire.netdev(), smp=cores,
                   props={**ON, **({'mq': 'on'} if cores > 1 else {}), **props})


def counts(wire):
    """What the guest counts."""
    page = prometheus.parse(prometheus.ask(wire.tcp(80), prometheus.get_request('/metrics'), reset=True).body.decode())
    return lambda name: int(page.total(f'ringside_{name}_total'))


def peer(wire, address, port=7):
    """A socket to the guest with room for what comes back."""
    sock = wire.udp(port, address)
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
    return sock


def datagrams(size, count, last, seed):
    """`count` of `size` bytes and one of `last` (0: none): contents tell which they are, and from which call."""
    pattern = os.urandom(4) + seed.to_bytes(4, 'big')
    made = [(n.to_bytes(2, 'big') + pattern * (size // 8 + 1))[:size] for n in range(count)]
    return made + ([(b'last' + pattern * (last // 8 + 1))[:last]] if last else [])


def send_joined(sock, parts):
    """Sends datagrams, all as long as the first but the last, by one call, which makes one packet of them."""
    sock.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, len(parts[0]))
    assert sock.send(b''.join(parts)) == sum(map(len, parts))


def echo(sock, parts):
    """Sends them joined; they come back one by one, whole and in order."""
    send_joined(sock, parts)
    for number, part in enumerate(parts):
        assert sock.recv(65536) == part, f'datagram {number} of {len(parts)}, {len(part)} bytes'


# Sizes around those where the guest changes its ways; so many that the packet is about as long as Linux makes them.
SHAPES = [(size, min(127, 64500 // size), last) for size in (1, 2, 17, 276, 511, 512, 513, 1000, 1452)
          for last in (0, max(1, size // 2))]


FULL = pytest.mark.full
HUGE, USO_ONLY = 'features=-mrg_rxbuf', 'features=-guest_tso4,-guest_tso6,-indirect_desc ring=16'


@pytest.mark.parametrize('words, cores', [
    pytest.param('', 1, id='usual-1'), pytest.param('', 2, id='usual-2', marks=FULL), pytest.param(HUGE, 2, id='huge_buffers-2'),
    pytest.param(HUGE, 1, id='huge_buffers-1', marks=FULL), pytest.param(USO_ONLY, 1, id='uso_only-1'),
    pytest.param(USO_ONLY, 2, id='uso_only-2', marks=FULL)])
def test_received(image, qemu, words, cores):
    """Boundaries, contents and order, with everything that datagrams can lie in."""
    with wires.make('tap', queues=cores) as wire, \
            Guest(machine(image, qemu, wire, words, cores), netns=wire.netns) as guest:
        features = guest.wait_ready(60)
        assert {'guest_uso4', 'guest_uso6', 'host_uso'} <= set(features['features']), features
        for version, address in ADDRESSES:
            trafficmix.reach(wire, address)
            before = counts(wire)
            sent = 0
            with peer(wire, address) as sock:
                for seed, (size, count, last) in enumerate(SHAPES):
                    parts = datagrams(size, count, last, seed)
                    echo(sock, parts)
                    sent += len(parts)
            after = counts(wire)
            assert after('rx_datagrams') - before('rx_datagrams') == sent, f'IPv{version}: not sent joined'
            assert after('rx_dropped') == before('rx_dropped') and after('tx_dropped') == 0
            joined, packets = (after(name) - before(name) for name in ('tx_datagrams', 'tx_gso'))
            assert sent * 0.7 < joined <= sent and packets * (5 if 'ring' in words else 12) < joined, f'{joined} of {sent} in {packets}'
        guest.finish()


@pytest.mark.parametrize('off, words, props', [
    pytest.param('host_uso', 'features=-host_uso', {}, id='host_uso'),
    pytest.param('host_uso', '', {'host_uso': 'off'}, id='host_uso_by_device', marks=FULL),
    pytest.param('host_uso', 'features=-csum', {}, id='csum', marks=FULL),
    pytest.param('guest_uso', 'features=-guest_uso4,-guest_uso6', {}, id='guest_uso'),
    pytest.param('guest_uso', 'features=-guest_csum', {}, id='guest_csum', marks=FULL),
    pytest.param('guest_uso', '', {'guest_uso4': 'off', 'guest_uso6': 'off'}, id='guest_uso_by_device', marks=FULL)])
def test_off(image, qemu, off, words, props):
    """Without one direction, or what it needs, the datagrams go one by one there, and the other direction is as before."""
    with wires.make('tap') as wire, Guest(machine(image, qemu, wire, words, **props), netns=wire.netns) as guest:
        features = guest.wait_ready(60)['features']
        assert not any(name.startswith(off) for name in features) and any('_uso' in name for name in features), features
        for _, address in ADDRESSES:
            trafficmix.reach(wire, address)
            before = counts(wire)
            with peer(wire, address) as sock:
                for seed, (size, count, last) in enumerate(SHAPES[::3]):
                    echo(sock, datagrams(size, min(count, 40), last, seed))
            after = counts(wire)
            for name, side in (('rx_datagrams', 'guest_uso'), ('tx_datagrams', 'host_uso')):
                assert (after(name) > before(name)) == (side != off), name
        guest.finish()


@pytest.mark.parametrize('version, address', ADDRESSES, ids=['4', '6'])
def test_sent_together(image, qemu, version, address):
    """The peer gets them as one packet if it asks for that; a longer one, a shorter one and another flow's keep their order."""
    with wires.make('tap') as wire, Guest(machine(image, qemu, wire, 'poll=0'), netns=wire.netns) as guest:
        guest.wait_ready(60)
        trafficmix.reach(wire, address)
        with peer(wire, address) as sock:
            sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
            parts = datagrams(1000, 12, 300, version)
            send_joined(sock, parts)    # the first time the first one goes alone
            assert sock.recv(65536) == parts[0] and sock.recv(65536) == b''.join(parts[1:])
            send_joined(sock, parts)
            data, how, _, _ = sock.recvmsg(65536, 64)
            assert data == b''.join(parts) and struct.unpack('i', how[0][2])[0] == 1000, (len(data), how)
        with peer(wire, address) as one, peer(wire, address) as other:
            sizes = [700] * 5 + [701] * 3 + [20] + [700] * 2 + [1] * 4
            sent = [bytes([n]) * size for n, size in enumerate(sizes)]
            guest.qmp('stop')           # so that all are there at once
            for part in sent:
                one.send(part)
                other.send(part[::-1] + b'x')
            guest.qmp('cont')
            for sock, end in ((one, b''), (other, b'x')):
                assert [sock.recv(65536) for _ in sent] == [part + end for part in sent]
        guest.finish()


def test_iperf3(image, qemu):
    """A sender that never waits: what arrives is in order, and most of it was joined."""
    with wires.make('tap') as wire, Guest(machine(image, qemu, wire), netns=wire.netns) as guest:
        guest.wait_ready(60)
        trafficmix.reach(wire, wires.GUEST4)
        before = counts(wire)
        done = wire.netns.run(['iperf3', '-c', wires.GUEST4, '-u', '-R', '-b', '0', '-l', '1448', '-n', '20M', '-J'], timeout=60)
        udp = json.loads(done.stdout)['end']['streams'][0]['udp']
        assert udp['out_of_order'] == 0 and udp['packets'] > 10000, udp
        after = counts(wire)
        assert after('tx_datagrams') - before('tx_datagrams') > udp['packets'] * 0.8
        guest.finish()


# Packets that say they are datagrams of 100 bytes, and what is wrong with their bytes: {offset: 16 bits}. The host's kernel looks at
# the header, but not at all that is behind it. (A device whose header is wrong: tests/unit/net_gso_test.c.)
DATA = bytes(range(250)) * 4
MALFORMED = {
    'udp_length': {38: 8 + 999}, 'udp_length_0': {38: 0}, 'udp_length_long': {38: 8 + 1001},
    'ip_length_long': {16: 28 + 1001}, 'ip_length_short': {16: 28 + 500}, 'ip_length_huge': {16: 65535},
}


def send_raw(sock, guest_mac, host_mac, changes):
    """Sends DATA to the guest's echo port, as ten datagrams in one packet, by a packet socket with the virtio-net header."""
    source, guest = f.ip(wires.HOST4), f.ip(wires.GUEST4)
    body = bytearray(f.ether(guest_mac, host_mac, f.ETH_IP4, f.ip4(source, guest, f.UDP, f.udp(source, guest, 5555, 7, DATA))))
    for at, value in changes.items():
        struct.pack_into('!H', body, at, value)
    struct.pack_into('!H', body, 24, 0)
    struct.pack_into('!H', body, 24, f.checksum(bytes(body[14:34])))
    sock.send(struct.pack('<BBHHHH', NEEDS_CSUM, GSO_UDP_L4, 42, 100, 34, 6) + body)


def test_malformed(image, qemu):
    """Lengths that contradict each other: dropped and counted, each once; a sound one before and after comes as what it is."""
    with wires.make('tap') as wire, Guest(machine(image, qemu, wire), netns=wire.netns) as guest:
        mac = f.mac(guest.wait_ready(60)['mac'])
        trafficmix.reach(wire, wires.GUEST4)
        host = f.mac(re.search(r'link/ether (\S+)', wire.netns.run(['ip', 'link', 'show', 'tap0']).stdout).group(1))
        with wire.netns.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as raw, wire.udp(7, source=5555) as sock:
            raw.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
            raw.bind(('tap0', 0))
            for number, changes in enumerate(({}, *MALFORMED.values(), {})):
                send_raw(raw, mac, host, changes)
                if not changes:
                    assert [sock.recv(2000) for _ in range(10)] == [DATA[at:at + 100] for at in range(0, 1000, 100)]
                sock.send(b'next')
                assert sock.recv(2000) == b'next', number
        sample = prometheus.parse(prometheus.ask(wire.tcp(80), prometheus.get_request('/metrics'), reset=True).body.decode())
        assert sample.total('ringside_rx_dropped_total', reason='bad_datagrams') == len(MALFORMED)
        guest.finish()
