"""The web server: what /metrics, /metrics.json and / say, that it agrees with what QEMU and the host's kernel counted, and
that clients of all kinds do it no harm."""
import concurrent.futures
import contextlib
import json
import os
import re
import socket
import time

import pytest

import prometheus
import queues
import rows
import traffic
import test_traffic
import trafficmix
import wires
from prometheus import Answer, ask, get_request
from rslib.qemu import Guest, Machine

pytestmark = pytest.mark.skipif(not wires.have_tap(), reason='no rights to /dev/net/tun')

VIRTIO_HEADER = 12              # bytes
HALF_REQUEST_SECONDS = 8        # how long the server waits for the rest


@contextlib.contextmanager
def guest_on_tap(image, cores, words='', rss=False, **machine):
    """A guest with so many cores and queue pairs; gives (wire, guest). Ends it in order. ioeventfd=off: each kick is traced."""
    many = {'mq': 'on', 'vectors': 2 * cores + 2, 'rss': 'on' if rss else 'off'} if cores > 1 else {}
    with wires.TapWire(queues=cores) as wire:
        told = Machine(image, smp=cores, append=f'{wire.words()} {words}', netdev=wire.netdev(), props={'ioeventfd': 'off', **many},
                       trace=queues.EVENTS, warnings=queues.RSS_WARNINGS if rss else (), **machine)
        with Guest(told, netns=wire.netns) as guest:
            ready = guest.wait_ready(rows.SHORT)
            assert (int(ready['cores']), int(ready['queues'])) == (cores, cores)
            yield wire, guest
            guest.finish()


def get(wire, path, status=200, reset=False, **kwargs):
    """GET on a new connection."""
    answer = ask(wire.tcp(80, **kwargs), get_request(path), reset)
    assert answer.status == status, f'{path}: {answer.status} {answer.body[:100]!r}'
    return answer


def scrape(wire, **kwargs):
    """A checked scrape of /metrics."""
    answer = get(wire, '/metrics', **kwargs)
    assert answer.headers['content-type'] == 'text/plain; version=0.0.4; charset=utf-8'
    assert 'content-length' in answer.headers
    return prometheus.parse(answer.body.decode('ascii'))


def link_counts(wire):
    """(packets, bytes) to the guest and from it, as the host's kernel has them."""
    told = json.loads(wire.netns.run(['ip', '-j', '-s', 'link', 'show', 'tap0']).stdout)[0]['stats64']
    return tuple((told[way]['packets'], told[way]['bytes']) for way in ('tx', 'rx'))


def some_traffic(wire):
    """Enough that a counter off by a header would leave the bounds, on every core."""
    for seed in range(6):
        traffic.tcp_echo(wire.tcp(7), 300_000, seed)
    trafficmix.udp_echo(wire, 3000, (64, 1000, 1472))
    trafficmix.udp_echo(wire, 10, (4000,), window=1)
    for _ in range(16):                 # one at a time, so that each is a kick, whatever else is batched; of a flow each
        trafficmix.udp_echo(wire, 10, (64,), window=1)
    trafficmix.ping(wire, 200, (56,))


def settle(wire, reset=False):
    """Waits until nothing is on its way between the cores; returns the scrape."""
    end = time.monotonic() + 5
    while True:
        time.sleep(0.1)
        sample = scrape(wire, reset=reset)
        assert sample.total('ringside_steer_dropped_total') == 0
        if sample.total('ringside_handed_over_total') == sample.total('ringside_taken_over_total'):
            return sample
        assert time.monotonic() < end, 'frames handed over and taken over do not become the same'


def between(low, value, high, what):
    """A counter that goes on counting, against two looks at another's."""
    assert low <= value <= high, f'{what}: {value}, not in {low}..{high}'


@pytest.mark.parametrize('cores,rss', [(1, False), (2, False), (2, True)])
def test_counters_agree_with_the_outside(image, cores, rss):
    """Packets and bytes against the host's kernel, kicks and interrupts against QEMU's trace, per queue; and the numbers
    among themselves."""
    with guest_on_tap(image, cores, test_traffic.ONE_BY_ONE, rss=rss) as (wire, guest):
        trafficmix.reach(wire, wire.guest6)
        some_traffic(wire)
        settle(wire)
        link0, kicks0 = link_counts(wire), queues.doorbells(guest)
        sample = scrape(wire)
        time.sleep(0.2)
        link1, kicks1 = link_counts(wire), queues.doorbells(guest)
        for way, name in enumerate(('rx', 'tx')):
            for what, unit in enumerate(('packets', 'bytes')):
                value = sample.total(f'ringside_{name}_{unit}_total')
                between(link0[way][what], value, link1[way][what], f'{name} {unit}')
            assert link1[way][1] - link0[way][1] < VIRTIO_HEADER * link0[way][0], 'the bounds are too wide to say anything'
        for queue in range(cores):
            labels = {'core': queue, 'queue': queue}
            # The others nudge the receive queue: each of them, all of its others alike.
            nudges = sum(int(sample.total('ringside_rx_nudges_total', core=core)) for core in range(cores) if core != queue)
            rx, tx = (sum(sample.get_one(f'ringside_{name}_kicks{again}_total', **labels) for again in ('', '_repeated'))
                      for name in ('rx', 'tx'))
            between(kicks0[2 * queue], rx + nudges // max(cores - 1, 1), kicks1[2 * queue], f'rx kicks of pair {queue}')
            between(kicks0[2 * queue + 1], tx, kicks1[2 * queue + 1], f'tx kicks of pair {queue}')
            assert sample.get_one('ringside_tx_kicks_total', **labels) > 20
            assert sample.get_one('ringside_tx_packets_total', **labels) > 100, f'core {queue} took no part'
            consistent(sample, labels)
            # Fewer than QEMU sent: what comes while one is pending is one with it.
            sent = queues.interrupts(guest)
            rx, tx = (sample.get_one(f'ringside_{name}_interrupts_total', **labels) for name in ('rx', 'tx'))
            between(sent[2 * queue] / 2, rx, sent[2 * queue], f'rx interrupts of pair {queue}')
            assert rx > 20 and tx <= sent[2 * queue + 1]
        assert sample.total('ringside_rx_dropped_total') == sample.total('ringside_tx_dropped_total') == 0
        assert sample.total('ringside_lwip_received_total', protocol='tcp') > 1000
        assert sample.total('ringside_lwip_received_total', protocol='icmp') >= 200


def consistent(sample, labels):
    """What must hold among one core's numbers. Only frames that stand for several need more than one buffer, up to 17."""
    def value(name):
        return sample.get_one(f'ringside_{name}', **labels)
    core = {'core': labels['core']}
    assert 0 <= value('rx_buffers_returned_total') - value('rx_packets_total') <= 16 * value('rx_gso_total')
    assert 0 <= value('rx_buffers_posted_total') - value('rx_buffers_returned_total') <= value('rx_ring_size') == 256
    assert 0 <= value('tx_packets_total') - value('tx_completed_total') <= value('tx_ring_size') - value('tx_ring_free')
    assert value('rx_interrupts_total') <= value('rx_callbacks_armed_total') + 1
    assert value('tx_restart_free_total') >= value('tx_restarts_total')
    assert 0 <= value('tx_full_total') - value('tx_restarts_total') <= 1
    assert value('spurious_interrupts_total') * 2 < value('rx_interrupts_total') + value('tx_interrupts_total')
    turns, batches = (sample.get_one(f'ringside_{name}_total', **core) for name in ('loop_turns', 'batches'))
    assert 0 < batches < turns
    uptime = sample.get_one('ringside_uptime_seconds')
    halted, polled = (sample.get_one(f'ringside_{name}_seconds_total', **core) for name in ('halted', 'polled'))
    assert 0 < halted and halted + polled < uptime


def test_full_ring(image):
    """With a ring of 8 a stream finds it full: frames wait, an interrupt is asked for, and the restart finds room."""
    with guest_on_tap(image, 1, 'ring=8 features=-host_tso4') as (wire, _):      # 1,400 frames, not some 50
        traffic.tcp_chargen(wire.tcp(19), 2_000_000)
        sample = settle(wire)

        def value(name):
            return sample.get_one(f'ringside_{name}', core=0, queue=0)
        assert value('tx_ring_size') == value('rx_ring_size') == 8
        assert value('tx_full_total') >= 20 and value('tx_waited_total') >= value('tx_full_total')
        assert 0 <= value('tx_full_total') - value('tx_restarts_total') <= 1
        assert value('tx_restarts_total') <= value('tx_restart_free_total') <= 8 * value('tx_restarts_total')
        assert value('tx_callbacks_armed_total') > 0 and value('tx_interrupts_total') > 0


def test_formats_agree(image):
    """/metrics.json is JSON and has the numbers of /metrics, from whichever core; what they say of the machine is so."""
    with guest_on_tap(image, 2) as (wire, guest):
        trafficmix.reach(wire, wire.guest6)
        some_traffic(wire)
        served, compared = set(), set()
        for _ in range(60):
            before = settle(wire)
            answer = get(wire, '/metrics.json')
            after = scrape(wire)
            assert answer.headers['content-type'] == 'application/json'
            told = json.loads(answer.body, parse_float=prometheus.Decimal, parse_int=prometheus.Decimal)
            served |= {int(told['scrape_core']), int(after.get_one('ringside_scrape_core'))}
            first, between_, last = prometheus.plain(before), prometheus.from_json(told), prometheus.plain(after)
            assert first.keys() == between_.keys() == last.keys()
            for key, value in first.items():
                if value == last[key] and before.types.get(key[0] + '_total') == 'counter':
                    assert between_[key] == value, key
                    compared.add(key)
            if served == {0, 1} and len(compared) > 150:
                break
        assert served == {0, 1}, f'only core {served} answers'
        assert len(compared) > 150, f'{len(compared)} counters stood still long enough'
        machine_is_told(wire, guest, after)
        with open(os.path.join(os.path.dirname(__file__), '..', '..', 'docs', 'metrics.md'), encoding='utf-8') as doc:
            documented = set(re.findall(r'^\| `(ringside_\w+)` \|', doc.read(), re.MULTILINE))
        assert documented == set(after.types), 'docs/metrics.md does not list what is served'


def machine_is_told(wire, guest, sample):
    """Features, addresses, ring sizes, link and queue pairs, against the ready line and QEMU."""
    ready = guest.wait_ready(1)
    assert sorted(x['name'] for x in sample.labels('ringside_feature')) == sorted(ready['features'])
    (info,) = sample.labels('ringside_info')
    assert (info['ip'], info['mac']) == (ready['ip'], ready['mac']) == (wires.GUEST4, ready['mac'])
    assert wires.GUEST6 in info['ip6'].split(',')
    assert (info['interrupts'], info['steering']) == ('msix per queue', 'automatic')
    for name, value in {'link_up': 1, 'mtu_bytes': 1500, 'queue_pairs': 2, 'queue_pairs_max': 2}.items():
        assert sample.get_one(f'ringside_{name}') == value, name
    for queue in range(2):
        path = '/machine/peripheral/nic0/virtio-backend'
        for way, name in enumerate(('rx', 'tx')):
            size = guest.qmp('x-query-virtio-queue-status', path=path, queue=2 * queue + way)['vring-num']
            assert sample.get_one(f'ringside_{name}_ring_size', core=queue, queue=queue) == size


# (request, status of the answer; None: 400 or a reset, since the server stops reading before the end)
BAD = [
    (b'HEAD /metrics HTTP/1.1\r\nHost: guest\r\n\r\n', 501),
    (b'POST /metrics HTTP/1.1\r\nHost: guest\r\nContent-Length: 3\r\n\r\nabc', 501),
    (b'BREW /coffee HTTP/1.1\r\n\r\n', 501),
    (bytes(range(1, 256)) * 8 + b"\r\n\r\n", 501),
    (b'GET\r\n\r\n\r\n', 501),
    (b'GET / HTTP/1.1\r\nX: ' + b'x' * 20_000, None),
    (b'x' * 100_000, None),
    (b'GET ' + b'/long' * 500 + b' HTTP/1.1\r\nHost: guest\r\n\r\n', 404),
    (b'GET nowhere HTTP/1.1\r\n\r\n', 404),
]


def test_requests(image):
    """Paths, 20 requests at once, and requests that are wrong, slow, half or given up: each is answered as it should be, and
    none harms the next."""
    with guest_on_tap(image, 2) as (wire, guest):
        half = [wire.tcp(80) for _ in range(8)]
        for i, sock in enumerate(half):
            sock.sendall((b'GET /met', b'\0GET / HTTP/1.1\r\n\r\n', b'')[i % 3])
        half_since = time.monotonic()
        paths(wire)
        parallel(wire)
        for request, status in BAD:
            bad(wire, request, status)
            get(wire, '/metrics')
        slow(wire)
        given_up(wire)
        trafficmix.reach(wire, wire.guest6)
        scrape(wire, address=wires.GUEST6)
        for sock in half:                           # they are closed, unanswered, in time
            sock.settimeout(HALF_REQUEST_SECONDS + 5)
            assert sock.recv(100) == b''
            sock.close()
        assert time.monotonic() - half_since >= HALF_REQUEST_SECONDS / 2
        scrape(wire)


def bad(wire, request, status):
    """One wrong request."""
    try:
        answer = ask(wire.tcp(80), request)
    except (ConnectionResetError, BrokenPipeError):
        assert status is None, f'{request[:40]!r}: reset'
        return
    assert answer.status == (status or 400), f'{request[:40]!r}: {answer.status}'
    assert not (request.startswith(b'HEAD') and answer.body), 'HEAD was answered with content'


def paths(wire):
    """What there is, and what is not."""
    page = get(wire, '/')
    assert page.headers['content-type'] == 'text/html; charset=utf-8'
    html = page.body.decode('utf-8')
    assert html.startswith('<!doctype html>') and 'name="viewport"' in html and 'prefers-color-scheme: dark' in html
    assert not re.search(r'//[a-z]|@import|\bsrc=|url\(', re.sub(r'https?://www\.w3\.org', '', html)), 'resources from outside'
    assert get(wire, '/index.html').body == page.body
    scrape(wire)
    assert get(wire, '/metrics?name=x').body.startswith(b'# HELP ringside_')
    for path in ('/nope', '/metrics/', '/METRICS', '/metrics.jso', '/..', '/' + 'a' * 200, '/index.html/'):
        assert get(wire, path, 404).body.startswith(b'Not found.')


def parallel(wire):
    """20 connections, all open before the first request is sent; all answers right."""
    socks = [wire.tcp(80) for _ in range(20)]
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda sock: ask(sock, get_request('/metrics')), socks))
    for answer in answers:
        assert answer.status == 200
        prometheus.parse(answer.body.decode('ascii'))


def slow(wire):
    """A request that comes byte by byte; two requests in one; an answer that is read late; a client that says it is done."""
    with wire.tcp(80) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b'GET /metrics.json HTTP/1.0\r\nHost: g\r\n\r\n':
            sock.send(bytes([byte]))
            time.sleep(0.005)
        json.loads(Answer(prometheus.read_all(sock)).body)
    assert ask(wire.tcp(80), get_request('/metrics') + get_request('/nope')).status == 200
    with wire.netns.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(10)
        sock.connect((wires.GUEST4, 80))
        sock.sendall(get_request('/metrics'))
        time.sleep(1.5)
        prometheus.parse(Answer(prometheus.read_all(sock)).body.decode('ascii'))
    with wire.tcp(80) as sock:
        sock.sendall(get_request('/metrics'))
        sock.shutdown(socket.SHUT_WR)
        prometheus.parse(Answer(prometheus.read_all(sock)).body.decode('ascii'))


def given_up(wire):
    """Clients that reset before, in and after their request, and that say nothing."""
    for request in (b'', b'GET /', get_request('/metrics')):
        for _ in range(5):
            give_up(wire.tcp(80), request)
        wire.tcp(80).close()


def give_up(sock, request):
    """Sends a request and resets the connection without waiting for the answer."""
    with sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, traffic.LINGER_RESET)
        sock.sendall(request)


def heap_used(wire):
    """Bytes in use on all cores; the least of some scrapes, since a timer may have something for a moment."""
    return min(settle(wire, reset=True).total('ringside_heap_used_bytes') for _ in range(5))


def test_no_leak(image):
    """After 500 requests of all kinds, one in seven given up, the heaps are as full as before."""
    requests = [get_request(path) for path in ('/metrics', '/metrics.json', '/', '/nope')] + [BAD[0][0]]

    def some(count):
        for i in range(count):
            if i % 7 == 6:
                give_up(wire.tcp(80), requests[i % len(requests)])
            else:
                ask(wire.tcp(80), requests[i % len(requests)], reset=True)

    with guest_on_tap(image, 2) as (wire, _):
        trafficmix.reach(wire, wire.guest6)
        some(50)
        before = heap_used(wire)
        some(500)
        end = time.monotonic() + 12         # what was given up ends by itself, in time
        while (after := heap_used(wire)) > before and time.monotonic() < end:
            time.sleep(0.5)
        assert after <= before, f'{after - before} bytes more in use after 500 requests'


def test_many_cores(image):
    """An answer that is longer than what the server queues at a time (65,535 bytes) arrives whole."""
    with guest_on_tap(image, 24, memory='256M') as (wire, guest):
        answer = get(wire, '/metrics')
        assert len(answer.body) > 80_000
        sample = prometheus.parse(answer.body.decode('ascii'))
        assert len(sample.labels('ringside_rx_packets_total')) == 24
        parallel(wire)


GOOD = '# HELP ringside_a_total A.\n# TYPE ringside_a_total counter\nringside_a_total{core="0"} 1\n'


@pytest.mark.parametrize('text', [
    GOOD[:-1], GOOD + '\n', GOOD + GOOD, GOOD.replace('counter', 'gauge'), GOOD.replace('A.', ''), GOOD.replace(' 1', ' 01'),
    GOOD.replace(' 1', ' -1'), GOOD.replace(' 1', f' {1 << 64}'), GOOD.replace('"0"', '0'), GOOD.replace('"}', '",}'),
    GOOD.replace('ringside_a_total{', 'ringside_b_total{'), GOOD + 'ringside_a_total{core="0"} 2\n', GOOD.replace('"}', '",core="1"}'),
    GOOD.replace('# TYPE ringside_a_total counter\n', ''), GOOD[:GOOD.index('ringside_a_total{')], GOOD.replace('} 1', '}  1')])
def test_the_reader_refuses(text):
    """The parser of these tests does not take what is wrong."""
    assert prometheus.parse(GOOD).get_one('ringside_a_total', core=0) == 1
    with pytest.raises(AssertionError):
        prometheus.parse(text)
