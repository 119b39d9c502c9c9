"""`ringside conform`: what it makes of a guest's lines, the reports, its peer, what it refuses."""
import html.parser
import json
import os
import re
import socket
import struct

import pytest
from helpers import ROOT, one_line, tool

from rslib.conform import backends, html as page, known, kvm, local, main, nested, peer, protocol, report
from rslib.kvmlab import Result

GOOD = """\
SeaBIOS (version 1.16)
[0.001000 c0] boot: ringside
# device: virtio-net, modern
# features offered: csum,mq
TAP version 14
ok 1 - features 2.2.2 the device offers VIRTIO_F_VERSION_1
[0.100000 c0] net: link up
ok 2 - ring 2.7.8.2 used ids are of buffers that were made available
# buffers: 640
ok 3 - steering 5.1.6.5.6.1 the device answers on the queue it was last sent on # SKIP not offered: mq
ok 4 - link 5.1.4 the status changes with the link # SKIP nobody changed the link
1..4
# passed 2, failed 0, skipped 2
"""
BAD = GOOD.replace('ok 2 ', 'not ok 2 ').replace('passed 2, failed 0', 'passed 1, failed 1').replace('# buffers: 640', '# got: <77>\n# expected: a|b')


def faults(text, code=protocol.EXIT_GOOD):
    """The faults of a run."""
    return protocol.read(text, code).faults


# ---- what the guest says

def test_a_good_run():
    outcome = protocol.read(GOOD.replace('\n', '\r\n'), protocol.EXIT_GOOD)
    assert outcome.good and outcome.faults == []
    assert [c.state for c in outcome.checks] == ['pass', 'pass', 'not offered', 'skipped']
    assert outcome.checks[1].key == ('ring', '2.7.8.2', 'used ids are of buffers that were made available')
    assert outcome.checks[1].evidence == [('buffers', '640')]
    assert outcome.checks[2].reason == 'not offered: mq'
    assert outcome.told('features offered') == 'csum,mq' and outcome.told('sizes') == ''


def test_a_failed_check():
    outcome = protocol.read(BAD, protocol.EXIT_FAILED)
    assert outcome.faults == [] and not outcome.good
    assert outcome.checks[1].state == 'fail' and outcome.checks[1].evidence == [('got', '<77>'), ('expected', 'a|b')]


def test_the_flight_recorder_is_kept_apart():
    outcome = protocol.read(BAD.replace('# got: <77>', '# trace: q0 pop\n# got: <77>\n# trace: q0 add'), protocol.EXIT_FAILED)
    check = outcome.checks[1]
    assert check.notes == [('got', '<77>'), ('expected', 'a|b')] and check.trace == 'q0 pop\nq0 add'
    column = report.Column('tap', 'x', outcome=outcome)
    text, table = report.as_markdown([column], []), page.page([column], [])
    assert text.count('q0 pop') == 1 and 'flight recorder of ring' in text
    assert table.count('q0 pop\nq0 add') == 2      # among the failures, and in the table
    assert 'q0' not in main.show(column, 5)


def test_what_is_asked_of_the_tool_is_no_evidence():
    outcome = protocol.read(GOOD.replace('# buffers: 640', '# please: link down'), protocol.EXIT_GOOD)
    assert outcome.good and outcome.checks[1].evidence == []


@pytest.mark.parametrize('text, code, word', [
    ('', 1, 'did not begin'),
    (GOOD.replace('TAP version 14\n', ''), 1, 'did not begin'),
    (GOOD.replace('1..4\n', ''), 1, 'no plan'),
    (GOOD.replace('1..4', '1..5'), 1, 'the plan says 5 checks, there are 4'),
    (GOOD.replace('1..4', '1..3'), 1, 'the plan says 3 checks, there are 4'),
    (GOOD.replace('1..4', '2..4'), 1, 'not a plan'),
    (GOOD.replace('1..4', '1..4\n1..4'), 1, 'a second plan'),
    (GOOD.split('1..4', maxsplit=1)[0], 1, 'ended after check 4'),
    (GOOD.split('# passed', maxsplit=1)[0], 1, 'no line "# passed'),
    (GOOD.replace('# passed 2', '# passed 3'), 1, 'its sum says 3 passed'),
    (GOOD.replace('ok 3 ', 'ok 5 '), 1, 'check 5 is the 3th'),
    (GOOD.replace('ok 3 -', 'ok 3 '), 1, 'not a result line'),
    (GOOD.replace('ring 2.7.8.2', 'ring'), 1, 'not a result line'),
    (GOOD.replace('ok 3 ', 'not ok 3 '), 5, 'failed and was skipped'),
    (GOOD.replace('TAP version 14\n', '') + 'TAP version 14\n', 1, 'comes before'),
    (GOOD + 'ok 5 - ring 2.7 late\n', 1, 'after the plan'),
    (GOOD + GOOD, 1, 'there twice'),
    (GOOD.replace('ring 2.7.8.2 used ids are of buffers that were made available', 'features 2.2.2 the device offers VIRTIO_F_VERSION_1'), 1,
     'the name of another'),
    ('TAP version 14\n1..0\n# passed 0, failed 0, skipped 0\n', 1, 'not one check'),
    (GOOD, 5, 'ended with 5'), (GOOD, 0, 'ended with 0'), (GOOD, 3, 'a panic'), (GOOD, -11, 'ended with -11'),
    (BAD, 1, '5 was to be expected'),
    (GOOD.split('ok 3', maxsplit=1)[0] + 'panic: page fault\n', 3, 'panic: page fault'),
    (GOOD.split('ok 3', maxsplit=1)[0] + '[1.000000 c0] cpu: panic: page fault\n', 3, 'page fault'),
])
def test_a_run_that_is_not_whole_has_failed(text, code, word):
    assert any(word in fault for fault in faults(text, code)), faults(text, code)
    assert not protocol.read(text, code).good


def test_one_that_was_ended_is_not_blamed_twice():
    assert faults(GOOD.split('ok 3', maxsplit=1)[0], None)[0].startswith('no plan at the end: it ended after check 2')
    assert faults(GOOD, None) == []


# ---- the reports

def columns():
    """One of each kind."""
    good = report.Column('tap', 'a tap device', outcome=protocol.read(GOOD, 1), console=GOOD, command='qemu a&b', seconds=3)
    bad = report.Column('own-2', 'ours', outcome=protocol.read(BAD, 5), facts=[('kicks', '<9>')], console=BAD)
    broken = report.Column('user', 'user networking', outcome=protocol.read(GOOD.split('ok 2', maxsplit=1)[0], 1))
    absent = report.Column('ovs', 'a switch', report.CANNOT, 'no such thing here')
    return [good, bad, broken, absent]


def test_which_have_failed():
    assert [c.failed for c in columns()] == [False, True, True, False]
    assert 'THE RUN FAILED: no plan' in columns()[2].line()
    assert columns()[3].line() == 'skipped: no such thing here'


def test_rows_are_by_area():
    areas = [key[0] for key in report.rows(columns())]
    assert areas == ['features', 'ring', 'steering', 'link']


def test_markdown():
    text = report.as_markdown(columns(), ['said'])
    table = text.split('## Checks')[1].split('## Features')[0]
    lines = [line for line in table.splitlines() if line.startswith('|')]
    assert [cell.strip() for cell in lines[0].split('|')[1:-1]] == ['area', 'virtio 1.3', 'check', 'tap', 'own-2', 'user']
    cells = {line.split('|')[1].strip(): [cell.strip() for cell in line.split('|')[4:-1]] for line in lines[2:]}
    assert cells == {'features': ['pass', 'pass', 'pass'], 'ring': ['pass', '**FAIL**', ''], 'steering': ['n/o', 'n/o', ''],
                     'link': ['skip', 'skip', '']}
    assert 'tools/ringside conform --backend own-2 --area ring' in text
    assert '- **ring 2.7.8.2 used ids are of buffers that were made available**\n  - own-2: got: &lt;77>; expected: a\\|b. Again' in text
    assert 'skipped: no such thing here' in text
    assert re.search(r'\*\*user\*\*, the run as a whole: no plan', text)


class Tags(html.parser.HTMLParser):
    """Counts tags, and that each is closed where it must be."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.outside = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        self.outside += [value for name, value in attrs if name in ('src', 'href')]
        if tag not in ('meta',):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f'</{tag}> in {self.open}'
        self.open.pop()


COUNTED = {'unit': 'transaction', 'units': 100, 'frames_to_guest': 100, 'frames_from_guest': 100, 'exits': {'halt': 50, 'nested page fault': 100},
           'msr': {}, 'user_space': {}, 'ioeventfd': {'transmit': 100}, 'raised': {'irqfd': 50}, 'injected': 50}
KVM = {'head': 'then & there', 'guests': [{'name': 'ours', 'tests': {'TCP_RR': COUNTED}},
                                          {'name': 'theirs', 'tests': {'TCP_RR': {**COUNTED, 'exits': {'halt': 200}}}}]}


def test_kvm_counts_are_taken_up(tmp_path):
    path = tmp_path / 'kvm-exits.json'
    path.write_text(json.dumps(KVM))
    counts = kvm.load(str(path))
    heads, lines = kvm.table(counts)
    assert heads == ['test', 'per', 'what', 'ours', 'theirs']
    told = {line[2]: line[3:] for line in lines}
    assert all(line[:2] == ['TCP_RR', 'transaction'] for line in lines)
    assert told['exits'] == ['1.50', '2.00'] and told['- nested page fault'] == ['1.00', '0.00']
    assert told['interrupts injected'] == ['0.50', '0.50'] and told['notifications by ioeventfd'] == ['1.00', '1.00']
    text, html = report.as_markdown(columns(), [], counts), page.page(columns(), [], counts)
    assert '| TCP_RR | transaction | exits | 1.50 | 2.00 |' in text and '<td>exits</td><td>1.50</td><td>2.00</td>' in html
    assert 'then &amp; there' in html and report.as_data(columns(), [], counts)['kvm'] == KVM
    assert kvm.MISSING in report.as_markdown(columns(), [])


@pytest.mark.parametrize('text', ['', 'nonsense', '[]', '{"head": "x"}', '{"head": "x", "guests": []}', '{"head": 1, "guests": [{"tests": {}}]}',
                                  '{"head": "x", "guests": [{"name": "a", "tests": {"TCP_RR": {"unit": "transaction"}}}]}'])
def test_kvm_counts_that_make_no_sense_are_left_out(text, tmp_path):
    path = tmp_path / 'kvm-exits.json'
    assert kvm.load(str(path)) is None
    path.write_text(text)
    assert kvm.load(str(path)) is None


def test_html():
    text = page.page(columns(), ['said & done'])
    tags = Tags()
    tags.feed(text)
    assert tags.open == [] and tags.outside == []
    assert 'url(' not in text and '@import' not in text and '<script' not in text
    chips = [attrs for tag, attrs in tags.seen if tag == 'span' and 'x' in attrs.get('class', '').split() and 'title' in attrs]
    assert len(chips) == 4 * 3      # checks down, backends that ran across
    assert sum('fail' in chip['class'].split() for chip in chips) == 1
    checks = [attrs for tag, attrs in tags.seen if tag == 'details' and attrs.get('class') == 'c']
    assert len(checks) == 4 + 2     # and two features
    assert 'said &amp; done' in text and '&lt;77&gt;' in text and '<77>' not in text
    assert 'prefers-color-scheme: dark' in text and 'max-width: 760px' in text and 'width=device-width' in text
    assert 'no such thing here' in text


def test_data():
    data = json.loads(json.dumps(report.as_data(columns(), ['said'])))
    assert [(b['name'], b['status'], b['good']) for b in data['backends']] == [
        ('tap', 'ran', True), ('own-2', 'ran', False), ('user', 'ran', False), ('ovs', 'cannot', False)]
    assert data['backends'][0]['counts'] == {'pass': 2, 'fail': 0, 'not offered': 1, 'skipped': 1}
    assert data['backends'][1]['checks'][1] == {
        'number': 2, 'area': 'ring', 'section': '2.7.8.2', 'text': 'used ids are of buffers that were made available', 'state': 'fail',
        'reason': '', 'evidence': [{'key': 'got', 'value': '<77>'}, {'key': 'expected', 'value': 'a|b'}]}


# ---- the command

def stand_in(monkeypatch, *rows):
    """Puts backends in place of the real ones: (name, Raw or exception)."""
    def runs(result):
        def run(ask, _):
            assert ask.append('x') == 'conform x'
            if isinstance(result, Exception):
                raise result
            return result
        return run
    made = tuple(backends.Backend(name, 'a stand-in', runs(result)) for name, result in rows)
    monkeypatch.setattr(backends, 'BACKENDS', made)


def conform(tmp_path, *args):
    """Runs the command in this process; returns its exit status."""
    from rslib import cli
    image = tmp_path / 'image'
    image.write_text('')
    return cli.main(['conform', '--image', str(image), '--out', str(tmp_path), *args])


@pytest.mark.parametrize('rows, status, line', [
    ([('a', local.Raw(GOOD, 1))], 0, '1 backends ran, 0 failed, 0 skipped; checks: 2 passed, 0 failed, 1 not offered, 1 skipped'),
    ([('a', local.Raw(GOOD, 1)), ('b', local.Unavailable('not\nhere'))], 0, '1 backends ran, 0 failed, 1 skipped'),
    ([('a', local.Raw(GOOD, 1)), ('b', local.Raw(BAD, 5))], 1, '2 backends ran, 1 failed, 0 skipped'),
    ([('a', local.Raw(GOOD, 1, ['QEMU says: ouch']))], 1, '1 backends ran, 1 failed'),
    ([('a', local.Raw('', None, ['it had not ended after 9 s']))], 1, '1 backends ran, 1 failed'),
    ([('a', local.Unavailable('x')), ('b', OSError('y'))], 1, '0 backends ran, 0 failed, 2 skipped'),
])
def test_exit_status_and_summary(tmp_path, monkeypatch, capsys, rows, status, line):
    stand_in(monkeypatch, *rows)
    assert conform(tmp_path) == status
    said = capsys.readouterr().out
    assert said.splitlines()[-1].startswith(line), said
    names = {b['name'] for b in json.loads((tmp_path / 'report.json').read_text())['backends']}
    assert names == {name for name, _ in rows}
    assert (tmp_path / 'report.md').exists() and (tmp_path / 'report.html').exists()


def test_a_backend_that_dies_is_asked_area_by_area():
    asked = []

    def run(ask, _):
        asked.append(ask.area)
        text = f'# device: x\nTAP version 14\nok 1 - {ask.area} 2.7 all is well\n1..1\n# passed 1, failed 0, skipped 0\n'
        return local.Raw(text, 1, ['it died'] if ask.area == 'ring' else [])
    backend = backends.Backend('a', 'a stand-in', run, apart=True)
    column = main.run_one(backend, local.Ask('image'), None)
    assert tuple(asked) == report.AREAS and column.outcome.faults == ['ring: it died']
    assert [(c.number, c.area) for c in column.outcome.checks] == list(enumerate(report.AREAS, 1)) and column.outcome.told('device') == 'x'
    asked.clear()
    assert main.run_one(backend, local.Ask('image', 'link'), None).outcome.faults == [] and asked == ['link']


def test_failures_are_shown(tmp_path, monkeypatch, capsys):
    stand_in(monkeypatch, ('b', local.Raw(BAD, 5)))
    conform(tmp_path)
    said = capsys.readouterr().out
    assert 'not ok ring 2.7.8.2 used ids' in said and 'got: <77>' in said


def test_the_one_backend_asked_for_that_is_not_here(tmp_path, monkeypatch, capsys):
    stand_in(monkeypatch, ('b', local.Unavailable('not here')))
    assert conform(tmp_path, '--backend', 'b') == 2
    assert capsys.readouterr().err == "ringside conform: backend 'b' cannot be run here: not here\n"


@pytest.mark.parametrize('args, words', [
    (('--backend', 'walk'), ["'walk'", 'tap-2', 'nested-vhost-net', 'vhost-user:SOCKET']),
    (('--backend', 'vhost-user'), ['lacks its socket']),
    (('--backend', 'user:1'), ["'user:1'"]),
    (('--area', 'Ring'), ["'Ring'", 'features, reset']),
    (('--peer', '1.2.3'), ["'1.2.3'", 'A.B.C.D']),
    (('--queues', '0'), ["'0'", '1 to 256']),
    (('--seconds', 'x'), ["'x'", '1 to 3600']),
    (('--image', 'nothing.elf'), ['nothing.elf']),
    (('--nonsense',), ['--nonsense', '--help']),
])
def test_what_it_refuses(args, words):
    line = one_line(tool('ringside', 'conform', *args))
    assert line.startswith('ringside')
    for word in words:
        assert word in line


def test_list():
    done = tool('ringside', 'conform', '--list')
    assert done.returncode == 0
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names == [b.name for b in backends.BACKENDS] + list(backends.OWN)
    assert len(set(names)) == len(names)


def test_known_failures_are_findings():
    """Each number is a heading of docs/findings.md, each backend one of ours; a failure says which it is."""
    with open(os.path.join(ROOT, 'docs', 'findings.md'), encoding='utf-8') as f:
        numbers = {int(n) for heads in re.findall(r'^## ([\d, ]+)\.', f.read(), re.MULTILINE) for n in heads.split(',')}
    names = [b.name for b in backends.BACKENDS]
    for number, _, who in known.KNOWN:
        assert number in numbers
        assert all(any(name.startswith(one) for name in names) for one in who)
    assert known.remark('tap-2', 'hdr_len need not be right') == ' (finding 12)'
    assert known.remark('own', 'hdr_len need not be right') == '' and known.remark('tap', 'all is well') == ''
    assert known.texts('own') == set()


def test_every_area_is_a_valid_boot_word():
    for area in report.AREAS:
        assert re.fullmatch('[a-z][a-z0-9_]{0,14}', area)


# ---- the peer

US, THEM = socket.inet_aton('198.18.0.1'), socket.inet_aton('198.18.0.2')
GUEST_MAC = bytes.fromhex('525400123456')


def arp(target=US):
    return b'\xff' * 6 + GUEST_MAC + b'\x08\x06\0\x01\x08\0\x06\x04\0\x01' + GUEST_MAC + THEM + bytes(6) + target


def echo(data=b'x' * 9, destination=US, spoil=0):
    icmp = b'\x08\0\0\0\x12\x34\0\x01' + data
    icmp = icmp[:2] + struct.pack('!H', peer.checksum(icmp) ^ spoil) + icmp[4:]
    ip = struct.pack('!BBHHHBBH', 0x45, 0, 20 + len(icmp), 7, 0, 64, 1, 0) + THEM + destination
    ip = ip[:10] + struct.pack('!H', peer.checksum(ip)) + ip[12:]
    return peer.MAC + GUEST_MAC + b'\x08\0' + ip + icmp


def test_peer_answers_arp():
    reply = peer.answer(arp(), US)
    assert len(reply) == 60 and reply[:12] == GUEST_MAC + peer.MAC and reply[20:22] == b'\0\2'
    assert reply[22:42] == peer.MAC + US + GUEST_MAC + THEM


@pytest.mark.parametrize('size', [0, 1, 17, 18, 1471, 1472])
def test_peer_answers_ping(size):
    data = bytes(range(256)) * 6
    reply = peer.answer(echo(data[:size]), US)
    assert reply[:14] == GUEST_MAC + peer.MAC + b'\x08\0' and reply[26:34] == US + THEM
    assert peer.checksum(reply[14:34]) == 0 and peer.checksum(reply[34:42 + size]) == 0
    assert reply[34] == 0 and reply[38:42 + size] == b'\x12\x34\0\x01' + data[:size] and len(reply) == max(60, 42 + size)


def segment(flags=2, number=5, acked=0, data=b'', spoil=0):
    tcp = struct.pack('!HHIIBBHHH', 40000, 9, number, acked, 0x50, flags, 1000, 0, 0) + data
    pseudo = THEM + US + struct.pack('!HH', 6, len(tcp))
    tcp = tcp[:16] + struct.pack('!H', peer.checksum(pseudo + tcp) ^ spoil) + tcp[18:]
    frame = echo(b'x' * (len(tcp) - 8))
    ip = frame[14:23] + b'\x06\0\0' + frame[26:34]
    ip = ip[:10] + struct.pack('!H', peer.checksum(ip)) + ip[12:]
    return frame[:14] + ip + tcp


@pytest.mark.parametrize('request_, expected', [
    (dict(flags=0x02), (0, 6, 0x14)), (dict(flags=0x02, number=0xFFFFFFFF), (0, 0, 0x14)), (dict(flags=0x01, data=b'abc'), (0, 9, 0x14)),
    (dict(flags=0x10, acked=77), (77, 0, 0x04)), (dict(flags=0x12, acked=78), (78, 0, 0x04)),
])
def test_peer_refuses_connections(request_, expected):
    reply = peer.answer(segment(**request_), US)
    assert peer.checksum(reply[14:34]) == 0 and reply[26:34] == US + THEM and len(reply) == 60
    tcp = reply[34:54]
    assert peer.checksum(US + THEM + struct.pack('!HH', 6, 20) + tcp) == 0 and struct.unpack_from('!HH', tcp) == (9, 40000)
    assert (*struct.unpack_from('!II', tcp, 4), tcp[13]) == expected


@pytest.mark.parametrize('frame', [
    segment(flags=4), segment(spoil=1), segment()[:-1],
    b'', arp()[:41], arp(THEM), echo(destination=THEM), echo(spoil=1), b'\x02' * 6 + echo()[6:], echo()[:-1],
])
def test_peer_is_silent(frame):
    assert peer.answer(frame, US) is None


# ---- what the nested machine told

JOB = """\
@exit 1
@threads qemu-system-x86 vhost-109 vhost-109
@notify 00000000fe003000 00000000fe003fff
@counters exits=900 halt_exits=3 mmio_exits=4
@kvm/kvm_msi_set_irq { common_pid: vhost-109 [ 109] } hitcount: 40
@kvm/kvm_msi_set_irq { common_pid: qemu-system-x86 [ 108] } hitcount: 2
@kvm/kvm_mmio { type: 2, gpa: fe003004 } hitcount: 30
@kvm/kvm_mmio { type: 2, gpa: fe000000 } hitcount: 5
@kprobes/ioeventfd { taken: 0 } hitcount: 21
@kprobes/ioeventfd { taken: -95 } hitcount: 8
"""


def test_nested_evidence():
    output = JOB + ''.join(f'guest: {line}\n' for line in GOOD.splitlines())
    raw = nested.raw_from(Result(0, output, '', 9), 1, True)
    assert raw.exit_code == 1 and raw.faults == [] and protocol.read(raw.console, 1).good
    facts = dict(raw.facts)
    assert facts['interrupts'] == '40 raised by vhost threads (irqfd), 2 by QEMU'
    assert facts['kicks'] == '30 writes to the notification area; 21 were taken by an ioeventfd, in the kernel'
    assert facts['KVM counted, to its last second'] == 'exits 900, mmio_exits 4, halt_exits 3'


@pytest.mark.parametrize('result, word', [
    (Result(0, JOB.replace('vhost-109 [ 109', 'qemu [ 109'), '', 9), 'it was not vhost-net'),
    (Result(0, JOB.replace('taken: 0', 'taken: -95'), '', 9), 'no kick was taken by an ioeventfd'),
    (Result(124, '', '', 9), 'the time was up'),
    (Result(0, JOB.replace('@exit 1', '@exit killed'), '', 9), 'had not ended'),
    (Result(0, JOB + '@stderr oops\n', '', 9), 'QEMU says: oops'),
    (Result(0, JOB, 'ouch\n', 9), 'QEMU says: ouch'),
])
def test_nested_faults(result, word):
    faults_seen = nested.raw_from(result, 1, True).faults
    assert any(word in fault for fault in faults_seen), faults_seen


# ---- what the guest asks for

class Qmp:
    """Takes the place of a Guest."""

    def __init__(self):
        self.asked = []

    def qmp(self, command, **arguments):
        self.asked.append((command, arguments))


def test_the_same_complaint_is_told_once():
    assert local.qemu_says(['a', 'b', 'a']) == ['QEMU says: a (2 times)', 'QEMU says: b']


def test_wishes():
    guest = Qmp()
    assert local.help_out(guest, 'link down') and local.help_out(guest, 'link up') and local.help_out(guest, 'announce')
    assert not local.help_out(guest, 'a cup of tea')
    assert [(c, a.get('up')) for c, a in guest.asked] == [('set_link', False), ('set_link', True), ('announce-self', None)]
