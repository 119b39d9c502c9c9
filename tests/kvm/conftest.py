"""What the tests under nested KVM share: the lab, or the reason why it cannot be had here; the guest image."""
import os
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, 'tools')]

from rslib import kvmlab  # noqa: E402


def pytest_configure(config):
    """Registers the mark; leaving out what has it is done by tests/system/conftest.py, or here by -m 'not full'."""
    config.addinivalue_line('markers', 'full: only with --full')


@pytest.fixture(scope='session')
def lab():
    """The lab's folder. Where it cannot be had the tests are skipped with the reason, or fail with it if
    RINGSIDE_KVMLAB=need."""
    try:
        return kvmlab.setup()
    except kvmlab.Unavailable as e:
        (pytest.fail if os.environ.get('RINGSIDE_KVMLAB') == 'need' else pytest.skip)(str(e))


@pytest.fixture(scope='session')
def image(request):
    """Path of the guest's ELF."""
    built = os.path.join(ROOT, os.environ.get('BUILD') or 'build', 'ringside.elf')
    path = request.config.getoption('--image', default=built)
    if not os.path.exists(path):
        pytest.fail(f'{path} is not there: build it with make')
    return path
