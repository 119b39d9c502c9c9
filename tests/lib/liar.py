"""A virtio-net device over vhost-user (vhostuser.py), 1..N queue pairs, that carries frames between the guest and a RawHost: honest
by itself, and telling lies when asked to.

    with wires.raw_wire(link=liar.link(pairs=2)) as wire: ... device = wire.link.device; device.lie('length', 'rx'); device.truth()

Steers like a device that learns: a flow's frames go to the pair whose transmit queue answered it last. Slow, and thereby patient:
everything happens in one thread.
"""
import collections
import os
import random
import struct

import frames as f
from vhostuser import F_EVENT_IDX, F_INDIRECT, Backend, Violation

HEADER = 12
F_CSUM, F_GUEST_CSUM, F_MRG_RXBUF, F_MQ = 0, 1, 15, 22
FEATURES = sum(1 << bit for bit in (F_CSUM, F_GUEST_CSUM, F_MRG_RXBUF, F_MQ, F_EVENT_IDX, F_INDIRECT))
NEEDS_CSUM = 1
QUEUED_MAX = 1000               # frames that wait for the guest; more are lost, as on a wire
REORDER = 4                     # buffers that wait to be returned in another order, at most so long:
REORDER_SECONDS = 0.02

# What there is to lie about. lie(name, queues, count): so many times, or until truth().
LIES = {
    'drop_kick': 'a notification is taken and ignored',
    'starve': 'nothing is taken from the queue',
    'hold': 'buffers are used, but not returned before truth()',
    'delay': 'buffers are returned 50 ms late',
    'reorder': 'buffers are returned in another order',
    'deaf': 'no interrupt is sent',
    'chatty': 'an interrupt is sent for each entry, wanted or not',
    'id_range': 'a used entry has an id beyond the queue; the true buffer never returns',
    'id_idle': 'a used entry has an id half a queue away, of no buffer that is with the device if few are; the true one never returns',
    'twice': 'a buffer is returned twice',
    'length': 'a used length beyond what the buffer has room for',
    'index_jump': 'the used index jumps ahead by 1,000, for good',
    'index_back': 'the used index goes back by half the queue, for good',
    'scribble': 'descriptors are overwritten once the device has read them',
    'short': 'a frame of two bytes', 'empty': 'a used length of 0',
    'num_0': 'num_buffers is 0', 'num_2': 'num_buffers is 2, there is one', 'num_huge': 'num_buffers is 65,535',
    'gso': 'a gso_type that was not negotiated', 'gso_udp': 'another, of datagrams', 'gso_unknown': 'a gso_type that does not exist',
    'csum_start': 'csum_start lies outside the frame', 'csum_offset': 'csum_offset lies outside the frame',
    'needs_csum': 'NEEDS_CSUM on a frame, negotiated or not',
}
RX_HEADER = {   # flags, gso_type, hdr_len, gso_size, csum_start, csum_offset, num_buffers
    'num_0': (0, 0, 0, 0, 0, 0, 0), 'num_2': (0, 0, 0, 0, 0, 0, 2), 'num_huge': (0, 0, 0, 0, 0, 0, 65535),
    'gso': (0, 1, 54, 1400, 0, 0, 1), 'gso_udp': (NEEDS_CSUM, 5, 42, 100, 34, 6, 1), 'gso_unknown': (0, 77, 54, 1400, 0, 0, 1),
    'csum_start': (NEEDS_CSUM, 0, 0, 0, 65000, 6, 1), 'csum_offset': (NEEDS_CSUM, 0, 0, 0, 34, 65000, 1),
    'needs_csum': (NEEDS_CSUM, 0, 0, 0, 34, 6, 1),
}


# What QEMU says on stderr when a backend goes: its attempts to speak to it, and to find it again.
GONE = tuple(rf'qemu-system-\w+: {text}' for text in (
    r'Failed to (set msg fds|read msg header|write msg)\b.*', r'vhost VQ \d+ ring restore failed: .*', r'Unable to connect character device c0: .*'))


class _Lie:
    def __init__(self, name, queues, count):
        self.name, self.queues, self.left = name, queues, count


class Liar(Backend):
    """The device. Queue 2i receives, 2i+1 transmits, for pair i (virtio 1.3, 5.1.2)."""

    def __init__(self, path, pairs=1, features=FEATURES, **options):
        super().__init__(path, pairs, features, **options)
        self.strict = True              # flags of a frame's header that do not exist are a violation; else they are ignored (5.1.6.2.2)
        self.from_guest = collections.deque()
        self.readable = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.told = collections.Counter()           # (lie, queue): times told
        self.counts = collections.Counter()
        self._to_guest = [collections.deque() for _ in range(pairs)]
        self._flows = {}
        self._lies = []
        self._random = random.Random(1)
        self._awake = [False] * (2 * pairs)         # there may be something in the queue
        self._waiting = [[] for _ in range(2 * pairs)]     # (id, length) of buffers not returned yet

    # ---- for the test's thread

    def send(self, frame):
        """A frame for the guest; False if there is no room."""
        with self.lock:
            pair = self._steer(frame)
            if len(self._to_guest[pair]) >= QUEUED_MAX:
                return False
            self._to_guest[pair].append(frame)
            self.wake()
            return True

    def lie(self, name, queues, count=None):
        """Begins to lie: queues is 'rx', 'tx' or a list of queue indices; so many times, or until truth()."""
        if name not in LIES:
            raise ValueError(f'lie {name}: one of {", ".join(LIES)}')
        if queues in ('rx', 'tx'):
            queues = range(queues == 'tx', 2 * self.pairs, 2)
        with self.lock:
            self._lies.append(_Lie(name, frozenset(queues), count))

    def truth(self):
        """Stops lying; what was held back is returned. A kick that was dropped stays so."""
        with self.lock:
            self._lies.clear()
            for ring in self.rings:
                if ring.running:
                    self._return(ring)
            self.wake()

    def storm(self, count, queues=None):
        """Sends so many interrupts for nothing."""
        with self.lock:
            for ring in self.rings:
                if ring.running and (queues is None or ring.index in queues):
                    for _ in range(count):
                        ring.interrupt()

    def check(self):
        """AssertionError if the driver or QEMU broke a rule."""
        assert not self.errors, 'vhost-user: ' + '; '.join(self.errors[:10])

    # ---- the protocol's side

    def started(self, ring):
        """The driver may have filled it before."""
        self._awake[ring.index] = True

    def stopping(self, ring):
        """What was taken must be returned first."""
        self._return(ring)

    def disconnect(self):
        """What was taken and not returned is forgotten."""
        with self.lock:
            super().disconnect()
            for waiting in self._waiting:
                waiting.clear()

    def kicked(self, ring):
        """A notification."""
        if not self._tells('drop_kick', ring):
            self._awake[ring.index] = True

    def work(self):
        """One look at all queues."""
        for ring in self.rings:
            if not ring.running or not self._awake[ring.index] or self._tells('starve', ring):
                continue
            if ring.index % 2:
                self._transmit(ring)
            elif ring.enabled and self._to_guest[ring.index // 2]:
                self._receive_queue(ring, self._to_guest[ring.index // 2])

    # ---- lies

    def _tells(self, name, ring):
        """True if that lie is to be told now, of that queue."""
        for lie in self._lies:
            if lie.name == name and ring.index in lie.queues and lie.left != 0:
                if lie.left is not None:
                    lie.left -= 1
                self.told[name, ring.index] += 1
                return True
        return False

    def _used(self, ring, chain, length):
        """Returns a buffer: now, late, in another order, or wrongly."""
        ident, room = chain.head, sum(map(len, chain.writable))
        if self._tells('scribble', ring):
            ring.scribble(chain.head)
        if self._tells('id_range', ring):
            ident = 0x10000 + ring.size
        elif self._tells('id_idle', ring):
            ident = (chain.head + ring.size // 2) % ring.size
        if self._tells('length', ring):
            length = room + 1 + 0x7FFFFFFF * (ident % 2)
        waiting = self._waiting[ring.index]
        waiting.append((ident, length))
        if self._tells('twice', ring):
            waiting.append((ident, length))
        if self._tells('hold', ring):
            return
        if self._tells('delay', ring):
            self.after(0.05, lambda: self._return(ring))
        elif self._tells('reorder', ring):
            if len(waiting) >= REORDER:
                self._random.shuffle(waiting)
                self._return(ring)
            else:
                self.after(REORDER_SECONDS, lambda: self._return(ring))
        else:
            self._return(ring, publish=False)

    def _return(self, ring, publish=True):
        waiting = self._waiting[ring.index]
        if ring.running:
            for ident, length in waiting:
                ring.put(ident, length)
        waiting.clear()
        if publish and ring.running:
            self._publish(ring)

    def _publish(self, ring):
        if (ring.used_idx + ring.skew - ring.signalled) & 0xFFFF == 0:
            return
        if self._tells('index_jump', ring):
            ring.skew = 1000
        elif self._tells('index_back', ring):
            ring.skew = ring.signalled - ring.size // 2 - ring.used_idx
        wanted = ring.publish()
        if self._tells('chatty', ring):
            wanted = True
        if wanted and not self._tells('deaf', ring):
            ring.interrupt()

    # ---- frames from the guest

    def _transmit(self, ring):
        # One interrupt for a batch; looks again after it has asked to be told (2.7.10).
        while True:
            while (chain := ring.take()) is not None:
                self._sent(ring, b''.join(map(bytes, chain.readable)))
                if chain.writable:
                    raise Violation(f'queue {ring.index}: a frame to send with writable pieces')
                self._used(ring, chain, 0)
            self._publish(ring)
            if not ring.want_kick():
                self._awake[ring.index] = False
                return

    def _sent(self, ring, data):
        if len(data) < HEADER + 14:
            raise Violation(f'queue {ring.index}: {len(data)} bytes are no frame')
        flags, gso, _, _, start, offset, count = struct.unpack_from('<BBHHHHH', data)
        frame = data[HEADER:]
        if not self.strict:
            flags &= NEEDS_CSUM
        if gso or count or flags & ~NEEDS_CSUM or (flags and not self.features >> F_CSUM & 1):
            raise Violation(f'queue {ring.index}: header {data[:HEADER].hex()}')
        if flags:
            frame = complete(frame, start, offset)
        self.counts['sent', ring.index // 2] += 1
        if not ring.enabled:
            return                      # a queue that is not enabled loses what it is given
        self._learn(frame, ring.index // 2)
        self.from_guest.append(frame)
        os.eventfd_write(self.readable, 1)

    # ---- frames to the guest

    def _receive_queue(self, ring, frames):
        while frames:
            chains = self._buffers(ring, HEADER + len(frames[0]))
            if chains is None:
                self._awake[ring.index] = False     # until it is kicked
                break
            self._write(ring, chains, frames.popleft())
            self.counts['received', ring.index // 2] += 1
        self._publish(ring)

    def _buffers(self, ring, size):
        """Enough chains for so many bytes; None, after asking to be told, when there are not."""
        chains, room = [], 0
        mergeable = self.features >> F_MRG_RXBUF & 1
        while room < size and (mergeable or not chains):
            chain = ring.take()
            if chain is None:
                ring.untake(len(chains))
                if not ring.want_kick(len(chains)):
                    return None
                chains, room = [], 0
                continue
            if chain.readable:
                raise Violation(f'queue {ring.index}: a receive buffer with readable pieces')
            chains.append(chain)
            room += sum(map(len, chain.writable))
        if room < size:
            raise Violation(f'queue {ring.index}: a receive buffer of {room} bytes for {size}')
        return chains

    def _write(self, ring, chains, frame):
        header = [0, 0, 0, 0, 0, 0, len(chains)]
        for name, fields in RX_HEADER.items():
            if self._tells(name, ring):
                header = fields
        data = memoryview(struct.pack('<BBHHHHH', *header) + frame)
        lengths = []
        for chain in chains:
            before = len(data)
            for piece in chain.writable:
                part = data[:len(piece)]
                piece[:len(part)] = part
                data = data[len(part):]
            lengths.append(before - len(data))
        if self._tells('short', ring):
            lengths = [HEADER + 2] + [0] * (len(chains) - 1)
        if self._tells('empty', ring):
            lengths = [0] * len(chains)
        for chain, length in zip(chains, lengths):
            self._used(ring, chain, length)

    # ---- steering

    def _learn(self, frame, pair):
        flow = flow_of(frame)
        if flow:
            self._flows[flow] = pair

    def _steer(self, frame):
        flow = flow_of(frame)
        pair = self._flows.get((flow[1], flow[0], flow[3], flow[2]), 0) if flow else 0
        return pair if self.rings[2 * pair].enabled else 0


def flow_of(frame):
    """(source, destination, source port, destination port) of a TCP or UDP frame without options or fragments, else None."""
    kind = frame[12:14]
    if kind == b'\x08\x00' and len(frame) >= 38 and frame[14] == 0x45 and frame[23] in (f.TCP, f.UDP):
        return frame[26:30], frame[30:34], frame[34:36], frame[36:38]
    if kind == b'\x86\xdd' and len(frame) >= 58 and frame[20] in (f.TCP, f.UDP):
        return frame[22:38], frame[38:54], frame[54:56], frame[56:58]
    return None


def complete(frame, start, offset):
    """Fills in a checksum that the driver left to us: the field holds the pseudo header's sum (5.1.6.2)."""
    at = start + offset
    if at + 2 > len(frame):
        raise Violation(f'csum_start {start}, csum_offset {offset} in a frame of {len(frame)} bytes')
    total = f.checksum(frame[start:]) or 0xFFFF
    return frame[:at] + struct.pack('!H', total) + frame[at + 2:]


class LiarLink:
    """A Liar as a RawHost's link."""

    hears_unconnected = connected = True
    unsent = False

    def __init__(self, workdir, memory='256M', reconnect=1, **options):
        self._memory, self._reconnect = memory, reconnect
        self.device = Liar(os.path.join(workdir, 'vhost.sock'), **options)
        self.device.open()

    def netdev(self):
        """QEMU's arguments; its machine needs memory-backend=mem0 and as much memory."""
        return ['-object', f'memory-backend-memfd,id=mem0,size={self._memory},share=on',
                '-chardev', f'socket,id=c0,path={self.device.path}' + (f',reconnect={self._reconnect}' if self._reconnect else ''),
                '-netdev', f'vhost-user,id=n0,chardev=c0,queues={self.device.pairs}']

    def machine(self):
        """What Machine needs besides. QEMU 7.2 dies with MSI-X over vhost-user without KVM."""
        return {'machine': 'q35,memory-backend=mem0', 'memory': self._memory, 'smp': self.device.pairs,
                'props': {'vectors': 0, 'mq': 'on' if self.device.pairs > 1 else None}}

    def fileno(self):
        """For select."""
        return self.device.readable

    @property
    def buffered(self):
        """True if read() has a frame."""
        return bool(self.device.from_guest)

    def read(self):
        """One frame, or None."""
        if self.device.from_guest:
            return self.device.from_guest.popleft()
        try:
            os.eventfd_read(self.device.readable)
        except BlockingIOError:
            pass
        return self.device.from_guest.popleft() if self.device.from_guest else None

    def write(self, frame):
        """Sends a frame; False if there is no room now."""
        return self.device.send(frame)

    def connect(self):
        """It always is."""

    flush = connect

    def close(self):
        """Ends the device."""
        self.device.close()
        os.close(self.device.readable)


def link(**options):
    """The link of a RawHost: wires.raw_wire(link=liar.link(pairs=2))."""
    return lambda workdir: LiarLink(workdir, **options)
