"""`ringside bench`: what the guest costs per transaction, and how fast it is, beside a Linux guest in the same QEMU."""
import dataclasses
import os
import subprocess
import sys
import time

from ..common import UsageError, build_dir, packages, shown
from ..netns import NetnsError
from . import clients, counter, exits, guests, lab, plan, plots, profile, report, runner, station, stats, switch, symbols

PROFILED = tuple(t.name for t in clients.TESTS.values() if t.count and t.name not in clients.LAYER2)
FULL_ROUNDS, ROUNDS = 5, 2
FULL_SECONDS, SECONDS = 3, 1
FULL, SHORT = 3, 0.4            # of a test's count, in runs by count


def _ringside():
    """Our guest, as built; UsageError if it is not."""
    image, program = (os.path.join(build_dir(), name) for name in ('ringside.elf', 'program.elf'))
    for path in (image, program):
        if not os.path.exists(path):
            raise UsageError(f'there is no {shown(path)}: run make first')
    return guests.Ringside(image, program)


def _tables(options):
    """The tables that the options ask for."""
    if options.quick:
        return plan.quick()
    # A table asked for by name comes with all its rows.
    return [plan.TABLES[name](options.full or bool(options.table)) for name in options.table or plan.TABLES]


def _possible(tables):
    """Those of the tables that this machine can make; says what the others lack."""
    switched = [t for t in tables if any(cell.setup.switched for cell in t.cells())]
    try:
        if switched:
            switch.find()
        return tables
    except switch.Unavailable as e:
        print(f'left out: {", ".join(t.name for t in switched)}: {e}', flush=True)
        return [t for t in tables if t not in switched]


def _head(options, kinds, results, before):
    """Lines that say what was measured, on what, and what disturbed it."""
    facts = [f'{time.strftime("%Y-%m-%d %H:%M")}, {results.seconds / 60:.1f} minutes, {stats.cores()} host cores, load average '
             f'{before.average:.1f} when it began; QEMU {qemu_version()}, TCG, q35, -cpu max, virtio-net-pci on a tap device, '
             'netperf clients in its namespace.']
    facts += [f'Guests: {", ".join(f"{k.name} ({k.about})" for k in kinds)}. Each cell is the median of '
              f'{options.rounds} runs, in turn A B A B, with (least-most).']
    return facts


def qemu_version():
    """The version of the QEMU that runs the guests."""
    done = subprocess.run(['qemu-system-x86_64', '--version'], capture_output=True, text=True, timeout=20, check=False)
    return done.stdout.split('version ', 1)[-1].split(' ', 1)[0].split('\n', 1)[0]


def _measure(options, kinds, netperf, folder):
    """Runs the tables, prints and writes them; returns the exit status."""
    tables = _possible(_tables(options))
    plugin = counter.build_plugin(folder)
    polling = symbols.ranges_of(kinds[0].program, 'poll')
    run = runner.Runner(kinds, netperf, plugin, polling, options.rounds, options.seconds,
                        FULL if options.full else SHORT,
                        lambda text: print(text, flush=True))
    cells = list(dict.fromkeys(cell for table in tables for cell in table.cells()))
    print(f'{len(cells)} cells on {", ".join(k.name for k in kinds)}: about {runner.clock(run.estimate(cells))} minutes', flush=True)
    before = stats.load()
    results = run.run(cells)
    names = [k.name for k in kinds]
    writer = report.Writer(results, names)
    apart, of = report.unsteady(tables, results)
    notes = results.disturbed + ([f'runs of one cell differ by more than a quarter (marked ~) in {len(apart)} of {of} cells']
                                 if apart else [])
    said = _head(options, kinds, results, before) + ([f'DISTURBED: {line}' for line in notes] or ['Nothing disturbed it.'])
    text, markdown = '', '# Ringside bench\n\n' + '\n\n'.join(said) + '\n\n'
    for table in tables:
        for block in writer.blocks(table):
            text += report.as_text(block) + '\n'
            markdown += report.as_markdown(block) + '\n'
        report.write(os.path.join(folder, f'{table.name}.json'), {'head': said, **report.as_json(table, results, names)})
        picture = plots.draw(table, results, names, folder)
        if picture:
            markdown += f'![{table.title}]({picture})\n\n'
    if apart:
        markdown += '## Runs that differ by more than a quarter\n\n' + ''.join(f'- {line}\n' for line in apart)
    print('\n' + text + '\n'.join(said))
    report.write(os.path.join(folder, 'report.md'), markdown)
    print(f'report and plots: {shown(os.path.join(folder, "report.md"))}')
    failed = len(results.errors)
    if failed:
        print(f'{failed} measurements failed (lines above)', file=sys.stderr)
    return 1 if failed else 0


def _lab(options, kinds, netperf, folder):
    """The bench in the nested machine; returns the exit status."""
    began, rounds = time.monotonic(), options.rounds or 1
    kinds = [k for k in kinds if k.ours or k.name == report.BASE]
    print('in the nested machine, in instruction time: about 6 minutes a round', flush=True)
    found, traced, asked, errors = lab.measure(kinds, netperf, rounds, lambda text: print(text, flush=True), min(2, stats.cores()))
    blocks = [*lab.tables(found, asked), exits.table(traced, asked)]
    said = (f'{time.strftime("%Y-%m-%d %H:%M")}, {(time.monotonic() - began) / 60:.1f} minutes, {rounds} round'
            f'{"s" if rounds > 1 else ""}. Client, host kernel, vhost-net, QEMU and guest in one emulated machine whose clock '
            'counts instructions, one a nanosecond; guests under KVM in it. The load of this machine makes no difference.')
    markdown = f'# Ringside bench in the nested machine\n\n{said}\n\n' + '\n'.join(map(report.as_markdown, blocks))
    rows = [(name, {p.name: found[p, name][0][0] for p in asked if (p, name) in found}) for name in lab.COUNTS]
    if picture := plots.bars('kvm', blocks[0].title, 'rate', [row for row in rows if row[1]], folder):
        markdown += f'\n![{blocks[0].title}]({picture})\n'
    report.write(os.path.join(folder, 'report-kvm.md'), markdown)
    report.write(os.path.join(folder, 'kvm.json'), {'head': said, 'runs': [
        {'place': dataclasses.asdict(p), 'test': name, 'rates': [r for r, _ in runs], 'counters': [c for _, c in runs]}
        for (p, name), runs in found.items()]})
    report.write(os.path.join(folder, 'kvm-exits.json'), exits.as_json(traced, said))
    print('\n' + '\n'.join(map(report.as_text, blocks)) + f'\n{said}\nreport: {shown(os.path.join(folder, "report-kvm.md"))}')
    return 1 if errors else 0


def main(options):
    """The command: returns the exit status."""
    packages('bench', *(['kvm'] if options.lab else []))
    ours = _ringside()
    others = [guests.parse_image(text) for text in options.image]
    guests.tell_apart([ours, *others])
    if not options.lab and not os.access('/dev/net/tun', os.R_OK | os.W_OK):
        raise UsageError('no rights to /dev/net/tun: run it as root')
    netperf = clients.find_netperf()
    folder = options.out or os.path.join(build_dir(), 'bench')
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as e:
        raise UsageError(f'no folder {folder} for the results: {e.strerror}') from None
    try:
        if options.profile:
            test = clients.TESTS[options.profile]
            setup = station.Setup(cpus=options.cpus, words=options.append, counted=True)
            return profile.run(ours, setup, counter.build_plugin(folder), netperf, test, options.count or test.count, folder)
        linux = [] if options.no_linux else [guests.linux()]
        if options.lab:
            return _lab(options, [ours, *linux], netperf, folder)
        options.rounds = options.rounds or (FULL_ROUNDS if options.full else ROUNDS)
        options.seconds = options.seconds or (FULL_SECONDS if options.full else SECONDS)
        return _measure(options, [ours, *linux, *others], netperf, folder)
    except (clients.ClientError, NetnsError) as e:
        raise UsageError(str(e)) from None
