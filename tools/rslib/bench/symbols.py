"""From addresses that a guest executed to names: where copies of the program lie, which function an address belongs to, and
which inlined function it came from."""
import bisect
import collections
import os
import re
import subprocess
import sys

from ..common import ROOT

sys.path.insert(0, os.path.join(ROOT, 'tools'))
from symbols import Elf, PT_LOAD  # noqa: E402  (tools/symbols.py, the reader of the build)

PAGE = 4096
PF_X = 1
MIN_VOTES = 8       # blocks that must agree before a stretch of memory is taken for a copy of the program


class Program:
    """A linked program: its executable segments, [(offset, bytes), ...], and its functions, by offset from its lowest address.
    The first segment is in every copy; what follows it may be loaded by request only."""

    def __init__(self, path):
        with open(path, 'rb') as f:
            data = f.read()
        elf = Elf(data)
        self.path = path
        self.base = elf.base()
        self.texts = [(vaddr - self.base, data[offset:offset + filesz])
                      for kind, flags, offset, vaddr, _, filesz, _, _ in elf.segments if kind == PT_LOAD and flags & PF_X]
        self.functions = elf.functions()
        self._offsets = [offset for offset, _ in self.functions]

    def function(self, offset):
        """(offset, name) of the function that the offset lies in; None before the first and outside of the texts."""
        if not any(at <= offset < at + len(text) for at, text in self.texts):
            return None
        at = bisect.bisect_right(self._offsets, offset) - 1
        return self.functions[at] if at >= 0 else None

    def places(self, block):
        """Where in the program a block could be, as offsets: its bytes are there, at the same place within a page."""
        found = []
        for start, text in self.texts:
            at = text.find(block.first)
            while at >= 0:
                if (start + at) % PAGE == block.address % PAGE:
                    found.append(start + at)
                at = text.find(block.first, at + 1)
        return found

    def has(self, block, base):
        """Whether the block's bytes are the program's, if a copy of it lies at base."""
        offset = block.address - base
        return bool(block.first) and any(text[offset - at:offset - at + len(block.first)] == block.first
                                         for at, text in self.texts if offset >= at)

    def extent(self):
        """Bytes from the program's base to the end of its first executable segment."""
        at, text = self.texts[0] if self.texts else (0, b'')
        return at + len(text)


def find_copies(program, blocks):
    """The addresses at which copies of the program lie, most blocks first: where the bytes of executed blocks fit."""
    votes = collections.Counter()
    for block in blocks:
        if block.instructions >= 2:
            for offset in program.places(block):
                votes[block.address - offset] += 1
    copies = []
    size = program.extent()
    for base, count in votes.most_common():
        if count < MIN_VOTES:
            break
        if base % PAGE == 0 and all(base + size <= other or base >= other + size for other in copies):
            copies.append(base)
    return copies


def parse_addr2line(text):
    """addr2line -a -f -i: {address: [innermost function, ..., the one that is called by name]}."""
    found, current, name = {}, None, True
    for line in text.splitlines():
        if re.fullmatch(r'0x[0-9a-f]+', line):
            current = found.setdefault(int(line, 16), [])
            name = True
        elif current is not None:
            if name:
                current.append(line)
            name = not name
    return found


def inlined(path, addresses):
    """For each address of an ELF file with debug information the functions it lies in, innermost first. Empty without
    addr2line or debug information."""
    try:
        done = subprocess.run(['addr2line', '-e', path, '-a', '-f', '-i'], input=''.join(f'{a:#x}\n' for a in addresses),
                              capture_output=True, text=True, timeout=120, check=False)
    except FileNotFoundError:
        return {}
    found = parse_addr2line(done.stdout) if done.returncode == 0 else {}
    return {address: names for address, names in found.items() if names and names[0] != '??'}


def instructions(path):
    """The addresses of all instructions of an ELF file, ascending. Empty without objdump."""
    try:
        done = subprocess.run(['objdump', '-d', '--no-show-raw-insn', path], capture_output=True, text=True, timeout=120,
                              check=False)
    except FileNotFoundError:
        return []
    return sorted(int(at, 16) for at in re.findall(r'^ *([0-9a-f]+):\t', done.stdout, re.MULTILINE))


def ranges_of(path, function):
    """The address ranges of a function's instructions, (first, last) each, inlined or not."""
    every = instructions(path)
    chains = inlined(path, every)
    found, last = [], None
    for address in every:
        if function in chains.get(address, ()):
            if found and found[-1][1] == last:
                found[-1][1] = address
            else:
                found.append([address, address])
        last = address
    return [tuple(r) for r in found]
