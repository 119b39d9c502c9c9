"""The netserver and what goes wrong: requests it cannot meet, records and connections that end too early, more clients than
there is memory for. The control connection says what it was, and goes on. (Clients that are killed, silent or of another
version: test_netserver.py; what a record may ask for: tests/unit/netserver_record_test.c.)"""
import socket
import struct

import pytest

import npclient
import npguest
import prometheus
import wires
from npclient import BOTH, CONN, SERVER_RECEIVES, SERVER_SENDS, word
from npguest import CORES, control_on, dial_on, quiet, running, tap

LINGER_RESET = struct.pack('ii', 1, 0)
EPROTONOSUPPORT, EAFNOSUPPORT, ENOBUFS, UNKNOWN = 93, 97, 105, 998
LITTLE = {1: '10M', 2: '16M'}       # memory of a guest that is soon full, by cores
CLIENTS_MAX = 10_000


@pytest.fixture(scope='session', name='netperf')
def find_netperf():
    """Path of a netperf client."""
    return npguest.netperf_client()


def unknown_and_unsupported(wire, address):
    """Requests that are none, protocols and address families that are not there: an error each, on one connection."""
    with control_on(wire, address) as control:
        for request, error in ((npclient.record(99), UNKNOWN), (npclient.omni(BOTH, -3, w100=132), EPROTONOSUPPORT),
                               (npclient.omni(BOTH, -3, w100=33), EPROTONOSUPPORT), (npclient.omni(BOTH, -3, w92=9), EAFNOSUPPORT)):
            assert word(control.ask(request), 4) == error
            npclient.rr(control)
        control.finish()


def half_a_record(wire, address):
    """Part of a record and then the end: nothing is answered, the connection is closed."""
    for cut in (1, 4, 300, 655):
        for before in (0, 1):
            with control_on(wire, address) as control:
                if before:
                    npclient.rr(control)
                control.send(npclient.omni(BOTH, -3)[:cut])
                control.finish()


def taken_ports(wire, address):
    """A data port that is wished for and taken, by a server or another client's test: the test gets another one, as from the
    real server, and so do later ones while it is taken."""
    with control_on(wire, address) as first, control_on(wire, address) as second:
        for udp, port in ((False, 80), (False, 12865), (True, 7)):
            assert first.start(npclient.omni(BOTH, 5, udp=udp, port=port)) != port
            with pytest.raises(EOFError):       # a request while a test runs is read after it: here it ends both
                first.sock.shutdown(socket.SHUT_WR)
                first.read()
            first.sock.close()
            first = control_on(wire, address)
        own = first.start(npclient.omni(BOTH, -3, port=15000))
        assert own == 15000
        other = second.start(npclient.omni(BOTH, -3, port=15000))
        assert other != own
        for control, port in ((second, other), (first, own)):
            with control.data(port) as sock:
                npclient.exchange(sock, 1, 1, 3)
                sock.shutdown(socket.SHUT_WR)
                assert sock.recv(1) == b''
            assert word(control.read(), 44) == 3
            control.finish()


def data_errors(wire, address):
    """A data connection that is reset in the middle of its test: results of what there was, and the next test."""
    with control_on(wire, address) as control:
        for request, work, at, counted in (
                (npclient.omni(BOTH, 30, 10, 20), lambda s: npclient.exchange(s, 10, 20, 5), 44, lambda n: n == 5),
                (npclient.omni(SERVER_RECEIVES, 30, -1, -1), lambda s: s.sendall(bytes(1000)), 12, lambda n: n == 1000),
                (npclient.omni(SERVER_SENDS, 30, -1, -1), lambda s: npclient.read_exactly(s, 5000), 28, lambda n: n >= 5000)):
            with control.data(control.start(request)) as sock:
                work(sock)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
            results = control.read()
            assert word(results, 4) == 0 and counted(word(results, at))
            npclient.rr(control)
        port = control.start(npclient.omni(BOTH, -3, 10, 20, flags=CONN))
        for number in range(4):
            with control.data(port) as sock:
                if number == 1:     # one of many is reset: it does not count, the others do
                    sock.send(bytes(5))
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
                else:
                    npclient.exchange(sock, 10, 20, 1)
        assert word(control.read(), 44) == 3
        control.finish()


@tap
@pytest.mark.parametrize('cores', CORES)
def test_errors(image, cores):
    """One after the other, over both IP versions; nothing is left."""
    with running(image, cores) as (wire, guest):
        for address in (wires.GUEST4, wires.GUEST6):
            for probe in (unknown_and_unsupported, half_a_record, taken_ports, data_errors):
                probe(wire, address)
        quiet(wire, guest)


@tap
def test_what_the_client_says(image, netperf):
    """An unmodified client prints the error by its number, and its exit code is not 0; the next one is served."""
    with running(image) as (wire, guest):
        for args, error in (('-t UDP_RR -l 1 -- -r 1,65508', 90), ('-t omni -l 1 -- -d rr -T udplite', EPROTONOSUPPORT)):
            done = wire.netns.run([netperf, '-H', wires.GUEST4, *args.split()], timeout=30, check=False)
            assert done.returncode == 255 and f'remote error {error}' in done.stdout + done.stderr, done
            assert wire.netns.run([netperf, '-H', wires.GUEST4, '-t', 'TCP_RR', '-l', '-10', '-P', '0'], timeout=30).returncode == 0
        quiet(wire, guest)


@tap
@pytest.mark.parametrize('cores', CORES)
def test_more_clients_than_memory(image, cores):
    """Clients that each start a test, until there is no memory for more: these are told so (105), and later ones find their
    connection reset; no SYN stays without an answer, and whoever was first is served as before. When they have gone all is
    as it was."""
    clients, refused, cut = [], 0, 0
    with running(image, cores, memory=LITTLE[cores]) as (wire, guest):
        first = control_on(wire)
        npclient.rr(first)
        while refused < 50 or cut < 50:
            assert len(clients) < CLIENTS_MAX, f'{refused} refused, {cut} cut'
            try:
                clients.append(control_on(wire))
                error = word(clients[-1].ask(npclient.omni(BOTH, 60)), 4)
            except (ConnectionError, EOFError):
                cut += 1
                continue
            assert error in (0, ENOBUFS)
            refused += error != 0
        assert cut <= refused, 'more were cut than were told why'
        assert word(first.ask(npclient.record(npclient.CALIBRATE)), 4) == 0
        sample = prometheus.parse(prometheus.ask(wire.tcp(80), prometheus.get_request('/metrics')).body.decode())
        assert sample.total('ringside_heap_failures_total') == 0
        for client in clients:
            client.sock.close()
        npclient.rr(first)
        first.finish()
        quiet(wire, guest)
