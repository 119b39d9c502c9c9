"""The clients of the bench: unmodified netperf, and ping. A test is named as netperf names it; a run is by count, so that
what it costs can be told from what setting it up costs."""
import dataclasses
import os
import re
import subprocess

from ..common import ROOT, UsageError

HOST, GUEST, PREFIX = '198.18.0.1', '198.18.0.2', 24
KEYS = ('THROUGHPUT', 'THROUGHPUT_UNITS', 'ELAPSED_TIME', 'TRANSACTION_RATE', 'LOCAL_SEND_CALLS', 'LOCAL_BYTES_SENT',
        'LOCAL_BYTES_RECVD', 'REMOTE_BYTES_SENT', 'REMOTE_BYTES_RECVD', 'REMOTE_RECV_CALLS', 'MEAN_LATENCY', 'P99_LATENCY')


@dataclasses.dataclass(frozen=True)
class Test:
    """A row of the bench. unit: what costs are divided by; count: how many units (transactions, bytes) one run takes."""
    name: str
    netperf: str
    unit: str
    options: tuple = ()
    count: int = 10000


TESTS = {t.name: t for t in (
    Test('TCP_RR', 'TCP_RR', 'transaction', ('-r', '1,1'), 10000),
    Test('UDP_RR', 'UDP_RR', 'transaction', ('-r', '1,1'), 10000),
    Test('TCP_CRR', 'TCP_CRR', 'transaction', ('-r', '1,1'), 2000),
)}


class ClientError(Exception):
    """A client failed; the text is one line."""


def find_netperf():
    """The path of a netperf client, by tools/netperf.sh."""
    done = subprocess.run([os.path.join(ROOT, 'tools', 'netperf.sh')], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          text=True, timeout=1500, check=False)
    if done.returncode:
        raise UsageError('there is no netperf client (lines above)')
    return done.stdout.strip()


def netperf_argv(netperf, test, length, host=GUEST):
    """netperf's command line. length: seconds, or minus a count of transactions or bytes."""
    return [netperf, '-H', host, '-t', test.netperf, '-P', '0', '-l', str(length), '--', *test.options, '-k', ','.join(KEYS)]


def parse_keyval(text):
    """netperf's keyval output as a dict; numbers as floats. ClientError if it has none."""
    found = dict(re.findall(r'^([A-Z0-9_]+)=(.*)$', text, re.MULTILINE))
    if 'THROUGHPUT' not in found:
        raise ClientError('netperf printed no result: ' + (' / '.join(text.strip().splitlines()) or 'nothing'))
    return {key: float(value) if re.fullmatch(r'-?\d+(\.\d*)?', value) else value for key, value in found.items()}


def run_netperf(netns, netperf, test, length, timeout=120):
    """Runs one client to its end inside the namespace; returns its results."""
    try:
        done = netns.run(netperf_argv(netperf, test, length), timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise ClientError(f'netperf {test.name} did not end within {timeout} s') from None
    if done.returncode:
        raise ClientError(f'netperf {test.name}: exit status {done.returncode}: '
                          + ' / '.join((done.stderr or done.stdout).strip().splitlines()))
    return parse_keyval(done.stdout)
