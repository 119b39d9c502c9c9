"""The least of a network: one host that answers ARP requests and ICMP echo requests for its address, and nothing else. For backends
that carry bare frames."""
import contextlib
import os
import select
import socket
import struct
import threading

MAC = bytes.fromhex('020000000001')
FRAME_MIN = 60          # shorter ones are padded, as Ethernet does


def checksum(data):
    """The Internet checksum (RFC 1071)."""
    data += b'\0' * (len(data) % 2)
    total = sum(struct.unpack(f'!{len(data) // 2}H', data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def answer(frame, address):
    """The frame that a host of this IPv4 address (4 bytes) sends in answer to one, or None. (RFC 826, RFC 792)"""
    if len(frame) < 42 or frame[:6] not in (MAC, b'\xff' * 6):
        return None
    sender = frame[6:12]
    if frame[12:22] == b'\x08\x06\x00\x01\x08\x00\x06\x04\x00\x01' and frame[38:42] == address:
        reply = sender + MAC + frame[12:20] + b'\x00\x02' + MAC + address + frame[22:32]
        return reply.ljust(FRAME_MIN, b'\0')
    if frame[12:15] == b'\x08\x00\x45' and frame[23] == 1 and frame[30:34] == address and frame[34] == 8:
        length = struct.unpack_from('!H', frame, 16)[0]
        if not 28 <= length <= len(frame) - 14 or struct.unpack_from('!H', frame, 20)[0] & 0x3FFF or checksum(frame[34:14 + length]):
            return None             # cut, a fragment, or a wrong sum: a host would drop it
        header = frame[14:24] + b'\0\0' + address + frame[26:30]
        header = header[:10] + struct.pack('!H', checksum(header)) + header[12:]
        body = b'\0\0\0\0' + frame[38:14 + length]
        body = body[:2] + struct.pack('!H', checksum(body)) + body[4:]
        return (sender + MAC + b'\x08\0' + header + body).ljust(FRAME_MIN, b'\0')
    return None


@contextlib.contextmanager
def on_datagrams(mine, theirs, address):
    """Answers for `address` (text) at the unix datagram socket `mine`, to QEMU's at `theirs`, while the block runs. Yields a dict of
    counts."""
    packed, counts = socket.inet_aton(address), {'frames in': 0, 'answers': 0}
    wake, stop = socket.socketpair()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s, wake, stop:
        s.bind(mine)

        def serve():
            while stop not in (ready := select.select([s, stop], [], [])[0]):
                if s not in ready:
                    continue
                frame = s.recv(70000)
                counts['frames in'] += 1
                reply = answer(frame, packed)
                if reply:
                    with contextlib.suppress(OSError):      # QEMU has gone
                        s.sendto(reply, theirs)
                        counts['answers'] += 1
        thread = threading.Thread(target=serve, name='peer', daemon=True)
        thread.start()
        try:
            yield counts
        finally:
            wake.send(b'.')
            thread.join(5)
            os.unlink(mine)
