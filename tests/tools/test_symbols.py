"""tools/symbols.py: the table of function names in a linked program."""
import re
import subprocess

import pytest
from helpers import tool

SOURCE = r'''
extern const unsigned ringside_symbols[];
static __attribute__((noinline, noclone)) int local_one(int a) { __asm__ volatile(""); return a + 1; }
__attribute__((noinline)) int global_two(int a) { return local_one(a) * 2; }
extern int also_two(int) __attribute__((alias("global_two")));
__attribute__((weak)) int weak_three(int a) { return a; }
int data_object = 4;
int entry(void) { return global_two(3) + weak_three(1) + (int)ringside_symbols[0] + data_object; }
__asm__(".text\n asm_label: nop\n .Lhidden: nop\n ret\n");
'''


def link(folder, table, out):
    """Links the program with a table, as the build does; returns its path."""
    path = str(folder / out)
    subprocess.run(['gcc', '-O1', '-ffreestanding', '-fPIE', '-fno-asynchronous-unwind-tables', '-static-pie', '-nostdlib',
                    '-Wl,--no-dynamic-linker,-z,norelro,-e,entry,-Ttext-segment=0x200000,--build-id=none', '-o', path,
                    str(folder / 'a.c'), str(folder / table)], check=True, timeout=60)
    return path


@pytest.fixture(scope='module', name='program')
def make_program(tmp_path_factory):
    """(first link, second link, table of the second)."""
    folder = tmp_path_factory.mktemp('symbols')
    (folder / 'a.c').write_text(SOURCE)
    assert tool('symbols.py', '--empty', folder / 'empty.s').returncode == 0
    first = link(folder, 'empty.s', 'first')
    assert tool('symbols.py', first, folder / 'table.s').returncode == 0
    return first, link(folder, 'table.s', 'second'), (folder / 'table.s').read_text()


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
    _, second, text = program
    entries = table_entries(text)
    functions = nm_functions(second)
    base = 0x200000
    assert [offset for offset, _ in entries] == sorted({address - base for address in functions.values()})
    for offset, name in entries:
        assert functions[name] == base + offset
    names = [name for _, name in entries]
    assert {'local_one', 'weak_three', 'entry', 'asm_label'} <= set(names)
    assert 'also_two' in names and 'global_two' not in names      # one name for an address: the first by alphabet
    assert 'data_object' not in names and 'ringside_symbols' not in names


def test_second_link_holds_its_own_table(program):
    first, second, _ = program
    assert tool('symbols.py', '--check', second).returncode == 0
    done = tool('symbols.py', '--check', first)
    assert done.returncode == 1 and '0 entries' in done.stderr


def test_a_moved_function_is_found(program, tmp_path):
    _, second, _ = program
    data = bytearray(open(second, 'rb').read())
    text = table_entries(program[2])
    at = data.index(b''.join(offset.to_bytes(4, 'little') for offset, _ in text))
    data[at] ^= 4
    (tmp_path / 'moved').write_bytes(data)
    done = tool('symbols.py', '--check', tmp_path / 'moved')
    assert done.returncode == 1 and text[0][1] in done.stderr


def test_same_input_same_output(program, tmp_path):
    assert tool('symbols.py', program[0], tmp_path / 'again.s').returncode == 0
    assert (tmp_path / 'again.s').read_text() == program[2]


@pytest.mark.parametrize('content', [b'', b'hello', b'\x7fELF\x02\x01' + b'\0' * 20, b'\x7fELF\x02\x01' + b'\xff' * 80])
def test_what_is_no_elf(tmp_path, content):
    (tmp_path / 'bad').write_bytes(content)
    done = tool('symbols.py', tmp_path / 'bad', tmp_path / 'out.s')
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1 and 'bad' in done.stderr


def test_usage():
    assert tool('symbols.py').returncode == 2
    assert tool('symbols.py', '--nonsense', 'a').returncode == 2
