"""A host made of frames: the whole network behind QEMU's `-netdev dgram` or `stream`, in user space.

RawHost owns the socket and a thread. It answers ARP, neighbour solicitation and echo requests, offers DHCP and router
advertisements when told to, checks every frame it receives, and hands the rest to whoever listens. It can lose, repeat,
reorder, hold back, go silent, or stop reading.
"""
import collections
import heapq
import os
import random
import select
import struct
import threading
import time

import frames as f
from rawlink import DgramLink

ALL_NODES = f.ip('ff02::1')
ALL_NODES_MAC = bytes.fromhex('333300000001')
LINK_LOCAL = f.ip('fe80::ff:fe00:aa')
HOLD_SECONDS = 0.02             # how long a frame waits for another to overtake it


class Impairment:
    """What happens to frames on one direction of the wire: probabilities (0..1) and a delay in seconds."""

    def __init__(self, drop=0.0, repeat=0.0, reorder=0.0, delay=0.0, seed=1):
        self.drop, self.repeat, self.reorder, self.delay = drop, repeat, reorder, delay
        self._random = random.Random(seed)
        self._held = None

    def apply(self, frame):
        """The frames to pass on now, in order, for one that came."""
        draw = self._random.random
        if self.drop and draw() < self.drop:
            return []
        out = [frame]
        if self.repeat and draw() < self.repeat:
            out.append(frame)
        if self._held is not None:
            out.append(self._held)
            self._held = None
        elif self.reorder and draw() < self.reorder:
            self._held = out.pop()
        return out

    def release(self):
        """The frame held back to be overtaken, as a list, when nothing came to overtake it."""
        held, self._held = self._held, None
        return [] if held is None else [held]

    @property
    def holds(self):
        """True while a frame is held back."""
        return self._held is not None


class RawHost:
    """The host behind the wire; a context manager. Addresses are text; mtu is the link's."""

    MAC = bytes.fromhex('0200000000aa')

    def __init__(self, workdir, address='198.18.0.1', address6='fd00::1', mtu=1500, link=DgramLink):
        self.workdir = workdir
        self.ip, self.ip6 = f.ip(address), f.ip(address6)
        self.mtu = mtu
        self.to_guest, self.from_guest = Impairment(), Impairment()
        self.silent = False             # reads frames and ignores them
        self.stalled = False            # does not even read: QEMU's transmit queue fills
        self.claimed = set()            # packed addresses of others that we answer for: duplicates
        self.any_destination = False    # frames to other stations are no error
        self.router = None              # (prefix text, lifetime s): answers router solicitations
        self.dhcp = None                # a DhcpServer
        self.errors = []                # what was wrong with received frames
        self.counts = collections.Counter()
        self.recent = collections.deque(maxlen=60)
        self.guest_mac = None
        self.neighbours = {}            # packed address -> MAC, learned from ARP and ND
        self._watchers = []             # called with (ethertype, parsed packet or bytes, transport)
        self._out = collections.deque()
        self._timers = []
        self._order = 0
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._reassembly = f.Reassembly()
        self._ident = random.Random(7)
        self._link_kind = link
        self.link = None
        self._wake_r = self._wake_w = None
        self._thread = None
        self._stop = False

    def netdev(self):
        """QEMU's arguments for this wire; inside the with block."""
        return self.link.netdev()

    def __enter__(self):
        self.link = self._link_kind(self.workdir)
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name='rawhost', daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop = True
        self.wake()
        self._thread.join(10)
        for fd in (self._wake_r, self._wake_w):
            os.close(fd)
        self.link.close()

    def check(self):
        """AssertionError if any received frame was malformed, or the host's own thread failed."""
        assert not self.errors, 'frames from the guest: ' + '; '.join(self.errors[:10])

    def report(self):
        """Counters and the last frames, for a failing test's message."""
        return f'{dict(self.counts)}, {len(self._out)} frames queued, errors: {self.errors[:10]}\n' + '\n'.join(self.recent)

    # ---- the thread

    def _run(self):
        while not self._stop:
            try:
                self._turn()
            except Exception as e:      # a fault of this host, not of the guest: shown by check()
                self.errors.append(f'host: {type(e).__name__}: {e}')
                if len(self.errors) > 100:
                    return

    def _turn(self):
        with self.lock:
            wait = min(self._timers[0][0] - time.monotonic(), 0.5) if self._timers else 0.5
            sending = bool(self._out) or self.link.unsent
            reading = not self.stalled
        linked = self.link.connected or self.link.hears_unconnected
        watch = [self._wake_r] + ([self.link] if reading and linked else [])
        if not self.link.connected and (sending or not linked):
            wait = 0.01                 # QEMU is not there yet: try again
        if reading and self.link.buffered:
            wait = 0
        ready, _, _ = select.select(watch, [self.link] if sending and self.link.connected else [], [], max(wait, 0))
        if self._wake_r in ready:
            try:
                os.read(self._wake_r, 4096)
            except BlockingIOError:
                pass
        with self.lock:
            if self.link in ready or (reading and self.link.buffered):
                self._receive_batch()
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                heapq.heappop(self._timers)[2]()
            self._flush()

    def _receive_batch(self):
        for _ in range(64):
            frame = self.link.read()
            if frame is None:
                break
            self.counts['received'] += 1
            for one in self.from_guest.apply(frame):
                self._input(one)
            if self.from_guest.holds:
                self.after(HOLD_SECONDS, lambda: [self._input(one) for one in self.from_guest.release()])
            if self.stalled:
                break
        for watcher in list(self._watchers):
            after = getattr(watcher, 'after_batch', None)
            if after:
                after()
        self._changed.notify_all()

    def _flush(self):
        if not self.link.connected and (self._out or not self.link.hears_unconnected):
            self.link.connect()
        self.link.flush()
        while self._out and self.link.connected:
            try:
                if not self.link.write(self._out[0]):
                    return
            except OSError as e:
                self.errors.append(f'host: cannot send {len(self._out[0])} bytes: {e}')
            self._out.popleft()
            self.counts['sent'] += 1

    def stall(self, on):
        """Stops reading, or reads again."""
        self.stalled = on
        self.wake()

    def wake(self):
        """Makes the thread look again at once."""
        try:
            os.write(self._wake_w, b'x')
        except BlockingIOError:
            pass

    # ---- sending

    def send_frame(self, frame):
        """Queues one frame as it is, through the impairment."""
        with self.lock:
            for one in self.to_guest.apply(frame):
                if self.to_guest.delay:
                    self.after(self.to_guest.delay, lambda one=one: self._out.append(one))
                else:
                    self._out.append(one)
            if self.to_guest.holds:
                self.after(HOLD_SECONDS, lambda: self._out.extend(self.to_guest.release()))
            if threading.current_thread() is not self._thread:
                self.wake()

    def after(self, seconds, call):
        """Calls call() in the host's thread after so many seconds."""
        with self.lock:
            self._order += 1
            heapq.heappush(self._timers, (time.monotonic() + seconds, self._order, call))
            if threading.current_thread() is not self._thread:
                self.wake()

    def source_for(self, dst):
        """Our address to talk to a packed address from."""
        return self.ip if len(dst) == 4 else LINK_LOCAL if dst[:2] == b'\xfe\x80' else self.ip6

    def send_ip(self, dst, proto, payload, src=None, hops=64, mtu=None):
        """Sends one IP packet to a packed address, in fragments where it takes them. The neighbour must be known."""
        src = src or self.source_for(dst)
        target = self.neighbours[dst]
        kind = f.ETH_IP4 if len(dst) == 4 else f.ETH_IP6
        for packet in f.ip_fragments(src, dst, proto, payload, mtu or self.mtu, self._ident.getrandbits(32), hops):
            self.send_frame(f.ether(target, self.MAC, kind, packet))

    def queued(self):
        """Frames waiting to be taken by QEMU."""
        with self.lock:
            return len(self._out)

    # ---- waiting and watching

    def watch(self, watcher):
        """Adds a callable (ethertype, packet, transport), called in the host's thread for every good frame."""
        with self.lock:
            self._watchers.append(watcher)

    def unwatch(self, watcher):
        """Takes it away again."""
        with self.lock:
            self._watchers.remove(watcher)

    def wait(self, condition, timeout):
        """Waits until condition() is true (looked at after each batch of frames and timers); returns whether it is."""
        deadline = time.monotonic() + timeout
        with self.lock:
            while not condition():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, 0.05))
            return True

    def resolve(self, address, timeout=5):
        """Learns the MAC of an address (text) by ARP or neighbour solicitation; returns it. TimeoutError if none answers."""
        target = f.ip(address)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            self._ask(target)
            if self.wait(lambda: target in self.neighbours, 0.5):
                return self.neighbours[target]
        raise TimeoutError(f'{address} answers no ' + ('ARP' if len(target) == 4 else 'neighbour solicitation'))

    def _ask(self, target):
        if len(target) == 4:
            self.send_frame(f.ether(f.BROADCAST, self.MAC, f.ETH_ARP,
                                    f.arp(1, self.MAC, self.ip, bytes(6), target)))
            return
        src = self.source_for(target)
        group = f.ip('ff02::1:ff00:0')[:13] + target[13:]
        body = bytes(4) + target + b'\1\1' + self.MAC
        self.send_frame(f.ether(b'\x33\x33' + group[12:], self.MAC, f.ETH_IP6,
                                f.ip6(src, group, f.ICMP6, f.icmp6(src, group, 135, 0, body), 255)))

    def advertise_router(self, prefix='fd00::', lifetime=1800, dst=ALL_NODES, dst_mac=ALL_NODES_MAC):
        """Sends one router advertisement with an autonomous /64 prefix (RFC 4861, 4.2 and 4.6.2)."""
        body = struct.pack('!BBHII', 64, 0, lifetime, 0, 0) + b'\1\1' + self.MAC
        body += struct.pack('!BBBBIII', 3, 4, 64, 0xC0, 86400, 14400, 0) + f.ip(prefix)
        body += struct.pack('!BBHI', 5, 1, 0, self.mtu)
        self.send_frame(f.ether(dst_mac, self.MAC, f.ETH_IP6,
                                f.ip6(LINK_LOCAL, dst, f.ICMP6, f.icmp6(LINK_LOCAL, dst, 134, 0, body), 255)))

    # ---- receiving

    def _input(self, frame):
        try:
            self._frame(frame)
        except f.Malformed as e:
            self.errors.append(f'{e}: {frame[:80].hex()}{"..." if len(frame) > 80 else ""} ({len(frame)} bytes)')

    def _frame(self, frame):
        if len(frame) < 14:
            raise f.Malformed('frame without header')
        dst, src, kind = frame[:6], frame[6:12], struct.unpack_from('!H', frame, 12)[0]
        self.recent.append(f'{len(frame)} bytes {kind:04x} {frame[14:54].hex()}')
        if src[0] & 1 or src == self.MAC:
            raise f.Malformed(f'source MAC {src.hex(":")}')
        if len(frame) > 14 + self.mtu:
            raise f.Malformed(f'frame of {len(frame)} bytes, MTU {self.mtu}')
        self.guest_mac = src
        if self.silent:
            return
        if dst != self.MAC and not dst[0] & 1 and not self.any_destination:
            raise f.Malformed(f'destination MAC {dst.hex(":")} is not on this wire')
        if kind == f.ETH_ARP:
            self._arp(src, frame[14:])
        elif kind in (f.ETH_IP4, f.ETH_IP6):
            self._packet(kind, src, dst, frame[14:])
        else:
            raise f.Malformed(f'ethertype {kind:04x}')

    def _arp(self, src, body):
        if len(body) < 28 or body[:6] != b'\0\1\x08\0\6\4':
            raise f.Malformed('ARP: header')
        op, sha, spa, tpa = body[7], body[8:14], body[14:18], body[24:28]
        if sha != src:
            raise f.Malformed(f'ARP: sender {sha.hex(":")} in a frame from {src.hex(":")}')
        self.counts['arp'] += 1
        if spa != bytes(4):
            self.neighbours[spa] = sha
        if op == 1 and tpa == self.ip:
            self.send_frame(f.ether(src, self.MAC, f.ETH_ARP, f.arp(2, self.MAC, self.ip, sha, spa)))
        self._tell(f.ETH_ARP, body, None)

    def _packet(self, kind, src, dst, body):
        packet = f.parse_ip4(body) if kind == f.ETH_IP4 else f.parse_ip6(body)
        self._check_addresses(dst, packet)
        if packet.more or packet.offset:
            self.counts['fragments'] += 1
        whole = self._reassembly.add(packet)
        if whole is None:
            return
        transport = f.check_transport(whole)
        if whole.proto == f.ICMP and self._icmp(whole):
            return
        if whole.proto == f.ICMP6 and self._icmp6(src, whole):
            return
        if self.dhcp and isinstance(transport, f.Udp) and transport.dport == 67:
            self.dhcp.request(self, src, transport.payload)
        self._tell(kind, whole, transport)

    def _check_addresses(self, dst, packet):
        multicast = packet.dst[0] == 0xFF if len(packet.dst) == 16 else (packet.dst[0] >= 224)
        if multicast and dst != f.BROADCAST:
            want = b'\x33\x33' + packet.dst[12:] if len(packet.dst) == 16 else \
                b'\x01\x00\x5e' + bytes([packet.dst[1] & 0x7F]) + packet.dst[2:]
            if dst != want:
                raise f.Malformed(f'{f.show(packet.dst)} sent to MAC {dst.hex(":")}')

    def _icmp(self, packet):
        if packet.payload[0] == 8 and packet.dst == self.ip:
            ident, seq = struct.unpack_from('!HH', packet.payload, 4)
            self.send_ip(packet.src, f.ICMP, f.icmp_echo(packet.dst, packet.src, ident, seq, packet.payload[8:], True))
            return True
        return False

    def _icmp6(self, src, packet):
        kind, body = packet.payload[0], packet.payload[4:]
        if 133 <= kind <= 137 and packet.hops != 255:
            raise f.Malformed(f'ICMPv6 type {kind} with hop limit {packet.hops}')
        if kind == 133 and self.router:
            self.counts['solicitations'] += 1
            self.advertise_router(*self.router)
        elif kind == 135:
            self._solicited(src, packet, body)
        elif kind == 136:
            self.neighbours[body[4:20]] = src
        elif kind == 128 and packet.dst in (self.ip6, LINK_LOCAL):
            ident, seq = struct.unpack_from('!HH', body)
            self.neighbours.setdefault(packet.src, src)
            self.send_ip(packet.src, f.ICMP6, f.icmp_echo(packet.dst, packet.src, ident, seq, body[4:], True), packet.dst)
            return True
        return False

    def _solicited(self, src, packet, body):
        target = body[4:20]
        if target not in (self.ip6, LINK_LOCAL) and target not in self.claimed:
            return
        unspecified = packet.src == bytes(16)
        dst = ALL_NODES if unspecified else packet.src
        if not unspecified:
            self.neighbours[packet.src] = src
        advert = struct.pack('!I', 0x20000000 if unspecified else 0x60000000) + target + b'\2\1' + self.MAC
        self.send_frame(f.ether(ALL_NODES_MAC if unspecified else src, self.MAC, f.ETH_IP6,
                                f.ip6(target, dst, f.ICMP6, f.icmp6(target, dst, 136, 0, advert), 255)))

    def _tell(self, kind, packet, transport):
        for watcher in list(self._watchers):
            watcher(kind, packet, transport)
