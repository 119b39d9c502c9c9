"""Boot path, machine type, memory, place on the PCI bus: each row boots, passes a little traffic and ends well."""
import pytest

import checks
import rows
import wires
from rslib.qemu import Guest, Machine
from rows import Row

ROOT_PORT = ('-device', 'pcie-root-port,id=rp1,bus=pcie.0,chassis=1,slot=1')
SWITCH = ROOT_PORT + ('-device', 'x3130-upstream,id=up1,bus=rp1',
                      '-device', 'xio3130-downstream,id=dn1,bus=up1,chassis=2,slot=2',
                      '-device', 'xio3130-downstream,id=dn2,bus=up1,chassis=3,slot=3')
PCI_BRIDGE = ('-device', 'pci-bridge,id=br1,chassis_nr=1')
TWO_BRIDGES = PCI_BRIDGE + ('-device', 'pci-bridge,id=br2,chassis_nr=2,bus=br1,addr=2')
PCIE_TO_PCI = ('-device', 'pcie-pci-bridge,id=br1')
BIG_BAR = ('-device', 'pci-testdev,membar=2G')
UEFI = {'firmware_touches_nic': True}


def bar_above_4g(wire, guest):
    """The row is what it says: the NIC's BAR 4 lies above 4 GiB."""
    assert checks.nic_bars(guest)[4] >= 1 << 32, checks.nic_bars(guest)


def booted_by(name):
    """The boot protocol the guest says it was started by."""
    return (rf'(?i)\] boot: .*started by {name}\b',)


BOOT = [
    Row('kernel-q35', machine={'boot': 'kernel'}, console=booted_by('multiboot1'), traffic=('smoke', 'smoke6', 'wake', 'discard_chargen')),
    Row('kernel-pc', machine={'boot': 'kernel', 'machine': 'pc'}, traffic=('smoke', 'wake')),
    Row('pvh-q35', machine={'boot': 'pvh'}, console=booted_by('pvh')),
    Row('pvh-pc', machine={'boot': 'pvh', 'machine': 'pc'}, full=True),
    Row('iso-bios-q35', machine={'boot': 'iso'}, console=booted_by('multiboot2')),
    Row('iso-bios-pc', machine={'boot': 'iso', 'machine': 'pc'}, full=True),
    Row('iso-uefi-q35', machine={'boot': 'iso-uefi'}, console=booted_by('multiboot2'), **UEFI),
    Row('iso-uefi-pc', machine={'boot': 'iso-uefi', 'machine': 'pc'}, full=True, **UEFI),
    Row('option-rom', machine={'boot': 'kernel'}, props={'romfile': None}),
    Row('user-wire', wire='user', machine={'boot': 'kernel'}, traffic=('smoke', 'discard_chargen')),
]

MEMORY = [
    Row('64M', machine={'memory': '64M'}, traffic=('smoke', 'tcp_10mb')),
    Row('64M-pc-pvh', machine={'memory': '64M', 'machine': 'pc', 'boot': 'pvh'}),
    Row('64M-iso', machine={'memory': '64M', 'boot': 'iso'}, full=True),
    Row('8G', machine={'memory': '8G'}),
    Row('8G-pc', machine={'memory': '8G', 'machine': 'pc'}, full=True),
    Row('8G-pvh', machine={'memory': '8G', 'boot': 'pvh'}, full=True),
    Row('8G-iso', machine={'memory': '8G', 'boot': 'iso'}, full=True),
    Row('8G-uefi', machine={'memory': '8G', 'boot': 'iso-uefi'}, full=True, **UEFI),
    Row('8G-bar-above-4G', machine={'memory': '8G'}, extra=BIG_BAR, traffic=(bar_above_4g, 'smoke')),
    Row('8G-bar-above-4G-pc', machine={'memory': '8G', 'machine': 'pc'}, extra=BIG_BAR, traffic=(bar_above_4g, 'smoke'), full=True),
    Row('3G', machine={'memory': '3G'}, full=True),
    Row('129M', machine={'memory': '129M'}, full=True),
]

PLACE = [
    Row('root-port', extra=ROOT_PORT, props={'bus': 'rp1'}, traffic=('smoke', 'wake')),
    Row('switch', extra=SWITCH, props={'bus': 'dn2'}, traffic=('smoke', 'wake')),
    Row('pc-pci-bridge', machine={'machine': 'pc'}, extra=PCI_BRIDGE, props={'bus': 'br1', 'addr': '3'}, traffic=('smoke', 'wake')),
    Row('pc-two-bridges', machine={'machine': 'pc'}, extra=TWO_BRIDGES, props={'bus': 'br2', 'addr': '4'}, full=True),
    Row('pcie-to-pci-bridge', extra=PCIE_TO_PCI, props={'bus': 'br1', 'addr': '3'}, full=True),
    Row('root-port-intx', extra=ROOT_PORT, props={'bus': 'rp1', 'vectors': '0'}, traffic=('smoke', 'wake'), full=True),
    Row('switch-intx', extra=SWITCH, props={'bus': 'dn2', 'vectors': '0'}, traffic=('smoke', 'wake'), full=True),
    Row('bridge-intx-pc', machine={'machine': 'pc'}, extra=PCI_BRIDGE, props={'bus': 'br1', 'addr': '3', 'vectors': '0'},
        traffic=('smoke', 'wake'), full=True),
    Row('function-3', props={'multifunction': 'on', 'addr': '5.0'}, extra=('-device', 'pci-testdev,addr=5.3'), full=True),
    Row('behind-function-0', props={'addr': '5.3'}, extra=('-device', 'pci-testdev,multifunction=on,addr=5.0')),
    Row('root-port-uefi', machine={'boot': 'iso-uefi'}, extra=ROOT_PORT, props={'bus': 'rp1'}, full=True, **UEFI),
]

CPU = [
    Row('cpu-qemu64', machine={'cpu': 'qemu64'}),                   # no RDRAND, no RDSEED
    Row('cpu-max-no-rdrand', machine={'cpu': 'max,-rdrand,-rdseed'}, full=True),
    Row('smp-4', machine={'smp': 4}),
]


@rows.table(BOOT)
def test_boot_path(row, image):
    """Boot protocol and firmware."""
    rows.run(row, image)


@rows.table(MEMORY)
def test_memory(row, image):
    """From 64 MiB to 8 GiB, BARs below and above 4 GiB."""
    rows.run(row, image)


@rows.table(PLACE)
def test_place_on_pci(row, image):
    """Behind root ports, switches and bridges."""
    rows.run(row, image)


@rows.table(CPU)
def test_cpu(row, image):
    """Processors with less than `max` has; more processors than are used."""
    rows.run(row, image)


@pytest.mark.parametrize('machine', ['q35', 'pc'])
@pytest.mark.parametrize('boot', ['kernel', pytest.param('iso', marks=pytest.mark.full), pytest.param('iso-uefi', marks=pytest.mark.full)])
def test_power_button_without_exit_port(image, machine, boot):
    """Without isa-debug-exit the power button ends in ACPI's power-off: QEMU exits with 0."""
    append = 'ip=10.0.2.15/24 ip6=off'
    with Guest(Machine(image, boot=boot, machine=machine, append=append, exit_port=False, netdev=['-netdev', 'user,id=n0'])) as guest:
        guest.wait_ready(rows.patience(boot))
        guest.finish(expect=0)
        assert any(e['event'] == 'SHUTDOWN' and e['data']['reason'] == 'guest-shutdown' for e in guest.events())
    checks.console(guest)


def test_power_button_while_waiting_for_a_lease(image):
    """The button works before the guest is ready too."""
    with wires.raw_wire() as wire, Guest(Machine(image, append='ip=dhcp ip6=off', netdev=wire.netdev())) as guest:
        assert wire.wait(lambda: wire.counts['received'], rows.SHORT), 'no DHCP request'
        guest.finish()
    assert 'ringside: ready' not in guest.console


def test_exit_code_is_the_panic_code_without_exit_port(image):
    """A panic without isa-debug-exit powers off as well: QEMU exits with 0 and the console says why."""
    with Guest(Machine(image, append='ring=3', exit_port=False, netdev=['-netdev', 'user,id=n0'])) as guest:
        guest.expect_exit(0, rows.SHORT)
    assert 'ring=3' in checks.panic_console(guest)
