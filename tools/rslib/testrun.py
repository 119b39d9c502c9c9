"""`ringside test`: unit tests on the host and system tests under QEMU, summed up in one line at the end.

Whatever goes wrong counts: a build that fails, a unit program that crashes, a runner that ends without results. A run in
which nothing passed has failed.
"""
import dataclasses
import glob
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

from .common import ROOT, build_dir, packages

PYTHON = '/usr/bin/python3'         # Debian's, for which python3-pytest is installed
MAKE_SECONDS = 1800
PYTEST_SECONDS, PYTEST_FULL_SECONDS = 3600, 6 * 3600
CLAUSES_SECONDS = 300
WORKERS_MAX = 4                     # tests at once: half of their time is waiting
PYTEST_OK, PYTEST_FAILED, PYTEST_NONE_COLLECTED = 0, 1, 5


@dataclasses.dataclass
class Tally:
    """Counts of tests, and a line for each thing that failed without being a test."""
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    notes: list = dataclasses.field(default_factory=list)

    def add(self, other):
        """Adds another tally to this one."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.notes += other.notes

    def fault(self, note):
        """Counts one failure that no test stands for."""
        self.failed += 1
        self.notes.append(note)

    @property
    def good(self):
        """Whether the run as a whole succeeded."""
        return self.passed > 0 and self.failed == 0

    def line(self):
        """The closing line."""
        return f'{self.passed} passed, {self.failed} failed' + (f', {self.skipped} skipped' if self.skipped else '')


def unit_tally(output, status):
    """What `make unit` counted: the sum that tests/unit/run.py prints, in which a crash is a failure, against make's own
    exit status."""
    tally = Tally()
    sums = re.findall(r'^unit: (\d+) passed, (\d+) failed\b', output, re.MULTILINE)
    for passed, failed in sums:
        tally.add(Tally(int(passed), int(failed)))
    if status and not tally.failed:
        tally.fault(f'make unit: exit status {status}, though no test failed')
    elif tally.passed + tally.failed == 0:
        tally.fault('make unit: no unit test was run')
    return tally


def junit_tally(path, status, selecting=False):
    """What pytest counted, from its JUnit file, against its exit status. selecting: -k may leave nothing to run."""
    tally = Tally()
    try:
        cases = list(ElementTree.parse(path).getroot().iter('testcase'))
    except (OSError, ElementTree.ParseError):
        cases = None
    results = {}
    for case in cases or []:
        # A test that fails and then fails in its teardown too is there twice.
        name = (case.get('classname'), case.get('name'))
        if case.find('failure') is not None or case.find('error') is not None:
            results[name] = 'failed'
        elif case.find('skipped') is not None:
            results.setdefault(name, 'skipped')
        else:
            results.setdefault(name, 'passed')
    counts = list(results.values())
    tally.add(Tally(counts.count('passed'), counts.count('failed'), counts.count('skipped')))
    if cases is None:
        tally.fault(f'pytest: exit status {status}, and no results')
    elif status == PYTEST_NONE_COLLECTED and not selecting:
        tally.fault('pytest: no test was found')
    elif status == PYTEST_FAILED and not tally.failed:
        tally.fault('pytest: says that tests failed, but its results name none')
    elif status not in (PYTEST_OK, PYTEST_FAILED, PYTEST_NONE_COLLECTED):
        tally.fault(f'pytest: exit status {status}')
    return tally


def suites(root=ROOT):
    """The folders under tests/ that hold pytest tests."""
    found = {os.path.dirname(path) for path in glob.glob(os.path.join(root, 'tests', '*', 'test_*.py'))}
    return sorted(os.path.relpath(path, root) for path in found)


def child_environment():
    """Our environment without what ties a make to the make above it; the variables of its command line are kept."""
    env = {k: v for k, v in os.environ.items() if k not in ('MAKELEVEL', 'MFLAGS', 'MAKEFLAGS')}
    given = os.environ.get('MAKEFLAGS', '').split(' -- ', 1)
    if len(given) == 2:
        env['MAKEFLAGS'] = ' -- ' + given[1]
    env['PYTHONDONTWRITEBYTECODE'] = '1'
    return env


def run(argv, seconds):
    """Runs a command in the project's folder, showing what it writes; returns (exit status, its standard output). At the
    time limit it is told to end, a minute later killed; that counts as exit status 124."""
    process = subprocess.Popen(argv, cwd=ROOT, env=child_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               start_new_session=True)
    sent = []

    def expire(*_):
        sent.append(signal.SIGKILL if sent else signal.SIGTERM)
        signal.alarm(60)
        os.killpg(process.pid, sent[-1])
    before = signal.signal(signal.SIGALRM, expire)
    signal.alarm(seconds)
    output = b''
    try:
        while chunk := process.stdout.read1(65536):
            output += chunk
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
        status = process.wait()
    except BaseException:
        end_group(process)
        raise
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return 124 if sent else status, output.decode(errors='replace')


def end_group(process):
    """Ends a command and what it started: SIGTERM, which lets tests take down their guests, then SIGKILL."""
    for number, seconds in ((signal.SIGTERM, 30), (signal.SIGKILL, 5)):
        try:
            os.killpg(process.pid, number)
            process.wait(seconds)
            return
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def make(*targets):
    """Runs make for these targets; returns (exit status, output)."""
    return run(['make', f'-j{os.cpu_count() or 1}', '--no-print-directory', *targets], MAKE_SECONDS)


def run_pytest(full, select):
    """Runs every suite under pytest; returns the tally."""
    folders = suites()
    if not folders:
        tally = Tally()
        tally.fault('pytest: there is no tests/*/test_*.py')
        return tally
    junit = junit_file()
    if os.path.exists(junit):
        os.unlink(junit)        # not the last run's, whatever becomes of this one
    color = '--color=' + ('yes' if sys.stdout.isatty() else 'no')
    workers = max(2, min(os.cpu_count() or 1, WORKERS_MAX))
    argv = [PYTHON, '-m', 'pytest', '-q', '-ra', color, '-n', str(workers), '--dist', 'loadfile', f'--junitxml={junit}',
            *(['--full'] if full else []), *(['-k', select] if select is not None else []), *folders]
    status, _ = run(argv, PYTEST_FULL_SECONDS if full else PYTEST_SECONDS)
    return junit_tally(junit, status, select is not None)


def junit_file():
    """Where pytest's results are left."""
    return os.path.join(build_dir(), 'tests.xml')


def check_clauses():
    """That each test which the table of the specification's clauses names has run and passed; returns the tally."""
    tally = Tally()
    results = [*glob.glob(os.path.join(build_dir(), 'unit', '*.xml')), junit_file()]
    status, _ = run([PYTHON, os.path.join('tests', 'conformance', 'check.py'), '--results', *results], CLAUSES_SECONDS)
    if status:
        tally.fault(f'tests/conformance/check.py: exit status {status}, its findings are above')
    return tally


def main(options):
    """The command: returns the exit status."""
    packages('build', 'iso', 'run', 'test', 'kvm')
    tally = Tally()
    # Built one after the other: what one target lacks is no reason to leave out the tests of another.
    for targets in ((), ('guest-tests',)):
        status, _ = make(*targets)
        if status:
            tally.fault(f'make {" ".join(targets)}'.rstrip() + f': exit status {status}')
    if options.select is None:
        status, output = make('unit')
        tally.add(unit_tally(output, status))
    else:
        print('unit tests are left out: -k selects among the others', flush=True)
    tally.add(run_pytest(options.full, options.select))
    if options.select is None and os.geteuid() == 0:    # without rights the tests on tap devices are skipped
        tally.add(check_clauses())
    for note in tally.notes:
        print(note)
    if not tally.passed and not tally.failed:
        print('no test was run')
    print(tally.line(), flush=True)
    return 0 if tally.good else 1
