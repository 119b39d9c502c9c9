"""tests/fuzz: each target on the kept corpus and some thousand runs more; and a fault that is put in is found."""
import os
import shutil
import subprocess
import sys

import pytest

from helpers import ROOT

sys.path.insert(0, os.path.join(ROOT, 'tests', 'fuzz'))
import run as fuzz  # noqa: E402

RUNS = {'bootline': 20_000, 'ring': 20_000, 'capabilities': 50_000, 'receive': 1_500, 'frames': 300_000, 'device': 2_000,
        'acpi': 2_000, 'requests': 60_000, 'stack': 150}
CLANG = pytest.mark.skipif(not shutil.which('clang'), reason='no clang, which brings libFuzzer')


def built(target, folder, tree=ROOT):
    """Builds a target into a folder, from our tree or another. What comes from outside is compiled in ours."""
    env = {k: v for k, v in os.environ.items() if k not in ('MAKELEVEL', 'MFLAGS', 'MAKEFLAGS')}
    argv = ['make', '--no-print-directory', '-j2', f'BUILD={ROOT}/build', f'FUZZ={folder}', f'{folder}/{target}']
    done = subprocess.run(argv, cwd=tree, env=env, timeout=300,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


@CLANG
@pytest.mark.parametrize('target', RUNS)
def test_nothing_is_found(target, tmp_path):
    built(target, tmp_path)
    kept = os.path.join(ROOT, 'tests', 'fuzz', 'corpus', target)
    assert 10 <= len(os.listdir(kept)) <= 60
    good, line = fuzz.run(target, str(tmp_path), runs=RUNS[target])
    assert good, line


@CLANG
def test_a_fault_is_found(tmp_path):
    """The ring without a check of the used entry's id, and the harness, in a folder of their own."""
    source = open(os.path.join(ROOT, 'drivers', 'virtio', 'split.c'), encoding='utf-8').read()
    check = 'if (id >= vq->size || vq->state[id].token == NULL) {'
    assert source.count(check) == 1
    (tmp_path / 'split.c').write_text(source.replace(check, 'if (id > vq->size) {'))
    subprocess.run(['clang', '-std=gnu17', '-g', '-O1', '-I', ROOT, '-fsanitize=fuzzer,address,undefined', '-fno-sanitize-recover=all',
                    '-o', str(tmp_path / 'ring'), os.path.join(ROOT, 'tests', 'fuzz', 'ring_fuzz.c'), str(tmp_path / 'split.c')],
                   check=True, timeout=300)
    good, line = fuzz.run('ring', str(tmp_path), runs=200_000)
    assert not good and 'FOUND' in line, line
    assert [name for name in os.listdir(tmp_path) if name.startswith('ring-crash-')]


# Found from the kept corpus within a few dozen runs.
FAULTS = {
    'device': ('drivers/virtio/net.c', 'i < net->max_pairs && i < want', 'i < want'),
    'acpi': ('kernel/acpi.c', '            return;\n    found.core[', '            break;\n    found.core['),
    'requests': ('apps/netserver/record.c', '(!s->rx && !s->tx) ||', ''),
    'stack': ('net/segment.c', 'if (TCP_SEQ_GT(seqno + TCP_TCPLEN(seg), end))', 'if (0)'),
}


@CLANG
@pytest.mark.parametrize('target', [pytest.param(t, marks=pytest.mark.full) if t == 'stack' else t for t in FAULTS])
def test_a_fault_is_found_from_the_corpus(target, tmp_path):
    """A check is taken out in a copy of the tree."""
    path, check, instead = FAULTS[target]
    for part in ('Makefile', 'linker.ld', 'apps', 'boot', 'drivers', 'kernel', 'net', 'tests/fuzz', 'tests/unit', 'tools'):
        source, to = os.path.join(ROOT, part), tmp_path / 'tree' / part
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, to) if os.path.isdir(source) else shutil.copy2(source, to)
    source = (tmp_path / 'tree' / path).read_text()
    assert source.count(check) == 1
    (tmp_path / 'tree' / path).write_text(source.replace(check, instead))
    built(target, tmp_path, tmp_path / 'tree')
    good, line = fuzz.run(target, str(tmp_path), runs=2_000)
    assert not good and 'FOUND' in line, line


def test_usage(tmp_path):
    done = subprocess.run([os.path.join(ROOT, 'tests', 'fuzz', 'run.py'), '--folder', str(tmp_path), 'nothing'], capture_output=True,
                          text=True, timeout=30, check=False)
    assert done.returncode == 2 and "no fuzz target 'nothing'" in done.stderr and len(done.stderr.splitlines()) == 1
