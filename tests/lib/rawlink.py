"""How a RawHost's frames reach QEMU: one datagram each, or in a stream with lengths. Neither ever blocks."""
import os
import socket
import struct

MAX_FRAME = 70000


class DgramLink:
    """QEMU's `-netdev dgram` over unix sockets: one datagram is one frame. Either side may come and go."""

    hears_unconnected = True            # QEMU sends to our name, whether we have reached it or not
    buffered = unsent = False

    def __init__(self, workdir):
        self.mine = os.path.join(workdir, 'host.sock')
        self.theirs = os.path.join(workdir, 'qemu.sock')
        self.connected = False
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(self.mine)
        self._sock.setblocking(False)

    def netdev(self):
        """QEMU's arguments."""
        return ['-netdev', f'dgram,id=n0,local.type=unix,local.path={self.theirs},'
                           f'remote.type=unix,remote.path={self.mine}']

    def fileno(self):
        """For select."""
        return self._sock.fileno()

    def connect(self):
        """Tries to reach QEMU; sets connected."""
        self.connected = self._sock.connect_ex(self.theirs) == 0

    def read(self):
        """One frame, or None."""
        try:
            return self._sock.recv(MAX_FRAME)
        except BlockingIOError:
            return None
        except ConnectionError:         # QEMU went; a new one may come
            self.connected = False
            return None

    def write(self, frame):
        """Sends a frame; False if there is no room now, or nobody there."""
        try:
            self._sock.send(frame)
            return True
        except BlockingIOError:
            return False
        except (ConnectionError, FileNotFoundError):
            self.connected = False
            return False

    def flush(self):
        """Nothing to do."""

    def close(self):
        """Closes and removes the socket."""
        self._sock.close()
        if os.path.exists(self.mine):
            os.unlink(self.mine)


class StreamLink:
    """QEMU's `-netdev stream`, QEMU listening: each frame behind its length in four bytes, big-endian."""

    hears_unconnected = False

    def __init__(self, workdir):
        self._path = os.path.join(workdir, 'stream.sock')
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.setblocking(False)
        self.connected = False
        self._in, self._out = b'', b''

    def netdev(self):
        """QEMU's arguments."""
        return ['-netdev', f'stream,id=n0,server=on,addr.type=unix,addr.path={self._path}']

    def fileno(self):
        """For select."""
        return self._sock.fileno()

    def connect(self):
        """Tries to reach QEMU; sets connected."""
        self.connected = self._sock.connect_ex(self._path) == 0

    def read(self):
        """One frame, or None."""
        while not self.buffered:
            try:
                data = self._sock.recv(MAX_FRAME)
            except (BlockingIOError, ConnectionError, OSError):
                return None
            if not data:
                return None
            self._in += data
        end = 4 + struct.unpack_from('!I', self._in)[0]
        frame, self._in = self._in[4:end], self._in[end:]
        return frame

    @property
    def buffered(self):
        """True if read() has a frame without asking the socket."""
        return len(self._in) >= 4 and len(self._in) >= 4 + struct.unpack_from('!I', self._in)[0]

    @property
    def unsent(self):
        """True if a part of a frame waits for room."""
        return bool(self._out)

    def flush(self):
        """Sends what has room of it."""
        if self._out:
            self._drain()

    def write(self, frame):
        """Sends a frame, or the part of one that has room; False if this one was not taken."""
        if self._out and not self._drain():
            return False
        self._out = struct.pack('!I', len(frame)) + frame
        self._drain()
        return True

    def _drain(self):
        try:
            self._out = self._out[self._sock.send(self._out):]
        except BlockingIOError:
            pass
        except ConnectionError:
            self.connected = False
        return not self._out

    def close(self):
        """Closes the connection."""
        self._sock.close()
