"""The least of a network: one host that answers ARP requests and ICMP echo requests for its address, refuses TCP connections, and does
nothing else. For backends that carry bare frames."""
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


def _echo(data):
    """The answer to an ICMP message, or None. (RFC 792)"""
    if len(data) < 8 or data[0] != 8 or checksum(data):
        return None
    body = b'\0\0\0\0' + data[4:]
    return body[:2] + struct.pack('!H', checksum(body)) + body[4:]


def _reset(data, ends):
    """The answer to a TCP segment, or None: there is no connection, and the port is closed (RFC 9293, 3.10.7.1). ends: the packet's two
    addresses."""
    if len(data) < 20 or checksum(ends + struct.pack('!HH', 6, len(data)) + data):
        return None
    source, target, number, acked, offset, flags = struct.unpack_from('!HHIIBB', data)
    if flags & 0x04:                # RST
        return None
    length = len(data) - (offset >> 4) * 4 + (flags & 1) + (flags >> 1 & 1)     # FIN and SYN count
    if flags & 0x10:                # ACK
        fields = (target, source, acked, 0, 0x50, 0x04, 0, 0, 0)
    else:
        fields = (target, source, 0, (number + length) & 0xFFFFFFFF, 0x50, 0x14, 0, 0, 0)
    reply = struct.pack('!HHIIBBHHH', *fields)
    return reply[:16] + struct.pack('!H', checksum(ends[4:] + ends[:4] + struct.pack('!HH', 6, 20) + reply)) + reply[18:]


def answer(frame, address):
    """The frame that a host of this IPv4 address (4 bytes) sends in answer to one, or None. (RFC 826, RFC 791)"""
    if len(frame) < 42 or frame[:6] not in (MAC, b'\xff' * 6):
        return None
    sender = frame[6:12]
    if frame[12:22] == b'\x08\x06\x00\x01\x08\x00\x06\x04\x00\x01' and frame[38:42] == address:
        reply = sender + MAC + frame[12:20] + b'\x00\x02' + MAC + address + frame[22:32]
        return reply.ljust(FRAME_MIN, b'\0')
    if frame[12:15] != b'\x08\x00\x45' or frame[30:34] != address or checksum(frame[14:34]):
        return None
    length = struct.unpack_from('!H', frame, 16)[0]
    if not 28 <= length <= len(frame) - 14 or struct.unpack_from('!H', frame, 20)[0] & 0x3FFF:
        return None                 # cut, or a fragment
    data, ends = frame[34:14 + length], frame[26:34]
    body = _echo(data) if frame[23] == 1 else _reset(data, ends) if frame[23] == 6 else None
    if body is None:
        return None
    header = frame[14:16] + struct.pack('!H', 20 + len(body)) + frame[18:24] + b'\0\0' + ends[4:] + ends[:4]
    header = header[:10] + struct.pack('!H', checksum(header)) + header[12:]
    return (sender + MAC + b'\x08\0' + header + body).ljust(FRAME_MIN, b'\0')


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
