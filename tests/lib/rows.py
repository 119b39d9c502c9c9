"""A system test is a row: a machine, a boot line, a wire, traffic, what to expect. run() makes one true or fails.

What every row that ends well must show besides its own expectations: one ready line, every console line in the contract's
format, time going forward, nothing on QEMU's stderr, exit code 1 after the power button, device status values of an
orderly initialisation only, frames without fault (dgram wire).
"""
import dataclasses
import re

import pytest

import checks
import trafficmix
import wires
from rslib.qemu import EXIT_WELL, Guest, Machine

# What the driver implements and QEMU offers on each wire by default (a wire without virtio-net header offers no checksums).
RING_FEATURES = {'event_idx', 'indirect_desc', 'version_1'}
COMMON = RING_FEATURES | {'mac', 'status', 'mrg_rxbuf', 'ctrl_vq'}
OFFERED = {'user': COMMON, 'dgram': COMMON, 'stream': COMMON, 'tap': COMMON | {'csum', 'guest_csum'}}

STATUS_VALUES = {0, 1, 3, 0xB, 0xF}
SHORT, LONG, UEFI = 30, 60, 120     # seconds: an emulated UEFI takes its time on a loaded machine


@dataclasses.dataclass
class Row:
    """One row. Fields not named are the defaults of Machine and of the wire."""

    id: str
    wire: str = 'tap'
    machine: dict = dataclasses.field(default_factory=dict)     # fields of Machine
    props: dict = dataclasses.field(default_factory=dict)       # of the NIC
    extra: tuple = ()                                           # QEMU arguments before the NIC
    words: str = ''                                             # boot line after the address words
    addresses: str = ''                                         # instead of the wire's static address words
    wire_options: dict = dataclasses.field(default_factory=dict)
    without: tuple = ()             # features that must not be acknowledged, of those the wire offers
    with_: tuple = ()               # features that must be, beyond those the wire offers
    traffic: tuple = ('smoke',)     # names of traffic kinds in trafficmix.KINDS, or callables (wire, guest)
    console: tuple = ()             # regular expressions that must be on the console by the end
    expect: int = EXIT_WELL
    firmware_touches_nic: bool = False  # UEFI drives the NIC first, its own way
    full: bool = False


def table(rows):
    """pytest.mark.parametrize for a list of rows; rows that are full are marked so, rows on a tap skip without rights."""
    ids = [row.id for row in rows]
    assert len(set(ids)) == len(ids), 'row ids are not unique'
    params = []
    for row in rows:
        marks = [pytest.mark.full] if row.full else []
        if row.wire == 'tap':
            marks.append(pytest.mark.skipif(not wires.have_tap(), reason='no rights to /dev/net/tun'))
        params.append(pytest.param(row, id=row.id, marks=marks))
    return pytest.mark.parametrize('row', params)


def patience(boot):
    """Seconds until a guest booted in this way must be ready, or have ended."""
    return UEFI if boot == 'iso-uefi' else SHORT


def machine_for(row, image, wire):
    """The Machine of a row on its wire."""
    append = f'{row.addresses or wire.words()} {row.words}'.strip()
    return Machine(**{'image': image, 'append': append, 'netdev': wire.netdev(), 'props': dict(row.props),
                      'extra': list(row.extra), 'trace': ['virtio_set_status'], **row.machine})


def run(row, image):
    """Boots the row's machine, checks it, runs its traffic, ends it, checks what is left."""
    with wires.make(row.wire, **row.wire_options) as wire:
        with Guest(machine_for(row, image, wire), netns=wire.netns) as guest:
            wire.attach(guest)
            ready = guest.wait_ready(patience(guest.machine.boot))
            checks.features(guest, ready, (OFFERED[row.wire] | set(row.with_)) - set(row.without), row.without)
            for kind in row.traffic:
                (trafficmix.KINDS[kind] if isinstance(kind, str) else kind)(wire, guest)
            guest.finish(row.expect)
        after(row, guest, wire)
    return guest


def after(row, guest, wire):
    """What must hold once the guest has ended well."""
    checks.console(guest)
    for pattern in row.console:
        assert re.search(pattern, guest.console, re.MULTILINE), f'not on the console: /{pattern}/'
    if not row.firmware_touches_nic:
        checks.status_trace(guest, STATUS_VALUES)
    if hasattr(wire, 'check'):
        wire.check()
