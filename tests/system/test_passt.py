"""passt as a newcomer runs it, `ringside run --backend passt`, over vhost-user: no INDIRECT_DESC, no checksums, and it takes frames in
one descriptor alone (docs/findings.md). Everything goes to the forwarded ports of the namespace's loopback."""
import os
import random
import re
import socket
import subprocess
import threading
import time
import types

import pytest

from rslib.common import ROOT
from rslib.conform import switches
from rslib.conform.local import Unavailable
from rslib.netns import Netns

HOST, DATA = '127.0.0.1', random.Random(16).randbytes(4 << 20)


@pytest.fixture(scope='module', name='guest')
def started(image, tmp_path_factory):
    """The guest behind passt, in a namespace with the default route that passt wants; and its console's file."""
    if os.geteuid() != 0:
        pytest.skip('needs root, for a namespace with a route')
    try:
        folder = os.path.dirname(switches.from_script('passt.sh'))
    except Unavailable as e:
        pytest.skip(str(e))
    log = tmp_path_factory.mktemp('passt') / 'console'
    with Netns() as netns, open(log, 'wb') as out:
        switches.passt_route(netns)
        process = netns.popen([os.path.join(ROOT, 'tools', 'ringside'), 'run', '--image', image, '--backend', 'passt'],
                              stdout=out, stderr=subprocess.STDOUT, env={**os.environ, 'PATH': f'{folder}:{os.environ["PATH"]}'})
        deadline = time.monotonic() + 30
        while 'ringside: ready' not in log.read_text(errors='replace').replace('"ringside: ready"', ''):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text(errors='replace')
            time.sleep(0.05)
        yield types.SimpleNamespace(netns=netns, process=process, log=log)
    assert 'ASSERTION' not in log.read_text(errors='replace')


def dial(guest, port, kind=socket.SOCK_STREAM):
    """A socket to a forwarded port."""
    s = guest.netns.socket(socket.AF_INET, kind)
    s.settimeout(20)
    s.connect((HOST, port))
    return s


def read(s, most=len(DATA)):
    """What comes until there are `most` bytes, or the end."""
    got = bytearray()
    while len(got) < most and (piece := s.recv(min(1 << 16, most - len(got)))):
        got += piece
    return bytes(got)


def test_stream_comes_back(guest):
    """4 MiB both ways at once: what passt marks as checked is taken, and what the guest sends arrives."""
    with dial(guest, 10007) as s:
        sender = threading.Thread(target=lambda: (s.sendall(DATA), s.shutdown(socket.SHUT_WR)))
        sender.start()
        got = read(s)
        sender.join()
    assert got == DATA


def test_datagrams_of_every_size(guest):
    """Up to the longest that is one frame: in the guest's answer all of it is in one descriptor."""
    with dial(guest, 10007, socket.SOCK_DGRAM) as s:
        for size in (1, 200, 226, 227, 228, 250, 300, 700, 1400, 1471, 1472):
            s.send(DATA[:size])
            assert s.recv(4096) == DATA[:size]


def test_connections_and_page(guest):
    """One connection after the other, and the counters, which no drop has changed."""
    for n in range(1, 60):
        with dial(guest, 10007) as s:
            s.sendall(DATA[:n * 100])
            assert read(s, n * 100) == DATA[:n * 100]
    with dial(guest, 8080) as s:
        s.sendall(b'GET /metrics HTTP/1.0\r\n\r\n')
        page = read(s)
    dropped = dict(re.findall(r'ringside_rx_dropped_total\{.*reason="(\w+)"\} (\d+)', page.decode()))
    assert dropped and set(dropped.values()) == {'0'}
    assert guest.process.poll() is None
