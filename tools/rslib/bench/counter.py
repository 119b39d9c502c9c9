"""Counts of a guest's instructions, read from the file that tools/plugins/insn_count.c maps: a total per vCPU, and one per
translated block for profiles. Instructions here count a repeated string instruction once; its steps are told apart."""
import dataclasses
import os
import struct
import subprocess
import tempfile

from ..common import ROOT, UsageError, build_dir

SOURCE = os.path.join(ROOT, 'tools', 'plugins', 'insn_count.c')
VCPUS, BLOCKS = 64, 131072
CPU = struct.Struct('<QQQQQQ80x')
BLOCK = struct.Struct('<QQQQHH28s')
SIZE = CPU.size * VCPUS + BLOCK.size * (BLOCKS + 1)


def build_plugin(folder=None):
    """Compiles the plugin if its source is newer; returns its path."""
    folder = folder or os.path.join(build_dir(), 'bench')
    os.makedirs(folder, exist_ok=True)
    made = os.path.join(folder, 'insn_count.so')
    if os.path.exists(made) and os.path.getmtime(made) > os.path.getmtime(SOURCE):
        return made
    with tempfile.TemporaryDirectory(dir=folder) as work:
        part = os.path.join(work, 'insn_count.so')
        done = subprocess.run(['gcc', '-O2', '-shared', '-fPIC', '-o', part, SOURCE], capture_output=True, text=True,
                              timeout=120, check=False)
        if done.returncode:
            raise UsageError(f'the counting plugin does not compile: {done.stderr.strip().splitlines()[-1]}')
        os.replace(part, made)
    return made


@dataclasses.dataclass
class Count:
    """What one vCPU, or all, did: instructions (a repeated string instruction is one), steps of repeated string
    instructions (QEMU 7.2 passes once more than there are, to see that it is done: so this is their number), translated
    blocks, wake-ups, instructions in the poll loop."""
    instructions: int = 0
    rep_steps: int = 0
    blocks: int = 0
    wakes: int = 0
    polled: int = 0

    def __sub__(self, other):
        return Count(*(a - b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other))))

    def __add__(self, other):
        return Count(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other))))


def parse_cpus(data, count):
    """The counts of the first `count` vCPUs in the bytes of a counter file."""
    found = []
    for i in range(count):
        instructions, steps, blocks, starts, wakes, polled = CPU.unpack_from(data, i * CPU.size)
        found.append(Count(instructions - steps + starts, steps - starts, blocks, wakes, polled))
    return found


@dataclasses.dataclass(frozen=True)
class Block:
    """A translated block: where its first instruction is, how many instructions and bytes it has, its first bytes."""
    address: int
    instructions: int
    bytes: int
    first: bytes


def parse_blocks(data):
    """{Block: (executed, instructions, steps of string instructions)} of a whole counter file; a Block
    at address 0 without instructions stands for those that found no room."""
    found = {}
    for address, executed, steps, starts, count, length, first in BLOCK.iter_unpack(data[CPU.size * VCPUS:SIZE]):
        if executed:
            key = Block(address, count, length, first[:length])
            found[key] = (executed, executed * count - steps + starts, steps - starts)
    return found


def difference(after, before):
    """What parse_blocks() said later, less what it said earlier; blocks without change are left out."""
    found = {}
    for key, now in after.items():
        then = before.get(key, (0, 0, 0))
        if now != then:
            found[key] = tuple(a - b for a, b in zip(now, then))
    return found


class Counter:
    """The counter file of one guest: argv() goes to its QEMU; the counts can be read at any time after it has started.
    polling: ranges (first address, last address) that make up the poll loop."""

    def __init__(self, plugin, workdir, cpus=1, polling=()):
        self.path = os.path.join(workdir, 'counts')
        self.cpus = cpus
        self._plugin = plugin
        self._polling = polling

    def argv(self):
        """QEMU's arguments."""
        ranges = ''.join(f',poll={first:x}-{last:x}' for first, last in self._polling)
        return ['-plugin', f'{self._plugin},out={self.path}{ranges}']

    def read(self):
        """The counts of each vCPU so far."""
        with open(self.path, 'rb') as f:
            return parse_cpus(f.read(CPU.size * self.cpus), self.cpus)

    def total(self):
        """The counts of all vCPUs together."""
        return sum(self.read(), Count())

    def blocks(self):
        """The counts of all blocks so far, as parse_blocks() gives them."""
        with open(self.path, 'rb') as f:
            return parse_blocks(f.read(SIZE))
