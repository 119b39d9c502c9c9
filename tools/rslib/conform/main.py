"""`ringside conform`: does the backend do what the virtio specification says a device must, as far as a driver can see?"""
import dataclasses
import json
import os
import subprocess
import sys
import time

from ..common import UsageError, build_dir, packages, shown
from ..netns import NetnsError
from . import backends, html, known, kvm, protocol, report
from .local import Ask, Unavailable


def _image(options):
    path = options.image or os.path.join(build_dir(), 'ringside.elf')
    if not os.path.isfile(path):
        raise UsageError(f"there is no image {shown(path)}; 'make' builds build/ringside.elf, --image names another")
    return path


def run_one(backend, ask, say):
    """Runs one backend; returns its report.Column."""
    column = report.Column(backend.name, backend.about)
    areas = report.AREAS if backend.apart and not ask.area else (ask.area,)
    began = time.monotonic()
    try:
        for area in areas:
            _take(column, backend.run(dataclasses.replace(ask, area=area), say), f'{area}: ' if len(areas) > 1 else '')
    except (Unavailable, NetnsError, OSError, subprocess.SubprocessError) as e:
        column = report.Column(backend.name, backend.about, report.CANNOT, (str(e) or type(e).__name__).splitlines()[0])
    column.seconds = time.monotonic() - began
    return column


def _take(column, raw, prefix):
    """Adds what a run left to a column."""
    told = protocol.read(raw.console, raw.exit_code)
    outcome = column.outcome
    for check in told.checks:
        outcome.checks.append(dataclasses.replace(check, number=len(outcome.checks) + 1))
    outcome.device = outcome.device or told.device
    outcome.faults += [prefix + fault for fault in raw.faults + told.faults]
    column.facts, column.command = raw.facts, raw.command
    column.console += raw.console.replace('\r', '')


def write(folder, columns, head):
    """Writes the three reports; returns the paths."""
    counts = kvm.load()
    made = {'report.md': report.as_markdown(columns, head, counts), 'report.html': html.page(columns, head, counts),
            'report.json': json.dumps(report.as_data(columns, head, counts), indent=1) + '\n'}
    for name, text in made.items():
        with open(os.path.join(folder, name), 'w', encoding='utf-8') as f:
            f.write(text)
    return [os.path.join(folder, name) for name in made]


def _progress(name):
    """Shows what a run is about, on a terminal only: the next line takes its place."""
    def say(text):
        if sys.stdout.isatty():
            print(f'\r\033[K{name}: {text}', end='', flush=True)
    return say


def _clear():
    return '\r\033[K' if sys.stdout.isatty() else ''


def show(column, width):
    """The lines of a backend on the terminal."""
    lines = [f'{column.name:{width}}  {column.line()}' + (f'  ({column.seconds:.0f} s)' if column.status == report.RAN else '')]
    lines += [f'{"":{width}}    {fault}' for fault in column.outcome.faults[1:]]
    for check in column.outcome.checks:
        if check.state == protocol.FAIL:
            lines.append(f'{"":{width}}    not ok {check.area} {check.section} {check.text}{known.remark(column.name, check.text)}')
            lines += [f'{"":{width}}        {key}: {value}' if key else f'{"":{width}}        {value}' for key, value in check.notes]
    return '\n'.join(lines)


def _list(width):
    for b in backends.BACKENDS:
        print(f'{b.name:{width}}  {b.about}')
    print(f'{"vhost-user:SOCKET":{width}}  a vhost-user switch of your own, which listens at SOCKET')
    print(f'{"dgram:PATH":{width}}  frames over unix datagrams: QEMU\'s socket is PATH, the other side PATH.peer')


def main(options):
    """The command: returns the exit status, 0 nothing failed, 1 something did."""
    width = max(len(b.name) for b in backends.BACKENDS)
    if options.list:
        _list(width)
        return 0
    chosen = [backends.find(name) for name in options.backend] or list(backends.BACKENDS)
    image = _image(options)
    packages('run')
    words = ' '.join(filter(None, [options.append, f'peer={options.peer}' if options.peer else '']))
    ask = Ask(image, options.area or '', words, options.qemu or '', queues=options.queues, seconds=options.seconds)
    folder = options.out or os.path.join(build_dir(), 'conform')
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as e:
        raise UsageError(f'no folder {folder} for the report: {e.strerror}') from None
    columns, began = [], time.monotonic()
    print(f'{len(chosen)} backend{"s" if len(chosen) > 1 else ""}: {" ".join(b.name for b in chosen)}', flush=True)
    for b in chosen:
        column = run_one(b, ask, _progress(b.name))
        if options.backend and len(chosen) == 1 and column.status == report.CANNOT:
            print(_clear(), end='', flush=True)
            raise UsageError(f"backend '{b.name}' cannot be run here: {column.reason}")
        columns.append(column)
        print(_clear() + show(column, width), flush=True)
    ran = [c for c in columns if c.status == report.RAN]
    failed = [c for c in ran if c.failed]
    head = [f'{time.strftime("%Y-%m-%d %H:%M")}, {shown(image)}, {len(ran)} backends in {(time.monotonic() - began) / 60:.1f} minutes'
            + (f', {len(columns) - len(ran)} could not be run here' if len(ran) < len(columns) else '') + '.']
    if words or options.area:
        head.append('Boot line: ' + ask.append('') + '.')
    paths = write(folder, columns, head)
    print(f'report: {" ".join(map(shown, paths))}')
    total = {state: sum(c.outcome.count(state) for c in ran) for state in protocol.STATES}
    print(f'{len(ran)} backends ran, {len(failed)} failed, {len(columns) - len(ran)} skipped; checks: '
          + ', '.join(f'{number} {word}' for word, number in zip(('passed', 'failed', 'not offered', 'skipped'), total.values())))
    return 1 if failed or not ran else 0
