"""Traffic from a RawHost to the guest: ping and UDP echo, paced by a window, contents compared."""
import random
import struct
import time

import frames as f


class _Exchange:
    """Sends numbered requests, at most `window` of them unanswered, and compares what comes back."""

    def __init__(self, host, address, count, sizes, window, seed):
        self.host, self.remote = host, f.ip(address)
        self.src = host.source_for(self.remote)
        self.count, self.sizes, self.window = count, sizes, window
        self.random = random.Random(seed)
        self.outstanding = {}           # seq -> (content, when sent)
        self.answered = 0
        self.repeated = 0
        self.wrong = []
        self.sent = 0
        self.round_trips = []

    def run(self, timeout):
        """Runs to the end or the deadline; returns self."""
        self.host.watch(self)
        try:
            with self.host.lock:
                self.fill()
                self.host.wake()
            self.host.wait(lambda: self.answered >= self.count or self.wrong, timeout)
        finally:
            self.host.unwatch(self)
        return self

    def fill(self):
        """Sends as many requests as the window and the wire allow."""
        while self.sent < self.count and len(self.outstanding) < self.window and self.host.queued() < 128:
            size = self.sizes[self.sent % len(self.sizes)]
            content = struct.pack('!I', self.sent)[:size] + self.random.randbytes(max(size - 4, 0))
            self.outstanding[self.sent] = (content, time.monotonic())
            self.request(self.sent, content)
            self.sent += 1
        if self.sent < self.count and not self.outstanding:
            self.host.after(0.002, self.fill)

    def answer(self, seq, content):
        """One answer came."""
        if seq not in self.outstanding:
            if seq < self.sent:
                self.repeated += 1
            else:
                self.wrong.append(f'answer {seq} to nothing asked')
            return
        wanted, when = self.outstanding.pop(seq)
        if wanted != content:
            self.wrong.append(f'answer {seq}: {len(content)} bytes instead of {len(wanted)}, or other bytes')
        self.answered += 1
        self.round_trips.append(time.monotonic() - when)

    def after_batch(self):
        """Called by the host after a batch of frames."""
        self.fill()

    def check(self, lost=0, repeated=0):
        """AssertionError if contents differed, or more than so many answers did not come or came again."""
        missing = self.count - self.answered
        assert not self.wrong and self.repeated <= repeated and missing <= lost, \
            (f'{type(self).__name__} to {f.show(self.remote)}: sent {self.sent} of {self.count}, {missing} unanswered '
             f'(first {sorted(self.outstanding)[:5]}), {self.repeated} repeated, wrong: {self.wrong[:3]}\n{self.host.report()}')


class Ping(_Exchange):
    """Echo requests, ICMP or ICMPv6."""

    def __init__(self, host, address, count=1, sizes=(56,), window=8, seed=3, hops=64):
        super().__init__(host, address, count, sizes, window, seed)
        self.ident = self.random.getrandbits(16)
        self.hops = hops

    def request(self, seq, content):
        """Sends echo request number seq."""
        self.host.send_ip(self.remote, f.ICMP if len(self.remote) == 4 else f.ICMP6,
                          f.icmp_echo(self.src, self.remote, self.ident, seq & 0xFFFF, content), self.src, self.hops)

    def __call__(self, kind, packet, transport):
        if packet_kind(packet) != (0 if len(self.remote) == 4 else 129) or packet.src != self.remote:
            return
        ident, seq = struct.unpack_from('!HH', packet.payload, 4)
        if ident == self.ident:
            self.answer(seq, packet.payload[8:])


class UdpEcho(_Exchange):
    """Datagrams to an echo port. Sizes below 4 carry no whole number: use them with window=1."""

    def __init__(self, host, address, port=7, count=100, sizes=(64,), window=16, seed=5):
        super().__init__(host, address, count, sizes, window, seed)
        self.port = port
        self.lport = 40000 + self.random.getrandbits(12)

    def request(self, seq, content):
        """Sends datagram number seq."""
        self.host.send_ip(self.remote, f.UDP, f.udp(self.src, self.remote, self.lport, self.port, content), self.src)

    def __call__(self, kind, packet, transport):
        if not isinstance(transport, f.Udp) or transport.dport != self.lport or transport.sport != self.port:
            return
        if len(transport.payload) >= 4:
            seq = struct.unpack_from('!I', transport.payload)[0]
        else:
            seq = next(iter(self.outstanding), self.sent)
        self.answer(seq, transport.payload)


def packet_kind(packet):
    """The ICMP or ICMPv6 type of a parsed packet, None for anything else."""
    if isinstance(packet, f.Ip) and packet.proto in (f.ICMP, f.ICMP6) and packet.payload:
        return packet.payload[0]
    return None


def ping(host, address, count=1, sizes=(56,), timeout=10, **options):
    """Pings; every answer must come, once and right. Returns the exchange."""
    exchange = Ping(host, address, count, sizes, **options).run(timeout)
    exchange.check()
    return exchange


def udp_echo(host, address, count=100, sizes=(64,), timeout=20, **options):
    """Echoes datagrams; every one must come back, once and right. Returns the exchange."""
    exchange = UdpEcho(host, address, count=count, sizes=sizes, **options).run(timeout)
    exchange.check()
    return exchange
