"""The guest's `conform` on each backend, as `ringside conform` runs it: the run is whole, and nothing fails but what is known of that
backend (docs/findings.md). Backends that need more than QEMU and a tap device are for the full run."""
import pytest

from rslib.conform import backends, local, main, protocol, report

NORMAL = ('user', 'tap-2')
# What a backend is known to do wrong: (backend, area, check). A row that no longer fails is to be taken out.
DPDK = ('testpmd', 'testpmd-2', 'testpmd-macswap', 'ovs', 'ovs-2', 'qemu10-testpmd', 'qemu10-testpmd-2')
KNOWN = {(name, 'features', 'no feature is offered without those it depends on') for name in DPDK}


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
    assert column.outcome.faults == []
    failed = {(backend.name, c.area, c.text) for c in column.outcome.checks if c.state == protocol.FAIL}
    assert failed == {row for row in KNOWN if row[0] == backend.name}
    assert column.outcome.count(protocol.PASS) > 0
