"""UDP segmentation, both ways: datagrams that the peer sends as one packet (UDP_SEGMENT, GUEST_USO4 and 6) come to the servers as
the datagrams they are, and what these send in a row leaves as one packet (HOST_USO) and comes to the peer as datagrams. It takes QEMU 10 and a tap of Linux 6.2 or later."""
import os
import re
import socket

import pytest

import prometheus
import trafficmix
import wires
from rslib.qemu import Guest, Machine, NoQemu, qemu10

UDP_SEGMENT = 103                       # linux/udp.h, a socket option of level SOL_UDP
SO_RCVBUFFORCE = 33
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


@pytest.mark.parametrize('cores', [1, 2])
@pytest.mark.parametrize('words', ['', 'features=-mrg_rxbuf', 'features=-guest_tso4,-guest_tso6,-indirect_desc ring=16'],
                         ids=['usual', 'huge_buffers', 'uso_only'])
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
