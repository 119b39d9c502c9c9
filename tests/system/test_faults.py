"""Forbidden deeds, one tiny application each (tests/guest): the guest ends with a panic that names the fault and the place.
A deed that goes unpunished ends well, with the wrong exit code for these rows."""
import os
import re

import pytest

import checks
import rows
from rslib.qemu import EXIT_PANIC, EXIT_WELL, Guest, Machine

WRITE, EXECUTE, READ = (r'exception 14 \(page fault\), error [37], write to ([0-9a-f]+)',
                        r'exception 14 \(page fault\), error 1[15], execution of ([0-9a-f]+)',
                        r'exception 14 \(page fault\), error [0-7], read of ([0-9a-f]+)')
UNMAPPED_WRITE = r'exception 14 \(page fault\), error 2, write to ([0-9a-f]+)'

# application, the panic's text, the function the backtrace names, more machine options
FAULTS = [
    ('write_text', WRITE, 'write_text'), ('write_rodata', WRITE, 'write_rodata'), ('write_relocated', WRITE, 'write_relocated'),
    ('write_image', WRITE, 'write_image'), ('write_loader', WRITE, 'write_loader'),
    ('exec_data', EXECUTE, 'exec_data'), ('exec_stack', EXECUTE, 'exec_stack'), ('exec_heap', EXECUTE, 'exec_heap'),
    ('exec_loader_data', EXECUTE, 'exec_loader_data'), ('exec_rodata', EXECUTE, 'exec_rodata'),
    ('read_null', READ, 'read_null'), ('write_null', UNMAPPED_WRITE, 'write_null'), ('read_guard', READ, 'read_guard'),
    ('stack_overflow', UNMAPPED_WRITE, 'deeper'),
    ('divide', r'exception 0 \(divide error\)', 'divide'), ('bad_opcode', r'exception 6 \(invalid opcode\)', 'bad_opcode'),
    ('free_twice', r'heap: free of 0x[0-9a-f]+, which is free already', 'free_twice'), ('plain_panic', r'as asked', 'plain_panic'),
]
NULL_PAGE = ('read_null', 'write_null')


@pytest.fixture(scope='module')
def test_image(image):
    """The image with the fault applications in it."""
    path = image.replace('ringside.elf', 'ringside-test.elf')
    if not os.path.exists(path):
        pytest.fail(f'{path} is not there: build it with make guest-tests')
    return path


def run(test_image, app, code, **fields):
    """Boots the test image with one application; returns the Guest after its end."""
    with Guest(Machine(test_image, append=f'ip=10.0.2.15/24 ip6=off apps={app}', netdev=['-netdev', 'user,id=n0'], **fields)) as guest:
        guest.expect_exit(code, rows.patience(guest.machine.boot))
    return guest


@pytest.mark.parametrize('app,text,where', [pytest.param(*row, id=row[0]) for row in FAULTS])
def test_fault(test_image, app, text, where):
    """Panic with the fault's name, registers for exceptions, a backtrace that names the function, the panic code."""
    guest = run(test_image, app, EXIT_PANIC)
    said = checks.panic_console(guest)
    match = re.match(text, said)
    assert match, said
    after = guest.console[guest.console.index('panic: '):]
    assert re.search(rf'^\s*#\d+ [0-9a-f]+ (\? )?{where}(\.\S+)?\+0x', after, re.MULTILINE), f'{where} is not in the backtrace'
    if 'exception' in text:
        assert re.search(r'^\s*rip [0-9a-f]{16} .*cr2 [0-9a-f]{16}', after, re.MULTILINE), 'no registers'
    if app in NULL_PAGE:
        assert int(match.group(1), 16) < 4096


@pytest.mark.parametrize('fields', [
    pytest.param({}, id='q35'),
    pytest.param({'machine': 'pc', 'memory': '64M'}, id='pc-64M'),
    pytest.param({'memory': '8G', 'extra': ['-device', 'pci-testdev,membar=2G']}, id='8G-bar-above-4G'),
    pytest.param({'boot': 'iso-uefi'}, id='uefi', marks=pytest.mark.full),
])
def test_mappings(test_image, fields):
    """Every mapping in force is right: identity, never writable and executable, page 0 and guard pages absent."""
    guest = run(test_image, 'mappings', EXIT_WELL, **fields)
    assert re.search(r'mappings are right: \d+, of them \d+ executable', guest.console)


@pytest.mark.parametrize('boot', ['pvh', 'iso', pytest.param('iso-uefi', marks=pytest.mark.full)])
def test_fault_by_other_boot_paths(test_image, boot):
    """The backtrace has names whatever loaded the image."""
    guest = run(test_image, 'bad_opcode', EXIT_PANIC, boot=boot)
    assert re.search(r'^\s*#\d+ [0-9a-f]+ bad_opcode\+0x', guest.console, re.MULTILINE)
