"""Many TCP connections at once to the echo server, all open all the time, every byte compared."""
import contextlib
import selectors
import socket
import threading
import time

import traffic

CHUNK = 65536
USER_PAUSE = 0.01   # s between connects by user networking, whose sockets queue one: the next is tried again after a second


class Connections:
    """A number of open echo connections, as a context manager. Nothing is sent before all are open. sources: on a tap, the
    source port of each, so that a test chooses which core owns how many."""

    def __init__(self, wire, count=None, sources=(), address=None):
        self._stack = contextlib.ExitStack()
        self.socks = []
        self._sent = []                 # bytes so far on each: its content is one long reproducible stream
        try:
            for number in range(count or len(sources)):
                options = {'source': sources[number]} if sources else {}
                if address:
                    options['address'] = address
                sock = self._stack.enter_context(wire.tcp(7, **options))
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.socks.append(sock)
                if wire.netns is None:
                    time.sleep(USER_PAUSE)
        except BaseException:
            self._stack.close()
            raise
        self._rounds = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()

    def exchange(self, size, timeout=60, only=None):
        """Every connection (or those whose numbers `only` lists) sends `size` fresh bytes of its own and gets them back,
        all at once. Returns the seconds it took."""
        self._rounds += 1
        begin = time.monotonic()
        state = {}
        with selectors.DefaultSelector() as selector:
            for number in range(len(self.socks)) if only is None else only:
                data = memoryview(traffic.content(size, self._rounds << 16 | number))
                state[number] = [data, 0, 0]
                selector.register(self.socks[number], selectors.EVENT_READ | selectors.EVENT_WRITE, number)
            while state:
                left = timeout - (time.monotonic() - begin)
                assert left > 0, (f'{len(state)} of {len(self.socks)} connections not done after {timeout} s: '
                                  + ', '.join(f'{n}: {v[1]} sent, {v[2]} back' for n, v in list(state.items())[:5]))
                for key, events in selector.select(min(left, 1)):
                    if events & selectors.EVENT_WRITE:
                        self._send(selector, key, state[key.data])
                    if events & selectors.EVENT_READ and self._receive(key, state[key.data]):
                        selector.unregister(key.fileobj)
                        del state[key.data]
        return time.monotonic() - begin

    @staticmethod
    def _send(selector, key, one):
        one[1] += key.fileobj.send(one[0][one[1]:one[1] + CHUNK])
        if one[1] == len(one[0]):
            selector.modify(key.fileobj, selectors.EVENT_READ, key.data)

    @staticmethod
    def _receive(key, one):
        data, _, got = one
        part = key.fileobj.recv(CHUNK)
        assert part, f'connection {key.data}: end of stream after {got} of {len(data)} bytes'
        traffic.compare(part, data[got:got + len(part)].tobytes(), got, f'connection {key.data}')
        one[2] += len(part)
        return one[2] == len(data)

    def finish(self, timeout=20):
        """Half-closes all and expects the end of every stream, with nothing more on it."""
        for sock in self.socks:
            sock.shutdown(socket.SHUT_WR)
        end = time.monotonic() + timeout
        for sock in self.socks:
            traffic.expect_end(sock, end - time.monotonic())
        self.__exit__()


def echo(wire, size, count=None, sources=(), address=None, timeout=60):
    """So many connections at once, `size` bytes on each, both ways."""
    with Connections(wire, count, sources, address) as connections:
        connections.exchange(size, timeout)
        connections.finish()


class Background:
    """Exchanges on open connections over and over in a thread until stop(), which raises what went wrong in it."""

    def __init__(self, connections, size, timeout=60):
        self.rounds = 0
        self._connections, self._size, self._timeout = connections, size, timeout
        self._stop = threading.Event()
        self._error = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            while not self._stop.is_set():
                self._connections.exchange(self._size, self._timeout)
                self.rounds += 1
        except BaseException as e:
            self._error = e

    def progress(self, rounds=2, timeout=60):
        """Waits until so many more rounds are done."""
        wanted, end = self.rounds + rounds, time.monotonic() + timeout
        while self.rounds < wanted:
            assert self._thread.is_alive(), f'the traffic ended: {self._error}'
            assert time.monotonic() < end, f'only {self.rounds} of {wanted} rounds within {timeout} s'
            time.sleep(0.01)

    def stop(self):
        """Lets the round that is under way come to its end."""
        self._stop.set()
        self._thread.join(self._timeout + 5)
        assert not self._thread.is_alive(), 'the traffic does not end'
        if self._error:
            raise self._error
