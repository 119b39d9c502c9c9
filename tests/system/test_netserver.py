"""The netserver: by unmodified netperf clients where there is one, and by its protocol, record by record."""
import errno
import os
import re
import socket
import statistics
import struct
import subprocess
import time

import pytest

import npclient
import npguest
import prometheus
import rows
import wires
from instructions import Instructions
from leaks import A_PCB
from npclient import BOTH, CONN, CPU, SERVER_RECEIVES, SERVER_SENDS, Control, word
from npguest import CORES, control_on, dial_on, quiet, running, settled, short_tests, tap, wait_heaps
from rslib.qemu import Guest

NUMBER = re.compile(r'[-+]?\d+(?:\.\d+)?')
DEARER = 2.0    # times the median, at most: else the rate would be below half


@pytest.fixture(scope='session', name='netperf')
def find_netperf():
    """Path of a netperf client."""
    return npguest.netperf_client()


# ---- real clients: each test

def numbers(text):
    return [float(n) for n in NUMBER.findall(text)]


def rate(text):
    """The last number of the last line with five or six: a rate or throughput, above 0."""
    return [line for line in map(numbers, text.splitlines()) if len(line) in (5, 6)][-1][-1] > 0


def values(text):
    return {k: v for k, v in re.findall(r'^([A-Z_]+)=(.*)$', text, re.MULTILINE)}


def stream_counts(text):
    """Received at least what was sent, and less than a message more."""
    got = {k: float(v) for k, v in values(text).items() if NUMBER.fullmatch(v)}
    more = got['REMOTE_BYTES_RECVD'] - got['LOCAL_BYTES_SENT']
    return 0 <= more < 16384 and got['THROUGHPUT'] > 0 and 0 < got['REMOTE_CPU_UTIL'] <= 100 and got['REMOTE_CPU_COUNT'] >= 1


# arguments, what must come out, seconds it may take
CASES = [
    ('-t TCP_STREAM -l 1 -P 0', lambda o: numbers(o)[-1] > 0, 6),
    ('-t TCP_STREAM -l 1 -P 0 -v 0', lambda o: len(numbers(o)) == 1 and numbers(o)[0] > 0, 6),
    ('-t TCP_STREAM -l 1 -v 2 -f g', lambda o: 'Alignment' in o and '10^9bits/sec' in o and 'Maximum' in o, 6),
    ('-t TCP_STREAM -l 1 -P 0 -c -C', lambda o: len(numbers(o)) == 9 and 0 <= numbers(o)[6] <= 100, 6),
    ('-t TCP_STREAM -l 2 -D -0.5', lambda o: o.count('Interim result') >= 3, 7),
    ('-t TCP_STREAM -l -300000 -P 0', lambda o: numbers(o)[-1] > 0, 5),
    ('-t TCP_MAERTS -l 1 -P 0', lambda o: numbers(o)[-1] > 0, 6),
    ('-t TCP_MAERTS -l -300000 -P 0', lambda o: numbers(o)[-1] > 0, 5),
    ('-t TCP_RR -l 1 -P 0', rate, 6),
    ('-t TCP_RR -l -1000 -P 0 -- -r 100,200 -D', lambda o: numbers(o.splitlines()[0])[2:4] == [100, 200], 5),
    ('-t TCP_RR -l 1 -P 0 -- -b 16 -r 64,1024', rate, 6),
    ('-t TCP_RR -l -20 -P 0 -- -r 100000,300000', rate, 10),
    ('-t TCP_CRR -l 1 -P 0', rate, 6),
    ('-t TCP_CRR -l -200 -P 0 -- -r 32,512', rate, 5),
    ('-t TCP_CC -l -200 -P 0', rate, 5),
    ('-t TCP_CC -l 1 -P 0', rate, 6),
    ('-t UDP_STREAM -l 1 -P 0 -- -m 1400 -R 1', lambda o: numbers(o)[3] > 0 and numbers(o)[-1] > 0, 6),
    ('-t UDP_STREAM -l 1 -P 0 -C -- -m 64 -R 1', lambda o: numbers(o)[3] > 0 and 0 <= numbers(o)[-2] <= 100, 6),
    ('-t UDP_STREAM -l 1 -P 0 -- -R 1', lambda o: numbers(o)[1] == 65507, 8),
    ('-t UDP_STREAM -l 1 -P 0 -- -m 1000 -R 1 -n -N', lambda o: numbers(o)[3] > 0 and numbers(o)[-1] > 0, 6),
    ('-t UDP_RR -l 1 -P 0', rate, 6),
    ('-t UDP_RR -l 1 -P 0 -- -r 1400,1 -b 8', rate, 6),
    ('-t UDP_RR -l -1000 -P 0', rate, 10),
    ('-t UDP_RR -l -20 -P 0 -- -r 1,9000', rate, 10),
    ('-t omni -l 1 -- -d rr -T udp -O THROUGHPUT,THROUGHPUT_UNITS,REMOTE_RECV_CALLS,REMOTE_SEND_CALLS,PROTOCOL',
     lambda o: 'Trans/s' in o and 'UDP' in o, 6),
    ('-t omni -l 1 -C -- -d stream -k THROUGHPUT,REMOTE_BYTES_RECVD,LOCAL_BYTES_SENT,REMOTE_CPU_UTIL,REMOTE_CPU_COUNT', stream_counts, 6),
    ('-t omni -l 1 -- -d recv -T udp -m 512 -k THROUGHPUT,LOCAL_RECV_CALLS,REMOTE_SEND_CALLS',
     lambda o: float(values(o)['LOCAL_RECV_CALLS']) > 0, 6),
    ('-t omni -l -100 -- -c -d rr -k THROUGHPUT,TRANSACTION_RATE', lambda o: float(values(o)['TRANSACTION_RATE']) > 0, 5),
    ('-t TCP_STREAM -l 1 -i 3,3 -I 95,50 -P 0', lambda o: numbers(o)[-1] > 0, 9),
    ('-t TCP_STREAM -l 1 -P 0 -- -P 15555,16666', lambda o: numbers(o)[-1] > 0, 6),
    ('-t REM_CPU -v 2', lambda o: numbers(o)[0] > 0 and 'remote cpu' in o, 5),
    ('-Z somephrase -t TCP_RR -l -10 -P 0', rate, 5),
    ('-t TCP_MSS -P 0', lambda o: numbers(o)[0] > 500, 5),
    ('-t TCP_SENDFILE -F IMAGE -l 1 -P 0', lambda o: numbers(o)[-1] > 0, 6),
    ('-t TCP_STREAM -F IMAGE,/no/such/file -l 1 -P 0', lambda o: numbers(o)[-1] > 0, 6),
    ('-t LOC_CPU', lambda o: numbers(o)[0] >= 0, 60),
    ('-t UUID', lambda o: len(o.strip()) == 36, 5),
    ('-t TCP_STREAM -l 1 -s 6 -P 0', lambda o: numbers(o)[-1] > 0, 12),
]


def one_case(start, args, check, limit):
    """Runs a client; returns what was wrong, or None. start: runs an argument list."""
    began = time.monotonic()
    done = start(args.split())
    took = time.monotonic() - began
    text = done.stdout + done.stderr
    try:
        good = done.returncode == 0 and check(done.stdout)
    except (IndexError, KeyError, ValueError) as error:
        good, text = False, f'{text} {error!r}'
    if good and took <= 2 * limit:      # twice: the machine may be loaded
        return None
    return f'netperf {args}: exit {done.returncode} after {took:.1f} s: {text.strip()}'


@tap
@pytest.mark.parametrize('cores', [pytest.param(1, marks=pytest.mark.full), 2])
def test_each(image, netperf, cores):
    """Every kind of test that a client knows, over IPv4 and a few over IPv6; nothing is left afterwards."""
    with running(image, cores) as (wire, guest):
        def start(args, host=wires.GUEST4):
            return wire.netns.run([netperf, '-H', host, *(a.replace('IMAGE', image) for a in args)], timeout=100, check=False)
        bad = [one_case(start, *case) for case in CASES]
        bad += [one_case(lambda a: start(a, wires.GUEST6), f'{args} -6', check, limit) for args, check, limit in CASES
                if re.fullmatch(r'-t (TCP_RR|TCP_STREAM|TCP_MAERTS|UDP_RR) -l (1|-1000) -P 0', args)]
        assert not any(bad), '\n'.join(filter(None, bad))
        quiet(wire, guest)


def free_port():
    with socket.socket() as sock:
        sock.bind(('127.0.0.1', 0))
        return sock.getsockname()[1]


class NetperfUserWire(wires.UserWire):
    """User networking with netperf's control port, and one data port that has the same number on both sides."""

    def __init__(self):
        self.control, self.data = free_port(), free_port()

    def netdev(self):
        return ['-netdev', f'user,id=n0,hostfwd=tcp:127.0.0.1:{self.control}-:12865,hostfwd=tcp:127.0.0.1:{self.data}-:{self.data},'
                f'hostfwd=udp:127.0.0.1:{self.data}-:{self.data}']

    def attach(self, guest):
        pass


def test_user_networking(image, netperf):
    """Through forwards on 127.0.0.1 a data port is asked for, test after test the same."""
    cases = ['-t TCP_STREAM -l 1 -P 0', '-t TCP_RR -l 1 -P 0', '-t TCP_MAERTS -l 1 -P 0', '-t TCP_CRR -l -200 -P 0',
             '-t TCP_CRR -l -200 -P 0', '-t UDP_RR -l 1 -P 0', '-t TCP_STREAM -l 1 -i 3,3 -I 95,50 -P 0', '-t TCP_RR -l 1 -P 0']
    wire = NetperfUserWire()
    row = rows.Row('user', wire='user')
    with Guest(rows.machine_for(row, image, wire)) as guest:
        guest.wait_ready(rows.SHORT)

        def start(args):
            return subprocess.run([netperf, '-4', '-H', '127.0.0.1', '-p', str(wire.control), *args, '--', '-P', f',{wire.data}'],
                                  capture_output=True, text=True, timeout=60, check=False)
        bad = [one_case(start, args, rate, 10) for args in cases]
        assert not any(bad), '\n'.join(filter(None, bad))
        guest.finish(row.expect)


# ---- real clients: many

def crowd(wire, netperf, count, args):
    """So many clients at once; all must end well."""
    clients = [wire.netns.popen([netperf, '-H', wires.GUEST4, *args.split()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
               for _ in range(count)]
    bad = []
    for client in clients:
        text = client.communicate(timeout=120)[0]
        if client.returncode:
            bad.append(f'exit {client.returncode}: {text.strip()}')
    assert not bad, f'{len(bad)} of {count} x {args}: {bad[0]}'


@tap
@pytest.mark.parametrize('cores', CORES)
@pytest.mark.parametrize('count', [8, pytest.param(32, marks=pytest.mark.full), pytest.param(128, marks=pytest.mark.full)])
def test_many_clients(image, netperf, cores, count):
    """Many clients at once, of each kind."""
    with running(image, cores) as (wire, guest):
        for args in ('-t TCP_RR -l 3 -P 0', '-t TCP_STREAM -l 3 -P 0', '-t UDP_RR -l 3 -P 0', '-t TCP_MAERTS -l 3 -P 0'):
            crowd(wire, netperf, count, args)
        if count <= 32:
            crowd(wire, netperf, count, '-t TCP_CRR -l 3 -P 0')
        quiet(wire, guest)


def again(wire):
    """What the host's kernel had to send again, and why; no such thing while every connection goes as it should."""
    names, numbers_ = re.findall(r'^TcpExt: (.*)$', wire.netns.run(['cat', '/proc/net/netstat']).stdout, re.MULTILINE)
    counts = dict(zip(names.split(), map(int, numbers_.split())))
    return {name: counts[name] for name in ('TCPSynRetrans', 'TCPTimeouts', 'TCPLostRetransmit', 'TCPLossFailures')}


def interim_costs(wire, netperf, instructions, count):
    """Runs a TCP_CRR test; returns the guest's instructions per transaction in each second of it, and prints the rates."""
    client = wire.netns.popen([netperf, '-H', wires.GUEST4, '-t', 'TCP_CRR', '-l', -count, '-D', '1'], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
    costs, rates, text, before = [], [], '', instructions.read()
    for line in client.stdout:
        text += line
        match = re.match(r'Interim result:\s+([\d.]+) \S+ over ([\d.]+) ', line)
        if match:
            now, (rate_, seconds) = instructions.read(), map(float, match.groups())
            rates.append(rate_)
            costs.append((now - before) / (rate_ * seconds))
            before = now
    assert client.wait(10) == 0 and len(costs) >= 2, text
    print(f'connections per second: least {min(rates):.0f}, median {statistics.median(rates):.0f}, instructions for each: '
          f'most {max(costs[1:]):.0f}, median {statistics.median(costs):.0f}')
    return costs


@tap
@pytest.mark.seconds(600)
@pytest.mark.parametrize('cores', CORES)
@pytest.mark.parametrize('count', [20_000, pytest.param(200_000, marks=pytest.mark.full)])
def test_connect_per_request(image, netperf, cores, count):
    """So many connections from one client, each closed by the server, without a second in which they come slower. What could
    make them slower are segments that are lost or refused, so that the client has to wait and send again: there are none. Or
    it is that each costs more: no second has dearer ones. Rates themselves say more of what else the machine is doing."""
    with Instructions(cores) as instructions:
        with running(image, cores, 'poll=0', extra=instructions.arguments()) as (wire, _):
            before = again(wire)
            costs = interim_costs(wire, netperf, instructions, count)
            assert again(wire) == before
            assert max(costs[1:]) < DEARER * statistics.median(costs), costs


@tap
@pytest.mark.parametrize('cores', CORES)
def test_killed(image, netperf, cores):
    """A client that is killed in mid-test ends its test at once, whatever the test."""
    kinds = ('TCP_STREAM', 'TCP_MAERTS', 'TCP_RR', 'TCP_CRR', 'TCP_CC', 'UDP_STREAM', 'UDP_RR')
    with running(image, cores) as (wire, guest):
        for kind in kinds:
            client = wire.netns.popen([netperf, '-H', wires.GUEST4, '-t', kind, '-l', '60'] +
                                      (['--', '-m', '1000', '-R', '1'] if kind == 'UDP_STREAM' else []), stdout=subprocess.DEVNULL)
            time.sleep(1)
            client.kill()
            client.wait()
            began = time.monotonic()
            quiet(wire, guest)
            assert time.monotonic() - began < 5, f'{kind}: the test lived on for {time.monotonic() - began:.1f} s'
        assert wire.netns.run([netperf, '-H', wires.GUEST4, '-t', 'TCP_RR', '-l', '1', '-P', '0']).returncode == 0


# ---- the protocol, by hand

def simple_requests(dial):
    """Unknown requests, the ones with a ready answer, records cut and joined."""
    with Control(dial) as control:
        for kind in (4, 22, 555, 99, 0, 0xFFFFFFFF, 0x61000000):
            answer = control.ask(npclient.record(kind))
            assert (word(answer, 0), word(answer, 4)) == (kind, 998)
        answer = control.ask(npclient.record(npclient.CALIBRATE))
        assert (word(answer, 0), word(answer, 4)) == (5, 0) and npclient.number(answer, 8) > 0 and word(answer, 12) >= 1
        answer = control.ask(npclient.record(npclient.SYSINFO))
        assert word(answer, 0) == 601 and answer[8:].split(b'\0')[0].count(b',') == 4
        assert word(control.ask(npclient.record(npclient.DEBUG_ON)), 0) == 3
        calibrate = npclient.record(npclient.CALIBRATE)
        for at in (0, 1, 164, 400, 655):
            control.send(calibrate[:at])
            time.sleep(0.05)
            assert word(control.ask(calibrate[at:]), 0) == 5
        control.send(npclient.record(npclient.PASSPHRASE) + calibrate + npclient.record(600) + calibrate[:100])
        assert [word(control.read(), 0) for _ in range(2)] == [5, 601]
        assert word(control.ask(calibrate[100:]), 0) == 5
        npclient.rr(control)
        control.finish()


def refusals(dial):
    """Each thing that a test can ask for and not get: an errno, and the connection goes on."""
    with Control(dial) as control:
        for request, error in (
                (npclient.omni(BOTH, -3, w100=132), 93), (npclient.omni(BOTH, -3, w96=3, w100=33), 93),
                (npclient.omni(BOTH, -3, w92=7), 97), (npclient.omni(1, -3), 22), (npclient.omni(0x80000000, -3), 22),
                (npclient.omni(BOTH, -3, port=70000), 22), (npclient.omni(BOTH, -3, response=65508, udp=True), 90),
                (npclient.omni(SERVER_SENDS, 1, udp=True), 22), (npclient.omni(0, -3, udp=True), 22)):
            answer = control.ask(request)
            assert (word(answer, 0), word(answer, 4)) == (98, error)
        npclient.rr(control)
        control.finish()


def request_response(dial):
    """Pipelined requests, more than were asked for, half a request and an end, a reset, several tests on one connection."""
    with Control(dial) as control:
        port = control.start(npclient.omni(BOTH, -3, 10, 20))
        with control.data(port) as sock:
            sock.sendall(bytes(45))
            npclient.read_exactly(sock, 60)
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(1) == b''
        results = control.read()
        assert (word(results, 0), word(results, 44), word(results, 28)) == (99, 3, 60)

        port = control.start(npclient.omni(BOTH, 5, 10, 20))
        with control.data(port) as sock:
            npclient.exchange(sock, 10, 20, 2)
            sock.sendall(bytes(5))
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(1) == b''
        results = control.read()
        assert word(results, 44) == 2 and word(results, 12) == 25

        port = control.start(npclient.omni(BOTH, 5, 10, 20))
        with control.data(port) as sock:
            npclient.exchange(sock, 10, 20, 4)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        assert word(control.read(), 44) == 4
        npclient.rr(control, 5, 100_000, 200_000)
        results = npclient.rr(control, flags=CPU)
        assert 0 <= npclient.number(results, 52) <= 100 and word(results, 84) >= 1
        control.finish()


def connections(dial):
    """Connect-per-request by hand: closed without a request it is answered; connections alone; one test has one connection."""
    with Control(dial) as control:
        port = control.start(npclient.omni(BOTH, -3, 10, 20, flags=CONN))
        for request in (b'', bytes(10), bytes(10)):
            with control.data(port) as sock:
                sock.sendall(request)
                if not request:
                    sock.shutdown(socket.SHUT_WR)
                npclient.read_exactly(sock, 20)
                assert sock.recv(1) == b''
        assert word(control.read(), 44) == 3
        port = control.start(npclient.omni(0, -2, flags=CONN))
        for _ in range(2):
            with control.data(port) as sock:
                assert sock.recv(1) == b''
        assert word(control.read(), 44) == 2
        port = control.start(npclient.omni(BOTH, -12, 10, 20))
        with control.data(port) as sock:
            npclient.exchange(sock, 10, 20, 10)
            for _ in range(8):          # some of them belong to another core
                with pytest.raises((ConnectionError, AssertionError)):
                    with control.data(port) as extra:
                        npclient.exchange(extra, 10, 20, 20)
            npclient.exchange(sock, 10, 20, 2)
        assert word(control.read(), 44) == 12
        control.finish()


def streams(dial):
    """Streams by count either way, and one that sends until its time is over although nobody reads."""
    with Control(dial) as control:
        port = control.start(npclient.omni(SERVER_RECEIVES, -1000, -1, -1))
        with control.data(port) as sock:
            sock.sendall(bytes(1500))
            results = control.read()
        assert word(results, 12) >= 1000
        port = control.start(npclient.omni(SERVER_SENDS, -100_000, -1, -1, w12=3000))
        with control.data(port) as sock:
            npclient.read_exactly(sock, 102_000)
            assert sock.recv(1) == b''
        results = control.read()
        assert (word(results, 28), word(results, 32)) == (102_000, 34)
        port = control.start(npclient.omni(SERVER_SENDS, 1, -1, -1))
        with control.data(port) as sock:
            began = time.monotonic()
            assert word(control.read(), 28) > 10_000
            assert 0.5 < time.monotonic() - began < 5
            npclient.rr(control)
            assert sock.recv(1) != b''
        control.finish()


def datagrams(dial):
    """UDP: parts of requests, too long ones, an end at once, and one that only sends."""
    with Control(dial) as control:
        port = control.start(npclient.omni(BOTH, 5, 10, 30, udp=True))
        with control.data(port, True) as sock:
            for parts in ((10,), (1000,), (4, 3, 3), (9, 5)):
                for part in parts:
                    sock.send(bytes(part))
                assert len(sock.recv(100)) == 30
            sock.send(b'')
            results = control.read()
            assert word(results, 44) == 4 and word(results, 12) == 40
            sock.send(bytes(10))        # the port stays open: no ICMP error comes back
            time.sleep(0.2)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        port = control.start(npclient.omni(SERVER_RECEIVES, 5, -1, -1, udp=True, w36=100))
        with control.data(port, True) as sock:
            for size in (10, 1000, 1400, 0):     # whole: fragments may be overtaken
                sock.send(bytes(size))
            results = control.read()
        assert (word(results, 16), word(results, 12)) == (3, 210)
        port = control.start(npclient.omni(SERVER_RECEIVES, 5, -1, -1, udp=True))
        with control.data(port, True) as sock:
            sock.send(b'')
            assert word(control.read(), 16) == 0
        control.finish()


def classic_records(dial):
    """The tests of clients built without omni."""
    with Control(dial) as control:
        for kind, udp in ((npclient.TCP_RR, False), (npclient.UDP_RR, True)):
            port = control.start(npclient.classic(kind, -3, 10, 20))
            with control.data(port, udp) as sock:
                npclient.exchange(sock, 10, 20, 3)
            assert word(control.read(), 16) == 3
        for kind, request, response in ((npclient.TCP_CRR, 10, 20), (npclient.TCP_CC, 0, 0)):
            port = control.start(npclient.classic(kind, -3, 10, 20))
            for _ in range(3):
                with control.data(port) as sock:
                    npclient.exchange(sock, request, response, 1)
                    assert sock.recv(1) == b''
            assert word(control.read(), 16) == 3
        port = control.start(npclient.classic(npclient.TCP_STREAM, 1))
        with control.data(port) as sock:
            sock.sendall(bytes(100_000))
        assert struct.unpack_from('>d', control.read(), 8)[0] == 100_000
        port = control.start(npclient.classic(npclient.TCP_MAERTS, -1000, size=500))
        with control.data(port) as sock:
            npclient.read_exactly(sock, 1000)
        assert struct.unpack_from('>d', control.read(), 8)[0] == 1000
        port = control.start(npclient.classic(npclient.UDP_STREAM, 1, size=100))
        with control.data(port, True) as sock:
            for _ in range(5):
                sock.send(bytes(100))
            results = control.read()        # by silence: no empty datagram comes from these clients
        assert (word(results, 8), word(results, 12)) == (5, 500)
        control.finish()


PROBES = (simple_requests, refusals, request_response, connections, streams, datagrams, classic_records)


@tap
@pytest.mark.parametrize('cores', CORES)
def test_protocol(image, cores):
    """The protocol, probe by probe, over both IP versions; nothing is left afterwards."""
    with running(image, cores) as (wire, guest):
        for address in (wires.GUEST4, wires.GUEST6):
            for probe in PROBES:
                probe(dial_on(wire, address))
        quiet(wire, guest)


@tap
@pytest.mark.parametrize('cores', CORES)
def test_sudden_ends(image, cores):
    """Clients that end at every point, by FIN and by reset, and bytes that are no request at all: nothing is left."""
    def reset(sock):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))

    requests = [npclient.omni(BOTH, 60), npclient.omni(SERVER_SENDS, 60, -1, -1), npclient.omni(SERVER_RECEIVES, 0, -1, -1),
                npclient.omni(BOTH, 60, flags=CONN), npclient.omni(BOTH, 60, udp=True),
                npclient.omni(SERVER_SENDS, 60, -1, -1, udp=True, peer_port=9)]
    with running(image, cores) as (wire, guest):
        before = settled(wire, guest, cores)
        for cut in (0, 1, 300, 655, 656, 656 + 300):
            for hard in (False, True):
                with control_on(wire) as control:
                    control.send((requests[0] * 2)[:cut])
                    if hard:
                        reset(control.sock)
        for request in requests:
            for hard in (False, True):
                for with_data in (False, True):
                    with control_on(wire) as control:
                        port = control.start(request)
                        data = control.data(port, word(request, 96) == 2) if with_data else None
                        if data:
                            data.send(b'x')
                            time.sleep(0.05)
                            if hard:
                                reset(data)
                        if hard:
                            reset(control.sock)
                    if data:
                        data.close()
        for seed in range(20):
            with control_on(wire) as control:
                control.send(os.urandom(656 * 3 + seed))
        quiet(wire, guest)
        with control_on(wire) as old:       # a client of 2.5.0 or older
            old.send(bytes(256))
            old.sock.settimeout(20)
            assert old.sock.recv(1) == b''
        wait_heaps(wire, guest, before, 5 * A_PCB)


@tap
@pytest.mark.parametrize('cores', CORES)
def test_silent_connections(image, cores):
    """A thousand control connections that send nothing do not keep anybody else out."""
    with running(image, cores) as (wire, guest):
        silent = [control_on(wire) for _ in range(1000)]
        with control_on(wire) as control:
            npclient.rr(control, 100)
            control.finish()
        for one in silent:
            one.sock.close()
        quiet(wire, guest)


@tap
@pytest.mark.parametrize('cores', CORES)
def test_thousand_tests(image, cores):
    """A thousand short tests in a row, on connections of their own and on one: the heap is what it was."""
    with running(image, cores) as (wire, guest):
        before = settled(wire, guest, cores)
        short_tests(wire, 1000)
        wait_heaps(wire, guest, before, 5 * A_PCB)


def from_port(wire, own, port):
    """A connection from a port that was used before, as soon as our own side lets us."""
    for _ in range(500):
        sock = wire.netns.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.settimeout(0.9)            # a SYN that is not answered would be sent again after 1 s
        sock.bind((wires.HOST4, own))
        try:
            sock.connect((wires.GUEST4, port))
            return sock
        except OSError as error:
            sock.close()
            if error.errno != errno.EADDRNOTAVAIL:
                raise
        time.sleep(0.002)
    raise AssertionError(f'port {own} is still in use here')


@tap
@pytest.mark.parametrize('cores', CORES)
def test_same_port_again(image, cores):
    """A new connection from the same port at once after the server has closed the last: TIME_WAIT gives way."""
    with running(image, cores) as (wire, _):
        with control_on(wire) as control:
            port = control.start(npclient.omni(BOTH, -300, 1, 1, flags=CONN))
            for _ in range(300):
                with from_port(wire, 7777, port) as sock:
                    npclient.exchange(sock, 1, 1, 1)
                    assert sock.recv(1) == b''
            assert word(control.read(), 44) == 300
            control.finish()
        scrape = prometheus.parse(prometheus.ask(wire.tcp(80), prometheus.get_request('/metrics')).body.decode())
        assert scrape.total('ringside_tcp_reopened_total') == 299


@tap
@pytest.mark.parametrize('cores', CORES)
def test_few_ports(image, cores):
    """A client with 400 ports makes 3,000 connections: nearly each ends one in TIME_WAIT, and none has to wait for it."""
    with running(image, cores) as (wire, _):
        wire.netns.sysctl('net.ipv4.ip_local_port_range', '40000 40400')
        before = again(wire)
        with control_on(wire) as control:
            npclient.crr(control, 3000)
            control.finish()
        assert again(wire) == before
        scrape = prometheus.parse(prometheus.ask(wire.tcp(80), prometheus.get_request('/metrics')).body.decode())
        assert scrape.total('ringside_tcp_reopened_total') > 2500
