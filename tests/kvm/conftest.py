"""What the tests under nested KVM share: the lab, or the reason why it cannot be had here."""
import os

import pytest

from rslib import kvmlab


@pytest.fixture(scope='session')
def lab():
    """The lab's folder. Where it cannot be had the tests are skipped with the reason, or fail with it if
    RINGSIDE_KVMLAB=need."""
    try:
        return kvmlab.setup()
    except kvmlab.Unavailable as e:
        (pytest.fail if os.environ.get('RINGSIDE_KVMLAB') == 'need' else pytest.skip)(str(e))
