"""A stand-in for a guest at the far end of a RawHost: Linux's own stack on a tap device, with echo, discard and chargen in
Python. Run inside a namespace:  linux_peer.py HOST.sock MY.sock [corrupt]
corrupt: changes one byte of every echo answer, to show that the peers notice."""
import fcntl
import os
import socket
import socketserver
import struct
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import traffic  # noqa: E402

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 2, 0x1000
MAC = '52:54:00:12:34:56'
CORRUPT = 'corrupt' in sys.argv[3:]


def damaged(data):
    """data, or a copy with a byte changed in the middle."""
    if not CORRUPT or not data:
        return data
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]


class Echo(socketserver.BaseRequestHandler):
    """TCP port 7."""

    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(damaged(data))


class Discard(socketserver.BaseRequestHandler):
    """TCP port 9."""

    def handle(self):
        while self.request.recv(65536):
            pass


class Chargen(socketserver.BaseRequestHandler):
    """TCP port 19."""

    def handle(self):
        try:
            while True:
                self.request.sendall(traffic.chargen_pattern(95 * 74))
        except OSError:
            pass


class UdpEcho(socketserver.BaseRequestHandler):
    """UDP port 7."""

    def handle(self):
        data, sock = self.request
        sock.sendto(damaged(data), self.client_address)


class V6Tcp(socketserver.ThreadingTCPServer):
    """Both IP versions on one socket."""

    address_family = socket.AF_INET6
    daemon_threads = allow_reuse_address = True


class V6Udp(socketserver.UDPServer):
    """Both IP versions on one socket, large datagrams too."""

    address_family = socket.AF_INET6
    max_packet_size = 70000


def open_tap():
    """The tap device with the guest's addresses."""
    fd = os.open('/dev/net/tun', os.O_RDWR)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack('16sH', b'tap0', IFF_TAP | IFF_NO_PI))
    for command in ('ip link set tap0 address ' + MAC, 'sysctl -qw net.ipv6.conf.tap0.accept_dad=0',
                    'ip addr add 198.18.0.2/24 dev tap0', 'ip addr add fd00::2/64 dev tap0 nodad', 'ip link set tap0 up'):
        if os.system(command):
            sys.exit(f'{command}: failed')
    return fd


def main():
    """Serves until killed; prints "up" once it does."""
    tap = open_tap()
    wire = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    wire.bind(sys.argv[2])

    def outward():
        while True:
            frame = os.read(tap, 70000)
            try:
                wire.sendto(frame, sys.argv[1])
            except OSError:
                pass

    servers = [V6Tcp(('::', port), kind) for port, kind in ((7, Echo), (9, Discard), (19, Chargen))]
    servers.append(V6Udp(('::', 7), UdpEcho))
    for run in [outward] + [s.serve_forever for s in servers]:
        threading.Thread(target=run, daemon=True).start()
    print('up', flush=True)
    while True:
        os.write(tap, wire.recv(70000))


if __name__ == '__main__':
    main()
