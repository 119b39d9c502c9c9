"""Traffic over ordinary sockets: TCP echo in its variations, UDP echo, discard, chargen. Every function is bounded by a
timeout and compares every byte; what is wrong comes as an AssertionError that says where."""
import collections
import functools
import random
import select
import socket
import struct
import time

LINGER_RESET = struct.pack('ii', 1, 0)  # SO_LINGER 0: close() sends RST

CHARGEN_LINE = 72
_RING = bytes(range(0x20, 0x7F))        # RFC 864: the 95 printing characters, a line starting one further each time


@functools.lru_cache(maxsize=2)         # large ones take longer to make than to send
def content(size, seed=1):
    """Reproducible random bytes."""
    return random.Random(seed).randbytes(size)


def compare(got, wanted, at, what):
    """AssertionError naming the first offset at which got differs from wanted."""
    if got != wanted:
        first = next((i for i, (a, b) in enumerate(zip(got, wanted)) if a != b), min(len(got), len(wanted)))
        raise AssertionError(f'{what}: byte {at + first} is {got[first:first + 8].hex() or "missing"}, '
                             f'sent {wanted[first:first + 8].hex() or "nothing"}')


def tcp_echo(sock, total, seed=1, timeout=60, half_close=True, chunk=65536, pauses=(), passing=None):
    """Echoes total bytes, sending and receiving at once; returns the seconds it took.

    half_close: shuts down sending when all is sent, and then expects the rest and the end of the stream; otherwise closes
    once all is back. pauses: (received bytes, seconds) pairs: stops reading for so long at that point, while sending goes
    on as far as it will: the windows of both directions fill. passing: (received bytes, function): called once, on passing
    that point. The socket is closed.
    """
    data = memoryview(content(total, seed))
    sent = received = 0
    pauses = collections.deque(pauses)
    sock.setblocking(False)
    begin = time.monotonic()
    read_from = begin
    with sock:
        while received < total:
            now = time.monotonic()
            assert now - begin < timeout, f'echo: {received} of {total} back after {timeout} s, {sent} sent'
            reading = now >= read_from
            wait = min(1.0, read_from - now) if not reading else 1.0
            can_read, can_write, _ = select.select([sock] if reading else [], [sock] if sent < total else [], [], wait)
            if can_write:
                sent += sock.send(data[sent:sent + chunk])
                if sent == total and half_close:
                    sock.shutdown(socket.SHUT_WR)
            if can_read:
                got = sock.recv(chunk)
                assert got, f'echo: end of stream after {received} of {total} bytes'
                compare(got, data[received:received + len(got)].tobytes(), received, 'echo')
                received += len(got)
                if passing and received >= passing[0]:
                    passing[1]()
                    passing = None
                while pauses and received >= pauses[0][0]:
                    read_from = time.monotonic() + pauses.popleft()[1]
        if half_close:
            expect_end(sock, timeout - (time.monotonic() - begin))
    return time.monotonic() - begin


def expect_end(sock, timeout=10):
    """Expects the peer to close, with nothing more sent."""
    ready, _, _ = select.select([sock], [], [], max(timeout, 0.1))
    assert ready, f'the guest does not close within {timeout:.0f} s'
    more = sock.recv(100)
    assert not more, f'{len(more)} bytes too many: {more[:16].hex()}'


def tcp_reset(sock, size=100000, seed=2):
    """Sends some data, reads a little of what comes back and resets the connection."""
    sock.settimeout(10)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
    with sock:
        data = content(size, seed)
        sock.sendall(data[:20000])
        got = sock.recv(1000)
        compare(got, data[:len(got)], 0, 'echo before reset')


def tcp_discard(sock, total, timeout=60):
    """Sends total bytes to a discard server; expects no byte back and an orderly close. Returns seconds."""
    begin = time.monotonic()
    block = content(65536, 3)
    sock.settimeout(timeout)
    with sock:
        left = total
        while left:
            assert time.monotonic() - begin < timeout, f'discard: {left} of {total} bytes left after {timeout} s'
            left -= sock.send(block[:min(left, len(block))])
        sock.shutdown(socket.SHUT_WR)
        expect_end(sock, timeout)
    return time.monotonic() - begin


def chargen_pattern(size):
    """What a chargen stream starts with (RFC 864)."""
    again = b''.join((_RING + _RING)[start:start + CHARGEN_LINE] + b'\r\n' for start in range(len(_RING)))
    return (again * (size // len(again) + 1))[:size]


def tcp_chargen(sock, total, timeout=60, pause=0):
    """Reads total bytes of chargen, compares them with RFC 864's pattern, and closes. pause: reads nothing for so long
    first. Returns seconds."""
    begin = time.monotonic()
    wanted = chargen_pattern(total)
    sock.settimeout(timeout)
    at = 0
    with sock:
        time.sleep(pause)
        while at < total:
            assert time.monotonic() - begin < timeout, f'chargen: {at} of {total} bytes after {timeout} s'
            got = sock.recv(min(65536, total - at))
            assert got, f'chargen: end of stream after {at} bytes'
            compare(got, wanted[at:at + len(got)], at, 'chargen')
            at += len(got)
    return time.monotonic() - begin


UdpResult = collections.namedtuple('UdpResult', 'sent lost repeated out_of_order seconds')


def udp_echo(sock, count, sizes=(64,), window=16, seed=4, timeout=60, patience=2.0):
    """Echoes count datagrams over a connected socket, each with its number and random content, at most `window` of them
    unanswered (so that no queue on the way overflows by our own doing). A datagram unanswered for `patience` seconds is
    lost. AssertionError if any content differs; returns a UdpResult."""
    rng = random.Random(seed)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    outstanding = collections.OrderedDict()
    sent = lost = repeated = out_of_order = 0
    begin = time.monotonic()
    with sock:
        while sent < count or outstanding:
            now = time.monotonic()
            assert now - begin < timeout, f'UDP echo: {sent} sent, {len(outstanding)} unanswered after {timeout} s'
            while outstanding and now - next(iter(outstanding.values()))[1] > patience:
                outstanding.popitem(last=False)
                lost += 1
            may_send = sent < count and len(outstanding) < window
            can_read, can_write, _ = select.select([sock], [sock] if may_send else [], [], 0.2)
            if can_read:
                answer = _receive(sock)
                if answer is None:
                    continue
                seq = struct.unpack_from('!I', answer)[0] if len(answer) >= 4 else next(iter(outstanding), None)
                if seq in outstanding:
                    out_of_order += seq != next(iter(outstanding))
                    compare(answer, outstanding.pop(seq)[0], 0, f'datagram {seq}')
                else:
                    assert seq is not None and seq < sent, f'answer {seq} to nothing asked'
                    repeated += 1
            elif can_write:
                size = sizes[sent % len(sizes)]
                data = struct.pack('!I', sent)[:size] + rng.randbytes(max(size - 4, 0))
                sock.send(data)
                outstanding[sent] = (data, time.monotonic())
                sent += 1
    return UdpResult(sent, lost, repeated, out_of_order, time.monotonic() - begin)


def _receive(sock):
    try:
        return sock.recv(70000)
    except ConnectionRefusedError:
        raise AssertionError('UDP echo: port unreachable') from None
    except BlockingIOError:             # a datagram dropped for its checksum after select saw it
        return None


def udp_expect_silence(sock, data=b'quiet?', seconds=0.5):
    """Sends a datagram and expects no answer (discard)."""
    with sock:
        sock.settimeout(seconds)
        sock.send(data)
        try:
            got = sock.recv(70000)
        except TimeoutError:
            return
        except ConnectionRefusedError:
            raise AssertionError('discard: port unreachable') from None
        raise AssertionError(f'discard answered {len(got)} bytes')


def udp_chargen(sock, requests=3, timeout=5):
    """Sends requests to a chargen port; each is answered by one datagram of up to 512 printing characters and line ends."""
    with sock:
        for _ in range(requests):
            sock.settimeout(timeout)
            sock.send(b'more')
            got = sock.recv(70000)
            assert len(got) <= 512 and set(got) <= set(_RING + b'\r\n'), f'chargen: {got[:80]!r} ({len(got)} bytes)'
        sock.settimeout(0.3)
        try:
            extra = sock.recv(70000)
        except TimeoutError:
            return
        raise AssertionError(f'chargen: {len(extra)} bytes without a request')
