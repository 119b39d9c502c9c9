"""tools/rslib/bench: what it reads, counts, sums up and prints; the short form of the bench itself on a real guest."""
import json
import math
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from helpers import ROOT, TOOLS, one_line, tool
from rslib.bench import main as bench_main
from rslib.bench import clients, counter, guests, lab, plan, plots, profile, report, station, stats, switch, symbols, trace
from rslib.bench.runner import Results, describe
from rslib.bench.station import Sample, Setup, parse_metrics
from rslib.common import UsageError

NETPERF = ('THROUGHPUT=14707.35\nTHROUGHPUT_UNITS=Trans/s\nELAPSED_TIME=0.68\nLOCAL_SEND_CALLS=10000\nLOCAL_BYTES_SENT=10000\n'
           'LOCAL_BYTES_RECVD=10000\nREMOTE_RECV_CALLS=10000\nMEAN_LATENCY=67.86\nP99_LATENCY=318\n')
PING = '''PING 198.18.0.2 (198.18.0.2) 1024(1052) bytes of data.

--- 198.18.0.2 ping statistics ---
2000 packets transmitted, 1500 received, 25% packet loss, time 500ms
rtt min/avg/max/mdev = 0.405/1.056/2.293/0.258 ms, pipe 120, ipg/ewma 0.011/0.417 ms
'''


# ---- clients

def test_netperf_command_lines():
    line = clients.argv('np', clients.TESTS['TCP_RR'], -500)
    assert line[:9] == ['np', '-H', '198.18.0.2', '-t', 'TCP_RR', '-P', '0', '-l', '-500'] and line[9:12] == ['--', '-r', '1,1']
    assert '-2097152' in clients.argv('np', clients.TESTS['TCP_STREAM'], -2048), 'a stream is counted in KiB, netperf in bytes'
    assert ['-m', ',512'] == clients.argv('np', clients.TESTS['TCP_MAERTS'], 3, 512)[10:12]
    assert clients.argv('np', clients.TESTS['PING'], -40) == ['ping', '-q', '-n', '-f', '-c', '40', '-s', '56', '198.18.0.2']
    assert clients.argv('np', clients.TESTS['PING_LOAD'], 2)[3:] == ['-f', '-w', '2', '-s', '1024', '-l', '120', '198.18.0.2']


def test_netperf_results():
    rr = clients.parse_netperf(clients.TESTS['TCP_RR'], NETPERF)
    assert (rr.units, rr.rate, rr.seconds, rr.mean_us, rr.p99_us) == (10000, 14707.35, 0.68, 67.86, 318)
    stream = clients.parse_netperf(clients.TESTS['TCP_STREAM'], NETPERF.replace('SENT=10000', 'SENT=20480'))
    assert stream.units == 20 and stream.mean_us == 0
    maerts = clients.parse_netperf(clients.TESTS['TCP_MAERTS'], NETPERF.replace('SENT=10000', 'SENT=0').replace('RECVD=10000', 'RECVD=4096'))
    assert maerts.units == 4
    udp = clients.parse_netperf(clients.TESTS['UDP_STREAM'], NETPERF.replace('RECV_CALLS=10000', 'RECV_CALLS=6800'))
    assert udp.units == 6800 and udp.rate == 10000 and udp.lost == pytest.approx(0.32)


def test_a_client_without_results_is_an_error():
    for text in ('', 'establish control: are you sure there is a netserver?\n', NETPERF.replace('0.68', 'none')):
        with pytest.raises(clients.ClientError, match='printed no result'):
            clients.parse_netperf(clients.TESTS['TCP_RR'], text)
    with pytest.raises(clients.ClientError, match='unknown host'):
        clients.parse_ping('ping: unknown host\n')


def test_ping_results_and_sessions_together():
    ping = clients.parse_ping(PING)
    assert (ping.units, ping.rate, ping.seconds, ping.lost, ping.mean_us) == (1500, 3000, 0.5, 0.25, 1056)
    # The second began 1.5 s after the first had: 1,500 + 2,000 units in 3.5 s, not 3,000 + 1,000 a second.
    both = clients.together([ping, clients.Result(2000, 1000, 2, 0.75, 944, 7)], [10.5, 13.5])
    assert (both.units, both.rate, both.seconds, both.lost, both.mean_us, both.p99_us) == (3500, 1000, 3.5, 0.5, 1000, 7)
    assert clients.together([ping], [10.5]) == ping


# ---- counts

def counter_file(cpus=(), blocks=()):
    """The bytes of a counter file."""
    data = bytearray(counter.SIZE)
    for i, numbers in enumerate(cpus):
        counter.CPU.pack_into(data, i * counter.CPU.size, *numbers)
    for i, numbers in enumerate(blocks):
        counter.BLOCK.pack_into(data, counter.CPU.size * counter.VCPUS + (7 + i) * counter.BLOCK.size, *numbers)
    return bytes(data)


def test_counts_take_a_string_instruction_once():
    data = counter_file([(1000, 300, 50, 2, 9, 40), (5, 0, 1, 0, 0, 0)])
    first, second = counter.parse_cpus(data, 2)
    assert (first.instructions, first.rep_steps, first.blocks, first.wakes, first.polled) == (702, 298, 50, 9, 40)
    assert (first + second).instructions == 707 and (first - second).blocks == 49


def test_blocks_and_their_difference():
    before = counter.parse_blocks(counter_file(blocks=[(0x1000, 10, 0, 0, 4, 9, b'abcd' * 7), (0x2000, 3, 3, 1, 1, 2, b'\xf3\xa4')]))
    after = counter.parse_blocks(counter_file(blocks=[(0x1000, 25, 0, 0, 4, 9, b'abcd' * 7), (0x2000, 3, 3, 1, 1, 2, b'\xf3\xa4'),
                                                      (0x3000, 2, 0, 0, 5, 20, b'xyz')]))
    changed = counter.difference(after, before)
    assert {block.address: values for block, values in changed.items()} == {0x1000: (15, 60, 0), 0x3000: (2, 10, 0)}
    assert {b.address: b.first for b in before} == {0x1000: (b'abcd' * 7)[:9], 0x2000: b'\xf3\xa4'}
    assert [v for b, v in before.items() if b.address == 0x2000] == [(3, 1, 2)], 'one string instruction of three steps'


def test_metrics_are_summed_over_cores():
    text = 'ringside_tx_kicks_total{core="0",queue="1"} 3\nringside_tx_kicks_total{core="1",queue="3"} 4\nringside_tx_kicks_total_x 9\n'
    assert parse_metrics(text)['tx_kicks'] == 7 and parse_metrics(text)['halts'] == 0


def test_trace_tells_queues_apart():
    t = trace.Trace('/nonexistent')
    text = ('1@2.3:virtio_queue_notify vdev 0x5 n 0 vq 0x1000\n1@2.3:virtio_queue_notify vdev 0x5 n 1 vq 0x1098\n'
            '1@2.3:virtio_notify vdev 0x5 vq 0x1098\n1@2.3:virtio_notify_irqfd vdev 0x5 vq 0x1130\n'
            '1@2.3:virtio_notify vdev 0x5 vq 0x11c8\n1@2.3:virtio_notify_config vdev 0x5\n')
    assert t.count(text) == {('kicks', 'rx'): 1, ('kicks', 'tx'): 1, ('interrupts', 'rx'): 1, ('interrupts', 'tx'): 2}
    assert t.numbers['0x11c8'] == 3, 'never kicked: known by its place in the array'


def test_trace_follows_a_growing_file(tmp_path):
    path = tmp_path / 'trace'
    path.write_text('1@2.3:virtio_queue_notify vdev 0x5 n 1 vq 0x10\n1@2.3:virtio_queue_no')
    t = trace.Trace(path)
    assert t.read()['kicks', 'tx'] == 1
    with open(path, 'a', encoding='ascii') as f:
        f.write('tify vdev 0x5 n 1 vq 0x10\n')
    assert t.read()['kicks', 'tx'] == 1 and t.read()['kicks', 'tx'] == 0


def test_the_plugin_counts_what_a_program_does(tmp_path):
    """A multiboot image of known length: 1,000 times round a loop of 3, then a string instruction of 500 steps."""
    (tmp_path / 'a.S').write_text('''
    .section .text
    .code32
    .align 4
    .long 0x1BADB002, 0, -0x1BADB002
    .globl _start
_start:
    movl $1000, %ecx
again:
    nop
    decl %ecx
    jnz again
    movl $buffer, %edi
    movl $500, %ecx
    rep stosb
    movb $0, %al
    outb %al, $0xf4
hang: jmp hang
    .bss
buffer: .skip 512
''')
    image = tmp_path / 'a.elf'
    subprocess.run(['gcc', '-m32', '-nostdlib', '-static', '-Wl,-Ttext=0x100000,--build-id=none', '-o', image, tmp_path / 'a.S'],
                   check=True, timeout=60)
    addresses = dict(re.findall(r'^0*([0-9a-f]+) . (again|_start)$', subprocess.run(
        ['nm', image], capture_output=True, text=True, check=True, timeout=20).stdout, re.MULTILINE))
    again, = (int(a, 16) for a, name in addresses.items() if name == 'again')
    counts = counter.Counter(counter.build_plugin(tmp_path), tmp_path, polling=[(again, again)])
    done = subprocess.run(['qemu-system-x86_64', '-nodefaults', '-no-reboot', '-display', 'none', '-m', '16', '-kernel', image,
                           '-device', 'isa-debug-exit,iobase=0xf4,iosize=4', *counts.argv()], timeout=60, check=False)
    assert done.returncode == 1
    ours = {block: values for block, values in counts.blocks().items() if 0x100000 <= block.address < 0x101000}
    steps = sum(v[2] for v in ours.values())
    assert steps == 500, 'a string instruction of 500 steps is one instruction, and its steps are counted apart'
    total = sum(v[1] for v in ours.values())
    assert 1 + 3 * 1000 + 3 + 2 <= total <= 1 + 3 * 1000 + 3 + 3, 'the last block may end with the jump'
    assert sum(v[0] for block, v in ours.items() if block.address == again) == 999, 'the first time round belongs to the block before'
    assert counts.total().polled == 999 * 3


# ---- from addresses to functions

@pytest.fixture(scope='module', name='program')
def make_program(tmp_path_factory):
    """A linked program with an inlined function, and one in an executable segment of its own far behind the others."""
    folder = tmp_path_factory.mktemp('profile')
    (folder / 'a.c').write_text('static inline __attribute__((always_inline)) int inner(int a) { return a * 77 + 5; }\n'
                                '__attribute__((noinline)) int outer(int a) { return inner(a) ^ a; }\n'
                                '__attribute__((noinline)) int other(int a) { return outer(a) - a * 3; }\n'
                                'int entry(void) { return other(3); }\n'
                                '__attribute__((section(".checks"))) int check(int a) { return outer(a) + 1; }\n')
    path = str(folder / 'program')
    subprocess.run(['gcc', '-g', '-O1', '-ffreestanding', '-fPIE', '-fno-asynchronous-unwind-tables', '-fcf-protection=none',
                    '-static-pie', '-nostdlib', '-Wl,--no-dynamic-linker,-z,norelro,-e,entry,-Ttext-segment=0x200000,--build-id=none',
                    '-Wl,--section-start=.checks=0x280000', '-o', path, str(folder / 'a.c')], check=True, timeout=60)
    return symbols.Program(path)


def blocks_of(program, base, times):
    """Blocks as if each function of a copy at base were one, run so many times."""
    found = {}
    starts = [offset for offset, _ in program.functions]
    for start, following in zip(starts, starts[1:] + [math.inf]):
        at, text = next((at, text) for at, text in program.texts if at <= start < at + len(text))
        end = min(following, at + len(text))
        inside = [a for a in symbols.instructions(program.path) if start <= a - program.base < end]
        text = text[start - at:end - at]
        found[counter.Block(base + start, len(inside), end - start, text[:28])] = (times, times * len(inside), 0)
    return found


def test_histogram_by_function(program):
    blocks = blocks_of(program, program.base, 10)
    elsewhere = counter.Block(0x9000, 3, 7, b'\x90' * 7)
    lines = {line.name: line for line in profile.histogram(program, {**blocks, elsewhere: (4, 12, 0)}, [program.base])}
    assert lines['outer'].calls == 10 and lines[profile.ELSEWHERE].instructions == 12
    assert sum(line.instructions for line in lines.values()) == sum(v[1] for v in blocks.values()) + 12
    parts = lines['outer'].parts
    assert parts['inner'] > 0 and sum(parts.values()) == pytest.approx(lines['outer'].instructions)
    assert dict(profile.by_source(lines.values()))['inner'] == pytest.approx(parts['inner'])


def test_histogram_of_a_copy_elsewhere(program):
    base = 0x7654000
    lines = profile.histogram(program, blocks_of(program, base, 6), [base])
    assert {line.name for line in lines} == {'outer', 'other', 'entry', 'check'} and all(line.calls == 6 for line in lines)
    assert profile.histogram(program, blocks_of(program, base, 6), [program.base])[0].name == profile.ELSEWHERE


def test_copies_are_found_by_their_bytes(program, monkeypatch):
    monkeypatch.setattr(symbols, 'MIN_VOTES', 3)
    assert len(program.texts) == 2
    blocks = {**blocks_of(program, program.base, 1), **blocks_of(program, 0x7654000, 1)}
    assert sorted(symbols.find_copies(program, blocks)) == [program.base, 0x7654000]
    assert symbols.find_copies(program, {counter.Block(0x5000 + i, 2, 3, bytes([i, 7, 9])): (1, 2, 0) for i in range(9)}) == []


def test_ranges_of_an_inlined_function(program):
    ranges = symbols.ranges_of(program.path, 'inner')
    outer = next(offset for offset, name in program.functions if name == 'outer') + program.base
    assert ranges and all(outer <= first <= last < outer + 32 for first, last in ranges)
    assert symbols.ranges_of(program.path, 'nothing') == []


def test_render_tells_what_is_left_out():
    text = profile.render([profile.Line('big', 90, 3, 2), profile.Line('small', 0.2)], 'echo')
    assert 'instructions per echo: 90.2' in text and '45.0  big  + 3.0 string steps' in text and '(1 functions below 0.5 each)' in text


# ---- statistics

def test_spread_and_ratio():
    s = stats.spread([3, None, 1, 2])
    assert (s.median, s.least, s.most, s.steady) == (2, 1, 3, False)
    assert stats.spread([100, 124]).steady and not stats.spread([100, 126]).steady
    assert stats.spread([0, 0.001]).steady, 'next to nothing'
    assert stats.spread([None]) is None and stats.ratio(s, None) is None
    assert stats.ratio(s, stats.spread([4])) == 0.5 and stats.ratio(s, stats.spread([0])) is None


def test_disturbances():
    idle = stats.Load(100, 0, 0.4)
    assert stats.disturbances(idle, stats.Load(110, 0, 2), 10, 9.5, 2) == []
    said = stats.disturbances(stats.Load(100, 0, 3.5), stats.Load(118, 2, 2), 10, 9, 2)
    assert [re.findall(r'[\d.]+', line)[0] for line in said] == ['3.5', '0.9', '0.2']
    parsed = stats.parse_stat('cpu  100 0 50 900 10 5 5 40 0 0\ncpu0 1\n', 1.5)
    assert parsed.busy * stats.TICKS == 160 and parsed.stolen * stats.TICKS == 40 and parsed.average == 1.5


# ---- tables

def results_for(table, names):
    """Results in which the k-th guest's figures are k + 1 times 100, with one failed measurement."""
    results = Results()
    for cell in table.cells():
        for k, name in enumerate(names if not cell.ours else names[:1]):
            f = 100.0 * (k + 1)
            results.samples[cell, name] = [Sample(1, f * n, 1, 0.25, f, f, f, f * n, f, 1, 0.5, 0.5, 1, 1, 9, {
                'rx_kicks': 0, 'tx_kicks': 1, 'rx_interrupts': 1, 'tx_interrupts': 1}) for n in (1, 1.1)]
    return results


@pytest.mark.parametrize('name', list(plan.TABLES))
@pytest.mark.parametrize('names', [['ringside', 'linux'], ['ringside'], ['ringside', 'linux', 'other.elf']])
def test_every_table_can_be_written(name, names, tmp_path):
    for full in (False, True):
        table = plan.TABLES[name](full)
        results = results_for(table, names)
        for block in report.Writer(results, names).blocks(table):
            assert all(len(row) == len(block.heads) for row in block.rows)
            text, markdown = report.as_text(block), report.as_markdown(block)
            assert block.title in text and markdown.count('\n|') == len(block.rows) + 2
            assert ('ratio' in markdown) <= ('linux' in names)
        rows = json.loads(json.dumps(report.as_json(table, results, names)))['rows']
        assert {r['guest'] for r in rows} == (set(names) if not all(c.ours for c in table.cells()) else {'ringside'})
    if shutil.which('gnuplot'):
        picture = plots.draw(table, results, names, tmp_path)
        assert (tmp_path / picture).read_bytes()[:8] == b'\x89PNG\r\n\x1a\n'


def test_rows_say_ratio_failure_and_unrest():
    table = plan.costs(False)
    results = results_for(table, ['ringside', 'linux'])
    first = table.rows[1].cells['poll0']
    results.samples[first, 'linux'] = [Sample(instructions=n, polled=0) for n in (100, 300)]
    results.errors[table.rows[2].cells['poll0'], 'linux'] = 'broken'
    instructions, events = report.Writer(results, ['ringside', 'linux']).blocks(table)
    assert instructions.rows[0][:6] == ['TCP_RR', 'transaction', '2,500', '105 (100-110)', '200 (100-300) ~', '0.53x']
    assert instructions.rows[1][4] == 'failed'
    assert any('Idle' in note and '50,000' in note for note in events.notes)
    apart, of = report.unsteady([table], results)
    assert len(apart) == 1 and 'linux' in apart[0] and of > 10


def test_a_feature_the_guest_does_not_take_is_named():
    table = plan.switches(False)
    results = results_for(table, ['ringside'])
    row = next(row for row in table.rows if row.labels == ('packed ring',))
    setup = row.cells['TCP_RR'].setup
    results.facts[setup, 'ringside'] = {'features': ['csum']}
    labels = [r[0] for r in report.Writer(results, ['ringside']).blocks(table)[0].rows]
    assert 'packed ring (the guest does not take packed)' in labels
    results.facts[setup, 'ringside'] = {'features': ['csum', 'packed']}
    assert 'packed ring' in [r[0] for r in report.Writer(results, ['ringside']).blocks(table)[0].rows]


def test_numbers():
    assert [report.number(v) for v in (None, 12345.6, 99.94, 1.234, 0.0123, 0)] == ['-', '12,346', '99.9', '1.23', '0.0123', '0.00']
    assert report.times(0.0123) == '0.012x' and report.times(3.456) == '3.46x'


def test_a_cell_with_the_tests_own_size_is_the_same_cell():
    assert plan.rate('TCP_RR', 1, 1) == plan.rate('TCP_RR') != plan.rate('TCP_RR', 1, 64)
    assert describe(Setup(2, props=(('ioeventfd', 'off'),), counted=True)) == '2 cores ioeventfd=off counted'


def test_the_short_form_fits_its_time():
    class Kind:
        """A stand-in for a guest."""
        def __init__(self, name, ours):
            self.name, self.ours = name, ours
    from rslib.bench.main import ROUNDS, SECONDS, SHORT
    from rslib.bench.runner import Runner
    cells = list(dict.fromkeys(c for make in plan.TABLES.values() for c in make(False).cells()))
    run = Runner([Kind('ringside', True), Kind('linux', False)], '', '', (), ROUNDS, SECONDS, SHORT, print)
    assert 240 < run.estimate(cells) < 600


# ---- a vhost-user switch

def test_the_switch_works_in_the_guests_memory(tmp_path):
    kind, setup = guests.Ringside('image.elf'), Setup(props=plan.NO_MSIX, counted=True, switched=True)
    line = ' '.join(station.machine(kind, setup, str(tmp_path)).argv())
    assert 'q35,memory-backend=mem0' in line and f'memory-backend-memfd,id=mem0,size={switch.MEMORY},share=on' in line
    assert f'socket,id=c0,path={tmp_path}/switch.sock' in line and 'vectors=0' in line and '-netdev tap' not in line
    assert f'net_vhost0,iface={tmp_path}/switch.sock,queues=2' in switch.argv('/switches', str(tmp_path), 'tap0', 2)
    assert '-netdev tap,' in ' '.join(station.machine(kind, Setup(), str(tmp_path)).argv())


def test_behind_a_switch_the_guests_own_counts_stand():
    found = {'cpu_us': 8, 'guest_rx_kicks': 2, 'guest_tx_kicks': 6, 'guest_rx_interrupts': 4, 'guest_tx_interrupts': 4}
    place = station.Station(None, Setup(counted=True, switched=True), None, None, None, None, '')
    sample = place._sample(clients.Result(1, 1, 1), found, 2)   # pylint: disable=protected-access
    assert (sample.kicks, sample.interrupts) == (4, 2), 'an interrupt without MSI-X is counted for both queues'
    assert place._sample(clients.Result(1, 1, 1), {'cpu_us': 8}, 2).kicks is None   # pylint: disable=protected-access


def test_without_a_switch_the_rest_is_measured(monkeypatch, capsys):
    def none():
        raise switch.Unavailable('no network')
    tables = [plan.TABLES['costs'](False), plan.TABLES['vhost-user'](False)]
    monkeypatch.setattr(switch, 'find', none)
    assert [t.name for t in bench_main._possible(tables)] == ['costs']      # pylint: disable=protected-access
    assert capsys.readouterr().out == 'left out: vhost-user: no network\n'
    assert bench_main._possible(tables[:1]) == tables[:1]       # pylint: disable=protected-access
    monkeypatch.setattr(switch, 'find', lambda: '/switches')
    assert bench_main._possible(tables) == tables       # pylint: disable=protected-access


# ---- the nested machine's

LAB = '''@ready ringside: ready
@bench TCP_RR 1 THROUGHPUT=900 THROUGHPUT_UNITS=Trans/s ELAPSED_TIME=0.01 LOCAL_SEND_CALLS=1 LOCAL_BYTES_SENT=1 LOCAL_BYTES_RECVD=1 REMOTE_RECV_CALLS=1 MEAN_LATENCY=5 P99_LATENCY=6 ; exits=40 irq_injections=10
@bench TCP_RR 101 THROUGHPUT=23000 THROUGHPUT_UNITS=Trans/s ELAPSED_TIME=0.01 LOCAL_SEND_CALLS=101 LOCAL_BYTES_SENT=101 LOCAL_BYTES_RECVD=101 REMOTE_RECV_CALLS=101 MEAN_LATENCY=5 P99_LATENCY=6 ; exits=240 irq_injections=60 halt_exits=5
'''


def test_lab_output_and_tables():
    rate, counted = lab.per_unit(lab.parse(LAB)['TCP_RR'])
    assert rate == 23000 and counted['exits'] == 2 and counted['irq_injections'] == 0.5 and counted['mmio_exits'] == 0
    asked = lab.places(['ringside', 'linux'])
    assert [p.name for p in asked][:3] == ['ringside poll=0, vhost-net', 'ringside, vhost-net', 'linux, vhost-net']
    found = {(p, 'TCP_RR'): [(1000.0 if p.guest == 'linux' else 1500.0, counted)] for p in asked}
    rates, exits = lab.tables(found, asked)
    assert rates.rows[0][3] == '1,500 = 1.50x' and exits.rows[0][2] == '2.00 / 0.50 / 0.0500' and rates.rows[1][3] == 'failed'
    assert '-l' not in lab.cases(lab.COUNTS) and 'TCP_STREAM 1 -1024 -m 16384 -k ' in lab.cases(lab.COUNTS)


def test_frames_without_a_stack():
    line = clients.argv('np', clients.TESTS['MACSWAP'], -500)
    assert line[-3:] == ['tap0', '500', '64'] and os.path.isfile(line[-4])
    got = clients.parse(clients.TESTS['MACSWAP'], 'sent 500 received 400 seconds 0.250000\n')
    assert (got.units, got.rate, got.seconds, got.lost) == (500, 2000, 0.25, pytest.approx(0.2))
    with pytest.raises(clients.ClientError, match='No such device'):
        clients.parse(clients.TESTS['RXONLY'], 'OSError: No such device\n')
    setups = [cell.setup for cell in plan.TABLES['layer2'](True).cells()]
    assert len(setups) == 6 and not any(setup.stack for setup in setups) and Setup(words='poll=0').stack
    assert 'MACSWAP' not in bench_main.PROFILED


# ---- the command

@pytest.mark.parametrize('args, words', [
    (('--table', 'Z'), ["'Z'", 'costs, clients, clients-costs, A, B, C, D, E, switches, vhost-user, layer2']),
    (('--lab', 'xen'), ["'xen'", 'kvm']),
    (('--profile', 'FTP'), ["'FTP'", 'TCP_RR']),
    (('--rounds', '0'), ["'0'", '1 to 100']),
    (('--seconds', 'x'), ["'x'", '1 to 600']),
    (('--image', '/no/such'), ['/no/such', 'FILE']),
    (('--backend', 'tap'), ['--backend', '--help']),
])
def test_bad_options_take_one_line(args, words):
    line = one_line(tool('ringside', 'bench', *args))
    for word in words:
        assert word in line


def test_an_image_with_its_boot_line(tmp_path):
    image = tmp_path / 'x.img'
    image.write_bytes(b'x')
    other = guests.parse_image(f'{image}:net={{ip}}/{{prefix}} via={{gw}} a:b')
    assert (other.name, other.append('poll=0')) == ('x.img', 'net=198.18.0.2/24 via=198.18.0.1 a:b')
    with pytest.raises(UsageError):
        guests.parse_image(str(tmp_path))
    same = [guests.parse_image(str(image)) for _ in range(3)]
    guests.tell_apart(same)
    assert [k.name for k in same] == ['x.img', 'x.img-2', 'x.img-3']


tap = pytest.mark.skipif(not os.access('/dev/net/tun', os.R_OK | os.W_OK), reason='no rights to /dev/net/tun')


@pytest.fixture(scope='module', name='ready')
def have_all():
    """Skips where the bench cannot run: no built guest, no netperf."""
    if not os.path.exists(os.path.join(ROOT, os.environ.get('BUILD') or 'build', 'ringside.elf')):
        pytest.skip('the guest is not built')
    if tool('netperf.sh', timeout=900).returncode:
        pytest.skip('no netperf client')


def children_of(pid):
    """Processes below a process, with their command lines."""
    out = subprocess.run(['ps', '-eo', 'pid=,ppid=,args='], capture_output=True, text=True, check=True, timeout=20).stdout
    rows = [line.split(None, 2) for line in out.splitlines()]
    found, frontier = {}, {str(pid)}
    while frontier:
        frontier = {p for p, parent, _ in rows if parent in frontier and p not in found}
        found.update({p: args for p, parent, args in rows if p in frontier})
    return found


@tap
def test_quick_bench(ready, tmp_path):
    """The whole way, on our guest: costs and rates of two tests, report, JSON."""
    done = tool('ringside', 'bench', '--quick', '--no-linux', '--rounds', '1', '--out', tmp_path / 'out', timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {r['test']: r['samples'][0] for r in json.loads((tmp_path / 'out' / 'costs.json').read_text())['rows']}
    rr, stream = rows['TCP_RR'], rows['TCP_STREAM']
    assert 500 < rr['instructions'] < 20000 and 0.98 < rr['kicks_tx'] < 1.2 and rr['interrupts_rx'] <= 1.1
    assert rr['guest']['tx_kicks'] == pytest.approx(rr['kicks_tx'], abs=0.05), "QEMU's and the guest's count of kicks agree"
    assert rr['guest']['rx_interrupts'] == pytest.approx(rr['interrupts_rx'], abs=0.05)
    assert 20 < stream['instructions'] < 20000 and stream['kicks_tx'] < 0.2
    assert all(r['samples'][0]['rate'] > 0 for r in json.loads((tmp_path / 'out' / 'rates.json').read_text())['rows'])
    assert '| TCP_RR |' in (tmp_path / 'out' / 'report.md').read_text()


@tap
def test_profile(ready, tmp_path):
    done = tool('ringside', 'bench', '--profile', 'TCP_RR', '--count', '2000', '--out', tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    match = re.search(r'instructions per transaction: ([\d.]+)', done.stdout)
    total = float(match[1])
    named = {name: float(n) for n, name in re.findall(r'^ *([\d.]+) +[\d.]+% +[\d.]+ +[\d.]+ +(\w+)', done.stdout, re.MULTILINE)}
    assert named['tcp_input'] > 50, 'each transaction goes through lwIP'
    assert sum(named.values()) > 0.8 * total, 'nearly all is named'


@tap
def test_interrupted_bench_leaves_nothing(ready, tmp_path):
    process = subprocess.Popen([os.path.join(TOOLS, 'ringside'), 'bench', '--quick', '--no-linux', '--out', tmp_path], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, cwd=ROOT, start_new_session=True)
    try:
        for line in process.stdout:
            if 'TCP_RR' in line:
                break
        below = children_of(process.pid)
        assert any('qemu' in args for args in below.values())
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(30) == 130, rest
        assert 'Traceback' not in rest
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    time.sleep(0.2)
    assert not [p for p in below if os.path.exists(f'/proc/{p}') and 'ringside' in below[p]]
    assert not [name for name in os.listdir('/tmp') if name.startswith('ringside-bench-') and
                os.stat(f'/tmp/{name}').st_mtime > time.time() - 30 and not any(name in a for a in children_of(1).values())]
