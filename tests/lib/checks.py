"""Checks of one guest that many tests share: console format, features, status trace, interrupts in use, rings."""
import re

LINE = re.compile(r'\[(\d+)\.(\d{6}) c(\d+)\] [a-z0-9_-]+: \S.*')
READY = re.compile(r'ringside: ready ip=(none|(\d+\.){3}\d+) ip6=(none|off|[0-9a-f:]+(,[0-9a-f:]+)*) mac=([0-9a-f]{2}:){5}[0-9a-f]{2} '
                   r'cores=\d+ queues=\d+ features=[a-z0-9_,]+')

# Feature bits by the specification's names; QEMU tells what was acknowledged as text or as numbers.
QEMU_NAMES = {
    'csum': 'VIRTIO_NET_F_CSUM', 'guest_csum': 'VIRTIO_NET_F_GUEST_CSUM', 'mtu': 'VIRTIO_NET_F_MTU', 'mac': 'VIRTIO_NET_F_MAC',
    'mrg_rxbuf': 'VIRTIO_NET_F_MRG_RXBUF', 'status': 'VIRTIO_NET_F_STATUS', 'indirect_desc': 'VIRTIO_RING_F_INDIRECT_DESC',
    'event_idx': 'VIRTIO_RING_F_EVENT_IDX', 'version_1': 'VIRTIO_F_VERSION_1', 'packed': 'VIRTIO_F_RING_PACKED',
    'ctrl_vq': 'VIRTIO_NET_F_CTRL_VQ', 'mq': 'VIRTIO_NET_F_MQ', 'rss': 'VIRTIO_NET_F_RSS', 'hash_report': 'VIRTIO_NET_F_HASH_REPORT',
}


def guest_lines(console):
    """The console from the guest's first line on: firmware and GRUB write to COM1 before."""
    start = re.search(r'^\[\d+\.\d{6} c\d+\] ', console, re.MULTILINE)
    assert start, 'no line of the guest on the console'
    return console[start.start():].splitlines()


def console(guest):
    """Every line in the contract's format, its time never going back, ready exactly once."""
    last = -1.0
    lines = guest_lines(guest.console)
    for line in lines:
        if line.startswith('ringside: ready '):
            assert READY.fullmatch(line), f'ready line: {line!r}'
            continue
        match = LINE.fullmatch(line)
        assert match, f'line not in the console format: {line!r}'
        now = float(f'{match.group(1)}.{match.group(2)}')
        assert now >= last, f'time goes back from {last} at {line!r}'
        last = now
    assert sum(line.startswith('ringside: ready ') for line in lines) == 1, 'ready line not exactly once'
    assert guest.console.endswith('\n'), 'the last console line is cut'


def panic_console(guest):
    """Lines up to "panic: ..." in format, one panic line, a backtrace after it. Returns the panic line's text."""
    lines = guest_lines(guest.console) if not guest.console.startswith('panic: ') else guest.console.splitlines()
    at = [i for i, line in enumerate(lines) if line.startswith('panic: ')]
    assert len(at) == 1, f'{len(at)} panic lines'
    for line in lines[:at[0]]:
        assert LINE.fullmatch(line) or READY.fullmatch(line), f'line not in the console format: {line!r}'
    assert any(re.match(r'\s*#\d+ [0-9a-f]{16} (\? )?[A-Za-z_][\w.]*\+0x', line) for line in lines[at[0]:]), 'no symbolised backtrace after the panic'
    return lines[at[0]][len('panic: '):]


def device_status(guest):
    """What QEMU itself says of the NIC: x-query-virtio-status."""
    return guest.qmp('x-query-virtio-status', path='/machine/peripheral/nic0/virtio-backend')


def acknowledged(guest):
    """Names of the features the driver acknowledged, as QEMU tells them (only those in QEMU_NAMES)."""
    told = device_status(guest)['guest-features']
    text = ' '.join(told.get('transports', []) + told.get('dev-features', []))
    return {name for name, full in QEMU_NAMES.items() if re.search(rf'\b{full}\b', text)}


def features(guest, ready, wanted, absent=()):
    """The ready line's features hold all that are wanted, none absent, and agree with what QEMU saw acknowledged."""
    told = set(ready['features'])
    assert wanted <= told, f'not acknowledged: {sorted(wanted - told)} (ready line: {sorted(told)})'
    assert not told & set(absent), f'acknowledged although off: {sorted(told & set(absent))}'
    seen = acknowledged(guest)
    assert seen == told & set(QEMU_NAMES), f'ready line says {sorted(told)}, QEMU saw {sorted(seen)}'


def status_trace(guest, allowed):
    """The device status took only these values, and DRIVER_OK among them."""
    values = [int(v) for v in re.findall(r'virtio_set_status vdev \S+ val (\d+)', guest.trace)]
    assert set(values) <= allowed, f'status values {[hex(v) for v in values]}'
    assert 0xF in values, f'no DRIVER_OK: {[hex(v) for v in values]}'
    steps = [v for i, v in enumerate(values) if i == 0 or v != values[i - 1]]  # QEMU repeats a value when it stops and goes on
    start = max(i for i, v in enumerate(steps) if v == 0xF) - 4
    assert steps[start:start + 5] == [0, 1, 3, 0xB, 0xF], f'initialisation in another order: {[hex(v) for v in values]}'


def ring_sizes(guest):
    """Sizes of the receive and transmit ring of the first pair, as QEMU has them."""
    path = '/machine/peripheral/nic0/virtio-backend'
    return tuple(guest.qmp('x-query-virtio-queue-status', path=path, queue=q)['vring-num'] for q in (0, 1))


def nic_bars(guest):
    """Addresses of the NIC's memory BARs, by BAR number, as QEMU has them."""
    def walk(devices):
        for device in devices:
            yield device
            yield from walk(device.get('pci_bridge', {}).get('devices', []))
    for bus in guest.qmp('query-pci'):
        for device in walk(bus['devices']):
            if device['qdev_id'] == 'nic0':
                return {r['bar']: r['address'] for r in device['regions'] if r['type'] == 'memory'}
    raise AssertionError('no nic0 on PCI')
