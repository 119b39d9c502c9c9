"""What KVM did for a guest on the kernel's vhost-net, beside the Linux guest: counted by `make bench LAB=kvm`, taken up by the report."""
import json
import os

from ..bench import exits
from ..common import build_dir

TITLE = "KVM's exits, notifications and interrupts"
MISSING = 'Not counted yet on this machine: `make bench LAB=kvm` (5 to 8 minutes), then this report again.'
KEYS = {'unit', 'units', 'exits', 'msr', 'user_space', 'ioeventfd', 'raised', 'injected', 'frames_to_guest', 'frames_from_guest'}


def load(path=''):
    """The bench's kvm-exits.json as data; None if there is none, or it is not what docs/bench.md says."""
    try:
        with open(path or os.path.join(build_dir(), 'bench', 'kvm-exits.json'), encoding='utf-8') as f:
            data = json.load(f)
        good = all(KEYS <= set(test) for guest in data['guests'] for test in guest['tests'].values()) and isinstance(data['head'], str)
        return data if good and data['guests'] else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def table(data):
    """(heads, rows) of it, as text."""
    told = {guest['name']: guest['tests'] for guest in data['guests']}
    return ['test', 'per', 'what', *told], exits.lines(told, list(told))
