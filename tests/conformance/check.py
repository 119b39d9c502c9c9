#!/usr/bin/python3
"""Checks the clause table (see table.py): nothing missing, nothing twice, each named test there, and run.

    check.py                                        the table against sections-*.tsv, the unit tests' sources and pytest's list
    check.py --results build/unit/*.xml junit.xml   and that each named test ran, unskipped, and passed
    check.py --spec DIR [--spec-1.4 DIR]            and the sections and numbers of statements against the specification's LaTeX
                                                    sources, which are not part of the project: by hand

Exit status: 0, or 1 after any finding, 2 for a bad command line. One line per finding.
"""
import argparse
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import spec  # noqa: E402
import table  # noqa: E402

UNIT = os.path.join(table.ROOT, 'tests', 'unit')
COLLECT_SECONDS = 120
LISTED_TEST = re.compile(r'\b(?:cmocka_unit_test\w*|TEST)\(\s*(test_\w+)')
SHARE_NOT_APPLICABLE = 0.20


# ---- what tests there are ----

def unit_sources():
    """{program: its test's source} from unit.mk."""
    with open(os.path.join(UNIT, 'unit.mk'), encoding='utf-8') as makefile:
        text = makefile.read().replace('\\\n', ' ')
    variables = {}
    for name, how, value in re.findall(r'^(\w+)\s*(:=|\+=)\s*([^#\n]*)', text, re.MULTILINE):
        variables[name] = variables.get(name, '') + ' ' + value if how == '+=' else value

    def expand(value):
        return re.sub(r'\$\((\w+)\)', lambda match: expand(variables.get(match[1], '')), value)

    sources = {}
    for program in expand(variables.get('unit_programs', '')).split():
        files = expand(variables.get(program + '_sources', '')).split()
        sources[program] = next((name for name in files if name.endswith('_test.c')), None)
    return sources


def unit_tests():
    """Every unit:PROGRAM:TEST that a program's list names."""
    found = set()
    for program, source in unit_sources().items():
        if source is None:
            continue
        with open(os.path.join(table.ROOT, source), encoding='utf-8') as code:
            found |= {f'unit:{program}:{name}' for name in LISTED_TEST.findall(code.read())}
    return found


def system_tests():
    """Every system:FILE::TEST[ROW] that pytest collects without --full."""
    argv = [sys.executable, '-m', 'pytest', '--collect-only', '-q', '-p', 'no:cacheprovider', 'tests/system']
    done = subprocess.run(argv, cwd=table.ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COLLECT_SECONDS)
    if done.returncode != 0:
        raise table.TableError(f'pytest does not collect tests/system: {done.stdout[-300:]}{done.stderr[-300:]}')
    return {f'system:{name}' for name in re.findall(r'^(?:tests/system/)?(\w+)\.py(::\S.*)$', done.stdout, re.MULTILINE)
            for name in [''.join(name)]}


# ---- checks: each gives findings ----

def check_sections(rows, version, sections):
    """The rows of a version are the statements that there are, each once."""
    have = Counter((row.section, row.number) for row in rows if row.version == version)
    want = {(section, n) for section, (numbers, _, _) in sections.items() for n in numbers}
    for section, n in sorted(have):
        if have[section, n] > 1:
            yield f'{section} statement {n}: {have[section, n]} rows'
        if (section, n) not in want:
            yield f'{section} statement {n}: no such statement in sections-{version}.tsv'
    for section, n in sorted(want - set(have)):
        yield f'{section} statement {n}: no row'


def check_texts(rows):
    """Each statement is said in its own words, once a section."""
    seen = {}
    for row in rows:
        key = row.section, row.strength, row.text
        if key in seen:
            yield f'{row}: the same words as statement {seen[key]}'
        seen[key] = row.number


def check_tests(rows, known):
    """Each named test is there, and each row that needs a test has one."""
    for row in rows:
        if row.kind in ('shown', 'never') and not row.tests:
            yield f'{row}: names no test'
        for test in row.tests:
            if test not in known:
                yield f'{row}: there is no test {test}'
        if len(set(row.tests)) < len(row.tests):
            yield f'{row}: names a test twice'


def implemented_features():
    """Names of the features that the driver's table says it implements."""
    with open(os.path.join(table.ROOT, 'drivers', 'virtio', 'features.c'), encoding='utf-8') as code:
        return set(re.findall(r'\{\s*VIRTIO_\w+,\s*true,\s*"(\w+)"', code.read()))


def check_never(rows, implemented):
    """A feature that is said never to be acknowledged is not implemented, and its own test is named."""
    for row in rows:
        if row.kind != 'never':
            continue
        if row.feature in implemented:
            yield f'{row}: {row.feature} is implemented now: name the tests that show the statement'
        if not any(test.endswith(f':test_never_{row.feature}') for test in row.tests):
            yield f'{row}: does not name a test test_never_{row.feature}'


def check_share(rows):
    """Not too much is said not to apply, and no MUST is left open."""
    left = [row for row in rows if row.kind in ('n/a', 'open')]
    if len(left) > SHARE_NOT_APPLICABLE * len(rows):
        yield f'{len(left)} of {len(rows)} rows are n/a or open, valid are at most {SHARE_NOT_APPLICABLE:.0%}'
    for row in rows:
        if row.kind == 'open' and row.strength.startswith('MUST'):
            yield f'{row}: a {row.strength} cannot be left open'


def read_results(paths):
    """{test: what happened} from cmocka's and pytest's XML files."""
    results = {}
    for path in paths:
        try:
            root = ElementTree.parse(path).getroot()
        except (OSError, ElementTree.ParseError) as error:
            raise table.TableError(f'{path}: {error}') from error
        program = os.path.basename(path).removesuffix('.xml')
        for case in root.iter('testcase'):
            place, name = case.get('classname') or '', case.get('name')
            test = f'system:{place.split(".")[-1]}::{name}' if place else f'unit:{program}:{name}'
            bad = [child.tag for child in case if child.tag in ('failure', 'error', 'skipped')]
            if bad or test not in results:      # one that fails in its teardown is there twice
                results[test] = bad[0] if bad else 'passed'
    return results


def check_ran(rows, results):
    """Each named test ran and passed."""
    for test in sorted({test for row in rows for test in row.tests}):
        outcome = results.get(test, 'not run')
        if outcome != 'passed':
            yield f'{test}: {outcome}'


# ---- the specification ----

def check_counts(sections, clauses, version):
    """The kept list of sections against the specification itself."""
    counted = {clause.number: (len(clause.statements()), clause.title) for clause in clauses}
    for number in sorted(set(sections) | set(counted)):
        if number not in counted:
            yield f'sections-{version}.tsv: {number} is no driver-normative section'
        elif number not in sections:
            yield f'sections-{version}.tsv: {number} ({counted[number][1]}, {counted[number][0]} statements) is missing'
        elif sections[number][1] != counted[number][0]:
            yield f'sections-{version}.tsv: {number} has {counted[number][0]} statements, not {sections[number][1]}'


def check_strengths(rows, clauses, version):
    """Each row's MUST, SHOULD or MAY is the specification's."""
    said = {(clause.number, n): strength for clause in clauses for n, (strength, _) in enumerate(clause.statements(), 1)}
    for row in rows:
        wanted = said.get((row.section, row.number))
        if row.version == version and wanted is not None and row.strength != wanted:
            yield f'{row}: {row.strength}, the specification says {wanted}'


def check_additions(sections, old, new):
    """Which statements of the newer version the older has not, by their text."""
    for number, added in spec.additions(old, new).items():
        if number in sections and sections[number][0] != added:
            yield f'sections-1.4.tsv: {number} adds {table.format_numbers(added)}, not {table.format_numbers(sections[number][0])}'


def findings(args):
    """All findings, in the order of the checks."""
    rows = table.read_rows()
    sections = {version: table.read_sections(version) for version in ('1.3', '1.4')}
    for version in sections:
        yield from check_sections(rows, version, sections[version])
    yield from check_texts(rows)
    yield from check_tests(rows, unit_tests() | system_tests())
    yield from check_never(rows, implemented_features())
    yield from check_share(rows)
    if args.results:
        yield from check_ran(rows, read_results(args.results))
    given = {'1.3': args.spec, '1.4': args.spec_1_4}
    clauses = {version: spec.in_scope(path) for version, path in given.items() if path}
    for version in clauses:
        yield from check_counts(sections[version], clauses[version], version)
        yield from check_strengths(rows, clauses[version], version)
    if len(clauses) == 2:
        yield from check_additions(sections['1.4'], clauses['1.3'], clauses['1.4'])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--results', nargs='+', metavar='XML', help="what cmocka's and pytest's runs left")
    parser.add_argument('--spec', metavar='DIR', help="LaTeX sources of version 1.3")
    parser.add_argument('--spec-1.4', dest='spec_1_4', metavar='DIR', help="LaTeX sources of version 1.4")
    args = parser.parse_args()
    try:
        found = list(findings(args))
    except (table.TableError, OSError, subprocess.TimeoutExpired) as error:
        found = [str(error)]
    for line in found:
        print(line)
    if not found:
        rows = table.read_rows()
        n = table.shares(rows)
        print(f'{len(rows)} statements: {n["shown"]} shown, {n["never"]} never acknowledged, {n["n/a"]} not applicable, {n["open"]} open')
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main())
