"""What the pytest suites share: the options, the mark of rows that only a full run takes, time limits, and the consoles
of a failed test's guests in its report."""
import collections
import os
import signal
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, 'tools'), os.path.join(ROOT, 'tests', 'lib')]

from rslib import qemu  # noqa: E402

TEST_SECONDS = {'system': 240, 'kvm': 900, 'tools': 900}       # by folder


def pytest_addoption(parser):
    """--full and where the image is."""
    parser.addoption('--full', action='store_true', help='every row, not only the covering subset')
    parser.addoption('--image', default=os.path.join(ROOT, os.environ.get('BUILD', 'build'), 'ringside.elf'),
                     help='guest ELF (default: build/ringside.elf)')


def pytest_configure(config):
    """Registers our mark; lets SIGTERM unwind like Ctrl-C, so that every guest and namespace is taken down."""
    config.addinivalue_line('markers', 'full: only with --full')
    config.addinivalue_line('markers', 'seconds(n): may run that long')
    signal.signal(signal.SIGINT, signal.default_int_handler)    # in a shell's background it is ignored, by our children too
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))


def pytest_collection_modifyitems(config, items):
    """Leaves out the rows marked full unless asked for. The files that take longest go first: a worker has a file at a time, and the
    last one would have the others wait."""
    full = [] if config.getoption('--full') else [item for item in items if item.get_closest_marker('full')]
    if full:
        config.hook.pytest_deselected(items=full)
        items[:] = [item for item in items if not item.get_closest_marker('full')]
    seconds = collections.Counter()
    for item in items:
        marker = item.get_closest_marker('seconds')
        seconds[item.path] += marker.args[0] if marker else 1
    items.sort(key=lambda item: -seconds[item.path])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    """A limit on each test's time, whatever it waits for."""
    marker = item.get_closest_marker('seconds')
    seconds = marker.args[0] if marker else TEST_SECONDS[item.path.parent.name]

    def expired(*_):
        raise TimeoutError(f'test still running after {seconds} s')

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Attaches command line, console and stderr of every guest a failed test ran."""
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        for number, guest in enumerate(qemu.started, 1):
            report.sections.append((f'guest {number}', guest.report()))
    if call.when == 'teardown':
        qemu.started.clear()


@pytest.fixture(scope='session')
def image(request):
    """Path of the guest's ELF."""
    path = request.config.getoption('--image')
    if not os.path.exists(path):
        pytest.fail(f'{path} is not there: build it with make')
    return path
