#!/usr/bin/python3
"""Runs fuzz targets that `make fuzz` has built, one after the other, from the kept corpus on.

    run.py [--seconds N | --runs N] [--folder FOLDER] TARGET...

What is found new is kept in FOLDER/corpus/TARGET; an input that brings a target down in FOLDER/TARGET-crash-..., with the
report in FOLDER/TARGET.log. Exit status 0: nothing was found; 1; 2: the command line."""
import argparse
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.realpath(__file__))


def run(target, folder, seconds=0, runs=0):
    """Runs one target, for so long or so many runs; returns (whether nothing was found, a line)."""
    own, kept = os.path.join(folder, 'corpus', target), os.path.join(HERE, 'corpus', target)
    log = os.path.join(folder, f'{target}.log')
    os.makedirs(own, exist_ok=True)
    limit = [f'-max_total_time={seconds}'] if seconds else [f'-runs={runs}', '-seed=1']
    argv = [os.path.join(folder, target), '-print_final_stats=1', '-max_len=1024', '-timeout=10', '-rss_limit_mb=1024', *limit,
            f'-artifact_prefix={folder}/{target}-', own, *([kept] if os.path.isdir(kept) else [])]
    with open(log, 'w', encoding='utf-8', errors='replace') as f:
        status = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=f, stderr=f, timeout=seconds + 600, check=False).returncode
    with open(log, encoding='utf-8', errors='replace') as f:
        text = f.read()
    done, rate = (re.search(rf'stat::{name}:\s+(\d+)', text) for name in ('number_of_executed_units', 'average_exec_per_sec'))
    edges = re.findall(r'\bcov: (\d+)', text)
    found = re.search(r'^SUMMARY: .*|^.*: not true: .*|^==\d+== ERROR: .*', text, re.MULTILINE)
    told = (f'{int(done[1]):,} runs, {int(rate[1]):,} a second, {edges[-1] if edges else "?"} edges' if done and rate
            else f'ended with status {status}')
    said = '' if status == 0 else f'; FOUND: {found.group(0) if found else f"see {log}"}'
    return status == 0, f'{target}: {told}{said}'


def main():
    """The command."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description='Runs fuzz targets.')
    parser.add_argument('--seconds', type=int, default=0)
    parser.add_argument('--runs', type=int, default=0)
    parser.add_argument('--folder', default='build/fuzz')
    parser.add_argument('targets', nargs='+')
    options = parser.parse_args()
    for target in options.targets:
        if not os.access(os.path.join(options.folder, target), os.X_OK):
            print(f"there is no fuzz target '{target}' in {options.folder}: `make fuzz` builds them", file=sys.stderr)
            return 2
    good = True
    for target in options.targets:
        fine, line = run(target, os.path.abspath(options.folder), options.seconds, options.runs or 100000 * (not options.seconds))
        print(line, flush=True)
        good = good and fine
    return 0 if good else 1


if __name__ == '__main__':
    sys.exit(main())
