"""A vhost-user switch in place of QEMU's own network device: DPDK's testpmd, between the guest and the tap device that clients
use. It works in the guest's memory itself, so QEMU sees neither kicks nor interrupts of the queues."""
import contextlib
import os
import subprocess
import time

from ..common import ROOT
from ..netns import dies_with_parent, end_process
from ..qemu import GuestError

START_SECONDS = 60
MEMORY = '256M'


class Unavailable(Exception):
    """There is no such switch on this machine; the text says why, in one line."""


def find():
    """The folder of testpmd, by tools/switches.sh, which fetches it the first time. Unavailable if it cannot be had."""
    done = subprocess.run([os.path.join(ROOT, 'tools', 'switches.sh')], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=1500, check=False)
    if done.returncode:
        raise Unavailable((done.stderr.strip().splitlines() or ['tools/switches.sh failed'])[-1])
    return done.stdout.strip()


def argv(folder, work, device, pairs):
    """testpmd's command line: a thread that polls, wherever there is room; its socket and run-time files in work."""
    last = max(os.cpu_count() - 1, 0)
    return ['env', f'RUNTIME_DIRECTORY={work}', f'{folder}/dpdk-testpmd', '--lcores', f'(0,1)@(0-{last})' if last else '(0,1)@0',
            '--no-huge', '-m', '512', '--no-pci', '--no-telemetry',
            '--vdev', f'net_vhost0,iface={socket_in(work)},queues={pairs}', '--vdev', f'net_tap0,iface={device}',
            '--', '--nb-cores=1', f'--rxq={pairs}', f'--txq={pairs}', '--total-num-mbufs=8192', '--auto-start', '--forward-mode=io']


def socket_in(work):
    """Where QEMU finds it."""
    return os.path.join(work, 'switch.sock')


def netdev(work, pairs):
    """QEMU's arguments for a device behind it, and for memory that both see."""
    return ['-object', f'memory-backend-memfd,id=mem0,size={MEMORY},share=on', '-chardev', f'socket,id=c0,path={socket_in(work)}',
            '-netdev', f'vhost-user,id=n0,chardev=c0,queues={pairs}']


@contextlib.contextmanager
def running(netns, work, device, addresses, pairs):
    """Runs it inside the namespace, its tap device with the addresses; GuestError if it does not come up."""
    log = os.path.join(work, 'switch.log')
    with open(log, 'wb') as out:            # it ends at a line on its standard input: a pipe that nobody writes to
        process = subprocess.Popen(netns.enter(dies_with_parent(argv(find(), work, device, pairs))), stdin=subprocess.PIPE,
                                   stdout=out, stderr=out)
    try:
        end = time.monotonic() + START_SECONDS
        while not os.path.exists(socket_in(work)) or netns.run(['ip', 'link', 'show', device], check=False).returncode:
            if process.poll() is not None or time.monotonic() > end:
                with open(log, encoding='utf-8', errors='replace') as f:
                    said = f.read().strip().splitlines() or ['nothing']
                raise GuestError(f'testpmd did not come up: {said[-1]}')
            time.sleep(0.05)
        for address in addresses:
            nodad = ['nodad'] if ':' in address else []
            netns.run(['ip', 'addr', 'add', address, 'dev', device, *nodad])
        netns.run(['ip', 'link', 'set', device, 'up'])
        yield
    finally:
        end_process(process, 3)
        process.stdin.close()
