"""tests/conformance: the clause table is whole and its document up to date, and its checks see what is wrong."""
import os
import subprocess
import sys

import pytest
from helpers import ROOT

CONFORMANCE = os.path.join(ROOT, 'tests', 'conformance')
sys.path.insert(0, CONFORMANCE)

import check  # noqa: E402
import spec  # noqa: E402
import table  # noqa: E402


def check_py(*args):
    """Runs check.py; returns its CompletedProcess."""
    return subprocess.run([sys.executable, os.path.join(CONFORMANCE, 'check.py'), *map(str, args)], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=180, check=False)


def row(section='1.1', number='1', strength='MUST', text='does it', verdict='shown', evidence='unit:a_test:test_a', version='1.3'):
    return table.Row([section, number, strength, text, verdict, evidence], 'file:1', version)


def test_the_table_is_whole():
    done = check_py()
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_document_is_up_to_date():
    with open(table.DOCUMENT, encoding='utf-8') as document:
        assert document.read() == table.document(table.read_rows()), 'make conformance-table'


def test_every_row_begins_with_its_section():
    with open(table.DOCUMENT, encoding='utf-8') as document:
        cells = [line.split('|')[1].strip() for line in document.read().split('\n## ', 1)[1].splitlines() if line.startswith('|')]
    sections = [cell for cell in cells if cell not in ('section', '---')]
    assert len(sections) == len(table.read_rows())
    assert all(section.replace('.', '').isdigit() for section in sections)


# ---- what is wrong is found ----

def test_missing_double_and_unknown_rows():
    sections = {'1.1': ([1, 2], 2, 'T')}
    assert not list(check.check_sections([row(), row(number='2')], '1.3', sections))
    assert 'statement 2: no row' in ''.join(check.check_sections([row()], '1.3', sections))
    assert '2 rows' in ''.join(check.check_sections([row(), row(), row(number='2')], '1.3', sections))
    assert 'no such statement' in ''.join(check.check_sections([row(), row(number='2'), row(number='3')], '1.3', sections))
    assert 'no such statement' in ''.join(check.check_sections([row(), row(number='2'), row(section='9.9')], '1.3', sections))


def test_same_words_twice():
    assert list(check.check_texts([row(), row(number='2')]))
    assert not list(check.check_texts([row(), row(number='2', text='does that')]))


def test_tests_that_are_not_there():
    assert not list(check.check_tests([row()], {'unit:a_test:test_a'}))
    assert list(check.check_tests([row()], {'unit:a_test:test_b'}))
    assert list(check.check_tests([row(evidence='unit:a_test:test_a unit:a_test:test_a')], {'unit:a_test:test_a'}))


def test_features_that_are_there_by_now():
    good = row(verdict='never packed', evidence='unit:a_test:test_never_packed')
    assert not list(check.check_never([good], {'csum'}))
    assert 'implemented now' in ''.join(check.check_never([good], {'packed'}))
    assert 'does not name' in ''.join(check.check_never([row(verdict='never in_order', evidence='unit:a_test:test_never_packed')], set()))
    assert {'csum', 'version_1', 'rss'} <= check.implemented_features()
    assert 'access_platform' not in check.implemented_features()


def test_share_of_what_does_not_apply():
    rows = [row(verdict='n/a', evidence='none')] + [row()] * 4
    assert not list(check.check_share(rows))
    assert list(check.check_share(rows[:4]))
    assert list(check.check_share([row(verdict='open', evidence='why', strength='MUST NOT')] + [row()] * 9))
    assert not list(check.check_share([row(verdict='open', evidence='why', strength='SHOULD')] + [row()] * 9))


@pytest.mark.parametrize('fields', [
    ['1.1', 'x', 'MUST', 'a', 'shown', 'b'], ['1.1', '1', 'WILL', 'a', 'shown', 'b'], ['1.1', '1', 'MUST', 'a', 'seen', 'b'],
    ['1.1', '1', 'MUST', 'a', 'never', 'b'], ['1.1', '1', 'MUST', 'a', 'shown packed', 'b'], ['1.1', '1', 'MUST', '', 'shown', 'b'],
    ['1.1', '1', 'MUST', 'a', 'n/a', ''],
])
def test_bad_rows(fields):
    with pytest.raises(table.TableError):
        table.Row(fields, 'file:1', '1.3')


def test_what_ran(tmp_path):
    (tmp_path / 'a_test.xml').write_text('<testsuites><testsuite name="a"><testcase name="test_a"/><testcase name="test_b"><failure/>'
                                         '</testcase><testcase name="test_c"><skipped/></testcase></testsuite></testsuites>')
    (tmp_path / 'junit.xml').write_text('<testsuites><testsuite><testcase classname="tests.system.test_x" name="test_y[r-1]"/>'
                                        '<testcase classname="tests.system.test_x" name="test_z"/>'
                                        '<testcase classname="tests.system.test_x" name="test_z"><error/></testcase></testsuite></testsuites>')
    results = check.read_results([tmp_path / 'a_test.xml', tmp_path / 'junit.xml'])

    def ran(test):
        return list(check.check_ran([row(evidence=test)], results))
    assert not ran('unit:a_test:test_a') and not ran('system:test_x::test_y[r-1]')
    for test, outcome in (('unit:a_test:test_b', 'failure'), ('unit:a_test:test_c', 'skipped'), ('unit:a_test:test_d', 'not run'),
                          ('unit:b_test:test_a', 'not run'), ('system:test_x::test_z', 'error'), ('system:test_x::test_y', 'not run')):
        assert ran(test) == [f'{test}: {outcome}']
    assert check_py('--results', tmp_path / 'none.xml').returncode == 1
    assert 'not run' in check_py('--results', tmp_path / 'a_test.xml').stdout


def test_unit_tests_are_those_that_programs_list():
    found = check.unit_tests()
    assert {'unit:ring_thread_tsan:test_flags', 'unit:ring_thread_fast:test_flags', 'unit:net_test:test_mac',
            'unit:ring_test:test_kick_after_each_256'} <= found
    assert not any(test.startswith('unit:net_test:test_kick') for test in found)


# ---- counting statements, in a specification of our own ----

SOURCES = {
    'introduction.tex': r'\chapter{One} MUST',
    'content.tex': r'''
\chapter{Two}
\section{Not ours} It MUST. % MUST
\drivernormative{\subsection}{Title}{label / one}
It MUST do this and MUST
NOT do that. \field{MAYBE} is nothing. % it MUST be left out
\begin{itemize}
\item it SHOULD NOT stop;
\item it MAY.
\end{itemize}
\devicenormative{\subsection}{Title}{label / two} It MUST.
\section*{No number} \input{more}
\section{Last} It MUST.
''',
    'more.tex': r'''\subsection{Before}\drivernormative{\subsubsection}{Deep \field{one}}{label / three} It is RECOMMENDED, OPTIONAL. ''',
}


@pytest.fixture(name='sources')
def write_sources(tmp_path):
    for name, text in SOURCES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_statements_are_counted(sources):
    found = spec.clauses(sources)
    assert [(clause.number, clause.title) for clause in found] == [('2.1.1', 'Title'), ('2.1.3.1', r'Deep \field{one}')]
    assert [strength for strength, _ in found[0].statements()] == ['MUST', 'MUST NOT', 'SHOULD NOT', 'MAY']
    assert [strength for strength, _ in found[1].statements()] == ['SHOULD', 'MAY']


def test_the_list_of_sections_against_the_specification(sources):
    found = spec.clauses(sources)
    assert not list(check.check_counts({'2.1.1': ([], 4, 'Title'), '2.1.3.1': ([], 2, 'Deep')}, found, '1.3'))
    assert len(list(check.check_counts({'2.1.1': ([], 3, 'Title'), '2.2': ([], 1, 'No')}, found, '1.3'))) == 3
    assert not list(check.check_strengths([row(section='2.1.1', number='3', strength='SHOULD NOT')], found, '1.3'))
    assert list(check.check_strengths([row(section='2.1.1', number='3', strength='SHOULD')], found, '1.3'))


def test_additions_are_found_by_their_text(sources, tmp_path_factory):
    newer = tmp_path_factory.mktemp('newer')
    for name, text in SOURCES.items():
        (newer / name).write_text(text.replace(r'\item it MAY.', '\\item it SHOULD go on.\n\\item it MAY.'))
    assert spec.additions(spec.clauses(sources), spec.clauses(newer)) == {'2.1.1': [4], '2.1.3.1': []}
    assert table.parse_numbers('1,5,16-18') == [1, 5, 16, 17, 18] and table.parse_numbers('-') == []
    assert table.format_numbers([1, 5, 16, 17, 18]) == '1,5,16-18' and table.format_numbers([]) == '-'
