"""A small TCP client over a RawHost: enough of RFC 9293 to talk to a server through loss, repetition and reordering.

It lives in the host's thread; the test's thread starts it and waits. What it sends and what it expects back are byte
strings; every received byte is compared in place.
"""
import itertools
import os
import struct
import time

import frames as f

_ports = itertools.count(20000 + os.getpid() % 20000)
_MOD = 1 << 32


def _after(a, b):
    """a > b in sequence space."""
    return 0 < ((a - b) % _MOD) < 1 << 31


class RawTcp:
    """One connection from the host to address:port. data is sent at once after the handshake; echo=True expects it back.

    window: what the host offers (0: a peer that reads nothing until open_window()). half_close: FIN right after the data.
    expect: bytes to come instead of an echo; endless: more may follow them.
    """

    RTO, RTO_MAX = 0.4, 3.0

    def __init__(self, host, address, port, data=b'', echo=True, window=65535, half_close=False, mss=None, expect=None,
                 endless=False):
        self.host, self.remote, self.rport = host, f.ip(address), port
        self.src = host.source_for(self.remote)
        self.data = data
        self.expect = (data if echo else b'') if expect is None else expect
        self.window, self.endless = window, endless
        self.lport = 20000 + next(_ports) % 40000
        self.state = 'closed'           # closed, syn-sent, open, reset, done, failed
        self.why = ''
        self.received = 0
        self.got = bytearray()          # only without expect: everything received
        self.peer_fin = False
        self.retransmits = 0
        self.zero_windows = 0
        self.peer_mss = None            # from the SYN's answer
        self._mss = mss or host.mtu - (40 if len(self.remote) == 4 else 60)
        self.iss = struct.unpack('!I', os.urandom(4))[0]
        self._una = self._next = self._sent = 0     # offsets: 0 is the SYN, data from 1 on, then the FIN; _sent: furthest
        self._promised = 0              # right edge of the window offered, as a sequence number
        self.rcv_next = 0                   # next sequence number expected
        self._peer_window = 0
        self._early = {}
        self._ack_due = False
        self._duplicates = 0
        self._rto = self.RTO
        self._timer_at = None
        self._want_fin = half_close
        self._persist = False

    # ---- for the test's thread

    def start(self):
        """Sends the SYN; returns self."""
        with self.host.lock:
            self.host.watch(self)
            self.state = 'syn-sent'
            self._next = 1
            self._emit(f.SYN, 0, b'', struct.pack('!BBH', 2, 4, self._mss))
            self._arm()
        return self

    def wait(self, condition, timeout, what):
        """Waits for condition(); AssertionError with the connection's state if it does not come or the connection fails."""
        self.host.wait(lambda: condition() or self.state in ('failed', 'reset'), timeout)
        assert condition(), f'{what}: {self.describe()}\n{self.host.report()}'

    def wait_echo(self, timeout):
        """Waits until everything has come back and been compared."""
        self.wait(lambda: self.received >= len(self.expect), timeout, 'echo')

    def close(self, timeout=20):
        """Sends FIN (if not sent) and waits for the peer's FIN and for ours to be acknowledged."""
        with self.host.lock:
            self._want_fin = True
            self._push()
            self.host.wake()
        self.wait(lambda: self.state == 'done', timeout, 'close')
        self.abandon()

    def reset(self):
        """Sends RST and forgets the connection."""
        with self.host.lock:
            self._emit(f.RST | f.ACK, self._edge(), b'')
            self.state = 'reset'
        self.abandon()

    def abandon(self):
        """Vanishes: answers nothing from now on."""
        with self.host.lock:
            if self in self.host._watchers:
                self.host.unwatch(self)
            self._timer_at = None

    def open_window(self, window=65535):
        """Offers a window and says so."""
        with self.host.lock:
            self.window = window
            self._emit(f.ACK, self._edge(), b'')
            self.host.wake()

    @property
    def acknowledged(self):
        """Bytes of data the guest has acknowledged."""
        return max(self._una - 1, 0)

    def describe(self):
        """State in one line."""
        return (f'TCP to port {self.rport}: {self.state} {self.why}, received {self.received} of {len(self.expect)}, '
                f'sent {self._next}, acknowledged {self._una} of {len(self.data)}, peer window {self._peer_window}, '
                f'{self.retransmits} retransmits')

    # ---- in the host's thread

    def __call__(self, kind, packet, segment):
        if not isinstance(segment, f.Tcp) or segment.dport != self.lport or segment.sport != self.rport:
            return
        if packet.src != self.remote:
            return
        if segment.flags & f.RST:
            if self.state != 'done':
                self.state, self.why = 'reset', 'by the peer'
            return
        if self.state == 'syn-sent':
            self._handshake(segment)
        elif self.state in ('open', 'done'):
            self._acknowledged(segment)
            self._arrived(segment)
            self._push()
            self._finished()

    def after_batch(self):
        """Called by the host once a batch of frames is through: one acknowledgement for all of it."""
        if self._ack_due and self.state in ('open', 'done'):
            self._emit(f.ACK, self._edge(), b'')

    def _handshake(self, segment):
        if segment.flags & (f.SYN | f.ACK) != f.SYN | f.ACK or segment.ack != (self.iss + 1) % _MOD:
            return self._fail(f'answer to SYN: flags {segment.flags:#x} ack {segment.ack}')
        self.peer_mss = f.tcp_mss(segment.options)
        self._mss = min(self._mss, self.peer_mss)
        self.rcv_next = (segment.seq + 1) % _MOD
        self._promised = (self.rcv_next + self.window) % _MOD
        self._una, self._peer_window = 1, segment.window
        self.state = 'open'
        self._timer_at = None
        self._ack_due = True
        return self._push()

    def _acknowledged(self, segment):
        if not segment.flags & f.ACK:
            return self._fail('segment without ACK')
        ack = (segment.ack - self.iss) % _MOD
        if _after(ack, self._sent):
            return self._fail(f'acknowledges {ack}, sent {self._sent}')
        if segment.window == 0:
            self.zero_windows += 1
        if _after(ack, self._una):
            self._una = ack
            self._next = max(self._next, ack)
            self._duplicates = 0
            self._rto = self.RTO
            self._persist = False
            self._timer_at = None
        elif ack == self._una and not segment.payload and segment.window == self._peer_window and self._next > self._una:
            self._duplicates += 1
            if self._duplicates == 3:
                self._resend(one=True)
        self._peer_window = segment.window
        return self._arm()

    def _arrived(self, segment):
        payload, seq = segment.payload, segment.seq
        if segment.flags & f.SYN:
            self._ack_due = True
            return None
        if len(payload) > self._mss_ours():
            return self._fail(f'segment of {len(payload)} bytes, our MSS is {self._mss_ours()}')
        if not payload and not segment.flags & f.FIN:
            return None
        self._ack_due = True
        if self.window == 0:            # a probe; anything longer would be sent into a closed window
            if len(payload) > 1 and _after(seq + len(payload), self._promised):
                self._fail(f'{len(payload)} bytes into a closed window')
            return None
        if _after((seq + len(payload)) % _MOD, self._promised):
            return self._fail(f'sends {(seq + len(payload) - self._promised) % _MOD} bytes beyond the window')
        self._early[seq] = (payload, bool(segment.flags & f.FIN))
        while True:
            key = next((s for s in self._early if not _after(s, self.rcv_next)), None)
            if key is None:
                return None
            payload, fin = self._early.pop(key)
            self._in_order(payload, (self.rcv_next - key) % _MOD, fin)

    def _mss_ours(self):
        return self.host.mtu - (40 if len(self.remote) == 4 else 60)

    def _in_order(self, payload, skip, fin):
        fresh = payload[skip:]
        if fin and skip > len(payload):
            return                      # a FIN seen before
        if fresh:
            if self.peer_fin:
                return self._fail('data after FIN')
            at = self.received
            wanted = self.expect[at:at + len(fresh)]
            if self.expect and wanted != (fresh[:len(wanted)] if self.endless else fresh):
                return self._fail(f'byte {at + _first_difference(self.expect[at:], fresh)} differs')
            if not self.expect:
                self.got += fresh
            self.received += len(fresh)
            self.rcv_next = (self.rcv_next + len(fresh)) % _MOD
        if fin and not self.peer_fin:
            self.peer_fin = True
            self.rcv_next = (self.rcv_next + 1) % _MOD
        return None

    def _edge(self):
        # A bare ACK beyond the peer's window (after a probe into a closed one) would not be acceptable: RFC 9293, 3.10.7.4.
        return min(self._next, self._una + self._peer_window)

    def _limit(self):
        return len(self.data) + 1 + (1 if self._want_fin else 0)

    def _push(self):
        if self.state != 'open':
            return
        edge = min(self._una + self._peer_window, self._limit())
        while self._next < edge and self.host.queued() < 64:
            self._segment()
        if self._next < self._limit() and self._peer_window == 0 and self._una == self._next:
            self._persist = True
        elif self._next < edge:         # the wire is full: go on soon
            self.host.after(0.002, self._push)
        self._arm()

    def _segment(self):
        """Sends what starts at _next."""
        at = self._next - 1
        part = self.data[at:at + min(self._mss, max(self._una + self._peer_window - self._next, 1))]
        fin = self._want_fin and at + len(part) == len(self.data) and self._limit() > self._next + len(part)
        fin = fin and (not part or self._una + self._peer_window > self._next + len(part))
        self._emit(f.ACK | (f.PSH if part else 0) | (f.FIN if fin else 0), self._next, part)
        self._next += len(part) + (1 if fin else 0)

    def _emit(self, flags, offset, payload, options=b''):
        self._ack_due = False
        self._sent = max(self._sent, offset + len(payload) + (1 if flags & (f.SYN | f.FIN) else 0))
        edge = (self.rcv_next + self.window) % _MOD
        if not self._promised or _after(edge, self._promised):
            self._promised = edge
        segment = f.tcp(self.src, self.remote, self.lport, self.rport, self.iss + offset, self.rcv_next if flags & f.ACK else 0,
                        flags, self.window, payload, options)
        self.host.send_ip(self.remote, f.TCP, segment, self.src)

    def _finished(self):
        if self.state == 'open' and self.peer_fin and self._want_fin and self._una == len(self.data) + 2:
            self.state = 'done'

    def _fail(self, why):
        self.state, self.why = 'failed', why

    # ---- retransmission

    def _arm(self):
        if self._timer_at is None and (self._next > self._una or self._persist):
            self._timer_at = time.monotonic() + self._rto
            self.host.after(self._rto, self._timeout)

    def _timeout(self):
        if self._timer_at is None or self.state not in ('syn-sent', 'open'):
            return
        if time.monotonic() < self._timer_at - 0.001:
            return
        self._timer_at = None
        self._rto = min(self._rto * 2, self.RTO_MAX)
        if self.state == 'syn-sent':
            self.retransmits += 1
            self._emit(f.SYN, 0, b'', struct.pack('!BBH', 2, 4, self._mss))
        elif self._next > self._una:
            self._resend()
        elif self._persist:             # zero window: probe with one byte
            self._segment()
        self._arm()

    def _resend(self, one=False):
        self.retransmits += 1
        if one:                         # fast retransmit: only the first outstanding segment
            ahead, self._next = self._next, self._una
            self._segment()
            self._next = max(self._next, ahead)
        else:
            self._next = self._una
            self._segment()


def _first_difference(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def echo(host, address, port, data, timeout, **options):
    """Echoes data over one connection, compares, closes in order; returns the RawTcp for its counters."""
    connection = RawTcp(host, address, port, data, **options).start()
    connection.wait_echo(timeout)
    connection.close()
    return connection
