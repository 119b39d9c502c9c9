"""The clients of the bench: unmodified netperf, and ping. A test is named as netperf names it. Costs are taken from runs by
count, so that what a test costs can be told from what setting it up costs; rates from runs by time."""
import dataclasses
import os
import re
import selectors
import subprocess
import sys
import time

from ..common import ROOT, UsageError
from ..netns import dies_with_parent, end_process

DEVICE = 'tap0'
HOST, GUEST, PREFIX = '198.18.0.1', '198.18.0.2', 24
KEYS = ('THROUGHPUT', 'THROUGHPUT_UNITS', 'ELAPSED_TIME', 'LOCAL_SEND_CALLS', 'LOCAL_BYTES_SENT', 'LOCAL_BYTES_RECVD',
        'REMOTE_RECV_CALLS', 'MEAN_LATENCY', 'P99_LATENCY')
KIB = 1024


class ClientError(Exception):
    """A client failed; the text is one line."""


@dataclasses.dataclass(frozen=True)
class Test:
    """A kind of row. unit: what costs are divided by. rate: the unit of its rate. count: units of one run by count, for all
    sessions together; 0: netperf cannot do it by count. size: of messages, by default; sizes names netperf's option for it."""
    name: str
    unit: str
    rate: str
    count: int
    size: int = 0
    sizes: str = ''
    about: str = ''

    @property
    def is_stream(self):
        """Whether units are KiB, so that netperf's counts are bytes."""
        return self.unit == 'KiB'


TESTS = {t.name: t for t in (
    Test('TCP_RR', 'transaction', 'trans/s', 8000, 1, '-r {0},{0}', 'a byte there and a byte back on one connection'),
    Test('UDP_RR', 'transaction', 'trans/s', 8000, 1, '-r {0},{0}', 'the same in datagrams'),
    Test('TCP_CRR', 'transaction', 'trans/s', 1500, 1, '-r {0},{0}', 'a connection for each byte there and back'),
    Test('TCP_STREAM', 'KiB', 'Mbit/s', 48 * KIB, 16384, '-m {0}', 'bulk data to the guest'),
    Test('TCP_MAERTS', 'KiB', 'Mbit/s', 48 * KIB, 16384, '-m ,{0}', 'bulk data from the guest'),
    Test('UDP_STREAM', 'packet', 'packets/s', 0, 22, '-m {0}', 'datagrams to the guest as fast as the host can'),
    Test('PING', 'echo', 'echoes/s', 8000, 56, '', 'ping -f'),
    Test('MACSWAP', 'frame', 'frames/s', 40000, 64, '', 'frames sent back without a stack (apps=macswap)'),
    Test('RXONLY', 'frame', 'frames/s', 40000, 64, '', 'frames taken without a stack (apps=rxonly)'),
    Test('TXONLY', 'frame', 'frames/s', 0, 64, '', 'frames sent without a stack (apps=txonly)'),
    Test('PING_LOAD', 'echo', 'echoes/s', 8000, 1024, '', 'ping -f -l 120: 120 echoes under way'),
)}
PING_UNDER_WAY = {'PING': 1, 'PING_LOAD': 120}
LAYER2 = ('MACSWAP', 'RXONLY', 'TXONLY')        # guests without a stack: frames.py is the client, TXONLY needs none


@dataclasses.dataclass(frozen=True)
class Result:
    """What a client, or all clients of a run together, saw: units done, units of its rate per second, seconds, the share
    of what was sent that did not arrive, latency of a transaction in microseconds (mean and 99th percentile, 0: unknown)."""
    units: float
    rate: float
    seconds: float
    lost: float = 0
    mean_us: float = 0
    p99_us: float = 0


def find_netperf():
    """The path of a netperf client, by tools/netperf.sh."""
    done = subprocess.run([os.path.join(ROOT, 'tools', 'netperf.sh')], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          text=True, timeout=1500, check=False)
    if done.returncode:
        raise UsageError('there is no netperf client (lines above)')
    return done.stdout.strip()


def argv(netperf, test, length, size=0, host=GUEST):
    """A client's command line. length: seconds, or minus a count of units. size: of messages, 0: the test's own."""
    size = size or test.size
    if test.name in PING_UNDER_WAY:
        how = ['-c', str(-length)] if length < 0 else ['-w', str(length)]
        ahead = ['-l', str(PING_UNDER_WAY[test.name])] if PING_UNDER_WAY[test.name] > 1 else []
        return ['ping', '-q', '-n', '-f', *how, '-s', str(size), *ahead, host]
    if test.name in LAYER2:
        return [sys.executable, os.path.join(os.path.dirname(__file__), 'frames.py'), DEVICE, str(-length), str(size)]
    if length < 0 and test.is_stream:
        length *= KIB
    sizes = test.sizes.format(size).split()
    return [netperf, '-H', host, '-t', test.name, '-P', '0', '-l', str(length), '--', *sizes, '-k', ','.join(KEYS)]


def parse_ping(text):
    """ping's summary as a Result."""
    match = re.search(r'(\d+) packets transmitted, (\d+) received.* time (\d+)ms', text)
    if not match:
        raise ClientError('ping printed no result: ' + (' / '.join(text.strip().splitlines()) or 'nothing'))
    sent, got, ms = map(int, match.groups())
    mean = re.search(r'= [\d.]+/([\d.]+)/', text)
    seconds = max(ms, 1) / 1000
    return Result(got, got / seconds, seconds, 1 - got / sent if sent else 0, 1000 * float(mean[1]) if mean else 0)


def parse_frames(text):
    """The line of frames.py as a Result; units are the frames that were sent."""
    match = re.match(r'sent (\d+) received (\d+) seconds ([\d.]+)', text)
    if not match:
        raise ClientError('frames.py printed no result: ' + (' / '.join(text.strip().splitlines()) or 'nothing'))
    sent, got, seconds = int(match[1]), int(match[2]), float(match[3])
    return Result(sent, sent / seconds, seconds, 1 - got / sent if sent else 0)


def parse_netperf(test, text):
    """netperf's keyval output as a Result."""
    found = dict(re.findall(r'^([A-Z0-9_]+)=(.*)$', text, re.MULTILINE))
    try:
        value = {key: float(found[key]) for key in KEYS if key != 'THROUGHPUT_UNITS'}
    except (KeyError, ValueError):
        raise ClientError(f'netperf {test.name} printed no result: '
                          + (' / '.join(text.strip().splitlines()) or 'nothing')) from None
    seconds, rate, lost = value['ELAPSED_TIME'], value['THROUGHPUT'], 0
    if test.unit == 'transaction':
        units = value['LOCAL_SEND_CALLS']
    elif test.name == 'UDP_STREAM':
        units, sent = value['REMOTE_RECV_CALLS'], value['LOCAL_SEND_CALLS']
        rate, lost = units / seconds if seconds else 0, 1 - units / sent if sent else 0
    else:
        units = (value['LOCAL_BYTES_SENT'] or value['LOCAL_BYTES_RECVD']) / KIB
    latency = (value['MEAN_LATENCY'], value['P99_LATENCY']) if test.unit == 'transaction' else (0, 0)
    return Result(units, rate, seconds, lost, *latency)


def parse(test, text):
    """What a test's client printed as a Result."""
    if test.name in LAYER2:
        return parse_frames(text)
    return parse_ping(text) if test.name in PING_UNDER_WAY else parse_netperf(test, text)


def together(results, ends):
    """The results of clients, and when each ended, as one. Many clients do not start at the same moment: what all did is
    divided by the time from the first one's start to the last one's end, not added up rate by rate. Latencies are averaged."""
    n = len(results)
    span = max(ends) - min(end - r.seconds for end, r in zip(ends, results))
    busy = sum(r.seconds for r in results)          # as if one after the other
    rate = sum(r.rate * r.seconds for r in results) / span if n > 1 and span > 0 else sum(r.rate for r in results)
    return Result(sum(r.units for r in results), rate, span if n > 1 else busy, sum(r.lost for r in results) / n,
                  sum(r.mean_us for r in results) / n, max(r.p99_us for r in results))


def wait_all(children, timeout):
    """Waits for children to end; returns when each did, in order. subprocess.TimeoutExpired if one does not."""
    ends, waiting = {}, selectors.DefaultSelector()
    until = time.monotonic() + timeout
    try:
        for number, child in enumerate(children):
            waiting.register(os.pidfd_open(child.pid), selectors.EVENT_READ, number)
        while len(ends) < len(children):
            ready = waiting.select(max(until - time.monotonic(), 0))
            if not ready:
                raise subprocess.TimeoutExpired(children[0].args, timeout)
            for key, _ in ready:
                ends[key.data] = time.monotonic()
                waiting.unregister(key.fd)
                os.close(key.fd)
    finally:
        for key in list(waiting.get_map().values()):
            os.close(key.fd)
        waiting.close()
    return [ends[number] for number in range(len(children))]


def run(netns, netperf, test, length, sessions=1, size=0, timeout=60):
    """Runs so many clients at once inside the namespace, to their end. length: seconds of each, or minus a count of units
    of all together. Returns the Result of all; ClientError if one fails or is not done in time."""
    if length < 0:
        length = -max(1, -length // sessions)
    command = argv(netperf, test, length, size)
    children = []
    try:
        for _ in range(sessions):
            children.append(subprocess.Popen(netns.enter(dies_with_parent(command)), stdin=subprocess.DEVNULL,
                                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        ends = wait_all(children, timeout)          # what a client prints fits the pipe
        texts = [child.stdout.read() for child in children]
    except subprocess.TimeoutExpired:
        raise ClientError(f'{test.name}: not done within {timeout} s') from None
    finally:
        for child in children:
            end_process(child)
            child.stdout.close()
    return together([parse(test, text) for text in texts], ends)
