"""The flight recorder (docs/trace.md): what /trace says of each queue is read line by line and holds together, index by index; what a
reset prints has the fault in it. With times (trace=on), and without, from the rings' own memory."""
import re
import time

import pytest

import liar
import rawtcp
import rows
import test_liar
import traffic
import wires
from prometheus import Answer, get_request
from rslib.qemu import Guest, Machine
from test_metrics import get

OPERATIONS = 256
HEADINGS = (
    r'is the (receive|transmit|control) queue of core (\d+)(?:; operations have no times: trace=on in the boot line records them)?',
    r'split ring of (\d+), (?:event index|flags); buffers with the device: (\d+); free descriptors: (\d+)',
    r'driver: avail (\d+) filled, (\d+) shown; used (\d+) taken; wants an interrupt: (?:no|at used \d+)',
    r'device: used (\d+); wants a kick: (?:no|yes|at avail \d+)')
WRONG = r'wrong used entries: (\d+); first: (id \d+, valid is below|length \d+, valid is up to|index \d+, valid is up to) \d+(; the queue is broken)?'
ENTRY = r'(\d+\.\d{6}) (\S.*?) +avail +(\d+) used +(\d+)(?: (.*))?'
DETAILS = {
    'laid out': r'taken back: (\d+) buffers', 'add': r'(\d+) bytes, head (\d+), pieces (\d+)', 'add: no room': r'(\d+) bytes, free \d+, pieces \d+',
    'publish': r'(\d+) entries, their event (\d+)', 'publish, kick': r'(\d+) entries, their event (\d+)', 'kick again': '',
    'pop': r'(\d+) bytes, head (\d+)', 'arm': r'our event (\d+)', 'arm: too late': r'our event (\d+)', 'disarm': '', 'interrupt': '',
    'BAD USED ID': r'(\d+)', 'BAD LENGTH': r'(\d+) bytes, head (\d+)', 'BAD INDEX': r'(\d+), shown to the device (\d+)'}
AVAIL = r'avail\[(\d+)\] head (\d+)(?:, (\d+) bytes, pieces (\d+), (?:with the device|not shown yet))?'
USED = r'used\[(\d+)\] id (\d+), (\d+) bytes(, BAD ID)?(, not taken yet|, for no buffer)?'


class Queue:
    """One queue's lines, read and checked."""

    def __init__(self, lines):
        told = [re.fullmatch(pattern, line) for pattern, line in zip(HEADINGS, lines)]
        assert len(told) == 4 and all(told), lines[:5]
        self.role, self.core = told[0].group(1), int(told[0].group(2))
        self.size, self.held, self.free = map(int, told[1].groups())
        self.filled, self.shown, self.taken = map(int, told[2].groups())
        self.device_used = int(told[3].group(1))
        rest = lines[4:]
        self.wrong = re.fullmatch(WRONG, rest[0]) if rest and rest[0].startswith('wrong') else None
        rest = rest[1:] if self.wrong else rest
        self.record, self.avail, self.used = [], [], []
        for line in rest:
            self._line(line)
        assert len(self.record) + len(self.avail) + len([u for u in self.used if not u[4]]) <= OPERATIONS
        self._check_rings()
        self._check_record()

    def _line(self, line):
        if match := re.fullmatch(AVAIL, line):
            self.avail.append(match.groups())
        elif match := re.fullmatch(USED, line):
            self.used.append(match.groups())
        else:
            match = re.fullmatch(ENTRY, line)
            assert match and not self.used, line
            when, what, avail, used, detail = match.groups()
            detail = re.fullmatch(DETAILS[what], detail or '')
            assert detail, line
            self.record.append((float(when), what, int(avail), int(used), [int(x) for x in detail.groups()]))

    def _check_rings(self):
        """Without gaps, up to where the driver is."""
        for entries, end in ((self.avail, self.filled), ([u for u in self.used if not u[4]], self.taken)):
            at = [int(entry[0]) for entry in entries]
            assert at == [(end - len(at) + i) & 0xFFFF for i in range(len(at))]
            assert all(int(entry[1]) < self.size or self.wrong for entry in entries)
        untaken = [int(u[0]) for u in self.used if u[4]]
        assert untaken == [(self.taken + i) & 0xFFFF for i in range(len(untaken))]

    def _check_record(self):
        """Each operation moves the indices as it says, and what is made available is what was added."""
        added = None
        for before, now in zip(self.record, self.record[1:]):
            what, (avail, used), detail = now[1], now[2:4], now[4]
            assert now[0] >= before[0]
            if what == 'laid out':
                assert (avail, used) == (0, 0)
                added = 0
                continue
            adds = what == 'add'
            assert (avail - before[2]) & 0xFFFF == adds, now
            assert (used - before[3]) & 0xFFFF == 0 or what in ('pop', 'BAD USED ID', 'BAD LENGTH', 'BAD INDEX'), now
            added = added + adds if added is not None else None
            if what.startswith('publish'):
                assert added in (None, detail[0]) and detail[0] > 0, now
                added = 0
        if self.record and 'BAD INDEX' not in self.kinds():
            assert self.record[-1][2:4] == (self.filled, self.taken)

    def kinds(self):
        """The operations' names."""
        return {entry[1] for entry in self.record}


def read(lines):
    """All queues by index, of lines `qN ...` one queue behind the other."""
    queues = {}
    for line in lines:
        match = re.fullmatch(r'q(\d+) (\S.*\S)', line)
        assert match, line
        queues.setdefault(int(match.group(1)), []).append(match.group(2))
    return {index: Queue(told) for index, told in queues.items()}


@pytest.mark.skipif(not wires.have_tap(), reason='no rights to /dev/net/tun')
@pytest.mark.parametrize('cores, words', [
    (2, 'trace=on'), (1, ''), pytest.param(4, 'ring=16', marks=pytest.mark.full),
    pytest.param(1, 'trace=on features=-event_idx,-indirect_desc ring=16', marks=pytest.mark.full),
    pytest.param(4, 'trace=on features=-mq poll=0', marks=pytest.mark.full)])
def test_page(image, cores, words):
    """Traffic, and then what each queue says."""
    pairs = 1 if '-mq' in words else cores
    with wires.TapWire(queues=cores) as wire:
        props = {'mq': 'on', 'vectors': 2 * cores + 2} if cores > 1 else {}
        with Guest(Machine(image, smp=cores, append=f'{wire.words()} {words}', netdev=wire.netdev(), props=props), netns=wire.netns) as guest:
            guest.wait_ready(rows.SHORT)
            assert traffic.udp_echo(wire.udp(7), 20, (64, 1400), window=1).lost == 0
            for seed in range(8):
                traffic.tcp_echo(wire.tcp(7), 100_000, seed)
            answer = get(wire, '/trace')
            assert answer.headers['content-type'] == 'text/plain; charset=utf-8'
            queues = read(answer.body.decode('ascii').splitlines())
            guest.finish()
    assert [queue.role for _, queue in sorted(queues.items())][:2 * pairs] == ['receive', 'transmit'] * pairs
    assert [queue.core for _, queue in sorted(queues.items())][:2 * pairs] == [i // 2 for i in range(2 * pairs)]
    assert not any(queue.wrong for queue in queues.values())
    recorded = set.union(*(queue.kinds() for queue in queues.values()))
    if 'trace=on' in words:
        assert {'add', 'publish', 'publish, kick', 'pop', 'arm', 'disarm', 'interrupt'} <= recorded
        assert not any(queue.avail for queue in queues.values())
        control = queues[2 * pairs]
        assert control.role == 'control' and (pairs == 1 or {'add', 'publish, kick', 'pop'} <= control.kinds())
        assert max(len(queue.record) for queue in queues.values()) == OPERATIONS
    else:
        assert not recorded
        assert all(queue.avail and queue.used for queue in queues.values() if queue.taken)
        assert len(queues[0].avail) == min(OPERATIONS // 2, queues[0].size)


def printed(guest, last, since):
    """The queues as the console has them, the last one's number given."""
    guest.wait_for(rf'trace: q{last} device: .*\n', 10, since)
    time.sleep(0.3)                     # its operations
    return read(re.findall(r'\] trace: (q\d+ .*)', guest.console[since:]))


@pytest.mark.parametrize('words', ['trace=on', ''], ids=['recorded', 'rings'])
@pytest.mark.parametrize('pairs, lie, side', [
    (1, 'index_jump', 'tx'), *(pytest.param(*row, marks=pytest.mark.full)
                               for row in ((2, 'index_jump', 'tx'), (1, 'index_jump', 'rx'), (2, 'index_back', 'rx')))])
def test_reset_prints(image, pairs, lie, side, words):
    """A used index that runs ahead: the queue is broken, the device is reset, and the console says what led to it, once in a while
    only; /trace goes on."""
    with test_liar.guest_on(image, pairs, words, features=liar.FEATURES) as (wire, guest, device):
        for turn in range(2):
            since = guest.mark()
            device.lie(lie, side, 1)
            streams = test_liar.streams(wire, pairs, 20_000)
            guest.wait_for(test_liar.RESET, 10, since)
            for stream in streams:
                stream.wait_echo(20)
                stream.close()
            if turn == 0:
                queues = printed(guest, 2 * pairs, since)
                time.sleep(1)           # resets are a second apart
        guest.wait_for("trace: the rings' operations are not printed: they were a moment ago", 5, since)
        connection = rawtcp.RawTcp(wire, wires.GUEST4, 80, get_request('/trace'), echo=False).start()
        connection.wait(lambda: connection.peer_fin, 20, '/trace')
        connection.close()
        after = read(Answer(bytes(connection.got)).body.decode('ascii').splitlines())
    assert sorted(queues) == list(range(2 * pairs + 1))
    broken = [queue for queue in queues.values() if queue.wrong and queue.wrong.group(3)]
    assert broken and all(queue.role == ('transmit' if side == 'tx' else 'receive') for queue in broken)
    for queue in broken:
        assert queue.device_used != queue.taken and any(u[4] for u in queue.used)
        assert side == 'rx' or queue.used[-1][4] == ', for no buffer'      # (of receive buffers the device has many)
        assert ('BAD INDEX' in queue.kinds()) == bool(words)
    assert not any(queue.wrong for queue in after.values())
    if words:
        transmit = after[1]             # of a receive queue the new ring's buffers have pushed out what was before
        assert 'laid out' in [entry[1] for entry in transmit.record[1:]] and transmit.record[0][0] < transmit.record[-1][0]
