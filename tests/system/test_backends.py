"""The guest's `conform` on each backend, as `ringside conform` runs it: the run is whole, and nothing fails but what is known of that
backend (docs/findings.md). Backends that need more than QEMU and a tap device are for the full run."""
import pytest

from rslib.conform import backends, known, local, main, protocol, report

NORMAL = ('user', 'tap-2')


def rows():
    """A row per backend."""
    return [pytest.param(b, id=b.name, marks=[] if b.name in NORMAL else [pytest.mark.full]) for b in backends.BACKENDS]


@pytest.mark.seconds(800)
@pytest.mark.parametrize('backend', rows())
def test_backend(backend, image):
    """It runs to its end, and what fails is known."""
    column = main.run_one(backend, local.Ask(image), print)
    if column.status == report.CANNOT:
        pytest.skip(column.reason)
    print(column.console)
    assert column.outcome.count(protocol.PASS) > 0
    faults = column.outcome.faults
    if backend.name in known.DIES:
        area, words = known.DIES[backend.name]
        assert any(words in fault for fault in faults), faults
        faults = [fault for fault in faults if not fault.startswith(area)]
    assert faults == []
    failed = {c.text for c in column.outcome.checks if c.state == protocol.FAIL}
    assert failed == known.texts(backend.name)
