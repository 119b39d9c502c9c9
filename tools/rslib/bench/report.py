"""Tables of results: as text for the terminal, as Markdown, as JSON."""
import dataclasses
import json
import os

from . import clients, plan, stats
from .runner import describe

BASE = 'linux'          # ratios are to this guest


@dataclasses.dataclass
class Block:
    """A table ready to be written: title, headings, rows of text, notes."""
    title: str
    heads: list
    rows: list
    notes: list = dataclasses.field(default_factory=list)


def number(value):
    """A number to about three digits, '-' for None."""
    if value is None:
        return '-'
    size = abs(value)
    if size >= 100:
        return f'{value:,.0f}'
    if size >= 10:
        return f'{value:.1f}'
    return f'{value:.2f}' if size >= 0.1 or size < 0.00005 else f'{value:.4f}'


def spread(s):
    """A Spread as median (least-most), ~ after it if the values lie apart."""
    if s is None:
        return '-'
    if number(s.least) == number(s.most):
        return number(s.median)
    return f'{number(s.median)} ({number(s.least)}-{number(s.most)})' + ('' if s.steady else ' ~')


def times(value):
    """A ratio."""
    return '-' if value is None else f'{value:.2f}x' if value >= 0.1 else f'{value:.3f}x'


class Writer:
    """Makes Blocks of a table and Results. names: the guests' names, ours first."""

    def __init__(self, results, names):
        self.results, self.names = results, names
        self.ours = names[0]
        self.base = BASE if BASE in names else None

    def blocks(self, table):
        """The Blocks of a table."""
        return getattr(self, '_' + table.kind)(table)

    def get(self, cell, name, what):
        """The Spread of a value, None if there is none."""
        return self.results.values(cell, name, what) if cell else None

    def text(self, cell, name, what):
        """The same as text; "failed" for a measurement that did."""
        return 'failed' if (cell, name) in self.results.errors else spread(self.get(cell, name, what))

    def ratio(self, cell, what):
        """Ours to the Linux guest's."""
        return times(stats.ratio(self.get(cell, self.ours, what), self.get(cell, self.base, what)))

    # ---- the kinds of tables

    def _costs(self, table):
        ratio = ['ratio'] if self.base else []
        auto = ['poll=auto: outside the poll loop'] if any('auto' in row.cells for row in table.rows) else []
        first = Block(table.title + ': instructions', ['test', 'per', 'target', *self.names, *ratio,
                                                       *(f'string steps, {n}' for n in self.names), *auto], [])
        second = Block('Kicks and interrupts of the same runs', ['test', 'per', 'target'], [], list(table.notes))
        for what in ('kicks', 'interrupts'):
            second.heads += [f'{what}, {n}' for n in self.names]
        second.heads += ['poll=auto: interrupts'] if auto else []
        own = []
        for row in table.rows:
            cell, auto_cell = row.cells['poll0'], row.cells.get('auto')
            if cell.mode == 'idle':
                second.notes.insert(0, self._idle(row))
                continue
            unit, target = clients.TESTS[cell.test].unit, plan.TARGETS[cell.test]
            first.rows.append([cell.test, unit, number(target.instructions),
                               *(self.text(cell, n, 'instructions') for n in self.names),
                               *([self.ratio(cell, 'instructions')] if self.base else []),
                               *(number(s.median) if (s := self.get(cell, n, 'rep_steps')) else '-' for n in self.names),
                               *([self.text(auto_cell, self.ours, 'working')] if auto else [])])
            own.append(self._own_counters(cell))
            second.rows.append([cell.test, unit, f'{number(target.kicks)} / {number(target.interrupts)}',
                                *(self.text(cell, n, what) for what in ('kicks', 'interrupts') for n in self.names),
                                *([self.text(auto_cell, self.ours, 'interrupts')] if auto else [])])
        second.notes.append(f"Kicks and interrupts are QEMU's trace events. By {self.ours}'s own counters: {'; '.join(own)}.")
        return [first, second]

    def _own_counters(self, cell):
        """Kicks and interrupts as our guest counted them itself."""
        samples = [s.guest for s in self.results.samples.get((cell, self.ours), ()) if s.guest]
        if not samples:
            return f'{cell.test} -'
        sums = [stats.spread([g[f'rx_{what}'] + g[f'tx_{what}'] for g in samples]) for what in ('kicks', 'interrupts')]
        return f'{cell.test} {number(sums[0].median)} / {number(sums[1].median)}'

    def _idle(self, row):
        told = []
        for name in self.names:
            cell = row.cells['poll0']
            told.append(f'{name} {self.text(cell, name, "instructions")} instructions and '
                        f'{self.text(cell, name, "wakes")} wake-ups')
        auto = row.cells.get('auto')
        if auto:
            told.append(f'{self.ours} with poll=auto {self.text(auto, self.ours, "instructions")} and '
                        f'{self.text(auto, self.ours, "wakes")}')
        return (f'Idle, without traffic, a second: {"; ".join(told)} (target: at most {number(plan.IDLE_TARGET[0])} and '
                f'{plan.IDLE_TARGET[1]}). It is not subtracted above.')

    def _rates(self, table):
        block = Block(table.title, [*table.labels, 'unit'], [], list(table.notes))
        for title in table.columns.values():
            block.heads += [f'{title}: {n}' for n in self.names] + (['ratio'] if self.base else [])
        for row in table.rows:
            some = next(iter(row.cells.values()))
            line = [*map(str, row.labels), clients.TESTS[some.test].rate]
            for key in table.columns:
                cell = row.cells.get(key)
                line += [self.text(cell, n, 'rate') for n in self.names] + ([self.ratio(cell, 'rate')] if self.base else [])
            block.rows.append(line)
        cpu = Block(f'{table.title}: processor time of QEMU, microseconds per unit', [*table.labels, 'unit'], [])
        for title in table.columns.values():
            cpu.heads += [f'{title}: {n}' for n in self.names]
        for row in table.rows:
            some = next(iter(row.cells.values()))
            cpu.rows.append([*map(str, row.labels), clients.TESTS[some.test].unit] +
                            [self.text(row.cells.get(key), n, 'cpu_us') for key in table.columns for n in self.names])
        return [block, cpu]

    def _switch(self, table):
        (on, on_title), (off, off_title) = table.columns.items()
        block = Block(table.title, [*table.labels, 'unit', *self.names, *(['ratio'] if self.base else []),
                                    f'{self.ours}, {off_title}', f'gain by {on_title}',
                                    *(f'CPU us per unit, {n}' for n in self.names), f'CPU, {self.ours}, {off_title}'], [],
                      list(table.notes))
        for row in table.rows:
            cell, other = row.cells[on], row.cells[off]
            gain = stats.ratio(self.get(cell, self.ours, 'rate'), self.get(other, self.ours, 'rate'))
            block.rows.append([*map(str, row.labels), clients.TESTS[cell.test].rate,
                               *(self.text(cell, n, 'rate') for n in self.names),
                               *([self.ratio(cell, 'rate')] if self.base else []), self.text(other, self.ours, 'rate'),
                               '-' if gain is None else f'{100 * (gain - 1):+.0f}%',
                               *(self.text(cell, n, 'cpu_us') for n in self.names), self.text(other, self.ours, 'cpu_us')])
        return [block]

    def _loss(self, table):
        block = Block(table.title, [*table.labels, 'unit', *self.names, *(['ratio'] if self.base else []),
                                    *(f'lost, {n}' for n in self.names), *(f'latency us, {n}' for n in self.names)], [],
                      list(table.notes))
        for row in table.rows:
            for cell in row.cells.values():
                lost = [self.get(cell, n, 'lost') for n in self.names]
                latency = [self.get(cell, n, 'mean_us') for n in self.names]
                block.rows.append([*map(str, row.labels), clients.TESTS[cell.test].rate,
                                   *(self.text(cell, n, 'rate') for n in self.names),
                                   *([self.ratio(cell, 'rate')] if self.base else []),
                                   *('-' if s is None else f'{100 * s.median:.1f}%' for s in lost),
                                   *('-' if s is None or not s.median else number(s.median) for s in latency)])
        return [block]

    def _kicks(self, table):
        block = Block(table.title, [*table.labels, 'unit', *self.names, *(['ratio'] if self.base else []),
                                    *(f'kicks per unit, {n}' for n in self.names), *(f'CPU us per unit, {n}' for n in self.names)],
                      [], list(table.notes))
        for row in table.rows:
            cell, counted = row.cells['rate'], row.cells['cost']
            block.rows.append([*map(str, row.labels), clients.TESTS[cell.test].rate,
                               *(self.text(cell, n, 'rate') for n in self.names),
                               *([self.ratio(cell, 'rate')] if self.base else []),
                               *(self.text(counted, n, 'kicks') for n in self.names),
                               *(self.text(cell, n, 'cpu_us') for n in self.names)])
        return [block]

    def _variants(self, table):
        alone = all(cell.ours for cell in table.cells())
        columns = [(key, name, title if alone else f'{title}: {name}')
                   for key, title in table.columns.items() for name in ([self.ours] if alone else self.names)]
        block = Block(table.title, [*table.labels, *(title for _, _, title in columns)], [], list(table.notes))
        for row in table.rows:
            first, *more = map(str, row.labels)
            block.rows.append([first + self._not_negotiated(row), *more,
                               *(self._three(row.cells[key], name) for key, name, _ in columns)])
        return [block]

    def _three(self, cell, name):
        """Instructions / kicks / interrupts per unit."""
        if (cell, name) in self.results.errors:
            return 'failed'
        return ' / '.join(number(s.median if s else None) for s in (
            self.get(cell, name, what) for what in ('instructions', 'kicks', 'interrupts')))

    def _not_negotiated(self, row):
        """For a property that switches on a feature: whether the guest took it."""
        setup = next(iter(row.cells.values())).setup
        features = self.results.facts.get((setup, self.ours), {}).get('features')
        missing = [name for name, value in setup.props if features is not None and value == 'on' and name not in features]
        return f' (the guest does not take {", ".join(missing)})' if missing else ''


def as_text(block):
    """A Block for a terminal: columns aligned, numbers to the right."""
    rows = [block.heads, *block.rows]
    widths = [max(len(row[i]) for row in block.rows) if block.rows else 0 for i in range(len(block.heads))]
    heads, lines = wrapped(block.heads, widths), [block.title, '']
    widths = [max(w, *(len(line[i]) for line in heads)) for i, w in enumerate(widths)]
    for row in heads + rows[1:]:
        cells = [cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))]
        lines.append('  '.join(cells).rstrip())
    lines.insert(2 + len(heads), '  '.join('-' * w for w in widths))
    return '\n'.join(lines + [''] * bool(block.notes) + list(block.notes)) + '\n'


def wrapped(heads, widths):
    """Headings broken at blanks into lines of about the columns' widths; lines of cells, short ones filled at the top."""
    columns = []
    for head, width in zip(heads, widths):
        lines = ['']
        for word in head.split(' '):
            if lines[-1] and len(lines[-1]) + 1 + len(word) > max(width, 10):
                lines.append('')
            lines[-1] = f'{lines[-1]} {word}'.strip()
        columns.append(lines)
    height = max(map(len, columns))
    return [[([''] * (height - len(lines)) + lines)[i] for lines in columns] for i in range(height)]


def as_markdown(block):
    """A Block as a Markdown section."""
    lines = [f'## {block.title}', '', '| ' + ' | '.join(block.heads) + ' |', '|' + ' --- |' + ' ---: |' * (len(block.heads) - 1)]
    lines += ['| ' + ' | '.join(row) + ' |' for row in block.rows]
    return '\n'.join(lines + ['', *(f'{note}\n' for note in block.notes)]) + '\n'


def as_json(table, results, names):
    """A table's samples for other programs."""
    rows = []
    for row in table.rows:
        for column, cell in row.cells.items():
            for name in names:
                samples = results.samples.get((cell, name))
                error = results.errors.get((cell, name))
                if samples or error:
                    rows.append({'labels': [str(x) for x in row.labels], 'column': str(column), 'guest': name, 'mode': cell.mode,
                                 'test': cell.test, 'sessions': cell.sessions, 'size': cell.size,
                                 'setup': {**dataclasses.asdict(cell.setup), 'text': describe(cell.setup)}, 'error': error,
                                 'samples': [dataclasses.asdict(s) for s in samples or ()]})
    return {'table': table.name, 'title': table.title, 'rows': rows}


def unsteady(tables, results):
    """Lines that name the cells whose runs lie apart, and of how many."""
    found, of = [], 0
    for cell in dict.fromkeys(cell for table in tables for cell in table.cells()):
        if cell.mode == 'idle':
            continue
        for (other, name), _ in results.samples.items():
            what = 'rate' if cell.mode == 'rate' else 'instructions'
            s = results.values(cell, name, what) if other == cell else None
            of += s is not None
            if s and not s.steady:
                found.append(f'{name}, {describe(cell.setup)}: {cell}: {what} {spread(s)}')
    return found, of


def write(path, data):
    """Writes text, or an object as JSON, whole or not at all."""
    part = path + '.part'
    with open(part, 'w', encoding='utf-8') as f:
        if isinstance(data, str):
            f.write(data)
        else:
            json.dump(data, f, indent=1)
    os.replace(part, path)
