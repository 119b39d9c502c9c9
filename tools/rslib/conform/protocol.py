"""What a guest booted with `conform` prints on its console, read strictly: a run that does not say what it must has failed.

    TAP version 14
    ok 1 - features 2.2.2 the device offers VIRTIO_F_VERSION_1
    not ok 2 - ring 2.7.8.2 used ids are of buffers that were made available
    # got: 77
    ok 3 - steering 5.1.6.5.6.1 the device answers on the queue it was last sent on # SKIP not offered: mq
    1..3
    # passed 1, failed 1, skipped 1

and ends with exit value 0 (all passed or skipped) or 2 (something failed). A line `# key: value` belongs to the check above it; before
the first check such lines describe the device. Lines of the log, which begin with a time in brackets, may stand anywhere.
"""
import dataclasses
import re

EXIT_GOOD, EXIT_FAILED = 1, 5       # QEMU's exit codes for the exit values 0 and 2 (isa-debug-exit: 2v + 1)

PASS, FAIL, NOT_OFFERED, SKIPPED = 'pass', 'fail', 'not offered', 'skipped'
STATES = (PASS, FAIL, NOT_OFFERED, SKIPPED)

_VERSION = 'TAP version 14'
_RESULT = re.compile(r'(ok|not ok) (\d+) - ([a-z][a-z0-9_]*) (\d+(?:\.\d+)*) (\S.*?)(?: # SKIP (\S.*))?')
_PLAN = re.compile(r'1\.\.(\d+)')
_SUM = re.compile(r'# passed (\d+), failed (\d+), skipped (\d+)')
_DIAGNOSTIC = re.compile(r'# ?(.*)')
_PAIR = re.compile(r'([a-z][\w .()-]*): ?(.*)', re.IGNORECASE)
_RESULT_LIKE = re.compile(r'(ok|not ok)\b')
_PLAN_LIKE = re.compile(r'\d+\.\.\d+')
PLEASE = re.compile(r'# please: (\S.*)')


@dataclasses.dataclass
class Check:
    """One result line. evidence: (key, value) of the lines below it, in order."""
    number: int
    area: str
    section: str        # of virtio 1.3
    text: str
    state: str          # one of STATES
    reason: str = ''    # of a skip
    evidence: list = dataclasses.field(default_factory=list)

    @property
    def notes(self):
        """The evidence without the flight recorder's lines."""
        return [pair for pair in self.evidence if pair[0] != 'trace']

    @property
    def trace(self):
        """The flight recorder's lines (drivers/virtio/recorder.h), '' if there are none."""
        return '\n'.join(value for key, value in self.evidence if key == 'trace')

    @property
    def key(self):
        """What makes it the same check on another backend."""
        return self.area, self.section, self.text


@dataclasses.dataclass
class Outcome:
    """What a guest told. faults: why the run as a whole failed, one line each, whatever its checks say."""
    device: list = dataclasses.field(default_factory=list)      # (key, value)
    checks: list = dataclasses.field(default_factory=list)
    faults: list = dataclasses.field(default_factory=list)

    def count(self, state):
        """How many checks ended so."""
        return sum(check.state == state for check in self.checks)

    @property
    def good(self):
        """Nothing failed, and the run is whole."""
        return not self.faults and not self.count(FAIL)

    def told(self, key):
        """What the guest said of the device under that key, '' if nothing."""
        return next((value for k, value in self.device if k == key), '')


class _Reader:
    """One pass over the lines."""

    def __init__(self):
        self.outcome = Outcome()
        self.begun = False
        self.plan = self.sum = None
        self.panic = False

    def fault(self, text):
        self.outcome.faults.append(text)

    def line(self, line):
        """Takes one line without its end."""
        if re.match(r'(\[ *\d+\.\d+ c\d+\] \w+: )?panic: ', line):
            self.panic = True
            self.fault(line)
        elif line == _VERSION:
            if self.begun:
                self.fault('"TAP version 14" is there twice: it began anew')
            self.begun = True
        elif _RESULT_LIKE.match(line):
            self.result(line)
        elif _PLAN_LIKE.match(line):
            self.planned(line)
        elif line.startswith('#'):
            self.diagnostic(line)

    def result(self, line):
        match = _RESULT.fullmatch(line)
        if not match:
            self.fault(f'not a result line: {line}')
            return
        word, number, area, section, text, skip = match.groups()
        state = PASS if word == 'ok' else FAIL
        if skip:
            state = NOT_OFFERED if skip.startswith('not offered') else SKIPPED
            if word != 'ok':
                self.fault(f'check {number} failed and was skipped: {line}')
                state = FAIL
        check = Check(int(number), area, section, text, state, skip or '')
        if not self.begun:
            self.fault(f'check {number} comes before "{_VERSION}"')
        if self.plan is not None:
            self.fault(f'check {number} comes after the plan')
        if check.number != len(self.outcome.checks) + 1:
            self.fault(f'check {number} is the {len(self.outcome.checks) + 1}th')
        if any(check.key == other.key for other in self.outcome.checks):
            self.fault(f'check {number} has the name of another: {area} {section} {text}')
        self.outcome.checks.append(check)

    def planned(self, line):
        match = _PLAN.fullmatch(line)
        if not match:
            self.fault(f'not a plan: {line}')
        elif self.plan is not None:
            self.fault(f'a second plan: {line}')
        else:
            self.plan = int(match[1])

    def diagnostic(self, line):
        if PLEASE.fullmatch(line):
            return
        if match := _SUM.fullmatch(line):
            if self.sum is not None:
                self.fault(f'a second sum: {line}')
            self.sum = tuple(map(int, match.groups()))
            return
        text = _DIAGNOSTIC.fullmatch(line)[1]
        pair = _PAIR.fullmatch(text)
        pair = (pair[1], pair[2]) if pair else ('', text)
        (self.outcome.checks[-1].evidence if self.outcome.checks else self.outcome.device).append(pair)

    def end(self, exit_code):
        """Compares what was told with how it ended. exit_code: QEMU's, None if it had to be ended."""
        outcome = self.outcome
        if not self.begun:
            self.fault(f'no line "{_VERSION}": the checks did not begin')
        if self.plan is None:
            if self.begun:
                last = outcome.checks[-1] if outcome.checks else None
                self.fault('no plan at the end: ' + (f'it ended after check {last.number} ({last.area} {last.section} {last.text})'
                                                      if last else 'it ended before the first check'))
        elif self.plan != len(outcome.checks):
            self.fault(f'the plan says {self.plan} checks, there are {len(outcome.checks)}')
        elif not self.plan:
            self.fault('there is not one check')
        told = (outcome.count(PASS), outcome.count(FAIL), outcome.count(NOT_OFFERED) + outcome.count(SKIPPED))
        if self.plan is not None and self.sum is None:
            self.fault('no line "# passed ..., failed ..., skipped ..." at the end')
        elif self.sum is not None and self.sum != told:
            self.fault('its sum says {} passed, {} failed, {} skipped; counted {}, {}, {}'.format(*self.sum, *told))
        self._exit(exit_code, told[1])

    def _exit(self, code, failed):
        if code is None:
            return                  # whoever ended it says so
        wanted = EXIT_FAILED if failed else EXIT_GOOD
        if code != wanted and not (self.panic and code == 3):
            meaning = {EXIT_GOOD: 'nothing failed', 3: 'a panic', EXIT_FAILED: 'checks failed', 0: 'switched off, without a value'}
            self.fault(f'QEMU ended with {code} ({meaning.get(code, "no value of the guest")}), and {failed} checks failed: '
                       f'{wanted} was to be expected')


def read(console, exit_code):
    """The Outcome of a console's text and QEMU's exit code (None: it was ended from outside)."""
    reader = _Reader()
    for line in console.replace('\r', '').split('\n'):
        reader.line(line.rstrip())
    reader.end(exit_code)
    return reader.outcome
