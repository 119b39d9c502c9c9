"""A histogram of executed instructions by function, from the counts of translated blocks."""
import bisect
import collections
import dataclasses
import json
import os
import time

from . import counter, station, symbols

ELSEWHERE = '(not in the program)'
NO_ROOM = '(blocks that were not told apart)'


@dataclasses.dataclass
class Line:
    """One function: its own instructions, steps of string instructions, how often it was entered at its first
    instruction, and its instructions by the inlined function they came from."""
    name: str
    instructions: float = 0
    rep_steps: float = 0
    calls: float = 0
    parts: dict = dataclasses.field(default_factory=lambda: collections.defaultdict(float))

    def scaled(self, divisor):
        """The same per transaction."""
        return Line(self.name, self.instructions / divisor, self.rep_steps / divisor, self.calls / divisor,
                    {name: n / divisor for name, n in self.parts.items()})


def histogram(program, blocks, copies):
    """Lines by function, the largest first. blocks: {Block: (executed, instructions, steps)}, as counter.difference()
    makes it; copies: addresses at which the program lies."""
    lines = {}                                      # by where the function starts: names of local ones may be there twice
    boundaries = symbols.instructions(program.path)
    samples = collections.defaultdict(float)        # (line's key, address in the ELF) -> instructions
    for block, (executed, instructions, steps) in blocks.items():
        start, name, offset = None, ELSEWHERE if block.instructions else NO_ROOM, None
        for base in copies:
            if program.has(block, base):
                offset = block.address - base
                start, name = program.function(offset) or (None, ELSEWHERE)
                break
        key = name if start is None else start
        line = lines.setdefault(key, Line(name))
        line.instructions += instructions
        line.rep_steps += steps
        if start is None:
            continue
        if offset == start:
            line.calls += executed
        at = program.base + offset
        inside = boundaries[bisect.bisect_left(boundaries, at):bisect.bisect_left(boundaries, at + block.bytes)] or [at]
        for address in inside:
            samples[key, address] += instructions / len(inside)
    chains = symbols.inlined(program.path, sorted({address for _, address in samples}))
    for (key, address), share in samples.items():
        chain = chains.get(address)
        lines[key].parts[chain[0] if chain else lines[key].name] += share
    return sorted(lines.values(), key=lambda line: -line.instructions)


def by_source(lines):
    """The same instructions by the function in whose source they stand, wherever it was inlined: (name, instructions),
    the largest first."""
    total = collections.defaultdict(float)
    for line in lines:
        for name, n in (line.parts or {line.name: line.instructions}).items():
            total[name] += n
    return sorted(total.items(), key=lambda item: -item[1])


def render(lines, unit, least=0.5):
    """The histogram as text. lines are per `unit` already; functions below `least` instructions are summed up."""
    total = sum(line.instructions for line in lines) or 1
    out = [f'instructions per {unit}: {total:.1f}; steps of repeated string instructions: '
           f'{sum(line.rep_steps for line in lines):.1f}', '',
           f'{"instr.":>9} {"share":>6} {"calls":>8} {"per call":>9}  function']
    small = [line for line in lines if line.instructions < least]
    for line in lines:
        if line.instructions < least:
            continue
        each = f'{line.instructions / line.calls:9.1f}' if line.calls >= 0.001 else f'{"":9}'
        steps = f'  + {line.rep_steps:.1f} string steps' if line.rep_steps >= 0.05 else ''
        out.append(f'{line.instructions:9.1f} {100 * line.instructions / total:5.1f}% {line.calls:8.3f} {each}  '
                   f'{line.name}{steps}')
        parts = sorted(line.parts.items(), key=lambda item: -item[1])
        if len(parts) > 1:
            out += [f'{"":36}{n:9.1f}  {name}' for name, n in parts if n >= max(least, 1)]
    if small:
        out.append(f'{sum(line.instructions for line in small):9.1f} {"":5}  {"":8} {"":9}  ({len(small)} functions below '
                   f'{least} each)')
    return '\n'.join(out) + '\n'


def take(kind, setup, plugin, netperf, test, count):
    """Measures `count` units of a test and, apart, one: the difference is what the others cost, without netperf's control
    connection. Returns ({Block: counts} of that difference, what there was in all, units)."""
    changes = []
    with station.running(kind, setup, netperf, plugin) as place:
        time.sleep(station.QUIET_SECONDS)
        place.run(test, -max(10, count // 20))      # connections and translations are new no more
        for n in (1, count):
            before = place.counter.blocks()
            result = place.run(test, -n)
            time.sleep(station.SETTLE_SECONDS)
            after = place.counter.blocks()
            changes.append(counter.difference(after, before))
        place.guest.finish()
    return counter.difference(changes[1], changes[0]), after, result.units - 1


def report(test, setup, lines, copies):
    """The whole of a profile as text."""
    return '\n'.join([
        f'{test.name}, boot line "{setup.words}", {setup.cpus} core{"s" if setup.cpus > 1 else ""}; '
        f'copies of the program at {", ".join(f"{c:#x}" for c in copies)}',
        render(lines, test.unit), f'by function of the source, wherever it was inlined, per {test.unit}:',
        *(f'{n:9.1f}  {name}' for name, n in by_source(lines) if n >= 1), ''])


def run(kind, setup, plugin, netperf, test, count, folder):
    """Takes a profile, prints it, and writes it as text and JSON into the folder; returns the exit status."""
    blocks, seen, n = take(kind, setup, plugin, netperf, test, count)
    program = symbols.Program(kind.program)
    copies = symbols.find_copies(program, seen)
    lines = [line.scaled(n) for line in histogram(program, blocks, copies)]
    text = report(test, setup, lines, copies)
    print(text)
    os.makedirs(folder, exist_ok=True)
    base = os.path.join(folder, f'profile-{test.name}')
    with open(base + '.txt', 'w', encoding='utf-8') as f:
        f.write(text)
    with open(base + '.json', 'w', encoding='utf-8') as f:
        json.dump({'test': test.name, 'unit': test.unit, 'units': n, 'words': setup.words, 'cpus': setup.cpus,
                   'functions': [dataclasses.asdict(line) for line in lines]}, f, indent=1)
    return 0
