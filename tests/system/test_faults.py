"""Memory protection and exceptions: tiny guest programs that each do one forbidden thing must end with a panic that names it, the
registers and a symbolised backtrace; a walk over the page tables must find every mapping as it should be."""
import os
import re

import pytest

from rslib.qemu import EXIT_PANIC, EXIT_WELL, Guest, Machine

PAGE_FAULT = r'panic: exception 14 \(page fault\), error [0-9a-f]+, '

# application, what the panic line must say, the function its backtrace must name
FAULTS = [
    ('write_text', PAGE_FAULT + 'write to', 'write_text'),
    ('write_rodata', PAGE_FAULT + 'write to', 'write_rodata'),
    ('write_relocated', PAGE_FAULT + 'write to', 'write_relocated'),
    ('write_image', PAGE_FAULT + 'write to', 'write_image'),
    ('write_loader', PAGE_FAULT + 'write to', 'write_loader'),
    ('exec_data', PAGE_FAULT + 'execution of', 'exec_data'),
    ('exec_stack', PAGE_FAULT + 'execution of', 'exec_stack'),
    ('exec_heap', PAGE_FAULT + 'execution of', 'exec_heap'),
    ('exec_rodata', PAGE_FAULT + 'execution of', 'exec_rodata'),
    ('exec_loader_data', PAGE_FAULT + 'execution of', 'exec_loader_data'),
    ('read_null', PAGE_FAULT + 'read of 0000000000000008', 'read_null'),
    ('write_null', PAGE_FAULT + 'write to 0000000000000fff', 'write_null'),
    ('read_guard', PAGE_FAULT + 'read of', 'read_guard'),
    ('stack_overflow', PAGE_FAULT + 'write to', 'deeper'),
    ('divide', r'panic: exception 0 \(divide error\)', 'divide'),
    ('bad_opcode', r'panic: exception 6 \(invalid opcode\)', 'bad_opcode'),
    ('free_twice', r'panic: heap: free of 0x[0-9a-f]+, which is free already', 'free_twice'),
    ('plain_panic', r'panic: as asked', 'plain_panic'),
]
WITHOUT_REGISTERS = ('free_twice', 'plain_panic')


@pytest.fixture(name='test_image', scope='session')
def the_test_image(image):
    """The image with the fault programs in it."""
    path = os.path.join(os.path.dirname(image), 'ringside-test.elf')
    if not os.path.exists(path):
        pytest.fail(f'{path} is not there: build it with make guest-tests')
    return path


def run(image, app, expect, **machine):
    """Boots the image with one application; returns the console's text once the guest has ended with `expect`."""
    with Guest(Machine(image, append=f'apps={app} ip=10.0.2.15/24', netdev=['-netdev', 'user,id=n0'], **machine)) as guest:
        guest.expect_exit(expect, 30)
        return guest.console


@pytest.mark.parametrize('app,panic,function', FAULTS, ids=[f[0] for f in FAULTS])
def test_fault(test_image, app, panic, function):
    """One forbidden thing, one panic."""
    console = run(test_image, app, EXIT_PANIC)
    assert re.search(panic, console), console
    assert console.count('panic:') == 1, console
    assert re.search(rf'^  #\d+ [0-9a-f]{{16}} (\? )?{function}(\.\w+)*\+0x', console, re.MULTILINE), console
    assert ('  rax ' in console and '  cr2 ' in console) or app in WITHOUT_REGISTERS, console
    assert 'unpunished' not in console


@pytest.mark.parametrize('machine', [
    dict(memory='64M'), dict(memory='8G'), dict(boot='pvh'), dict(machine='pc', boot='iso'),
    pytest.param(dict(boot='iso-uefi'), marks=pytest.mark.full), pytest.param(dict(memory='3G', boot='iso'), marks=pytest.mark.full),
], ids=lambda m: '-'.join(m.values()))
def test_mappings(test_image, machine):
    """Nothing writable and executable, nothing reachable under two addresses, page 0 and guard pages not there."""
    console = run(test_image, 'mappings', EXIT_WELL, **machine)
    assert re.search(r'guest: mappings are right: \d{3,}, of them [1-9]\d*', console), console
