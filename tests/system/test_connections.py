"""Ten thousand connections at once: what a transaction costs among them, in guest instructions, and that each gets its own
bytes."""
import resource
import select
import socket
import struct
import time

import pytest

import npclient
import prometheus
import wires
from instructions import Instructions
from npclient import BOTH, CONN, Control
from rslib.qemu import Guest, Machine

FEW, MANY = 10, 10_000
SPARE_FILES = 500
DEARER = 1.3        # times as much as among ten, at most
TIME_WAITS = 1024   # connections in TIME_WAIT that a core keeps at most
POINTER = 8         # bytes; the table of connections has at most eight for each, or it shrinks
MEMORY = '64M'      # what ten thousand need, and what the README says


def need_files(count):
    """Lets this process have so many open files; skips the test if it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= count:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, max(hard, count)))
    except (ValueError, OSError):
        pytest.skip(f'may open {hard} files only, {count} are needed')


def open_more(wire, socks, count, address):
    """Opens echo connections until there are so many."""
    while len(socks) < count:
        sock = wire.tcp(7, address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        socks.append(sock)


def in_turn(socks, count, flight):
    """`count` transactions of 4 bytes on all connections in turn, `flight` of them under way at a time; each must get its own
    number back. Linux acknowledges an answer with the next request on the same connection, if that comes within 40 ms: among
    ten it does, among ten thousand not. Here it acknowledges at once, always, so that both cost the same two frames."""
    poll = select.epoll()
    by_file = {sock.fileno(): sock for sock in socks}
    waiting = {}
    for fd in by_file:
        poll.register(fd, select.EPOLLIN)
    sent = done = 0
    with poll:
        while done < count:
            while sent < count and len(waiting) < flight:
                sock = socks[sent % len(socks)]
                if sock.fileno() in waiting:    # this one is late
                    break
                waiting[sock.fileno()] = struct.pack('>I', sent)
                sock.send(waiting[sock.fileno()])
                sent += 1
            events = poll.poll(10)
            assert events, f'no answer for 10 s after {done} of {count}'
            for fd, _ in events:
                got = by_file[fd].recv(100)
                assert got == waiting.pop(fd, None), f'{got} came on the wrong connection'
                by_file[fd].setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
                done += 1


def connect_per_request(wire, count, address):
    """So many connections one after the other, closed by the guest, in one test of the netserver without limit."""
    with Control(lambda port, udp: wire.tcp(port, address)) as control:
        port = control.start(npclient.omni(BOTH, 0, 1, 1, flags=CONN))
        for _ in range(count):
            with control.data(port) as sock:
                npclient.exchange(sock, 1, 1, 1)
                assert sock.recv(1) == b''


def scrape(wire):
    """The guest's counters, by a connection that leaves nothing in the guest."""
    return prometheus.parse(prometheus.ask(wire.tcp(80), prometheus.get_request('/metrics'), reset=True).body.decode())


@pytest.mark.skipif(not wires.have_tap(), reason='no rights to /dev/net/tun')
@pytest.mark.parametrize('address', [wires.GUEST4, pytest.param(wires.GUEST6, marks=pytest.mark.full)], ids=['ip4', 'ip6'])
def test_cost_among_ten_thousand(image, address):
    """Echo on all connections in turn, one and sixteen at a time, and connect-per-request beside idle ones: among 10,000 as
    cheap as among 10. When all are closed their memory is back."""
    need_files(MANY + SPARE_FILES)
    costs, socks = {}, []
    kinds = {'in turn': lambda n: in_turn(socks, n, 1), 'sixteen at a time': lambda n: in_turn(socks, n, 16),
             'connect per request': lambda n: connect_per_request(wire, n, address)}
    with wires.TapWire() as wire, Instructions() as instructions:
        machine = Machine(image, memory=MEMORY, append=f'{wire.words()} poll=0', netdev=wire.netdev(), extra=instructions.arguments())
        with Guest(machine, netns=wire.netns) as guest:
            guest.wait_ready(30)
            connect_per_request(wire, TIME_WAITS + 400, address)
            before = scrape(wire)
            for count in (FEW, MANY):
                open_more(wire, socks, count, address)
                for kind, work in kinds.items():
                    number = 1000 if kind == 'connect per request' else max(2000, count)
                    work(number // 10)
                    costs[kind, count], idle = instructions.cost(lambda: work(number), number)
                assert scrape(wire).total('ringside_tcp_active') >= count
            print(f'idle with {MANY}: {idle:.0f} per second;', *(f'{k}, {n}: {cost:.0f};' for (k, n), cost in costs.items()))
            for sock in socks:
                sock.close()
            for kind in kinds:
                few, many = costs[kind, FEW], costs[kind, MANY]
                assert 1000 < few and many <= DEARER * few, f'{kind}: {few:.0f} instructions among {FEW}, {many:.0f} among {MANY}'
            npclient.wait_until(20, lambda: scrape(wire).total('ringside_tcp_active') <= 1, 'closed connections are still there')
            after = scrape(wire)
            more = after.total('ringside_heap_used_bytes') - before.total('ringside_heap_used_bytes')
            assert more < 8 * POINTER * TIME_WAITS, f'{more} bytes were not given back'
            assert after.total('ringside_heap_failures_total') == 0
            guest.finish()


@pytest.mark.skipif(not wires.have_tap(), reason='no rights to /dev/net/tun')
@pytest.mark.parametrize('cores', [pytest.param(1, marks=pytest.mark.full), 2])
def test_ten_thousand_at_once(image, cores):
    """All have a request under way at the same time, on one core and on two; then all are closed at once."""
    need_files(MANY + SPARE_FILES)
    props = {'mq': 'on', 'vectors': 2 * cores + 2} if cores > 1 else {}
    socks = []
    with wires.TapWire(queues=cores) as wire:
        machine = Machine(image, smp=cores, memory=MEMORY, append=wire.words(), netdev=wire.netdev(), props=props)
        with Guest(machine, netns=wire.netns) as guest:
            guest.wait_ready(30)
            open_more(wire, socks, MANY, wires.GUEST4)
            in_turn(socks, 2 * MANY, MANY)
            time.sleep(1)       # idle: timers look at all of them
            in_turn(socks, MANY, 100)
            assert scrape(wire).total('ringside_tcp_active') >= MANY
            for sock in socks:
                sock.close()
            npclient.wait_until(30, lambda: scrape(wire).total('ringside_tcp_active') <= 1, 'closed connections are still there')
            assert scrape(wire).total('ringside_heap_failures_total') == 0
            guest.finish()
