"""tests/mutants: its data fit the clause table, its runner sees what survives; some of the faults, or with --full all."""
import importlib.util
import os

import pytest

from helpers import ROOT

_spec = importlib.util.spec_from_file_location('mutants_run', os.path.join(ROOT, 'tests', 'mutants', 'run.py'))
mutants = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(mutants)

NO_CHANGE = '''file: drivers/virtio/features.c

2.2.1/2 | unit:features_test:test_each_dependency | nothing is wrong
-     { VIRTIO_NET_F_MQ, true, "mq", CTRL_VQ, 0 },
+     { VIRTIO_NET_F_MQ, true, "mq", (CTRL_VQ), 0 },

2.2.1/2 | unit:features_test:test_each_dependency | MQ without the control queue
-     { VIRTIO_NET_F_MQ, true, "mq", CTRL_VQ, 0 },
+     { VIRTIO_NET_F_MQ, true, "mq", 0, 0 },

2.2.1/2 | unit:features_test:test_each_dependency | no C
-     { VIRTIO_NET_F_MQ, true, "mq", CTRL_VQ, 0 },
+     { VIRTIO_NET_F_MQ, true, "mq", CTRL_VQ, 0 }}

2.2.1/2 | unit:features_test:test_each_dependency | lines that are not there
- no such line
'''


def test_there_are_enough_and_each_group_has_one():
    faults, shown = mutants.load(), mutants.shown_clauses()
    assert len(faults) >= 80 and len({f.program for f in faults}) >= 10
    assert mutants.misfits(faults, shown) == [] and mutants.bare_groups(faults, shown) == []


def test_what_does_not_fit_the_table_is_told():
    faults = mutants.parse(NO_CHANGE.replace('2.2.1/2', '2.2.1/99', 1).replace('each_dependency', 'order', 2), 'x.txt')
    said = mutants.misfits(faults, mutants.shown_clauses())
    assert len(said) == 2 and 'x.txt:3: the table has no statement 2.2.1/99' in said[0] and 'features_test:test_order' in said[1]
    assert '2.7.1' in mutants.bare_groups(faults, mutants.shown_clauses())


@pytest.mark.parametrize('text, where', [('- a\n', 'x:1'), ('file: a.c\n2.1 | ring_test:a | b\n', 'x:2'),
                                         ('2.1/1 | unit:ring_test:test_a | b\n', 'x:1')])
def test_bad_data(text, where):
    with pytest.raises(mutants.DataError, match=where):
        mutants.parse(text, 'x')


def test_survivors_are_seen(tmp_path):
    said = []
    assert mutants.run(mutants.parse(NO_CHANGE, 'x.txt'), 1, str(tmp_path), said.append) == (1, 3)
    assert [line.split(':')[0] for line in said] == ['SURVIVED', 'DOES NOT COMPILE', 'NOT THERE'], said


def test_a_test_that_is_not_there(tmp_path):
    with pytest.raises(mutants.DataError, match='features_test has no test test_nothing'):
        mutants.run(mutants.parse(NO_CHANGE.replace('test_each_dependency', 'test_nothing'), 'x.txt')[:2], 1, str(tmp_path), print)


def test_some_faults(tmp_path):
    chosen = [f for f in mutants.load() if f.program in ('features_test', 'clauses_ring_test')][::3]
    said = []
    assert mutants.run(chosen, 2, str(tmp_path), said.append) == (len(chosen), 0), said


@pytest.mark.full
@pytest.mark.seconds(1800)
def test_all_faults(tmp_path):
    faults, said = mutants.load(), []
    assert mutants.run(faults, 2, str(tmp_path), said.append) == (len(faults), 0), said
