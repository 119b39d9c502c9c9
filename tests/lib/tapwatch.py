"""Watches the frames on a tap device from beside, headers only: how many stand for several, and whether the guest's TCP sends fresh data
strictly in order."""
import collections
import socket
import struct
import threading

ETH_P_ALL, PACKET_OUTGOING = 3, 4
HEADERS = 150
SO_RCVBUFFORCE = 33


class TapWatch:
    """with TapWatch(netns, 'tap0', mtu) as watch: ...; then watch.large, watch.faults, watch.seen."""

    def __init__(self, netns, device='tap0', mtu=1500):
        self._sock = netns.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        except OSError:                 # without the privilege it has to do with less
            pass
        self._sock.bind((device, ETH_P_ALL))
        self._sock.settimeout(0.1)
        self._limit = mtu + 14
        self._stop = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.seen = collections.Counter()       # TCP frames with data, by who sent them and the IP version: ('guest', 4)
        self.large = collections.Counter()      # of these, longer than the MTU
        self.again = 0                          # frames of the guest with data that was there before
        self.faults = []
        self._next = {}                         # of each flow from the guest: the sequence number after its furthest

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Looks no longer."""
        self._stop = True
        self._thread.join()
        self._sock.close()

    def _run(self):
        while not self._stop:
            try:
                head, _, flags, where = self._sock.recvmsg(HEADERS, 0, socket.MSG_TRUNC)
            except TimeoutError:
                continue
            self._frame(head, 'host' if where[2] == PACKET_OUTGOING else 'guest')

    def lost(self):
        """Frames that came too fast for this to see, since it was last asked."""
        return struct.unpack('II', self._sock.getsockopt(263, 6, 8))[1]

    def _frame(self, head, who):
        if head[12:14] == b'\x08\x00' and head[23] == 6:
            version, at, total = 4, 14 + (head[14] & 15) * 4, struct.unpack_from('!H', head, 16)[0]
            data = total - (at - 14)
        elif head[12:14] == b'\x86\xdd' and head[20] == 6:
            version, at, data = 6, 54, struct.unpack_from('!H', head, 18)[0]
            total = data + 40
        else:
            return
        data -= (head[at + 12] >> 4) * 4
        sequence, flags = struct.unpack_from('!I', head, at + 4)[0], head[at + 13]
        flow = (head[14 + (12 if version == 4 else 8):at], head[at:at + 4])
        if flags & 2:
            self._next[flow] = (sequence + 1) % (1 << 32)
        if data <= 0:
            return
        self.seen[who, version] += 1
        self.large[who, version] += total + 14 > self._limit
        if who == 'guest' and flow in self._next:
            ahead = (sequence - self._next[flow] + (1 << 31)) % (1 << 32) - (1 << 31)
            if ahead > 0:
                self.faults.append(f'{ahead} bytes left out before sequence number {sequence}')
            self.again += ahead < 0
            if ahead + data > 0:
                self._next[flow] = (sequence + data) % (1 << 32)
