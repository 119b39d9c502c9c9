"""A vhost-user backend's half of the protocol, and the device's side of a split virtqueue, both by the book: what a device does
with them is another's concern (liar.py). QEMU connects to us: `-chardev socket,path=... -netdev vhost-user,...`.

A message is three 32-bit words (request, flags, size of the payload) and the payload; descriptors of files come beside it.
(QEMU's docs/interop/vhost-user.rst; virtio 1.3, 2.7)
"""
import array
import collections
import contextlib
import mmap
import os
import selectors
import socket
import struct
import threading
import time

HEADER = struct.Struct('<III')
VERSION, REPLY, NEED_REPLY = 1, 4, 8            # of a message's flags
F_EVENT_IDX, F_INDIRECT, F_PROTOCOL, F_VERSION_1 = 29, 28, 30, 32
P_MQ, P_REPLY_ACK, P_STATUS = 0, 3, 16          # protocol features
DESC_NEXT, DESC_WRITE, DESC_INDIRECT = 1, 2, 4
NO_FD = 0x100                                   # in the word that comes with a kick's or call's descriptor

NAMES = {1: 'GET_FEATURES', 2: 'SET_FEATURES', 3: 'SET_OWNER', 4: 'RESET_OWNER', 5: 'SET_MEM_TABLE', 8: 'SET_VRING_NUM',
         9: 'SET_VRING_ADDR', 10: 'SET_VRING_BASE', 11: 'GET_VRING_BASE', 12: 'SET_VRING_KICK', 13: 'SET_VRING_CALL',
         14: 'SET_VRING_ERR', 15: 'GET_PROTOCOL_FEATURES', 16: 'SET_PROTOCOL_FEATURES', 17: 'GET_QUEUE_NUM',
         18: 'SET_VRING_ENABLE', 39: 'SET_STATUS', 40: 'GET_STATUS'}

Chain = collections.namedtuple('Chain', 'head readable writable')    # lists of memoryviews
Region = collections.namedtuple('Region', 'guest size user view')


class Violation(Exception):
    """The driver, or QEMU, broke the rules; the text says which."""


class Memory:
    """The guest's memory, as SET_MEM_TABLE describes it."""

    def __init__(self, payload, fds):
        count = struct.unpack_from('<I', payload)[0]
        if count != len(fds):
            raise Violation(f'SET_MEM_TABLE: {count} regions, {len(fds)} descriptors')
        self._regions = []
        for i, fd in enumerate(fds):
            guest, size, user, offset = struct.unpack_from('<QQQQ', payload, 8 + 32 * i)
            self._regions.append(Region(guest, size, user, memoryview(mmap.mmap(fd, size, offset=offset))))

    def _at(self, field, address, length):
        for region in self._regions:
            offset = address - getattr(region, field)
            if 0 <= offset and offset + length <= region.size:
                return region.view[offset:offset + length]
        raise Violation(f'{length} bytes at {field} address {address:#x}: no memory there')

    def guest(self, address, length):
        """Bytes at a guest address."""
        return self._at('guest', address, length)

    def user(self, address, length):
        """Bytes at an address of QEMU's, which is how it tells of rings."""
        return self._at('user', address, length)


class Ring:
    """One split virtqueue as its device sees it. Indices run freely over 16 bits."""

    def __init__(self, index):
        self.index = index
        self.size = 0
        self.addresses = None           # descriptor table, used ring, available ring: QEMU's addresses
        self.last_avail = self.used_idx = self.signalled = 0
        self.kick = self.call = None
        self.enabled = self.running = False
        self.event_idx = False
        self.kicks = self.calls = 0
        self.skew = 0                   # a lie: how far the used index shown is beside the true one
        self.memory = self._desc = self._avail = self._used = self._entries = None
        self._fence = threading.Lock()

    def start(self, memory, event_idx):
        """Begins where SET_VRING_BASE said; the used index is what lies in the ring."""
        self.memory, self.event_idx = memory, event_idx
        desc, used, avail = self.addresses
        self._desc = memory.user(desc, 16 * self.size)
        self._avail = memory.user(avail, 6 + 2 * self.size).cast('H')
        raw = memory.user(used, 6 + 8 * self.size)
        self._used, self._entries = raw.cast('H'), raw[4:4 + 8 * self.size].cast('I')
        self.used_idx = self.signalled = self._used[1]
        self.skew = 0
        self.running = True

    def stop(self):
        """As after GET_VRING_BASE: nothing is touched any more."""
        self.running = False
        for fd in filter(None, (self.kick, self.call)):
            os.close(fd)
        self.kick = self.call = None
        self.memory = self._desc = self._avail = self._used = self._entries = None

    def fence(self):
        """A full fence: taking a lock is an atomic operation."""
        with self._fence:
            pass

    def available(self):
        """How many chains the driver has made available that were not taken yet."""
        count = (self._avail[1] - self.last_avail) & 0xFFFF
        if count > self.size:
            raise Violation(f'queue {self.index}: available index {self._avail[1]}, {self.last_avail} taken, size {self.size}')
        return count

    def want_kick(self, seen=0):
        """Asks for a notification of the next chain beyond the `seen` ones not taken; True if there are more already (2.7.10)."""
        if self.event_idx:
            self._used[2 + 4 * self.size] = (self.last_avail + seen) & 0xFFFF
        self.fence()
        return self.available() > seen

    def take(self):
        """The next chain, or None."""
        if not self.available():
            return None
        head = self._avail[2 + self.last_avail % self.size]
        chain = self._walk(head)
        self.last_avail = (self.last_avail + 1) & 0xFFFF
        return chain

    def untake(self, count):
        """The last `count` chains were not used after all."""
        self.last_avail = (self.last_avail - count) & 0xFFFF

    def _walk(self, head):
        """Collects a chain's pieces, direct or by an indirect table; readable ones come first (2.7.4, 2.7.5)."""
        readable, writable = [], []
        table, size, at, left = self._desc, self.size, head, self.size
        while True:
            if at >= size or left == 0:
                raise Violation(f'queue {self.index}: descriptor {at} of {size}, or the chain of {head} has no end')
            address, length, flags, following = struct.unpack_from('<QIHH', table, 16 * at)
            left -= 1
            if flags & DESC_INDIRECT:
                if table is not self._desc or flags & DESC_NEXT or length % 16 or length == 0:
                    raise Violation(f'queue {self.index}: indirect descriptor {at}: length {length}, flags {flags}')
                table, size, at = self.memory.guest(address, length), length // 16, 0
                continue
            if writable and not flags & DESC_WRITE:
                raise Violation(f'queue {self.index}: a readable piece behind a writable one')
            (writable if flags & DESC_WRITE else readable).append(self.memory.guest(address, length))
            if not flags & DESC_NEXT:
                return Chain(head, readable, writable)
            at = following

    def put(self, ident, length):
        """Writes a used entry; the driver sees it after publish()."""
        at = 2 * (self.used_idx % self.size)
        self._entries[at], self._entries[at + 1] = ident & 0xFFFFFFFF, length & 0xFFFFFFFF
        self.used_idx = (self.used_idx + 1) & 0xFFFF

    def publish(self):
        """Shows the used entries; True if the driver wants an interrupt for them (2.7.7)."""
        new = (self.used_idx + self.skew) & 0xFFFF
        old, self.signalled = self.signalled, new
        if new == old:
            return False
        self._used[1] = new
        self.fence()
        if not self.event_idx:
            return not self._avail[0] & 1
        event = self._avail[2 + self.size]
        return (new - event - 1) & 0xFFFF < (new - old) & 0xFFFF

    def scribble(self, head):
        """Overwrites a descriptor, as a device may: the driver must not believe what it reads there."""
        struct.pack_into('<QIHH', self._desc, 16 * head, 0xFFFFFFFFFFFFF000, 0xFFFFFFFF, 0xFFFF, 0xFFFF)

    def interrupt(self):
        """Raises the driver's interrupt."""
        if self.call is not None:
            self.calls += 1
            os.eventfd_write(self.call, 1)


class Backend:
    """Listens at `path`, serves QEMU, one connection at a time, in a thread of its own. A device derives from it and has
    kicked(ring), started(ring), stopping(ring), work(), all called in that thread with self.lock held."""

    def __init__(self, path, pairs, features, status=True):
        self.path, self.pairs = path, pairs
        self.offered = features | 1 << F_PROTOCOL | 1 << F_VERSION_1
        self.protocol_offered = 1 << P_MQ | 1 << P_REPLY_ACK | (1 << P_STATUS if status else 0)
        self.features = self.protocol = 0
        self.status = 0                 # the last SET_STATUS
        self.status_lie = 0             # bits that GET_STATUS adds
        self.statuses = []
        self.rings = [Ring(i) for i in range(2 * pairs)]
        self.errors = []
        self.messages = collections.deque(maxlen=200)
        self.connections = 0
        self.lock = threading.RLock()
        self._memory = None
        self._listener = self._peer = None
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._timers = []
        self._stop = False
        self._thread = threading.Thread(target=self._run, name='vhost-user', daemon=True)

    # ---- for others' threads

    def open(self):
        """Begins to serve."""
        self._selector.register(self._wake, selectors.EVENT_READ, self._woken)
        self.listen()
        self._thread.start()

    def close(self):
        """Ends the thread and everything open."""
        self._stop = True
        self.wake()
        self._thread.join(10)
        self.disconnect()
        self.unlisten()
        self._selector.close()
        os.close(self._wake)

    def wake(self):
        """Makes the thread look at once."""
        os.eventfd_write(self._wake, 1)

    def listen(self):
        """Lets QEMU connect (again)."""
        with self.lock:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(self.path)
            self._listener.listen(1)
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def unlisten(self):
        """QEMU finds nobody. (One that found us, and no answer, would wait for it with its lock held.)"""
        with self.lock:
            if self._listener:
                self._selector.unregister(self._listener)
                self._listener.close()
                self._listener = None
            if os.path.exists(self.path):
                os.unlink(self.path)

    def disconnect(self):
        """Drops the connection, with all that belongs to it: like a process that died."""
        with self.lock:
            if self._peer is None:
                return
            self._selector.unregister(self._peer)
            self._peer.close()
            self._peer = None
            self.status = 0
            for ring in self.rings:
                self._unwatch(ring)
                ring.stop()
                ring.enabled = False
            self.wake()

    @property
    def connected(self):
        """True while QEMU is there."""
        return self._peer is not None

    def after(self, seconds, call):
        """Calls call() in the thread after so long."""
        with self.lock:
            self._timers.append((time.monotonic() + seconds, call))
            self.wake()

    # ---- the thread

    def _run(self):
        while not self._stop:
            try:
                self._turn()
            except Violation as e:
                self.errors.append(str(e))
            except Exception as e:      # a fault of ours: shown where errors are
                self.errors.append(f'{type(e).__name__}: {e}')
            if len(self.errors) > 100:
                return

    def _turn(self):
        with self.lock:
            wait = min([max(at - time.monotonic(), 0) for at, _ in self._timers] + [0.5])
        for key, _ in self._selector.select(wait):
            with self.lock:
                if key.fd in self._selector.get_map():      # still
                    key.data()
        with self.lock:
            now = time.monotonic()
            due = [call for at, call in self._timers if at <= now]
            self._timers = [(at, call) for at, call in self._timers if at > now]
            for call in due:
                call()
            self.work()

    def _woken(self):
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _accept(self):
        peer, _ = self._listener.accept()
        if self._peer is not None:
            peer.close()
            raise Violation('QEMU connects a second time')
        self.connections += 1
        self._peer = peer
        self._selector.register(peer, selectors.EVENT_READ, self._message)

    def _message(self):
        head, fds = self._receive(HEADER.size)
        if not head:
            self.disconnect()
            return
        request, flags, size = HEADER.unpack(head)
        payload = self._receive(size)[0] if size else b''
        name = NAMES.get(request, str(request))
        self.messages.append((name, payload[:16].hex()))
        handler = getattr(self, '_' + name.lower(), None)
        if handler is None or flags & 3 != VERSION:
            raise Violation(f'message {name} with flags {flags:#x}: not negotiated or unknown')
        answer = handler(payload, fds)
        if answer is None and flags & NEED_REPLY and self.protocol >> P_REPLY_ACK & 1:
            answer = bytes(8)
        if answer is not None:
            self._peer.sendall(HEADER.pack(request, VERSION | REPLY, len(answer)) + answer)

    def _receive(self, size):
        """Exactly so many bytes, with the descriptors that came beside them; nothing at the end."""
        data, fds = b'', array.array('i')
        while len(data) < size:
            try:
                part, beside, _, _ = self._peer.recvmsg(size - len(data), socket.CMSG_SPACE(8 * fds.itemsize))
            except ConnectionError:
                return b'', []
            for level, kind, content in beside:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fds.frombytes(content[:len(content) // fds.itemsize * fds.itemsize])
            if not part:
                return b'', []
            data += part
        return data, list(fds)

    # ---- one method per message

    @staticmethod
    def _word(payload):
        return struct.unpack('<Q', payload)[0]

    def _ring(self, index):
        if index >= len(self.rings):
            raise Violation(f'queue {index} of {len(self.rings)}')
        return self.rings[index]

    def _get_features(self, payload, fds):
        return struct.pack('<Q', self.offered)

    def _set_features(self, payload, fds):
        self.features = self._word(payload)
        if self.features & ~self.offered:
            raise Violation(f'features {self.features & ~self.offered:#x} were not offered')

    def _get_protocol_features(self, payload, fds):
        return struct.pack('<Q', self.protocol_offered)

    def _set_protocol_features(self, payload, fds):
        self.protocol = self._word(payload)

    def _get_queue_num(self, payload, fds):
        return struct.pack('<Q', self.pairs)

    def _set_owner(self, payload, fds):
        pass

    def _reset_owner(self, payload, fds):
        pass

    def _set_mem_table(self, payload, fds):
        try:
            self._memory = Memory(payload, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _set_vring_num(self, payload, fds):
        index, size = struct.unpack('<II', payload)
        self._ring(index).size = size

    def _set_vring_addr(self, payload, fds):
        index, _, desc, used, avail, _ = struct.unpack('<IIQQQQ', payload)
        self._ring(index).addresses = (desc, used, avail)

    def _set_vring_base(self, payload, fds):
        index, base = struct.unpack('<II', payload)
        self._ring(index).last_avail = base

    def _get_vring_base(self, payload, fds):
        ring = self._ring(struct.unpack_from('<I', payload)[0])
        if ring.running:
            self.stopping(ring)
        self._unwatch(ring)
        ring.stop()
        return struct.pack('<II', ring.index, ring.last_avail)

    def _set_vring_kick(self, payload, fds):
        ring = self._ring(self._word(payload) & 0xFF)
        self._unwatch(ring)
        if ring.kick is not None:
            os.close(ring.kick)
        ring.kick = fds[0] if fds else None
        if ring.kick is not None:
            os.set_blocking(ring.kick, False)
            self._selector.register(ring.kick, selectors.EVENT_READ, lambda: self._kicked(ring))
        ring.start(self._memory, bool(self.features >> F_EVENT_IDX & 1))
        if not self.features >> F_PROTOCOL & 1:
            ring.enabled = True
        self.started(ring)

    def _unwatch(self, ring):
        if ring.kick is not None:
            self._selector.unregister(ring.kick)

    def _kicked(self, ring):
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(ring.kick)
            ring.kicks += 1
            self.kicked(ring)

    def _set_vring_call(self, payload, fds):
        ring = self._ring(self._word(payload) & 0xFF)
        if ring.call is not None:
            os.close(ring.call)
        ring.call = fds[0] if fds else None

    def _set_vring_err(self, payload, fds):
        for fd in fds:
            os.close(fd)

    def _set_vring_enable(self, payload, fds):
        index, on = struct.unpack('<II', payload)
        ring = self._ring(index)
        ring.enabled = bool(on)
        if ring.running:
            self.started(ring)

    def _set_status(self, payload, fds):
        self.status = self._word(payload)
        self.statuses.append(self.status)

    def _get_status(self, payload, fds):
        return struct.pack('<Q', self.status | self.status_lie)
