"""The guests that are measured side by side: ours, a Debian Linux guest, and any other image. Each says what QEMU is to boot
and how to tell that it serves."""
import os
import subprocess
import time

from ..common import ROOT, UsageError, shown
from ..qemu import GuestError
from . import clients

GUEST6 = 'fd00::2'
CANNOT = 77             # linuxguest/setup.sh's status for "not on this machine"
CONTROL_PORT = 12865    # netserver's
LINUX_WORDS = 'console=ttyS0 quiet panic=-1 tsc=reliable mitigations=off audit=0 nowatchdog nokaslr'


class Ringside:
    """Our guest. program: the linked program inside the image, for profiles; None if it is not known."""

    name = 'ringside'
    ours = True

    def __init__(self, image, program=None):
        self.image, self.program, self.about = image, program, shown(image)

    def append(self, words):
        """Its boot line with further words."""
        return f'ip={clients.GUEST}/{clients.PREFIX},gw={clients.HOST} ip6={GUEST6}/64 {words}'.strip()

    def extra(self):
        """QEMU's further arguments."""
        return []

    def wait(self, guest, _):
        """Waits until it serves; returns what there is to know of it."""
        words = guest.wait_ready(30)
        return {'cores': words['cores'], 'queues': words['queues'], 'features': words['features']}


class Linux:
    """The Debian guest that tools/linuxguest/setup.sh makes in the folder."""

    name = 'linux'
    ours = False

    def __init__(self, folder):
        self.image = os.path.join(folder, 'vmlinux')
        self._initrd = os.path.join(folder, 'initrd')
        with open(os.path.join(folder, 'kernel'), encoding='utf-8') as f:
            self.about = f'Debian, kernel {f.read().strip()}'

    def append(self, _):
        """Its kernel's command line; our guest's words are not for it."""
        return f'{LINUX_WORDS} ringside.ip={clients.GUEST}/{clients.PREFIX} ringside.ip6={GUEST6}/64'

    def extra(self):
        """QEMU's further arguments."""
        return ['-initrd', self._initrd]

    def wait(self, guest, _):
        """Waits until it serves; returns what there is to know of it."""
        line = guest.wait_for(r'linux: ready ([^\r\n]*)\r?\n', 120).group(1)
        return dict(word.split('=', 1) for word in line.split())


class Other:
    """Any other image that QEMU's -kernel boots and that runs a netserver at the bench's address."""

    ours = False

    def __init__(self, image, words):
        self.image, self._words = image, words
        self.name, self.about = os.path.basename(image), shown(image)

    def append(self, _):
        """Its boot line; {ip}, {prefix} and {gw} in it are filled in."""
        return self._words.replace('{ip}', clients.GUEST).replace('{prefix}', str(clients.PREFIX)).replace('{gw}', clients.HOST)

    def extra(self):
        """QEMU's further arguments."""
        return []

    def wait(self, guest, netns):
        """Waits until somebody listens at netserver's port."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            sock = netns.socket()
            with sock:
                sock.settimeout(1)
                try:
                    sock.connect((clients.GUEST, CONTROL_PORT))
                    return {}
                except OSError:
                    time.sleep(0.2)
        raise GuestError(f'{self.image}: nobody listens at {clients.GUEST} port {CONTROL_PORT} after 60 s\n{guest.console[-2000:]}')


def parse_image(text):
    """FILE[:append] as an Other; UsageError if there is no such file."""
    path, _, words = text.partition(':')
    if not os.path.isfile(path):
        raise UsageError(f"there is no image '{path}'; valid: FILE or FILE:BOOT LINE (with {{ip}}, {{prefix}}, {{gw}})")
    return Other(os.path.realpath(path), words)


def tell_apart(kinds):
    """Gives guests of the same name numbers."""
    seen = {Linux.name}
    for kind in kinds:
        name, number = kind.name, 2
        while kind.name in seen:
            kind.name, number = f'{name}-{number}', number + 1
        seen.add(kind.name)


def linux():
    """The Linux guest, made first if need be; a UsageError where it cannot be had."""
    done = subprocess.run([os.path.join(ROOT, 'tools', 'linuxguest', 'setup.sh')], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, text=True, timeout=1800, check=False)
    if done.returncode:
        raise UsageError('the Linux guest cannot be had here (line above)' if done.returncode == CANNOT
                         else f'the Linux guest could not be made: exit status {done.returncode}')
    return Linux(done.stdout.strip().splitlines()[-1])
