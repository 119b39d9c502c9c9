"""A device that is no longer usable is reset under the running stacks: it asked for it, or a ring's rules are broken. The faults
are made in the guest (tests/guest/reset.c), by datagrams to port 4444. Connections live through it."""
import time

import pytest

import many
import rows
import test_metrics
import traffic
import wires
from rslib.qemu import Guest, Machine
from test_faults import test_image  # noqa: F401  (a fixture)

FAULT_PORT = 4444
# fault: the console's line about it
FAULTS = {
    'a': r'DEVICE_NEEDS_RESET', 'A': r'DEVICE_NEEDS_RESET',
    'u': r'the queue is broken', 'U': r'the queue is broken',
}
COMPLAINT = r'qemu-system-\w+: Guest says index \d+ is available'
ALLOWED = (COMPLAINT, r'.*(libbpf|RSS).*')


def start(image, wire, cores, words='', props=None):  # noqa: F811
    """The test image on a tap, with the servers and the faults."""
    many_queues = {'mq': 'on', 'vectors': 2 * cores + 2} if cores > 1 else {}
    return Guest(Machine(image, smp=cores, memory='256M', append=f'{wire.words()} apps=echo,http,faults_on_request {words}',
                         netdev=wire.netdev(), props={**many_queues, **(props or {})}, warnings=ALLOWED), netns=wire.netns)


def break_it(wire, guest, fault, core, cores):
    """Asks for a fault on a core; waits until the device runs again."""
    said = guest.mark()
    sock = wire.udp(FAULT_PORT, source=wire.sources(cores, 1, port=FAULT_PORT)[core][0] if cores > 1 else 0)
    sock.send(fault.encode())
    guest.wait_for(rf"fault '{fault}' on core {core}[\s\S]*{FAULTS[fault]}[\s\S]*the device was reset and runs again", 5, said)


@pytest.mark.parametrize('fault', FAULTS)
@pytest.mark.parametrize('cores, words, props', [
    (2, '', {}), pytest.param(1, '', {}, marks=pytest.mark.full), pytest.param(4, '', {}, marks=pytest.mark.full),
    pytest.param(2, '', {'rss': 'on'}, marks=pytest.mark.full),
    pytest.param(1, 'features=-event_idx,-indirect_desc', {}, marks=pytest.mark.full),
    pytest.param(2, 'features=-mrg_rxbuf', {}, marks=pytest.mark.full), pytest.param(4, '', {'vectors': 0}, marks=pytest.mark.full)],
    ids=['2', '1', '4', '2-rss', '1-plain', '2-no-mrg', '4-intx'])
def test_reset(test_image, fault, cores, words, props):  # noqa: F811
    """Connections on all cores are open and busy: after the reset, asked for by each core in turn, every byte is right; new
    connections and datagrams are served within a second; the link is seen; the counter says how often."""
    with wires.make('tap', queues=cores) as wire, start(test_image, wire, cores, words, props) as guest:
        guest.wait_ready(rows.SHORT)
        sources = sum(wire.sources(cores, 3).values(), []) if cores > 1 else ()
        with many.Connections(wire, sources=sources, count=None if cores > 1 else 3) as connections:
            running = many.Background(connections, 20_000)
            running.progress()
            for core in range(min(cores, 2)):
                break_it(wire, guest, fault, core, cores)
                begin = time.monotonic()
                assert wire.ping(count=1, timeout=10)[1] == 1
                assert time.monotonic() - begin < 1.5
                running.progress(5)
                time.sleep(1.1)      # resets are a second apart
            running.stop()
            connections.finish()
        many.echo(wire, 50_000, sources=sum(wire.sources(cores, 2).values(), []) if cores > 1 else (), count=None if cores > 1 else 4)
        assert traffic.udp_echo(wire.udp(7), 20, (64, 1400), window=1).lost == 0
        assert test_metrics.scrape(wire).total('ringside_resets_total') == min(cores, 2)
        guest.finish()


def test_again_and_again(test_image):  # noqa: F811
    """Eight resets: nothing is used up, the last is as good as the first."""
    with wires.make('tap', queues=2) as wire, start(test_image, wire, 2) as guest:
        guest.wait_ready(rows.SHORT)
        used = []
        for k in range(8):
            break_it(wire, guest, 'uUa'[k % 3], k % 2, 2)
            many.echo(wire, 5_000, sources=sum(wire.sources(2, 2).values(), []))
            sample = test_metrics.scrape(wire, reset=True)
            used.append((int(sample.total('ringside_heap_used_bytes')), int(sample.total('ringside_rx_pool_size'))))
            time.sleep(1.1)
        assert sample.total('ringside_resets_total') == 8
        assert max(u for u, _ in used[4:]) <= max(u for u, _ in used[:4]) + 20_000 and len({size for _, size in used}) == 1, used
        guest.finish()
