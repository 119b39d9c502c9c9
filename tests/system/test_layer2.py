"""Applications without a stack: macswap, rxonly, txonly. A peer of raw frames on the tap."""
import collections
import random

import pytest

import rows
import stations
import wires
from rslib.qemu import Guest, Machine

ETH_LOCAL = b'\x88\xb5'
PEER = bytes.fromhex('020000000000')
BOTH = pytest.mark.parametrize('cores', [1, 2])


def machine(image, wire, cores, app, words=''):
    """The guest with this application; its own MAC is QEMU's default."""
    return Machine(image, smp=cores, memory='128M', append=f'apps={app} {words}', netdev=wire.netdev(),
                   props={'mq': 'on', 'vectors': 2 * cores + 2} if cores > 1 else {})


def frame(source, number, size):
    """A frame of that size, its number and seeded bytes in it."""
    body = number.to_bytes(4, 'big') + random.Random(number).randbytes(size - 18)
    return stations.GUEST_MAC + source + ETH_LOCAL + body


def ours(got):
    """Those of our type among frames: the host's own traffic is there too."""
    return [f for f in got if f[12:14] == ETH_LOCAL]


@BOTH
@pytest.mark.parametrize('words', ['', 'ring=8', 'features=-mrg_rxbuf', 'features=-event_idx,-indirect_desc'])
def test_macswap(image, cores, words):
    """Every frame comes back once, whole, to where it came from; from the address it was sent to."""
    who = stations.stations(8)
    with wires.make('tap', queues=cores) as wire, Guest(machine(image, wire, cores, 'macswap', words), netns=wire.netns) as guest, \
            stations.Tap(wire) as tap:
        ready = guest.wait_ready(rows.SHORT)
        assert (ready['ip'], ready['ip6'], ready['cores']) == ('none', 'none', str(cores))
        sizes = [60, 61, 64, 128, 1000, 1513, 1514]
        sent = {}
        for start in range(0, 400, 4):      # four under way at a time: the shortest ring holds eight, and the host has frames of its own
            for number in range(start, start + 4):
                sent[number] = frame(who[number % 8].mac, number, sizes[number % len(sizes)])
                tap.send(sent[number])
            for back in ours(tap.collect(5, lambda got: len(ours(got)) == 4)):
                number = int.from_bytes(back[14:18], 'big')
                assert back == who[number % 8].mac + stations.GUEST_MAC + sent.pop(number)[12:], f'frame {number} is another'
        assert not sent, f'did not come back: {sorted(sent)}'
        guest.finish()
        assert int(guest.wait_for(r'macswap: received (\d+) frames', 1).group(1)) >= 400


@BOTH
def test_rxonly(image, cores):
    """Frames are counted, and nothing comes back: not even an answer to who has an address."""
    who = stations.stations(8)
    with wires.make('tap', queues=cores) as wire, Guest(machine(image, wire, cores, 'rxonly', wire.words()), netns=wire.netns) as guest, \
            stations.Tap(wire) as tap:
        guest.wait_ready(rows.SHORT)
        for number in range(2000):
            tap.send(frame(who[number % 8].mac, number, 60 + number % 1000))
            if number % 50 == 0:
                tap.collect(0.01)
        tap.send(stations.arp_request(who[0], b'\xc6\x12\x00\x02'))
        assert not tap.collect(0.5), 'it sent something'
        guest.finish()
        received, sent = guest.wait_for(r'rxonly: received (\d+) frames, \d+ bytes; sent (\d+) frames', 1).groups()
        assert int(received) >= 2000 and int(sent) == 0


@BOTH
@pytest.mark.parametrize('size, count', [(60, 1), (64, 2001), (268, 500), (269, 500), (1514, 333)])
def test_txonly(image, cores, size, count):
    """So many frames of that size, numbered by each core without a gap, in order; then silence."""
    with wires.make('tap', queues=cores) as wire, stations.Tap(wire) as tap, \
            Guest(machine(image, wire, cores, f'txonly:{size},{count}'), netns=wire.netns) as guest:
        got = ours(tap.collect(10, lambda got: len(ours(got)) == count))
        got += ours(tap.collect(0.3))
        by_core = collections.defaultdict(list)
        for one in got:
            assert len(one) == size and one[:12] == PEER + stations.GUEST_MAC and not any(one[26:])
            by_core[int.from_bytes(one[14:18], 'big')].append(int.from_bytes(one[18:26], 'big'))
        assert sum(map(len, by_core.values())) == count
        for core in range(min(cores, count)):
            assert by_core[core] == list(range(count // cores + (core < count % cores))), f'core {core}'
        guest.finish()


@pytest.mark.parametrize('apps, said', [
    ('txonly', 'txonly:SIZE,COUNT'), ('txonly:59,1', 'SIZE 60..1514'), ('txonly:1515,1', 'SIZE 60..1514'), ('txonly:64', 'txonly:SIZE,COUNT'),
    ('txonly:64,0', 'COUNT 1..'), ('txonly:64,1000000001', 'COUNT 1..'), ('txonly:64,1,2', 'txonly:SIZE,COUNT'), ('macswap:1', 'macswap without an argument'),
    ('echo:1', 'echo without an argument'), ('macswap,echo', 'name it alone'), ('rxonly,macswap', 'name it alone')])
def test_bad_apps(image, apps, said):
    """A wrong argument, or one too many, stops with the valid form."""
    with wires.make('user') as wire, Guest(machine(image, wire, 1, apps), netns=wire.netns) as guest:
        guest.expect_exit(3)
        assert said in guest.wait_for(r'panic: bad value apps=([^\r\n]*)', 1).group(0)
