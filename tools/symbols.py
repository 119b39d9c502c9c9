#!/usr/bin/python3
"""Makes the table by which the guest's backtraces name functions.

usage: symbols.py ELF OUT.S      writes the table of the linked program ELF as assembly

The table is part of the loader's image, not of the program it names: so the program is linked once.

Layout, all little-endian u32, at the symbol ringside_symbols:
    count | count offsets, ascending | count name offsets | names, each ended by a zero byte
An offset is an address less the ELF's lowest PT_LOAD address, so that it holds wherever a copy is loaded. A name offset
counts from the first name. Functions only, local ones too; of several names for one address the one with the widest
binding, then the first by alphabet. The output depends on nothing but the input.
"""
import struct
import sys

PT_LOAD = 1
SHT_SYMTAB = 2
SHF_EXECINSTR = 4
STT_NOTYPE, STT_FUNC = 0, 2
STB_ORDER = {1: 0, 2: 1, 0: 2}      # global, weak, local
SHN_LORESERVE = 0xff00

HEADER = '''    .section .rodata.symbols, "a", @progbits
    .balign 4
    .globl ringside_symbols
    .hidden ringside_symbols
    .type ringside_symbols, @object
ringside_symbols:
'''
FOOTER = '''    .size ringside_symbols, . - ringside_symbols
    .section .note.GNU-stack, "", @progbits
'''


class ElfError(Exception):
    """The file is not what this program reads; the text says what is wrong."""


class Elf:
    """A 64-bit little-endian ELF file: its loadable segments, sections and symbols (ELF-64 object file format 1.5)."""

    def __init__(self, data):
        if data[:6] != b'\x7fELF\x02\x01':
            raise ElfError('not a 64-bit little-endian ELF file')
        self.data = data
        try:
            phoff, shoff = struct.unpack_from('<QQ', data, 32)
            phentsize, phnum, shentsize, shnum = struct.unpack_from('<HHHH', data, 54)
            self.segments = [struct.unpack_from('<IIQQQQQQ', data, phoff + i * phentsize) for i in range(phnum)]
            self.sections = [struct.unpack_from('<IIQQQQIIQQ', data, shoff + i * shentsize) for i in range(shnum)]
        except (struct.error, OverflowError):
            raise ElfError('its headers lie outside the file') from None

    def base(self):
        """The lowest address that is loaded."""
        addresses = [s[3] for s in self.segments if s[0] == PT_LOAD]
        if not addresses:
            raise ElfError('it has no loadable segment')
        return min(addresses)

    def symbols(self):
        """(name, type, binding, section index, address) of every symbol."""
        for _, kind, _, _, offset, size, link, _, _, entsize in self.sections:
            if kind != SHT_SYMTAB:
                continue
            names = self.sections[link]
            strings = self.data[names[4]:names[4] + names[5]]
            for at in range(offset, offset + size, entsize):
                name, info, _, index, value, _ = struct.unpack_from('<IBBHQQ', self.data, at)
                yield strings[name:strings.index(0, name)].decode(), info & 15, info >> 4, index, value

    def functions(self):
        """(offset from base, name), ascending, one name for each address."""
        best = {}
        base = self.base()
        for name, kind, binding, index, value in self.symbols():
            if not name or index == 0 or index >= SHN_LORESERVE:
                continue
            executable = self.sections[index][2] & SHF_EXECINSTR
            # Assembly's labels have no type; those of compilers (.L...) are not functions.
            if kind == STT_FUNC or (kind == STT_NOTYPE and executable and name[0] not in '.$'):
                rank = (kind != STT_FUNC, STB_ORDER.get(binding, 3), name)
                if value not in best or rank < best[value]:
                    best[value] = rank
        return [(address - base, rank[2]) for address, rank in sorted(best.items())]


def assembly(functions):
    """The table as assembly source."""
    lines = [HEADER, f'    .long {len(functions)}\n']
    lines += [f'    .long {offset:#x}\n' for offset, _ in functions]
    at = 0
    for _, name in functions:
        lines.append(f'    .long {at}\n')
        at += len(name.encode()) + 1
    lines += [f'    .asciz "{name}"\n' for _, name in functions]
    return ''.join(lines) + FOOTER


def main(argv):
    """The command: returns the exit status."""
    if len(argv) != 3:
        print('usage: symbols.py ELF OUT.S', file=sys.stderr)
        return 2
    try:
        with open(argv[1], 'rb') as f:
            text = assembly(Elf(f.read()).functions())
        with open(argv[2], 'w', encoding='ascii') as f:
            f.write(text)
    except (OSError, ElfError, ValueError, IndexError, OverflowError, struct.error) as e:
        print(f'symbols.py: {argv[1]}: {e}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv))
