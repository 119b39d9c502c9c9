"""tools/ringside test: the sums. Whatever goes wrong must count."""
import pytest
import helpers  # noqa: F401  (sets the path to rslib)

from rslib import testrun

PASS, FAIL, ERROR, SKIP = '', '<failure message="m">t</failure>', '<error message="m">t</error>', '<skipped message="s"/>'


def junit(tmp_path, *cases):
    """Writes a JUnit file with a test case of each kind; a pair sets the name."""
    path = tmp_path / 'junit.xml'
    named = [case if isinstance(case, tuple) else (f't{i}', case) for i, case in enumerate(cases)]
    text = ''.join(f'<testcase classname="c" name="{name}" time="0.1">{inner}</testcase>' for name, inner in named)
    path.write_text(f'<?xml version="1.0"?><testsuites><testsuite name="pytest">{text}</testsuite></testsuites>')
    return str(path)


@pytest.mark.parametrize('cases, status, expected', [
    ([PASS, PASS], 0, (2, 0, 0)),
    ([PASS, FAIL, ERROR, SKIP], 1, (1, 2, 1)),
    ([('a', FAIL), ('a', ERROR)], 1, (0, 1, 0)),        # failed in its teardown too: one test
    ([('a', PASS), ('a', ERROR)], 1, (0, 1, 0)),
    ([PASS], 2, (1, 1, 0)),                             # interrupted
    ([PASS], 3, (1, 1, 0)),                             # pytest itself broke
    ([PASS], 1, (1, 1, 0)),                             # says "failed", names none
    ([PASS], 124, (1, 1, 0)),                           # out of time
    ([], 5, (0, 1, 0)),                                 # nothing found
])
def test_junit(tmp_path, cases, status, expected):
    tally = testrun.junit_tally(junit(tmp_path, *cases), status)
    assert (tally.passed, tally.failed, tally.skipped) == expected


def test_junit_missing_or_broken(tmp_path):
    assert testrun.junit_tally(str(tmp_path / 'none.xml'), 0).failed == 1
    (tmp_path / 'cut.xml').write_text('<testsuites><testsuite><testcase name="a"/>')
    tally = testrun.junit_tally(str(tmp_path / 'cut.xml'), 1)
    assert (tally.passed, tally.failed) == (0, 1)


def test_selection_may_leave_nothing_in_pytest_but_then_nothing_passed(tmp_path):
    tally = testrun.junit_tally(junit(tmp_path), 5, selecting=True)
    assert tally.failed == 0 and not tally.good


@pytest.mark.parametrize('output, status, expected', [
    ('ok a\nunit: 12 passed, 0 failed in 1.0 s\n', 0, (12, 0)),
    ('unit: 12 passed, 3 failed in 1.0 s\n', 2, (12, 3)),
    ('unit: 12 passed, 0 failed in 1.0 s\n', 2, (12, 1)),   # make failed all the same
    ('cc: error\n', 2, (0, 1)),                             # does not compile
    ('', 0, (0, 1)),                                        # nothing ran
    ('unit: 0 passed, 0 failed in 0.0 s\n', 0, (0, 1)),
    ('the unit: 5 passed, 0 failed\n', 0, (0, 1)),          # not the line
])
def test_unit(output, status, expected):
    tally = testrun.unit_tally(output, status)
    assert (tally.passed, tally.failed) == expected


@pytest.mark.parametrize('counts, line, good', [
    ((3, 0, 0), '3 passed, 0 failed', True), ((3, 1, 2), '3 passed, 1 failed, 2 skipped', False),
    ((0, 0, 0), '0 passed, 0 failed', False), ((0, 0, 4), '0 passed, 0 failed, 4 skipped', False),
])
def test_line(counts, line, good):
    tally = testrun.Tally(*counts)
    assert tally.line() == line and tally.good == good


def test_make_variables_are_handed_down_but_not_the_jobserver(monkeypatch):
    monkeypatch.setenv('MAKEFLAGS', 'k -j4 --jobserver-auth=3,4 -- CC=clang BUILD=build/clang')
    monkeypatch.setenv('MAKELEVEL', '1')
    env = testrun.child_environment()
    assert env['MAKEFLAGS'] == ' -- CC=clang BUILD=build/clang'
    assert 'MAKELEVEL' not in env
    monkeypatch.setenv('MAKEFLAGS', 'k -j4 --jobserver-auth=3,4')
    assert 'MAKEFLAGS' not in testrun.child_environment()


def test_run_ends_at_its_limit(capfdbinary):
    status, output = testrun.run(['bash', '-c', 'echo begun; exec sleep 60'], 1)
    assert status == 124 and output == 'begun\n'
    assert capfdbinary.readouterr().out == b'begun\n'


def test_run_tells_the_status():
    assert testrun.run(['bash', '-c', 'echo a; exit 3'], 20) == (3, 'a\n')
