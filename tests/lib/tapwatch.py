"""Watches the frames on a tap device from beside, headers only: how many stand for several, and whether the guest's TCP sends fresh data
strictly in order. The kernel writes the headers into a ring that holds some 500,000 frames, and they are read when they are asked for: a
thread that reads along would take the time of the traffic, and lose frames all the same."""
import collections
import mmap
import socket
import struct

ETH_P_ALL, PACKET_OUTGOING = 3, 4
SOL_PACKET, RX_RING, STATISTICS, VERSION = 263, 5, 6, 10       # linux/if_packet.h
TPACKET_V2, STATUS_USER = 1, 1
FRAME, BLOCK, BLOCKS = 256, 1 << 20, 128
TYPE = 42                               # where sll_pkttype is: the address follows the frame's header of 32 bytes


class TapWatch:
    """with TapWatch(netns, 'tap0', mtu) as watch: ...; then watch.look(), and watch.large, watch.faults, watch.seen."""

    def __init__(self, netns, device='tap0', mtu=1500):
        self._sock = netns.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        try:
            self._sock.setsockopt(SOL_PACKET, VERSION, struct.pack('i', TPACKET_V2))
            self._sock.setsockopt(SOL_PACKET, RX_RING, struct.pack('4I', BLOCK, BLOCKS, FRAME, BLOCK * BLOCKS // FRAME))
            self._ring = mmap.mmap(self._sock.fileno(), BLOCK * BLOCKS)
            self._sock.bind((device, ETH_P_ALL))
        except BaseException:
            self._sock.close()
            raise
        self._at = 0
        self._limit = mtu + 14
        self._lost = 0
        self.seen = collections.Counter()       # TCP frames with data, by who sent them and the IP version: ('guest', 4)
        self.large = collections.Counter()      # of these, longer than the MTU
        self.again = 0                          # frames of the guest with data that was there before
        self.faults = []
        self._next = {}                         # of each flow from the guest: the sequence number after its furthest

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._ring.close()
        self._sock.close()

    def look(self):
        """Takes in all that there was until now; returns self."""
        ring, at, status = self._ring, self._at, struct.Struct('=I')
        sizes = struct.Struct('=IH')            # how much of the frame there is, and where
        while status.unpack_from(ring, at)[0] & STATUS_USER:
            length, begin = sizes.unpack_from(ring, at + 8)
            self._frame(ring[at + begin:at + begin + length], 'host' if ring[at + TYPE] == PACKET_OUTGOING else 'guest')
            status.pack_into(ring, at, 0)       # the kernel's again
            at = (at + FRAME) % len(ring)
        self._at = at
        return self

    def lost(self):
        """Frames so far that found no room in the ring."""
        self._lost += struct.unpack('II', self._sock.getsockopt(SOL_PACKET, STATISTICS, 8))[1]
        return self._lost

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
        flags = head[at + 13]
        if data <= 0 and not flags & 2:
            return
        sequence = struct.unpack_from('!I', head, at + 4)[0]
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
