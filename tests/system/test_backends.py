"""The guest's `conform` on each backend, as `ringside conform` runs it: the run is whole, and nothing fails but what is known of that
backend (docs/findings.md). Backends that need more than QEMU and a tap device are for the full run."""
import pytest

from rslib.conform import backends, local, main, protocol, report

NORMAL = ('user', 'tap-2')
# What backends are known to do wrong: the number in docs/findings.md, the check, the backends (a prefix stands for all that begin so). A row that
# no longer fails is to be taken out there and here.
DPDK = ('testpmd', 'ovs', 'qemu10-testpmd')
KNOWN = (
    (2, 'no feature is offered without those it depends on', DPDK),
    (10, 'a chain may end in an indirect table', ('user', 'tap', 'dgram', 'nested-tap', 'qemu10', *DPDK)),
    (11, 'num_buffers is 1 without mergeable buffers', ('user', 'tap', 'dgram', 'nested', 'qemu10', 'passt', *DPDK)),
    (12, 'hdr_len need not be right', ('tap', 'nested-tap', 'qemu10-tap')),
    (13, 'a frame is sent from any number of pieces', ('passt',)),
    (13, 'a frame is received into any number of pieces', ('passt',)),     # it has died of the one before
    (14, 'used flags are 0 with the event index', ('nested-vhost-net',)),
    (15, 'rings of each size carry frames, from 1 to the largest', DPDK),
    (16, 'without guest_csum flags are 0 and checksums complete', ('passt',)),
    (16, 'gso_type is only what was negotiated', ('passt',)),
)
DIES = {'passt': ('ring: ', 'ASSERTION FAILED in virtqueue_map_desc')}  # 13: of which area, and what it says


def rows():
    """A row per backend."""
    return [pytest.param(b, id=b.name, marks=[] if b.name in NORMAL else [pytest.mark.full]) for b in backends.BACKENDS]


@pytest.mark.seconds(400)
@pytest.mark.parametrize('backend', rows())
def test_backend(backend, image):
    """It runs to its end, and what fails is known."""
    column = main.run_one(backend, local.Ask(image), print)
    if column.status == report.CANNOT:
        pytest.skip(column.reason)
    print(column.console)
    assert column.outcome.count(protocol.PASS) > 0
    faults = column.outcome.faults
    if backend.name in DIES:
        area, words = DIES[backend.name]
        assert any(words in fault for fault in faults), faults
        faults = [fault for fault in faults if not fault.startswith(area)]
    assert faults == []
    failed = {c.text for c in column.outcome.checks if c.state == protocol.FAIL}
    assert failed == {text for _, text, who in KNOWN if backend.name.startswith(who)}
