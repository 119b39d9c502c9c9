#!/usr/bin/python3
"""Reads the specification's LaTeX sources: which sections state requirements of a driver, and how many each.

spec.py DIR prints "section <tab> count <tab> title" for the sections that concern this driver: the rows of sections-*.tsv. With
--text it prints the statements themselves, to read beside the table. The sources are not part of the project.

A statement is a keyword of RFC 2119 in capitals (MUST, SHALL, REQUIRED, SHOULD, RECOMMENDED, MAY, OPTIONAL, with or without NOT) in
the body of a section that the sources mark as a driver's (\\drivernormative), up to the next heading. Numbers are those that LaTeX
gives: the sources are read in the order of their \\input, and headings counted.
"""
import argparse
import os
import re
import sys
from collections import Counter

LEVELS = ('chapter', 'section', 'subsection', 'subsubsection', 'paragraph', 'subparagraph')
KEYWORD = re.compile(r'\b(MUST|SHALL|SHOULD|MAY|REQUIRED|RECOMMENDED|OPTIONAL)(\s+NOT)?\b')
TOKEN = re.compile(r'\\input\{(?P<input>[^}]+)\}'
                   r'|\\(?P<who>driver|device)normative\s*\{\\(?P<wlevel>\w+)\}\s*\{(?P<wtitle>(?:[^{}]|\{[^{}]*\})*)\}'
                   r'\s*\{(?:[^{}]|\{[^{}]*\})*\}'
                   r'|\\conformance\{\\(?P<clevel>\w+)\}\{(?P<ctitle>[^}]*)\}'
                   r'|\\(?P<level>(?:sub)*(?:section|paragraph)|chapter)(?P<star>\*?)\s*\{(?P<title>(?:[^{}]|\{[^{}]*\})*)\}')
NORMAL = {'SHALL': 'MUST', 'REQUIRED': 'MUST', 'RECOMMENDED': 'SHOULD', 'OPTIONAL': 'MAY'}
# What a driver of a network device on PCI has to do with, by number.
SCOPE = re.compile(r'(2|3|6)(\.|$)|4\.1\.|5\.1\.')


class Clause:
    """One driver-normative section: its number, title and text."""

    def __init__(self, number, title):
        self.number, self.title, self.text = number, title, ''

    def statements(self):
        """[(strength, the sentence or list entry it stands in)] in the order of the text."""
        found = []
        for match in KEYWORD.finditer(self.text):
            word = NORMAL.get(match[1], match[1]) + (' NOT' if match[2] else '')
            start = max(self.text.rfind('\n\n', 0, match.start()), self.text.rfind('\\item', 0, match.start()), 0)
            ends = [at for at in (self.text.find('\n\n', match.end()), self.text.find('\\item', match.end())) if at >= 0]
            found.append((word, ' '.join(self.text[start:min(ends, default=len(self.text))].split())))
        return found


def read_source(directory, name):
    """A source file without its comments. LaTeX lets the .tex go."""
    path = os.path.join(directory, name if name.endswith('.tex') else name + '.tex')
    with open(path, encoding='utf-8') as source:
        return re.sub(r'(?<!\\)%.*', '', source.read())


def clauses(directory):
    """All driver-normative sections of the specification whose sources lie in `directory`."""
    counters = [0] * len(LEVELS)
    found, current = [], None

    def heading(level, title, mine):
        nonlocal current
        at = LEVELS.index(level)
        counters[at] += 1
        counters[at + 1:] = [0] * (len(LEVELS) - at - 1)
        current = None
        if mine:
            current = Clause('.'.join(str(n) for n in counters[:at + 1]), ' '.join(title.split()))
            found.append(current)

    def walk(name):
        nonlocal current
        text, at = read_source(directory, name), 0
        for match in TOKEN.finditer(text):
            if current is not None:
                current.text += text[at:match.start()]
            at = match.end()
            if match['input']:
                walk(match['input'])
            elif match['who']:
                heading(match['wlevel'], match['wtitle'], match['who'] == 'driver')
            elif match['clevel']:
                heading(match['clevel'], match['ctitle'], False)
            elif not match['star']:
                heading(match['level'], match['title'], False)
        if current is not None:
            current.text += text[at:]

    walk('introduction.tex')
    walk('content.tex')
    return found


def in_scope(directory):
    return [clause for clause in clauses(directory) if SCOPE.match(clause.number)]


def additions(old, new):
    """{section: numbers of the statements that `new` has and `old` has not}, by their texts, wherever they stand."""
    left = Counter(statement for clause in old for statement in clause.statements())
    added = {}
    for clause in new:
        numbers = added[clause.number] = []
        for n, statement in enumerate(clause.statements(), 1):
            if left[statement] > 0:
                left[statement] -= 1
            else:
                numbers.append(n)
    return added


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('directory', help="the specification's LaTeX sources (content.tex lies there)")
    parser.add_argument('--text', action='store_true', help='print the statements too')
    args = parser.parse_args()
    for clause in in_scope(args.directory):
        statements = clause.statements()
        print(f'{clause.number}\t{len(statements)}\t{clause.title}')
        for n, (strength, text) in enumerate(statements, 1):
            if args.text:
                print(f'    {n} {strength}: {text}')


if __name__ == '__main__':
    sys.exit(main())
