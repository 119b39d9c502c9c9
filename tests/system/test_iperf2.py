"""iperf 2's server: by unmodified clients, and by datagrams made by hand."""
import os
import re
import socket
import struct
import subprocess
import time

import pytest

import iperfclient as ip
import wires
from iperfguest import CORES, client_program, running, tap


@pytest.fixture(scope='session', name='iperf2')
def find_iperf2():
    """Path of an iperf 2 client."""
    return client_program('iperf')


def bytes_of(text):
    """The last amount in a client's lines of -f k -y or its usual ones, by direction: '1' sent, '*1' received."""
    unit = {'Bytes': 1, 'KBytes': 1 << 10, 'MBytes': 1 << 20, 'GBytes': 1 << 30}
    return {tag.strip(): float(n) * unit[u] for tag, n, u in re.findall(r'^\[([ *]*\d+)\].* sec +([\d.]+) (\w*Bytes)', text, re.MULTILINE)}


def server_report(text):
    """(lost, total) of the server's report, which must be there."""
    match = re.search(r'Server Report:\n(?:\[ ID\].*\n)?\[ *\d+\].* ms +(\d+)/(\d+) ', text)
    return (int(match[1]), int(match[2])) if match else None


CASES2 = [
    ('-t 1', lambda o: bytes_of(o)['1'] > 0),
    ('-n 10M', lambda o: bytes_of(o)['1'] == 10 << 20),
    ('-t 1 -P 4', lambda o: 'SUM' in o),
    ('-t 1 -R', lambda o: bytes_of(o)['*1'] > 0),
    ('-n 10M -R', lambda o: bytes_of(o)['*1'] == 10 << 20),
    ('-t 1 --full-duplex', lambda o: bytes_of(o)['1'] > 0 and bytes_of(o)['*1'] > 0),
    ('-u -b 5M -t 1', lambda o: server_report(o)[0] <= server_report(o)[1] / 10),
    ('-u -b 2M -t 1 -P 3', lambda o: o.count('Server Report') == 3),
    ('-u -b 5M -n 200K -l 1000', lambda o: 200 <= server_report(o)[1] <= 210),
    ('-V -u -b 5M -t 1', lambda o: server_report(o)[1] > 0),
    ('-V -t 1', lambda o: bytes_of(o)['1'] > 0),
]


@tap
@pytest.mark.parametrize('cores', CORES)
def test_iperf2(image, iperf2, cores):
    """What an iperf 2 client asks for."""
    with running(image, cores) as (wire, _):
        bad = []
        for args, check in CASES2:
            host = wires.GUEST6 if '-V' in args else wires.GUEST4
            done = wire.netns.run([iperf2, '-c', host, *args.split()], timeout=60, check=False)
            try:
                good = done.returncode == 0 and check(done.stdout)
            except (KeyError, TypeError):
                good = False
            if not good:
                bad.append(f'iperf {args}: exit {done.returncode}: {done.stdout}{done.stderr}')
        assert not bad, '\n'.join(bad)


def report_of(sock, data):
    """The report for a datagram that ends a test; it has the datagram's size and first 16 bytes."""
    sock.send(data)
    answer = sock.recv(65536)
    assert answer[:16] == data[:16] and len(answer) == max(len(data), 56)
    return ip.report2(answer)


@tap
@pytest.mark.parametrize('cores', CORES)
def test_iperf2_datagrams(image, cores):
    """Datagrams by hand: losses, overtaking, the end repeated, too short ones, a test after the other from one port."""
    with running(image, cores) as (wire, _):
        for address in (wires.GUEST4, wires.GUEST6):
            with wire.udp(ip.PORT2, address) as sock:
                sock.settimeout(10)
                sock.send(ip.datagram2(-5))             # of no test
                sock.send(bytes(11))
                for number in (1, 2, 5, 3, 8):
                    sock.send(ip.datagram2(number, 200))
                first = report_of(sock, ip.datagram2(-9, 1000))
                assert (first[0], first[2], first[3], first[4]) == (2000, 3, 1, 9) and 0 < first[1] < 5
                assert report_of(sock, ip.datagram2(-9, 1000)) == first
                sock.send(ip.datagram2(7, 200))         # overtaken by the end
                assert report_of(sock, ip.datagram2(-9, 1000)) == first
                for number in (0, 1):                   # older clients begin with 0
                    sock.send(ip.datagram2(number, 100))
                again = report_of(sock, ip.datagram2(-2, 300))
                assert (again[0], again[2], again[3], again[4]) == (500, 0, 0, 3)
                for size in (0, 4, 12, 16, 40, 8000):
                    sock.send(os.urandom(size))


@tap
@pytest.mark.parametrize('cores', CORES)
def test_iperf2_sudden_ends(image, iperf2, cores):
    """Clients that are killed, connections cut at every place, more UDP tests than are kept: nothing is left."""
    gone = r'iperf2: .* after .*; now 0 connections, 0 flows;'
    with running(image, cores) as (wire, guest):
        for args in ('-t 60', '-t 60 -R', '-u -b 1M -t 60'):
            client = wire.netns.popen([iperf2, '-c', wires.GUEST4, *args.split()], stdout=subprocess.DEVNULL)
            time.sleep(1)
            client.kill()
            client.wait()
        for size in (0, 1, 4, 23, 24, 25, 1000):
            for hard in (False, True):
                sock = wire.tcp(ip.PORT2)
                sock.sendall((struct.pack('>Iiiiii', 0x44010078, 1, 5001, 0, 0, -100) + bytes(1000))[:size])
                if hard:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
                sock.close()
        since = guest.mark()
        for source in range(20000, 20000 + 1500 * cores):
            with wire.udp(ip.PORT2, source=source) as sock:
                sock.send(ip.datagram2(1))
        for core in range(cores):
            guest.wait_for(rf'c{core}\] {gone}', 60, since)
        assert re.search(r' [1-9]\d* without room', guest.console)
        assert wire.netns.run([iperf2, '-c', wires.GUEST4, '-n', '1M']).returncode == 0
