#!/usr/bin/python3
"""The clause table: reads the rows of tests/conformance/*.txt and writes docs/conformance.md from them.

A row is one statement of the specification about a driver:
    section | statement | strength | paraphrase | verdict | evidence | note
verdict and evidence are one of
    shown        the tests that show it
    never NAME   the driver has not this feature: the test that its bit is never acknowledged (NAME as in features=)
    n/a          why it does not concern this driver
    open         a SHOULD that the driver does not follow, and why
A test is unit:PROGRAM:TEST or system:FILE::TEST[ROW]. The note may be missing. Statements are numbered as spec.py counts them.

    table.py            writes docs/conformance.md
    table.py --print    prints it instead
"""
import os
import sys
from collections import Counter

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
DOCUMENT = os.path.join(ROOT, 'docs', 'conformance.md')
STRENGTHS = ('MUST', 'MUST NOT', 'SHOULD', 'SHOULD NOT', 'MAY', 'MAY NOT')
# The files in the order of the document: chapter's title, version of the specification.
FILES = {
    '2-basic-facilities.txt': ('Basic facilities of a virtio device', '1.3'),
    '2-administration.txt': ('Basic facilities: group administration', '1.3'),
    '3-operation.txt': ('General initialisation and device operation', '1.3'),
    '4-pci.txt': ('Virtio over PCI', '1.3'),
    '5-network.txt': ('Network device', '1.3'),
    '6-reserved-features.txt': ('Reserved feature bits', '1.3'),
    '1.4-additions.txt': ('What version 1.4 adds', '1.4'),
}


class TableError(Exception):
    """A line of a data file that is no row."""


class Row:
    """One statement."""

    def __init__(self, fields, where, version):
        self.where, self.version = where, version
        self.section, number, self.strength, self.text, self.verdict, self.evidence = fields[:6]
        self.note = fields[6] if len(fields) > 6 else ''
        if not number.isdigit():
            raise TableError(f'{where}: statement {number!r} is no number')
        self.number = int(number)
        self.kind, _, self.feature = self.verdict.partition(' ')
        if self.strength not in STRENGTHS:
            raise TableError(f'{where}: strength {self.strength!r}; valid are {", ".join(STRENGTHS)}')
        if self.kind not in ('shown', 'never', 'n/a', 'open') or (self.kind == 'never') != bool(self.feature):
            raise TableError(f'{where}: verdict {self.verdict!r}; valid are shown, never NAME, n/a, open')
        if not all(fields[:6]):
            raise TableError(f'{where}: an empty field')

    @property
    def tests(self):
        """The tests that the row names."""
        return self.evidence.split() if self.kind in ('shown', 'never') else []

    def __str__(self):
        return f'{self.where}: {self.section} statement {self.number}'


def read_rows(directory=HERE):
    """All rows, in the order of the document."""
    rows = []
    for name, (_, version) in FILES.items():
        with open(os.path.join(directory, name), encoding='utf-8') as data:
            for n, line in enumerate(data, 1):
                line = line.strip()
                if not line or line.startswith('#'):
                    continue
                fields = [field.strip() for field in line.split('|')]
                if len(fields) not in (6, 7):
                    raise TableError(f'{name}:{n}: {len(fields)} fields, valid are 6 or 7')
                rows.append(Row(fields, f'{name}:{n}', version))
    return rows


def read_sections(version, directory=HERE):
    """{section: (statement numbers that a table of that version has rows for, statements in all, title)}."""
    sections = {}
    with open(os.path.join(directory, f'sections-{version}.tsv'), encoding='utf-8') as data:
        for line in data:
            if line.startswith('#') or not line.strip():
                continue
            section, count, title, *new = line.rstrip('\n').split('\t')
            wanted = parse_numbers(new[0]) if new else list(range(1, int(count) + 1))
            sections[section] = (wanted, int(count), title)
    return sections


def parse_numbers(text):
    """'1,5,16-18' as [1, 5, 16, 17, 18]; '-' as []."""
    numbers = []
    for part in text.split(',') if text != '-' else []:
        first, _, last = part.partition('-')
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def format_numbers(numbers):
    """The reverse of parse_numbers()."""
    parts = []
    for n in numbers:
        if parts and parts[-1][1] == n - 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return ','.join(str(a) if a == b else f'{a}-{b}' for a, b in parts) or '-'


def shares(rows):
    """{kind: how many rows}."""
    return Counter(row.kind for row in rows)


def shown_by(row):
    """The last column of a row."""
    tests = ', '.join(f'`{test}`' for test in row.tests)
    text = {'shown': tests, 'never': f'not implemented, `{row.feature}` is never acknowledged: {tests}',
            'n/a': f'not applicable: {row.evidence}', 'open': f'not followed: {row.evidence}'}[row.kind]
    return f'{text}. {row.note}' if row.note else text


def summary(rows):
    """The table of what is shown how, by version and strength."""
    lines = ['| | statements | shown by a test | never acknowledged | not applicable | not followed |', '|---|---|---|---|---|---|']
    groups = [('1.3', [row for row in rows if row.version == '1.3']), ('added by 1.4', [row for row in rows if row.version == '1.4'])]
    groups += [(strength, [row for row in rows if row.strength == strength]) for strength in STRENGTHS]
    for title, group in groups + [('all', rows)]:
        n = shares(group)
        if group:
            lines.append(f'| {title} | {len(group)} | {n["shown"]} | {n["never"]} | {n["n/a"]} | {n["open"]} |')
    return lines


def document(rows):
    """docs/conformance.md as text."""
    lines = ['# Conformance of the driver', '',
             '<!-- Made by `make conformance-table` from tests/conformance/*.txt: change those. -->', '',
             'Every statement that the virtio specification makes about a driver of a network device on PCI, version 1.3 (committee',
             'specification draft 01) and what version 1.4 (committee specification 01) adds, by section number and number of the',
             'statement in it, in our own words, with the test that shows it. `tests/conformance/check.py` checks that none is missing',
             'and that each test exists and ran. `unit:PROGRAM:TEST` is run by `make unit`, `system:FILE::TEST[ROW]` by `make test`.', '']
    lines += summary(rows)
    for name, (title, _) in FILES.items():
        group = [row for row in rows if row.where.startswith(name + ':')]
        lines += ['', f'## {title}', '', '| section | | strength | the driver | shown by |', '|---|---|---|---|---|']
        lines += [f'| {row.section} | {row.number} | {row.strength} | {row.text} | {shown_by(row)} |' for row in group]
    return '\n'.join(lines) + '\n'


def main(argv):
    text = document(read_rows())
    if argv[1:] == ['--print']:
        sys.stdout.write(text)
    elif argv[1:]:
        print('usage: table.py [--print]', file=sys.stderr)
        return 2
    else:
        with open(DOCUMENT, 'w', encoding='utf-8') as out:
            out.write(text)
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv))
