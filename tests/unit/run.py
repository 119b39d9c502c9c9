#!/usr/bin/python3
"""Runs cmocka programs and sums up: run.py DIR PROGRAM...

Each program DIR/PROGRAM leaves DIR/PROGRAM.xml (cmocka's XML) and DIR/PROGRAM.log (what it wrote). A program that crashes, times
out, leaves no result or exits with another status than its results say counts as a failure. Exit status: 0, or 1 after any failure.
"""
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

TIMEOUT_S = 300
LOG_TAIL_LINES = 25


def run_program(path, xml_path, timeout_s):
    """Runs one program; returns (exit status, output, note). The status is None after a time-out."""
    env = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="xml", CMOCKA_XML_FILE=xml_path)
    if os.path.exists(xml_path):
        os.unlink(xml_path)  # cmocka does not overwrite
    argv = [path]
    for _ in range(2):
        try:
            done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, timeout=timeout_s)
        except subprocess.TimeoutExpired as expired:
            return None, (expired.stdout or b"").decode(errors="replace"), f"no end after {timeout_s} s"
        except OSError as error:
            return None, "", f"cannot be run: {error.strerror}"
        output = done.stdout.decode(errors="replace")
        if "unexpected memory mapping" not in output:
            break
        # ThreadSanitizer cannot live with the address randomisation of some kernels (mmap_rnd_bits 32).
        argv = ["setarch", os.uname().machine, "-R", path]
    status = done.returncode
    note = f"killed by signal {-status}" if status < 0 else ""
    return status, output, note


def read_results(xml_path):
    """Returns [(test, failure message or None)]; an empty list when there is no readable result."""
    try:
        root = ElementTree.parse(xml_path).getroot()
    except (OSError, ElementTree.ParseError):
        return []
    results = []
    for case in root.iter("testcase"):
        bad = case.find("failure")
        if bad is None:
            bad = case.find("error")
        text = None if bad is None else (bad.text or bad.get("message") or "no message").strip()
        results.append((case.get("name"), text))
    return results


def judge(status, results, note):
    """What is wrong with a program beyond its failed tests, or None."""
    failed = sum(1 for _, text in results if text is not None)
    if note:
        return note
    if not results:
        return f"no results (exit status {status})"
    if (status != 0) != (failed > 0):
        return f"exit status {status} although {failed} tests failed"
    return None


def main(argv):
    if len(argv) < 3:
        print("usage: run.py DIR PROGRAM...", file=sys.stderr)
        return 2
    directory, programs = argv[1], argv[2:]
    passed = failed = 0
    start = time.monotonic()
    for program in programs:
        began = time.monotonic()
        xml_path = os.path.join(directory, program + ".xml")
        status, output, note = run_program(os.path.join(directory, program), xml_path, TIMEOUT_S)
        with open(os.path.join(directory, program + ".log"), "w", encoding="utf-8") as log:
            log.write(output)
        results = read_results(xml_path)
        bad = [(name, text) for name, text in results if text is not None]
        wrong = judge(status, results, note)
        passed += len(results) - len(bad)
        failed += len(bad) + (wrong is not None)
        print(f"{'FAIL' if bad or wrong else 'ok  '} {program:<24} {len(results) - len(bad):4} passed "
              f"{len(bad):3} failed {time.monotonic() - began:6.1f} s", flush=True)
        for name, text in bad:
            print(f"     {name}:\n       " + "\n       ".join(text.splitlines()))
        if wrong:
            print(f"     {program}: {wrong}")
        if bad:
            output = output.split("==ERROR: LeakSanitizer")[0]  # failed tests do not tidy up
        if bad or wrong:
            print("       " + "\n       ".join(output.splitlines()[-LOG_TAIL_LINES:]))
    print(f"unit: {passed} passed, {failed} failed in {time.monotonic() - start:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
