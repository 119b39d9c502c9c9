#!/usr/bin/python3
"""Frames for a guest without a stack: sends COUNT of SIZE bytes to a network device as fast as it takes them, and reads what
comes back. Run inside the namespace: frames.py DEVICE COUNT SIZE. Prints `sent N received N seconds S`."""
import errno
import socket
import struct
import sys
import time

GUEST_MAC, OUR_MAC = bytes.fromhex('525400123456'), bytes.fromhex('020000000001')
ETHERTYPE = 0x88B5              # for experiments (IEEE 802)
IGNORE_OUTGOING = (263, 23)     # SOL_PACKET, PACKET_IGNORE_OUTGOING
QUIET_SECONDS = 0.2             # nothing more comes after so long
LIMIT_SECONDS = 40


def drain(sock):
    """Reads what is there; returns how many frames."""
    got = 0
    try:
        while sock.recv(2048):
            got += 1
    except BlockingIOError:
        pass
    return got


def main(device, count, size):
    """Sends and receives; prints the line."""
    count, size = int(count), int(size)
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE))
    sock.setsockopt(*IGNORE_OUTGOING, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    sock.bind((device, ETHERTYPE))
    sock.setblocking(False)
    head = GUEST_MAC + OUR_MAC + struct.pack('!H', ETHERTYPE)
    frame = head + bytes(size - len(head))
    sent = got = 0
    began = time.monotonic()
    while sent < count and time.monotonic() - began < LIMIT_SECONDS:
        try:
            sock.send(frame)
            sent += 1
        except OSError as e:
            if e.errno not in (errno.ENOBUFS, errno.EAGAIN):    # the device's queue is full
                raise
            time.sleep(0.0002)
        if sent % 32 == 0:
            got += drain(sock)
    seconds, last = time.monotonic() - began, time.monotonic()
    while time.monotonic() - last < QUIET_SECONDS and got < count:
        more = drain(sock)
        if more:
            got, last = got + more, time.monotonic()
        time.sleep(0.005)
    print(f'sent {sent} received {got} seconds {max(seconds, 1e-6):.6f}')


if __name__ == '__main__':
    main(*sys.argv[1:])
