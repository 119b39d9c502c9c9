"""iperf3's protocol from the client's side, and iperf 2's datagrams: step by step, so that each step can be done wrong.

    with Client(dial) as client:            # dial(port, udp) makes connected sockets
        client.hello()
        client.ask(time=10)                 # wishes; then the streams may be opened
        sock = client.stream()
        client.expect(TEST_START, TEST_RUNNING)
        sock.sendall(bytes(1000))
        results = client.finish()
"""
import json
import random
import socket
import struct
import time

PORT, PORT2 = 5201, 5001
TEST_START, TEST_RUNNING, TEST_END, PARAM_EXCHANGE, CREATE_STREAMS, CLIENT_TERMINATE = 1, 2, 4, 9, 10, 12
EXCHANGE_RESULTS, DISPLAY_RESULTS, IPERF_DONE, ERROR, DENIED = 13, 14, 16, 254, 255
UDP_HELLO, UDP_REPLY = b'9876', b'6789'
LETTERS = 'abcdefghijklmnopqrstuvwxyz234567'


def cookie():
    """A new one."""
    return ''.join(random.choice(LETTERS) for _ in range(36)).encode() + b'\0'


def read_exactly(sock, count):
    """So many bytes; EOFError if the connection ends first."""
    data = b''
    while len(data) < count:
        part = sock.recv(min(count - len(data), 1 << 20))
        if not part:
            raise EOFError(f'connection closed after {len(data)} of {count} bytes')
        data += part
    return data


class Client:
    """A control connection and the streams opened for it."""

    def __init__(self, dial):
        self._dial = dial
        self.cookie = cookie()
        self.streams = []
        self.udp = False
        self.sock = dial(PORT, False)
        self.sock.settimeout(20)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self, hard=False):
        """Closes all sockets, with resets if hard."""
        for sock in [*self.streams, self.sock]:
            if hard and sock.fileno() >= 0 and sock.type == socket.SOCK_STREAM:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
            sock.close()

    def expect(self, *states):
        """Reads so many state bytes; they must be these."""
        got = tuple(read_exactly(self.sock, len(states)))
        assert got == states, f'states {got}, not {states}'

    def expect_error(self, code):
        """Reads an error of this number, and the connection's end."""
        self.expect(ERROR)
        got = struct.unpack('>II', read_exactly(self.sock, 8))
        assert got == (code, 0), f'error {got}, not {code}'
        assert self.sock.recv(1) == b''

    def expect_end(self):
        """The server must close, by FIN or reset."""
        try:
            assert self.sock.recv(1) == b''
        except ConnectionError:
            pass

    def hello(self):
        """The cookie, and leave to say what is wanted."""
        self.sock.sendall(self.cookie)
        self.expect(PARAM_EXCHANGE)

    def send_text(self, text):
        """A length and a text."""
        self.sock.sendall(struct.pack('>I', len(text)) + text)

    def wish(self, **wishes):
        """Says what is wanted."""
        self.udp = bool(wishes.get('udp'))
        self.send_text(json.dumps({'time': 10, 'len': 1000, 'client_version': '3.12', **wishes}).encode())

    def ask(self, **wishes):
        """Says what is wanted; reads leave to open streams."""
        self.wish(**wishes)
        self.expect(CREATE_STREAMS)

    def connect(self):
        """A stream's socket that has said nothing yet."""
        sock = self._dial(PORT, self.udp)
        sock.settimeout(20)
        if not self.udp:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.streams.append(sock)
        return sock

    def stream(self):
        """A stream."""
        sock = self.connect()
        if self.udp:
            sock.send(UDP_HELLO)
            assert sock.recv(100) == UDP_REPLY
        else:
            sock.sendall(self.cookie)
        return sock

    def start(self, count=1, **wishes):
        """From the connection to the running test; returns the streams' sockets."""
        self.hello()
        self.ask(**wishes)
        for _ in range(count):
            self.stream()
        self.expect(TEST_START, TEST_RUNNING)
        return self.streams

    def read_text(self):
        """A length and a text."""
        return json.loads(read_exactly(self.sock, struct.unpack('>I', read_exactly(self.sock, 4))[0]))

    def finish(self, results=None):
        """The test's end, to the last byte; returns the server's results."""
        self.sock.sendall(bytes([TEST_END]))
        self.expect(EXCHANGE_RESULTS)
        self.send_text(results or b'{"cpu_util_total":1.5,"streams":[{"id":1,"retransmits":18446744073709551615}]}')
        answer = self.read_text()
        self.expect(DISPLAY_RESULTS)
        self.sock.sendall(bytes([IPERF_DONE]))
        self.expect_end()
        return answer


def short_test(dial, reverse=True):
    """A whole test of a moment, both ways of doing it; TCP."""
    with Client(dial) as client:
        sock, = client.start(reverse=reverse, num=2000)
        if reverse:
            read_exactly(sock, 2000)
        else:
            sock.sendall(bytes(2000))
        results = client.finish()
        assert results['streams'][0]['bytes'] == 2000
        if reverse:
            assert sock.recv(1) == b''


def datagram(number, size=100, wide=False, when=None):
    """A UDP stream's datagram."""
    when = time.monotonic() if when is None else when
    header = struct.pack('>II', int(when), int(when % 1 * 1e6)) + struct.pack('>Q' if wide else '>I', number)
    return header + bytes(size - len(header))


def datagram2(number, size=100, when=None):
    """iperf 2's datagram; a negative number ends the test."""
    when = time.monotonic() if when is None else when
    return struct.pack('>iIIi', number, int(when), int(when % 1 * 1e6), 0) + bytes(size - 16)


def report2(data):
    """Of iperf 2's report: bytes, seconds, lost, late, datagrams, jitter in seconds."""
    words = struct.unpack_from('>10I', data, 16)
    assert words[0] == 0x80000000
    return (words[1] << 32 | words[2], words[3] + words[4] / 1e6, words[5], words[6], words[7], words[8] + words[9] / 1e6)
