"""The set-up scripts: packages.sh, fetch-sources.sh, deps.sh, build-newlib.sh, notice.py, check-format.sh."""
import os
import re
import shutil
import subprocess
import time

import pytest
from helpers import ROOT, TOOLS, one_line, script, tool


def cache():
    """The cache that the build of this tree uses."""
    base = os.environ.get('XDG_CACHE_HOME') or os.path.join(os.path.expanduser('~'), '.cache')
    return os.environ.get('RINGSIDE_CACHE') or os.path.join(base, 'ringside')


def variables(makefile):
    """The variables that deps.sh wrote."""
    with open(makefile, encoding='utf-8') as f:
        return dict(re.findall(r'^([A-Z_]+) := (.*)$', f.read(), re.MULTILINE))


@pytest.fixture(scope='module', name='deps')
def make_deps(tmp_path_factory):
    """What deps.sh gives in the cache of this tree; everything is there afterwards."""
    out = tmp_path_factory.mktemp('deps') / 'deps.mk'
    done = tool('deps.sh', out, timeout=600)
    assert done.returncode == 0, done.stderr
    return variables(out)


# ---- packages.sh

@pytest.fixture(name='fake')
def make_fake(tmp_path):
    """A folder of stand-ins to put before PATH: a dpkg that lacks gcc and make until apt-get "installs" them, and a log."""
    state = tmp_path / 'state'
    state.mkdir()
    folder = tmp_path / 'fake'
    folder.mkdir()
    script(folder / 'dpkg-query', f'''
for a in "$@"; do
  case $a in
    -*|*[$]*) ;;
    gcc|make) [ -e {state}/installed ] && echo "$a installed" || echo "$a config-files" ;;
    *) echo "$a installed" ;;
  esac
done
exit 1
''')
    script(folder / 'apt-get', f'echo "apt-get $*" >> {state}/log\n[[ $* != *" install "* ]] || touch {state}/installed\n')
    return folder, state


def fake_env(folder, uid):
    """PATH with the stand-ins first, and an `id -u` that says so."""
    script(folder / 'id', f'echo {uid}\n')
    return {'PATH': f'{folder}:/usr/bin:/bin'}


def test_nothing_missing_is_silent_and_calls_no_apt(fake):
    folder, state = fake
    (state / 'installed').touch()
    done = tool('packages.sh', 'build', 'iso', 'run', 'test', 'kvm', env=fake_env(folder, 1000))
    assert (done.returncode, done.stdout, done.stderr) == (0, '', '')
    assert not (state / 'log').exists()


def test_missing_packages_are_installed_and_named(fake):
    folder, state = fake
    done = tool('packages.sh', 'build', env=fake_env(folder, 0))
    assert done.returncode == 0, done.stderr
    assert re.search(r'^ +gcc +\S', done.stderr, re.MULTILINE) and re.search(r'^ +make +\S', done.stderr, re.MULTILINE)
    calls = (state / 'log').read_text().splitlines()
    assert len(calls) == 2 and calls[0].endswith(' update')
    assert calls[1].endswith('install -y --no-install-recommends gcc make')
    assert 'DPkg::Lock::Timeout=' in calls[1]


def test_sudo_is_used(fake):
    folder, state = fake
    script(folder / 'sudo', f'echo sudo >> {state}/sudo; [ "$1" = -n ] && shift; exec "$@"\n')
    assert tool('packages.sh', 'build', env=fake_env(folder, 1000)).returncode == 0
    assert (state / 'installed').exists() and (state / 'sudo').read_text().count('sudo') >= 2


def test_without_rights_one_line_with_the_command(fake):
    folder, state = fake
    script(folder / 'sudo', 'exit 1\n')
    line = one_line(tool('packages.sh', 'build', env=fake_env(folder, 1000)))
    assert line.endswith('apt-get install -y --no-install-recommends gcc make')
    assert not (state / 'log').exists()


def test_without_apt_one_line(fake, tmp_path):
    folder, _ = fake
    os.unlink(folder / 'apt-get')
    few = tmp_path / 'few'
    few.mkdir()
    for name in ('bash', 'env', 'cat'):
        os.symlink(shutil.which(name), few / name)
    path = {'PATH': f'{folder}:{few}'}
    line = one_line(tool('packages.sh', 'build', env=path))
    assert 'apt' in line and 'gcc make' in line
    assert tool('packages.sh', 'build', env={**path, 'RINGSIDE_PACKAGES': 'skip'}).returncode == 0


def test_apt_that_fails_is_told(fake):
    folder, _ = fake
    script(folder / 'apt-get', '[[ $* != *" install "* ]] || { echo "E: no such thing"; exit 100; }\n')
    done = tool('packages.sh', 'build', env=fake_env(folder, 0))
    assert done.returncode == 1 and 'E: no such thing' in done.stderr and 'gcc make' in done.stderr.splitlines()[-1]


@pytest.mark.parametrize('args', [(), ('foo',), ('build', 'foo')])
def test_groups_that_do_not_exist(args):
    assert 'build clang iso run test kvm' in one_line(tool('packages.sh', *args))


def test_groups_hold_what_they_are_for():
    def group(name):
        return tool('packages.sh', '--list', name).stdout.split()
    assert {'gcc', 'make', 'debian-archive-keyring', 'linux-libc-dev'} <= set(group('build'))
    assert {'xorriso', 'mtools', 'grub-pc-bin', 'grub-efi-amd64-bin'} <= set(group('iso'))
    assert {'qemu-system-x86', 'iproute2'} <= set(group('run'))
    assert {'libcmocka-dev', 'python3-pytest', 'ovmf', 'clang-format'} <= set(group('test'))
    assert {'qemu-system-x86', 'gcc', 'libc6-dev'} <= set(group('kvm'))
    everything = tool('packages.sh', '--list', 'build', 'clang', 'iso', 'run', 'test', 'kvm').stdout.split()
    assert len(everything) == len(set(everything))


# ---- deps.sh

def test_second_time_is_fast_and_offline(deps, tmp_path):
    assert deps
    quick = []
    while len(quick) < 20 and min(quick, default=1) >= 0.2:     # a loaded machine may need a second look
        began = time.monotonic()
        done = tool('deps.sh', tmp_path / 'deps.mk', env={'http_proxy': 'http://127.0.0.1:9'})
        quick.append(time.monotonic() - began)
        assert (done.returncode, done.stdout, done.stderr) == (0, '', '')
    assert variables(tmp_path / 'deps.mk') == deps
    assert min(quick) < 0.2, quick


def test_what_it_names_is_there(deps):
    assert os.path.isfile(os.path.join(deps['LWIP_DIR'], 'src', 'Filelists.mk'))
    assert os.path.isfile(os.path.join(deps['NEWLIB_DIR'], 'include', 'stdio.h'))
    assert os.path.isfile(os.path.join(deps['NEWLIB_DIR'], 'lib', 'libc.a'))
    assert os.path.isfile(deps['NEWLIB_ARCHIVE'])


def test_two_at_once_from_an_empty_cache(deps, tmp_path):
    env = {**os.environ, 'RINGSIDE_CACHE': str(tmp_path / 'cache'), 'FETCH_CACHE': os.path.dirname(deps['NEWLIB_ARCHIVE'])}
    # What an interrupted run left behind is no hindrance.
    (tmp_path / 'cache' / 'newlib' / '.newlib.old').mkdir(parents=True)
    both = [subprocess.Popen([os.path.join(TOOLS, 'deps.sh'), str(tmp_path / f'{i}.mk')], env=env, stderr=subprocess.PIPE,
                             stdin=subprocess.DEVNULL, text=True) for i in range(2)]
    texts = [process.communicate(timeout=300)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], texts
    assert sum(text.count('building newlib') for text in texts) == 1
    assert variables(tmp_path / '0.mk') == variables(tmp_path / '1.mk')
    assert sorted(os.listdir(tmp_path / 'cache' / 'newlib')) == [os.path.basename(variables(tmp_path / '0.mk')['NEWLIB_DIR'])]


def test_an_emptied_cache_is_filled_by_the_next_make(deps, tmp_path):
    for name in ('LWIP_DIR', 'NEWLIB_DIR', 'NEWLIB_ARCHIVE'):
        place = tmp_path / 'cache' / os.path.relpath(deps[name], cache())
        (shutil.copy if name == 'NEWLIB_ARCHIVE' else shutil.copytree)(deps[name], made(place))
    env = {**os.environ, 'RINGSIDE_CACHE': str(tmp_path / 'cache'), 'FETCH_CACHE': os.path.dirname(deps['NEWLIB_ARCHIVE'])}
    (tmp_path / 'Makefile').write_text(f'include deps.mk\nall: ; @echo goal all\ndeps.mk: ; @echo deps >&2; {TOOLS}/deps.sh $@\n')

    def make():
        done = subprocess.run(['make', '-s'], cwd=tmp_path, env={**env, 'MAKEFLAGS': ''}, capture_output=True, text=True,
                              timeout=300, check=True)
        assert done.stdout == 'goal all\n'
        return done.stderr
    assert make() == 'deps\n'
    assert make() == ''
    lwip = variables(tmp_path / 'deps.mk')['LWIP_DIR']
    assert lwip.startswith(str(tmp_path))
    shutil.rmtree(lwip)
    assert make() == 'deps\n'
    assert os.path.isfile(os.path.join(lwip, 'src', 'Filelists.mk'))


def made(path):
    """The path, its folder made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@pytest.mark.parametrize('env, word', [
    ({'CC': 'no-such-cc'}, 'no-such-cc'),
    ({'RINGSIDE_CACHE': '/proc/nothing'}, '/proc/nothing'),
    ({'RINGSIDE_CACHE': '/tmp/a b'}, '/tmp/a b'),
])
def test_deps_tells_what_is_wrong(tmp_path, env, word):
    assert word in one_line(tool('deps.sh', tmp_path / 'out.mk', env=env), status=1)
    assert not (tmp_path / 'out.mk').exists()


# ---- fetch-sources.sh

def test_a_file_counts_only_with_its_hash(deps, tmp_path):
    good = deps['NEWLIB_ARCHIVE']
    with open(os.path.join(TOOLS, 'pins.txt'), encoding='utf-8') as f:
        line = next(line for line in f if ' newlib ' in line)
    (tmp_path / 'pins').write_text(line)
    (tmp_path / 'from').mkdir()
    name = os.path.basename(good)
    env = {'FETCH_CACHE': f'/nowhere:{tmp_path}/from', 'PATH': few_programs(tmp_path)}
    with open(good, 'rb') as f:
        (tmp_path / 'from' / name).write_bytes(f.read() + b'x')
    done = tool('fetch-sources.sh', tmp_path / 'to', tmp_path / 'pins', env=env)
    assert done.returncode == 1 and name in done.stderr
    assert not (tmp_path / 'to' / name).exists()
    shutil.copy(good, tmp_path / 'from' / name)
    assert tool('fetch-sources.sh', tmp_path / 'to', tmp_path / 'pins', env=env).returncode == 0
    assert (tmp_path / 'to' / name).exists()


def few_programs(tmp_path):
    """A PATH without apt-get."""
    folder = tmp_path / 'programs'
    folder.mkdir()
    for name in ('bash', 'env', 'dirname', 'mkdir', 'flock', 'sha256sum', 'cut', 'cp', 'chmod', 'mv'):
        os.symlink(shutil.which(name), folder / name)
    return str(folder)


def test_bad_pins_are_refused(tmp_path):
    (tmp_path / 'pins').write_text('abc file pkg suite\n')
    assert 'bad line' in one_line(tool('fetch-sources.sh', tmp_path / 'to', tmp_path / 'pins'), status=1)


# ---- newlib

KERNEL_GIVES = {'read', 'write', 'close', 'lseek', 'fstat', 'isatty', 'malloc', 'realloc', 'free', '_malloc_r', '_calloc_r',
                '_realloc_r', '_free_r', '__assert_func', 'memcpy', 'memmove', 'memset'}


def test_newlib_asks_the_kernel_for_no_more_than_documented(deps):
    text = subprocess.run(['nm', os.path.join(deps['NEWLIB_DIR'], 'lib', 'libc.a')], capture_output=True, text=True, check=True,
                          timeout=20).stdout
    defined = set(re.findall(r'^[0-9a-f]+ [A-Z] (\S+)$', text, re.MULTILINE))
    wanted = set(re.findall(r'^ +U (\S+)$', text, re.MULTILINE)) - {'_GLOBAL_OFFSET_TABLE_'}
    assert wanted - defined <= KERNEL_GIVES
    assert not defined & KERNEL_GIVES


@pytest.mark.parametrize('link', [('-static-pie', '-Wl,--no-dynamic-linker', '-Wl,-z,norelro'), ('-static', '-no-pie')])
def test_newlib_links_and_works(deps, tmp_path, link):
    own = subprocess.run(['gcc', '-print-file-name=include'], capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    program = str(tmp_path / 'check')
    subprocess.run(['gcc', '-std=gnu17', '-D_GNU_SOURCE', '-O2', '-Wall', '-Wextra', '-Werror', '-ffreestanding', '-fPIE',
                    '-fvisibility=hidden', '-fno-stack-protector', '-nostdinc', '-isystem', deps['NEWLIB_DIR'] + '/include',
                    '-isystem', own, '-nostdlib', '-Wl,--gc-sections', '-Wl,--fatal-warnings', *link, '-o', program,
                    os.path.join(ROOT, 'tests', 'tools', 'newlib_check.c'), deps['NEWLIB_DIR'] + '/lib/libc.a'],
                   check=True, timeout=60)
    if '-static-pie' in link:               # it has no loader here: what counts is that it needs relative relocations only
        text = subprocess.run(['readelf', '-rW', program], capture_output=True, text=True, check=True, timeout=20).stdout
        assert set(re.findall(r'R_X86_64_\w+', text)) == {'R_X86_64_RELATIVE'}
        return
    done = subprocess.run([program], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        ' 3.14|1e+300|1.500000e+00|0x1.8p+0|-1234567890123|7|0xff|0x10|3    |+4|c|abc|   2|00042|% 89',
        '7',
        '2500.000 -16 63 99',
        '1 1 Result too large',
        'a b llo 1 0',
        '1 3 5 9',
        '3 3',
    ]


# ---- NOTICE, formatting

def test_notice_is_what_the_sources_say(deps, tmp_path):
    done = tool('notice.py', '--check', deps['LWIP_DIR'], deps['NEWLIB_ARCHIVE'])
    assert done.returncode == 0, done.stderr
    text = tool('notice.py', deps['LWIP_DIR'], deps['NEWLIB_ARCHIVE']).stdout
    for words in ('Swedish Institute of Computer Science', 'Lucent Technologies', 'Red Hat, Inc.',
                  'Regents of the University of California', 'IBM'):
        assert words in text
    # Another set of sources makes another text, and the check sees it.
    shutil.copytree(os.path.join(deps['LWIP_DIR'], 'src', 'core'), tmp_path / 'src' / 'core')
    shutil.copy(os.path.join(deps['LWIP_DIR'], 'COPYING'), tmp_path)
    (tmp_path / 'src' / 'core' / 'new.c').write_text('/* Copyright (c) 2030 Somebody */\n')
    (tmp_path / 'src' / 'core' / 'other.c').write_text('/* Copyright (c) 2030 Nobody\n * Permission to use is granted. */\n')
    assert tool('notice.py', '--check', tmp_path, deps['NEWLIB_ARCHIVE']).returncode == 1


def test_check_format_sees_a_difference(tmp_path):
    subprocess.run(['git', 'init', '-q', tmp_path], check=True, timeout=20)
    (tmp_path / 'tools').mkdir()
    for name in ('tools/check-format.sh', '.clang-format'):
        shutil.copy(os.path.join(ROOT, name), tmp_path / name)
    command = [tmp_path / 'tools' / 'check-format.sh']

    def check(content):
        (tmp_path / 'a.c').write_text(content)
        subprocess.run(['git', '-C', tmp_path, 'add', 'a.c'], check=True, timeout=20)
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 2   # nothing to check
    assert check('int a;\n').returncode == 0
    assert check('int   a ;\n').returncode == 1
