"""netperf's control protocol from the client's side: records of 656 bytes, and a connection that sends and reads them."""
import socket
import struct
import time

SIZE = 656
OMNI, TCP_CC, TCP_STREAM, TCP_RR, UDP_STREAM, UDP_RR, TCP_CRR, TCP_MAERTS = 97, 300, 10, 13, 16, 19, 34, 94
CALIBRATE, PASSPHRASE, SYSINFO, DEBUG_ON = 5, 6, 600, 1
NODELAY, CONN, CPU = 1, 4, 8
SERVER_SENDS, SERVER_RECEIVES, BOTH = 2, 4, 6


def record(kind, words=None):
    """A request: its type, CPU wish -1, then numbers by byte offset."""
    data = bytearray(SIZE)
    struct.pack_into('>Ii', data, 0, kind, -1)
    for at, value in (words or {}).items():
        struct.pack_into('>I', data, at, value & 0xFFFFFFFF)
    return bytes(data)


def omni(direction, length, request=1, response=1, flags=0, udp=False, port=0, peer_port=0, **words):
    """An omni request. length: seconds, 0, or minus a count; further words as w160=..., by offset."""
    values = {8: -1, 12: -1, 28: request, 32: -1, 36: -1, 52: response, 56: flags, 64: length, 76: -1, 80: -1, 84: -1,
              88: port, 92: 4, 96: 2 if udp else 1, 100: 17 if udp else 6, 104: direction, 108: peer_port, 152: -1, 156: -1}
    values.update({int(name[1:]): value for name, value in words.items()})
    return record(OMNI, values)


def classic(kind, length, request=1, response=1, size=0, port=0):
    """A classic request, laid out as its type wants it."""
    if kind in (TCP_STREAM, TCP_MAERTS):
        return record(kind, {16: size, 40: length, 60: port, 64: 4})
    if kind == UDP_STREAM:
        return record(kind, {12: size, 40: length, 52: port, 56: 4})
    return record(kind, {32: request, 36: response, 52: length, 64: port, 68: 4})


def word(data, at):
    """The number at an offset."""
    return struct.unpack_from('>I', data, at)[0]


def number(data, at):
    """The floating-point number at an offset."""
    return struct.unpack_from('>f', data, at)[0]


def data_port(answer):
    """Where the data socket of an answer listens."""
    return word(answer, {98: 52, 11: 32, 95: 32, 17: 24}.get(word(answer, 0), 28))


class Control:
    """A control connection. dial(port, udp) makes connected sockets."""

    def __init__(self, dial):
        self._dial = dial
        self.sock = dial(12865, False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def send(self, data):
        """Sends bytes."""
        self.sock.sendall(data)

    def read(self, timeout=20):
        """Reads one record; EOFError if the connection ends first."""
        self.sock.settimeout(timeout)
        data = b''
        while len(data) < SIZE:
            part = self.sock.recv(SIZE - len(data))
            if not part:
                raise EOFError(f'connection closed after {len(data)} bytes of a record')
            data += part
        return data

    def ask(self, request):
        """Sends a request and reads the answer."""
        self.send(request)
        return self.read()

    def start(self, request):
        """Starts a test that must not be refused; returns its data port."""
        answer = self.ask(request)
        assert word(answer, 4) == 0, f'test refused: error {word(answer, 4)}'
        return data_port(answer)

    def data(self, port, udp=False):
        """A connected data socket."""
        sock = self._dial(port, udp)
        sock.settimeout(20)
        return sock

    def finish(self):
        """Says that there are no more tests; the server must close."""
        self.sock.shutdown(socket.SHUT_WR)
        self.sock.settimeout(20)
        assert self.sock.recv(1) == b'', 'data after the last results'


def read_exactly(sock, count):
    """So many bytes from a socket."""
    while count > 0:
        part = sock.recv(count)
        assert part, f'connection closed, {count} bytes are missing'
        count -= len(part)


def exchange(sock, request, response, count):
    """So many transactions on a connected TCP socket."""
    for _ in range(count):
        sock.sendall(bytes(request))
        read_exactly(sock, response)


def rr(control, count=3, request=10, response=20, **kwargs):
    """A whole request/response test by count; returns its results."""
    port = control.start(omni(BOTH, -count, request, response, **kwargs))
    with control.data(port) as sock:
        exchange(sock, request, response, count)
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b''
    results = control.read()
    assert word(results, 4) == 0 and word(results, 44) == count, f'{word(results, 44)} of {count} transactions'
    return results


def crr(control, count, request=1, response=1, **kwargs):
    """A whole connect-per-request test by count; returns its results."""
    port = control.start(omni(BOTH, -count, request, response, flags=CONN, **kwargs))
    for _ in range(count):
        with control.data(port) as sock:
            exchange(sock, request, response, 1)
            assert sock.recv(1) == b''
    results = control.read()
    assert word(results, 4) == 0 and word(results, 44) == count, f'{word(results, 44)} of {count} transactions'
    return results


def wait_until(seconds, condition, what):
    """Waits until condition() is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f'not after {seconds} s: {what}'
        time.sleep(0.05)
