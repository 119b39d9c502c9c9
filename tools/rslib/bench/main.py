"""`ringside bench`: what the guest costs per transaction, and how fast it is, beside a Linux guest in the same QEMU."""
import os
import subprocess
import sys
import time

from ..common import UsageError, build_dir, packages, shown
from ..netns import NetnsError
from . import clients, counter, guests, plan, plots, profile, report, runner, station, stats, symbols

PROFILED = tuple(t.name for t in clients.TESTS.values() if t.count)
FULL_ROUNDS, ROUNDS = 5, 2
FULL_SECONDS, SECONDS = 3, 1


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


def _head(options, kinds, results, before):
    """Lines that say what was measured, on what, and what disturbed it."""
    facts = [f'{time.strftime("%Y-%m-%d %H:%M")}, {results.seconds / 60:.1f} minutes, {stats.cores()} host cores, load average '
             f'{before.average:.1f} when it began; QEMU {qemu_version()}, TCG, q35, -cpu max, virtio-net-pci on a tap device, '
             'netperf clients in its namespace.']
    facts += [f'Guests: {", ".join(f"{k.name} ({shown(k.image)})" for k in kinds)}. Each cell is the median of '
              f'{options.rounds} runs, in turn A B A B, with (least-most).']
    return facts


def qemu_version():
    """The version of the QEMU that runs the guests."""
    done = subprocess.run(['qemu-system-x86_64', '--version'], capture_output=True, text=True, timeout=20, check=False)
    return done.stdout.split('version ', 1)[-1].split(' ', 1)[0].split('\n', 1)[0]


def _measure(options, kinds, netperf, folder):
    """Runs the tables, prints and writes them; returns the exit status."""
    tables = _tables(options)
    plugin = counter.build_plugin(folder)
    polling = symbols.ranges_of(kinds[0].program, 'poll')
    run = runner.Runner(kinds, netperf, plugin, polling, options.rounds, options.seconds, 3 if options.full else 0.4,
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


def main(options):
    """The command: returns the exit status."""
    packages('bench')
    ours = _ringside()
    others = [guests.parse_image(text) for text in options.image]
    if not os.access('/dev/net/tun', os.R_OK | os.W_OK):
        raise UsageError('no rights to /dev/net/tun: run it as root')
    netperf = clients.find_netperf()
    folder = os.path.join(build_dir(), 'bench')
    os.makedirs(folder, exist_ok=True)
    try:
        if options.profile:
            test = clients.TESTS[options.profile]
            setup = station.Setup(cpus=options.cpus, words=options.append, counted=True)
            return profile.run(ours, setup, counter.build_plugin(folder), netperf, test, options.count or test.count, folder)
        options.rounds = options.rounds or (FULL_ROUNDS if options.full else ROUNDS)
        options.seconds = options.seconds or (FULL_SECONDS if options.full else SECONDS)
        linux = [] if options.no_linux else [guests.linux()]
        return _measure(options, [ours, *linux, *others], netperf, folder)
    except (clients.ClientError, NetnsError) as e:
        raise UsageError(str(e)) from None
