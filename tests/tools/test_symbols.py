"""tools/symbols.py: the table of function names in a linked program."""
import re
import struct
import subprocess

import pytest
from helpers import tool

SOURCE = r'''
static __attribute__((noinline, noclone)) int local_one(int a) { __asm__ volatile(""); return a + 1; }
__attribute__((noinline)) int global_two(int a) { return local_one(a) * 2; }
extern int also_two(int) __attribute__((alias("global_two")));
__attribute__((weak)) int weak_three(int a) { return a; }
int data_object = 4;
int entry(void) { return global_two(3) + weak_three(1) + data_object; }
__asm__(".text\n asm_label: nop\n .Lhidden: nop\n ret\n");
'''


@pytest.fixture(scope='module', name='program')
def make_program(tmp_path_factory):
    """(linked program, its table as text)."""
    folder = tmp_path_factory.mktemp('symbols')
    (folder / 'a.c').write_text(SOURCE)
    path = str(folder / 'program')
    subprocess.run(['gcc', '-O1', '-ffreestanding', '-fPIE', '-fno-asynchronous-unwind-tables', '-static-pie', '-nostdlib',
                    '-Wl,--no-dynamic-linker,-z,norelro,-e,entry,-Ttext-segment=0x200000,--build-id=none', '-o', path,
                    str(folder / 'a.c')], check=True, timeout=60)
    assert tool('symbols.py', path, folder / 'table.S').returncode == 0
    return path, (folder / 'table.S').read_text()


def nm_functions(path):
    """{name: address} of what nm takes for code."""
    out = subprocess.run(['nm', path], capture_output=True, text=True, check=True, timeout=20).stdout
    return {name: int(address, 16) for address, name in re.findall(r'^([0-9a-f]+) [tTwW] (.*)$', out, re.MULTILINE)}


def table_entries(text):
    """[(offset, name)] read from the assembly."""
    numbers = [int(n, 0) for n in re.findall(r'^ +\.long (\S+)$', text, re.MULTILINE)]
    names = re.findall(r'^ +\.asciz "(.*)"$', text, re.MULTILINE)
    count = numbers[0]
    assert len(numbers) == 1 + 2 * count and len(names) == count
    at, expected = 0, []
    for name in names:
        expected.append(at)
        at += len(name) + 1
    assert numbers[1 + count:] == expected
    return list(zip(numbers[1:1 + count], names))


def test_names_what_nm_names(program):
    path, text = program
    entries = table_entries(text)
    functions = nm_functions(path)
    base = 0x200000
    assert [offset for offset, _ in entries] == sorted({address - base for address in functions.values()})
    for offset, name in entries:
        assert functions[name] == base + offset
    names = [name for _, name in entries]
    assert {'local_one', 'weak_three', 'entry', 'asm_label'} <= set(names)
    assert 'also_two' in names and 'global_two' not in names      # one name for an address: the first by alphabet
    assert 'data_object' not in names


def test_the_table_assembles_into_what_the_kernel_reads(program, tmp_path):
    (tmp_path / 'table.S').write_text(program[1])
    subprocess.run(['gcc', '-c', '-o', tmp_path / 'table.o', tmp_path / 'table.S'], check=True, timeout=60)
    subprocess.run(['objcopy', '-O', 'binary', '-j', '.rodata.symbols', tmp_path / 'table.o', tmp_path / 'table'], check=True,
                   timeout=20)
    data = (tmp_path / 'table').read_bytes()
    count, = struct.unpack_from('<I', data)
    offsets, names = struct.unpack_from(f'<{count}I', data, 4), struct.unpack_from(f'<{count}I', data, 4 + 4 * count)
    strings = data[4 + 8 * count:]
    read = [(offset, strings[at:strings.index(0, at)].decode()) for offset, at in zip(offsets, names)]
    assert read == table_entries(program[1]) and count > 4
    symbol = subprocess.run(['nm', tmp_path / 'table.o'], capture_output=True, text=True, check=True, timeout=20).stdout
    assert symbol.split() == ['0' * 16, 'R', 'ringside_symbols']


def test_same_input_same_output(program, tmp_path):
    assert tool('symbols.py', program[0], tmp_path / 'again.S').returncode == 0
    assert (tmp_path / 'again.S').read_text() == program[1]


@pytest.mark.parametrize('content', [b'', b'hello', b'\x7fELF\x02\x01' + b'\0' * 20, b'\x7fELF\x02\x01' + b'\xff' * 80])
def test_what_is_no_elf(tmp_path, content):
    (tmp_path / 'bad').write_bytes(content)
    done = tool('symbols.py', tmp_path / 'bad', tmp_path / 'out.S')
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1 and 'bad' in done.stderr


def test_usage():
    assert tool('symbols.py').returncode == 2
