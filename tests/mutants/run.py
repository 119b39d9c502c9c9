#!/usr/bin/python3
"""Seeded faults: each is put into a copy of the tree, and the test that the clause table names must fail with it.

    run.py [-j N] [--sample N] [--list] [TEXT]     TEXT: only faults whose line contains it

A fault in *.txt, below a line `file: PATH`:

    SECTION/NUMBER[, ...] | unit:PROGRAM:TEST | what is wrong then
    - a line of the file, or several
    + what stands there instead; nothing: the lines are left out

A fault is killed when its test fails. One that survives, that does not compile, or whose lines the file does not have just
once is a failure, and so is a test that fails without any fault. Exit status 0: all were killed; 1; 2: the command line."""
import argparse
import concurrent.futures
import dataclasses
import glob
import os
import queue
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PARTS = ('Makefile', 'linker.ld', 'boot', 'kernel', 'drivers', 'net', 'apps', 'tests/unit', 'tests/fuzz', 'tools')
MAKE_SECONDS, TEST_SECONDS = 900, 300
SHOWN = re.compile(r'^(\S+) \| (\d+) \| [^|]* \| [^|]* \| shown \| (.*)$')


@dataclasses.dataclass
class Fault:
    """A seeded fault. old, new: text of the file; clauses: of the table, as SECTION/NUMBER."""
    where: str
    path: str
    clauses: list
    program: str
    test: str
    about: str
    old: str = ''
    new: str = ''

    def __str__(self):
        return f'{self.where} {", ".join(self.clauses)} {self.about} [{self.program}:{self.test}]'


class DataError(Exception):
    """A fault's description is wrong; the text says where and how."""


def parse(text, name):
    """The faults of a data file."""
    faults, path = [], None
    for number, line in enumerate(text.splitlines(), 1):
        where = f'{name}:{number}'
        if line.startswith('file: '):
            path = line.removeprefix('file: ').strip()
        elif line.startswith(('- ', '+ ')) or line in ('-', '+'):
            if not faults:
                raise DataError(f'{where}: a line without a fault above it')
            key = 'old' if line[0] == '-' else 'new'
            setattr(faults[-1], key, getattr(faults[-1], key) + line[2:] + '\n')
        elif line.strip() and not line.startswith('#'):
            match = re.fullmatch(r'([\d./, ]+) \| unit:(\w+):(\w+) \| (.+)', line)
            if not match or not path:
                raise DataError(f'{where}: valid is "file: PATH", then SECTION/NUMBER | unit:PROGRAM:TEST | text')
            faults.append(Fault(where, path, re.split(r', *', match[1].strip()), match[2], match[3], match[4]))
    return faults


def load(folder=HERE):
    """All faults there are."""
    faults = []
    for path in sorted(glob.glob(os.path.join(folder, '*.txt'))):
        with open(path, encoding='utf-8') as f:
            faults += parse(f.read(), os.path.basename(path))
    return faults


def shown_clauses(root=ROOT):
    """{SECTION/NUMBER: text of its tests} of the statements that the table says are shown by tests."""
    found = {}
    for path in glob.glob(os.path.join(root, 'tests', 'conformance', '*.txt')):
        with open(path, encoding='utf-8') as f:
            for line in f:
                if match := SHOWN.match(line.strip()):
                    found[f'{match[1]}/{match[2]}'] = match[3]
    return found


def misfits(faults, shown):
    """Lines about faults that do not fit the clause table: no such statement, or another test shows it."""
    out = []
    for fault in faults:
        for clause in fault.clauses:
            if clause not in shown:
                out.append(f'{fault.where}: the table has no statement {clause} that a test shows')
            elif f'unit:{fault.program}:{fault.test}' not in shown[clause]:
                out.append(f'{fault.where}: the table shows {clause} by {shown[clause]}, not by {fault.program}:{fault.test}')
    return out


def bare_groups(faults, shown):
    """Sections of which statements are shown by unit tests, but none by a test with a fault."""
    have = {clause.split('/')[0] for fault in faults for clause in fault.clauses}
    return sorted({clause.split('/')[0] for clause, tests in shown.items() if 'unit:' in tests} - have)


class Tree:
    """A copy of what the unit tests are made of."""

    def __init__(self, folder):
        self.folder = folder
        for part in PARTS:
            source, target = os.path.join(ROOT, part), os.path.join(folder, part)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if os.path.isdir(source):
                shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns('__pycache__'))
            else:
                shutil.copy2(source, target)

    def make(self, programs):
        """Builds programs; returns (whether it worked, output)."""
        env = {k: v for k, v in os.environ.items() if k not in ('MAKELEVEL', 'MFLAGS', 'MAKEFLAGS', 'BUILD')}
        done = subprocess.run(['make', '--no-print-directory', *(f'build/unit/{p}' for p in sorted(programs))], cwd=self.folder,
                              env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=MAKE_SECONDS, check=False)
        return done.returncode == 0, done.stdout

    def passes(self, program, test):
        """Whether a test passes; one that does not end has failed. DataError: the program has no such test."""
        env = {**os.environ, 'UNIT_TEST': test, 'CMOCKA_MESSAGE_OUTPUT': 'STDOUT'}
        try:
            done = subprocess.run([os.path.join(self.folder, 'build', 'unit', program)], cwd=self.folder, env=env, text=True,
                                  errors='replace', stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  timeout=TEST_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return False
        if done.returncode == 0 and f'OK ] {test}\n' not in done.stdout:
            raise DataError(f'{program} has no test {test}')
        return done.returncode == 0

    def try_fault(self, fault):
        """What became of a fault: "killed", or why that is not so."""
        path = os.path.join(self.folder, fault.path)
        with open(path, encoding='utf-8') as f:
            text = f.read()
        if not fault.old or text.count(fault.old) != 1:
            return f'NOT THERE: {fault.path} has its lines {text.count(fault.old) if fault.old else 0} times'
        try:
            with open(path, 'w', encoding='utf-8') as f:
                f.write(text.replace(fault.old, fault.new))
            built, output = self.make({fault.program})
            if not built:
                errors = [line for line in output.splitlines() if ' error: ' in line] or output.splitlines()[-1:]
                return f'DOES NOT COMPILE: {" ".join(errors[:1])}'
            return 'SURVIVED' if self.passes(fault.program, fault.test) else 'killed'
        finally:
            with open(path, 'w', encoding='utf-8') as f:
                f.write(text)


def run(faults, workers, folder, say):
    """Tries all faults, on so many copies of the tree; returns (killed, survived)."""
    shutil.rmtree(folder, ignore_errors=True)
    trees = queue.SimpleQueue()
    for number in range(workers):
        trees.put(Tree(os.path.join(folder, str(number))))
    bad = 0

    def with_tree(action):
        tree = trees.get()
        try:
            return action(tree)
        finally:
            trees.put(tree)

    def build(tree):
        built, output = tree.make({f.program for f in faults})
        if not built:
            raise DataError('the tests do not compile without a fault: ' + '\n'.join(output.splitlines()[-5:]))

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        held = [trees.get() for _ in range(workers)]
        list(pool.map(build, held))
        for tree in held:
            trees.put(tree)
        tests = sorted({(f.program, f.test) for f in faults})
        for (program, test), good in zip(tests, pool.map(lambda t: with_tree(lambda tree: tree.passes(*t)), tests)):
            if not good:
                say(f'{program}:{test} fails without a fault')
                bad += 1
        for fault, outcome in zip(faults, pool.map(lambda f: with_tree(lambda tree: tree.try_fault(f)), faults)):
            if outcome != 'killed':
                say(f'{outcome}: {fault}')
                bad += 1
    return len(faults) - bad, bad


def main():
    """The command."""
    parser = argparse.ArgumentParser(allow_abbrev=False,
                                     description='Seeded faults, each to be killed by the test that the clause table names.')
    parser.add_argument('-j', type=int, default=os.cpu_count() or 1, metavar='N', help='copies of the tree to work on at once')
    parser.add_argument('--sample', type=int, default=0, metavar='N', help='only N of the faults, evenly spread')
    parser.add_argument('--list', action='store_true', help='print the faults')
    parser.add_argument('--build', default=os.path.join(ROOT, 'build', 'mutants'), help='folder to work in')
    parser.add_argument('text', nargs='?', default='', help='only faults whose line contains it')
    options = parser.parse_args()
    try:
        faults, shown = load(), shown_clauses()
        wrong = misfits(faults, shown)
        wrong += [f'section {section} has no fault' for section in bare_groups(faults, shown)]
        chosen = [f for f in faults if options.text in str(f)]
        if options.sample and chosen:
            chosen = chosen[::max(1, len(chosen) // options.sample)][:options.sample]
        if options.list:
            print('\n'.join(map(str, chosen)))
            return 0
        if not chosen:
            print(f'no fault contains "{options.text}"', file=sys.stderr)
            return 2
        for line in wrong:
            print(line)
        killed, bad = run(chosen, max(1, min(options.j, len(chosen))), options.build, lambda text: print(text, flush=True))
    except DataError as e:
        print(e)
        print('0 killed, 1 survived')
        return 1
    print(f'{killed} killed, {bad + len(wrong)} survived')
    return 1 if bad or wrong else 0


if __name__ == '__main__':
    sys.exit(main())
