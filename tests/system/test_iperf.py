"""iperf3's server (and iperf 2's beside it): by unmodified clients, and by the protocol, step by step."""
import json
import os
import re
import socket
import struct
import subprocess
import time

import pytest

import iperfclient as ip
import rows
import wires
from iperfclient import Client
from iperfguest import CORES, client_program, dial_on, quiet, running, settled, tap, wait_heaps
from rslib.qemu import Guest


# ---- clients

@pytest.fixture(scope='session', name='iperf3')
def find_iperf3():
    """Path of an iperf3 client."""
    return client_program('iperf3')


@pytest.fixture(scope='session', name='iperf2')
def find_iperf2():
    """Path of an iperf 2 client."""
    return client_program('iperf')


# ---- iperf3's real clients: each kind of test

def amounts(end):
    """(bytes sent, bytes received) of each direction in a client's JSON."""
    return [(end['sum_sent' + d]['bytes'], end['sum_received' + d]['bytes']) for d in ('', '_bidir_reverse') if 'sum_sent' + d in end]


def sound(end, slack=0.0):
    """Something was received, and not more than was sent. slack: where seconds are left out, which both sides do by
    clocks of their own."""
    return all(0 < received <= sent * (1 + slack) for sent, received in amounts(end))


def exact(count, more=0):
    """All of it. more: how much more a client may send that has cut a block in two."""
    def check(end):
        (sent, received), = amounts(end)
        return count <= received <= sent <= count + more
    return check


def about(rate, each=0.25):
    """The receiver's rate."""
    return lambda end: sound(end, each) and abs(end['sum_received']['bits_per_second'] / rate - 1) <= each


def loss_free(end):
    return sound(end) and end['sum']['packets'] > 0 and end['sum']['lost_packets'] <= end['sum']['packets'] / 10


# arguments, what must come out besides exit status 0, seconds the test takes
CASES = [
    ('-t 1', lambda end: sound(end) and 0 < end['cpu_utilization_percent']['remote_total'] <= 200, 1),
    ('-t 1 -R', sound, 1),
    ('-t 1 -P 4', lambda end: sound(end) and len(end['streams']) == 4, 1),
    ('-t 1 -P 8 -R', lambda end: sound(end) and all(s['receiver']['bytes'] > 0 for s in end['streams']), 1),
    ('-t 1 --bidir', lambda end: sound(end) and len(amounts(end)) == 2, 1),
    ('-t 1 --bidir -P 3', lambda end: sound(end) and all(s['receiver']['bytes'] > 0 for s in end['streams']), 1),
    ('-u -t 1 -b 5M', loss_free, 1),
    ('-u -t 1 -R -b 5M', loss_free, 1),
    ('-u -t 1 -b 2M -P 3', loss_free, 1),
    ('-u -t 1 -b 2M -P 3 --bidir', sound, 1),
    ('-u -t 1 -b 0 -l 1400', sound, 1),
    ('-u -t 1 -b 0 -l 1400 -R', sound, 1),
    ('-u -t 1 -b 0 -P 8 -R', lambda end: sound(end) and all(s['udp']['bytes'] > 0 for s in end['streams']), 1),
    ('-u -t 1 -b 5M -l 20000', sound, 1),
    ('-u -t 1 -b 5M -l 20000 -R', sound, 1),
    ('-u -b 10M -n 500K', loss_free, 1),
    ('-n 10M', exact(10 << 20, 131072), 1),
    ('-n 10M -R', exact(10 << 20), 1),
    ('-n 10M -P 4 -R', exact(10 << 20), 1),
    ('-k 50', exact(50 * 131072, 131072), 1),
    ('-k 50 -R', sound, 1),
    ('-O 1 -t 1', lambda end: sound(end, 0.5), 2),
    ('-O 1 -t 1 -R', lambda end: sound(end, 0.5), 2),
    ('-u -O 1 -t 1 -b 5M', lambda end: sound(end, 0.5), 2),
    ('-u -R -O 1 -t 1 -b 5M --udp-counters-64bit', lambda end: sound(end, 0.5), 2),
    ('-t 1 -w 64K -M 1000 -N -l 4000', sound, 1),
    ('-t 2 -R -b 10M', about(10e6), 2),
    ('-t 2 -R -b 2M -P 4 -l 8K', about(8e6), 2),
    ('-t 1 --get-server-output', sound, 1),
    ('-t 1 -C reno -S 0x10 -T title --extra-data xx', lambda end: sound(end) and end['receiver_tcp_congestion'] == 'reno', 1),
    ('-t 1 -Z', sound, 1),
    ('-t 1 -4 -B HOST --cport 23456', sound, 1),
    ('-t 1 -4 -B HOST --cport 23456', sound, 1),
]
SIX = ('-t 1', '-t 1 --bidir', '-u -t 1 -b 5M', '-u -t 1 -R -b 5M', '-n 10M -R')


def one_case(start, args, check, limit):
    """Runs a client; returns what was wrong, or None. start: runs an argument list."""
    began = time.monotonic()
    done = start(['-J', *args.split()])
    took = time.monotonic() - began
    try:
        good = done.returncode == 0 and check(json.loads(done.stdout)['end'])
        if '--get-server-output' in args:
            good = good and 'receiver' in json.loads(done.stdout)['server_output_text']
    except (KeyError, ValueError, ZeroDivisionError) as error:
        good = False
        done.stderr += repr(error)
    if good and took <= 3 * limit + 3:      # the machine may be loaded
        return None
    return f'iperf3 {args}: exit {done.returncode} after {took:.1f} s: {done.stdout[-2500:]}{done.stderr}'


@tap
@pytest.mark.parametrize('cores', CORES)
def test_each(image, iperf3, cores):
    """Every kind of test that a client knows, over IPv4 and a few over IPv6; nothing is left afterwards."""
    with running(image, cores) as (wire, guest):
        def start(args, host=wires.GUEST4):
            return wire.netns.run([iperf3, '-c', host, *(a.replace('HOST', wires.HOST4) for a in args)], timeout=60, check=False)
        bad = [one_case(start, *case) for case in CASES]
        bad += [one_case(lambda a: start(a, wires.GUEST6), args, check, limit) for args, check, limit in CASES if args in SIX]
        assert not any(bad), '\n'.join(filter(None, bad))
        done = wire.netns.run([iperf3, '-c', wires.GUEST4, '-n', '1M', '-R'], timeout=30, check=False)     # what people see
        assert done.returncode == 0 and re.search(r' 1\.00 MBytes .* receiver', done.stdout), done.stdout + done.stderr
        quiet(wire, guest)


def crowd(wire, argv, count):
    """So many clients at once; all must end well."""
    clients = [wire.netns.popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(count)]
    bad = []
    for client in clients:
        text = client.communicate(timeout=120)[0]
        if client.returncode:
            bad.append(f'exit {client.returncode}: {text.strip()[-1000:]}')
    assert not bad, f'{len(bad)} of {count} x {argv}: {bad[0]}'


@tap
@pytest.mark.parametrize('cores', CORES)
@pytest.mark.parametrize('count', [8, pytest.param(32, marks=pytest.mark.full)])
def test_many_clients(image, iperf3, iperf2, cores, count):
    """Many clients at once on one port, of each kind, also of those whose streams have no cookie."""
    with running(image, cores) as (wire, guest):
        for args in ('-t 1 -P 2', '-t 1 -R', '-u -t 1 -b 1M -P 2', '-u -t 1 -b 1M -R', '-t 1 --bidir'):
            crowd(wire, [iperf3, '-c', wires.GUEST4, *args.split()], count)
        for args in ('-t 1', '-u -b 1M -t 1'):
            crowd(wire, [iperf2, '-c', wires.GUEST4, *args.split()], count)
        quiet(wire, guest)


@tap
@pytest.mark.parametrize('cores', CORES)
def test_many_streams(image, iperf3, cores):
    """As many streams as a client can have."""
    with running(image, cores) as (wire, guest):
        for args in ('-P 128 -t 2', '-P 128 -t 2 -R', '-u -P 128 -b 50K -t 2', '-P 128 -t 2 --bidir'):
            done = wire.netns.run([iperf3, '-J', '-c', wires.GUEST4, *args.split()], timeout=100, check=False)
            assert done.returncode == 0, done.stdout[-1000:]
            end = json.loads(done.stdout)['end']
            assert sound(end) and len(end['streams']) == (256 if '--bidir' in args else 128)
        quiet(wire, guest)


@tap
@pytest.mark.parametrize('cores', CORES)
def test_killed(image, iperf3, cores):
    """A client that is killed in mid-test ends its test at once, whatever the test."""
    with running(image, cores) as (wire, guest):
        for args in ('', '-R', '--bidir', '-P 8 -R', '-u -b 5M', '-u -b 0 -R', '-u -b 1M --bidir -P 3'):
            client = wire.netns.popen([iperf3, '-c', wires.GUEST4, '-t', '60', *args.split()], stdout=subprocess.DEVNULL)
            guest.wait_for('iperf3: a test: ', 10, guest.mark())
            time.sleep(0.7)
            client.kill()
            client.wait()
            began = time.monotonic()
            quiet(wire, guest)
            assert time.monotonic() - began < 5, f'{args}: the test lived on for {time.monotonic() - began:.1f} s'
        assert wire.netns.run([iperf3, '-c', wires.GUEST4, '-n', '1M']).returncode == 0


def free_port():
    """A port that is free for TCP and UDP."""
    with socket.socket() as sock, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        sock.bind(('127.0.0.1', 0))
        other.bind(sock.getsockname())
        return sock.getsockname()[1]


class IperfUserWire(wires.UserWire):
    """User networking with a port for each of the servers, TCP and UDP."""

    def __init__(self):
        self.three, self.two = free_port(), free_port()

    def netdev(self):
        return ['-netdev', 'user,id=n0' + ''.join(f',hostfwd={proto}:127.0.0.1:{host}-:{guest}' for proto in ('tcp', 'udp')
                                                  for host, guest in ((self.three, ip.PORT), (self.two, ip.PORT2)))]

    def attach(self, guest):
        pass


def test_user_networking(image, iperf3, iperf2):
    """Through forwards on 127.0.0.1, where all clients come from one address."""
    wire = IperfUserWire()
    row = rows.Row('user', wire='user')
    with Guest(rows.machine_for(row, image, wire)) as guest:
        guest.wait_ready(rows.SHORT)

        def start(args):
            return subprocess.run([iperf3, '-c', '127.0.0.1', '-p', str(wire.three), *args], capture_output=True, text=True,
                                  timeout=60, check=False)
        bad = [one_case(start, args, check, limit) for args, check, limit in CASES if args in SIX or args == '-t 1 -R']
        assert not any(bad), '\n'.join(filter(None, bad))
        for args in ('-t 1', '-u -b 1M -t 1'):
            done = subprocess.run([iperf2, '-c', '127.0.0.1', '-p', str(wire.two), *args.split()], capture_output=True, text=True,
                                  timeout=60, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        assert 'Server Report' in done.stdout, done.stdout + done.stderr
        guest.finish(row.expect)


# ---- iperf3's protocol, by hand

def steps_cut(dial):
    """Cookie, wishes and results byte by byte and joined; JSON with more than is known; texts of every length."""
    with Client(dial) as client:
        for byte in client.cookie:
            client.sock.sendall(bytes([byte]))
        client.expect(ip.PARAM_EXCHANGE)
        text = json.dumps({'udp': False, 'time': 10, 'unknown': {'a': [1, None, 'x']}, 'len': 1000}).encode()
        for at in range(0, len(text) + 4, 3):
            client.sock.sendall((struct.pack('>I', len(text)) + text)[at:at + 3])
        client.expect(ip.CREATE_STREAMS)
        sock = client.connect()
        sock.sendall(client.cookie[:20])
        time.sleep(0.05)
        sock.sendall(client.cookie[20:] + bytes(500))       # data right behind it
        client.expect(ip.TEST_START, ip.TEST_RUNNING)
        sock.sendall(bytes(500))
        time.sleep(0.2)
        assert client.finish(b'{' + b' ' * 300_000 + b'}')['streams'][0]['bytes'] == 1000
    with Client(dial) as client:
        client.sock.sendall(client.cookie + struct.pack('>I', 30) + b'{"time":1,"parallel":1,"x":[]}')     # all in one
        client.expect(ip.PARAM_EXCHANGE, ip.CREATE_STREAMS)
        client.sock.sendall(bytes([ip.CLIENT_TERMINATE]))
        client.expect_end()


def refusals(dial):
    """What cannot be had, is no JSON or no text; states out of turn. Each costs its own test only."""
    for wishes, code in (({'parallel': 129}, 6), ({'len': 1 << 31}, 7), ({'sctp': True}, 18), ({'udp': True, 'len': 65508}, 20),
                         ({'udp': True, 'len': 4}, 20), ({'time': -1}, 114), ({'time': '10'}, 114)):
        with Client(dial) as client:
            client.hello()
            client.wish(**wishes)
            client.expect_error(code)
    for length, text in ((5, b'hello'), (2, b'[]'), (0, b''), (8193, b''), (0xFFFFFFFF, b'{}'), (8192, b'{' + b' ' * 8191)):
        with Client(dial) as client:
            client.hello()
            client.sock.sendall(struct.pack('>I', length) + text)
            client.expect_error(114)
    for state in (0, ip.TEST_START, ip.TEST_END, ip.IPERF_DONE, ip.CLIENT_TERMINATE, ip.DENIED):
        with Client(dial) as client:
            client.hello()
            client.ask()
            client.sock.sendall(bytes([state]))
            client.expect_end()
    with Client(dial) as client:
        client.start()
        client.sock.sendall(bytes([ip.IPERF_DONE]))
        client.expect_end()
    for length in (0, 1 << 23):
        with Client(dial) as client:
            client.start()
            client.sock.sendall(bytes([ip.TEST_END]))
            client.expect(ip.EXCHANGE_RESULTS)
            client.sock.sendall(struct.pack('>I', length))
            client.expect_error(116)
    ip.short_test(dial)


def cookies(dial):
    """Cookies that are none; a stream too many; a cookie whose test is over begins a new one."""
    for wrong in (bytes(37), b'a' * 37, b'\n' + b'a' * 35 + b'\0', b'\xff' * 36 + b'\0', b'a b' * 12 + b'\0'):
        with Client(dial) as client:
            client.cookie = wrong
            client.sock.sendall(wrong)
            client.expect(ip.DENIED)
            client.expect_end()
    with Client(dial) as client:
        sock, = client.start(num=3000)
        for _ in range(6):                  # some of them come to another core
            with dial(ip.PORT, False) as extra:
                extra.settimeout(20)
                extra.sendall(client.cookie + bytes(1000))
                assert extra.recv(1) == bytes([ip.DENIED])
        sock.sendall(bytes(3000))
        assert client.finish()['streams'][0]['bytes'] == 3000
    with Client(dial) as again:
        again.cookie = client.cookie
        again.start()


def counts(dial):
    """What is received and sent: with an amount, all of it, though the end is said while some is on its way."""
    with Client(dial) as client:
        socks = client.start(3, parallel=3, num=3_000_000)
        for sock in socks:
            sock.sendall(bytes(1_000_000))
        results = client.finish()
        assert [s['id'] for s in results['streams']] == [1, 3, 4]
        assert [s['bytes'] for s in results['streams']] == [1_000_000] * 3
        assert results['sender_has_retransmits'] == -1 and 0 <= results['cpu_util_total'] <= 800
    with Client(dial) as client:
        socks = client.start(2, parallel=2, reverse=True, num=500_000, len=700)
        for sock in socks:
            assert len(ip.read_exactly(sock, 250_000)) == 250_000
        results = client.finish()
        assert [s['bytes'] for s in results['streams']] == [250_000] * 2 and results['sender_has_retransmits'] == 0
        for sock in socks:
            assert sock.recv(1) == b''      # an end, no reset
    with Client(dial) as client:
        sock, = client.start(omit=1, time=1)
        sock.sendall(bytes(100_000))
        time.sleep(1.5)
        sock.sendall(bytes(5000))
        time.sleep(0.2)
        result, = client.finish()['streams']
        assert result['bytes'] == 5000 and 0.3 < result['end_time'] < 3 and result['start_time'] == 0
    with Client(dial) as client:            # one stream ends before its test
        sock, other = client.start(2, parallel=2)
        sock.sendall(bytes(777))
        sock.close()
        other.sendall(bytes(111))
        time.sleep(0.2)
        assert [s['bytes'] for s in client.finish()['streams']] == [777, 111]


def datagrams(dial):
    """UDP: losses, overtaking, jitter, wide numbers, hellos said twice and in another byte order, strays."""
    with Client(dial) as client:
        sock, = client.start(udp=True, len=100)
        sock.send(ip.UDP_HELLO)
        assert sock.recv(100) == ip.UDP_REPLY
        for number in (1, 2, 4, 3, 8, 8):
            sock.send(ip.datagram(number))
        sock.send(bytes(5))                 # too short to be one
        time.sleep(0.2)
        result, = client.finish()['streams']
        # 3 had been taken for lost, 5 to 7 were; the second 8 makes good for one: as the real server counts
        assert (result['bytes'], result['packets'], result['errors']) == (600, 8, 2)
        assert (result['omitted_packets'], result['omitted_errors']) == (0, 0)
    with Client(dial) as client:
        sock, = client.start(udp=True, len=100, udp_counters_64bit=1)
        when = time.monotonic()
        for number, late in ((1 << 33, 0), (1 + (1 << 33), 0.016)):
            sock.send(ip.datagram(number, wide=True, when=when - late))
        time.sleep(0.2)
        result, = client.finish()['streams']
        assert result['packets'] == 1 + (1 << 33) and result['errors'] == (1 << 33) - 1
        assert 0.001 <= result['jitter'] < 0.01     # a sixteenth of 16 ms, and what the way adds
    with Client(dial) as client:
        client.hello()
        client.ask(udp=True, len=100, reverse=True, bandwidth=100_000)
        sock = client.connect()
        sock.send(bytes(4))
        sock.send(bytes(200))
        sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            sock.recv(100)
        sock.settimeout(20)
        sock.send(ip.UDP_HELLO[::-1])
        assert sock.recv(100) == ip.UDP_REPLY[::-1]
        client.expect(ip.TEST_START, ip.TEST_RUNNING)
        numbers = [struct.unpack_from('>III', sock.recv(2000))[2] for _ in range(10)]
        assert numbers == list(range(1, 11))
        result, = client.finish()['streams']
        assert result['bytes'] == 100 * result['packets'] >= 1000


def turns(dial):
    """UDP tests of one address open their streams one after the other; one that does not, or goes, lets the next one."""
    with Client(dial) as first, Client(dial) as second, Client(dial) as third, Client(dial) as fourth:
        for client in (first, second, third, fourth):
            client.hello()
        first.ask(udp=True)
        for client in (second, third, fourth):
            client.wish(udp=True)
            client.sock.settimeout(0.3)
            with pytest.raises(TimeoutError):
                client.sock.recv(1)
            client.sock.settimeout(20)
        second.close()                      # while it waits
        first.stream()
        first.expect(ip.TEST_START, ip.TEST_RUNNING)
        third.expect(ip.CREATE_STREAMS)
        began = time.monotonic()
        fourth.expect(ip.CREATE_STREAMS)    # the third does nothing
        assert 2 < time.monotonic() - began < 12
        third.expect_error(200)
        fourth.stream().send(ip.datagram(1))
        fourth.expect(ip.TEST_START, ip.TEST_RUNNING)
        first.streams[0].send(ip.datagram(1))
        time.sleep(0.2)
        assert [c.finish()['streams'][0]['bytes'] for c in (first, fourth)] == [100, 100]


PROBES = (steps_cut, refusals, cookies, counts, datagrams, turns)


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
@pytest.mark.parametrize('first', (0, 1))
def test_order(image, first):
    """Streams are numbered as they were connected, on whichever core, and whenever they said whose they are."""
    with running(image, 2) as (wire, _):
        sources = wire.sources(2, 8, port=ip.PORT)
        for turn in range(4):
            with Client(dial_on(wire)) as client:
                client.hello()
                client.ask(bidirectional=True, parallel=2)
                socks = []
                for core in (first, 1 - first, 1 - first, first):
                    socks.append(wire.tcp(ip.PORT, source=sources[core].pop()))
                    socks[-1].settimeout(20)
                for sock in reversed(socks) if turn % 2 else socks:
                    sock.sendall(client.cookie)
                    time.sleep(0.02)
                client.streams += socks
                client.expect(ip.TEST_START, ip.TEST_RUNNING)
                socks[0].sendall(bytes(100))
                socks[1].sendall(bytes(200))
                for sock in socks[2:]:
                    ip.read_exactly(sock, 1000)
                time.sleep(0.2)
                results = {s['id']: s['bytes'] for s in client.finish()['streams']}
                assert results[1] == 100 and results[3] == 200 and results[4] >= 1000 and results[5] >= 1000, results
            if not sources[0] or not sources[1]:
                break


KINDS = ({}, {'reverse': True}, {'bidirectional': True}, {'udp': True}, {'udp': True, 'reverse': True}, {'reverse': True, 'bandwidth': 8000})


def get_to(client, phase, wishes):
    """Brings a test to a phase, where it is left."""
    count = 2 if wishes.get('bidirectional') else 1
    if phase == 0:
        client.sock.sendall(client.cookie[:10])
        return
    client.hello()
    if phase == 1:
        client.sock.sendall(struct.pack('>I', 100) + b'{"time"')
    elif phase == 2:
        client.ask(parallel=2, **wishes)
        client.stream()
    if phase <= 2:
        return
    client.ask(**wishes)
    for _ in range(count):
        client.stream()
    client.expect(ip.TEST_START, ip.TEST_RUNNING)
    if phase >= 4:
        client.streams[0].send(ip.datagram(1) if wishes.get('udp') else bytes(100_000))
        time.sleep(0.03)
    if phase >= 5:
        client.sock.sendall(bytes([ip.TEST_END]))
        client.expect(ip.EXCHANGE_RESULTS)
    if phase == 6:
        client.sock.sendall(struct.pack('>I', 100) + b'{')
    if phase == 7:
        client.send_text(b'{}')
        client.read_text()


@tap
@pytest.mark.parametrize('cores', CORES)
def test_sudden_ends(image, cores):
    """Clients that end in each phase, by FIN and by reset, and bytes that are no protocol at all: nothing is left."""
    with running(image, cores) as (wire, guest):
        before = settled(wire, guest, cores)
        for wishes in KINDS:
            for phase in range(8):
                for hard in (False, True):
                    with Client(dial_on(wire)) as client:
                        get_to(client, phase, wishes)
                        client.close(hard)
        for seed in range(20):
            with Client(dial_on(wire)) as client:
                client.sock.sendall(os.urandom(100 + seed))
            with Client(dial_on(wire)) as client:
                client.sock.sendall(client.cookie + os.urandom(300))
        with wire.udp(ip.PORT) as sock:
            for size in (0, 1, 3, 4, 5, 11, 12, 100, 1400, 9000):
                for _ in range(20):
                    sock.send(os.urandom(size))
        ip.short_test(dial_on(wire))
        quiet(wire, guest)
        wait_heaps(wire, guest, before)


@tap
@pytest.mark.parametrize('cores', CORES)
def test_silent_connections(image, iperf3, cores):
    """A thousand connections that send nothing, and some that stop after the cookie, keep nobody out; in time they go."""
    with running(image, cores) as (wire, guest):
        silent = [wire.tcp(ip.PORT) for _ in range(900)]
        clients = [Client(dial_on(wire)) for _ in range(50)]
        for client in clients:
            client.hello()
        ip.short_test(dial_on(wire))
        assert wire.netns.run([iperf3, '-c', wires.GUEST4, '-n', '1M', '-P', '4']).returncode == 0
        for one in [*silent, *(client.sock for client in clients)]:
            one.settimeout(60)
            assert one.recv(1) == b''       # after 30 s
            one.close()
        quiet(wire, guest)


@tap
@pytest.mark.parametrize('cores', CORES)
def test_thousand_tests(image, cores):
    """A thousand short tests in a row: the heap is what it was."""
    with running(image, cores) as (wire, guest):
        before = settled(wire, guest, cores)
        for number in range(1000):
            ip.short_test(dial_on(wire), number % 2 == 0)
        wait_heaps(wire, guest, before)
