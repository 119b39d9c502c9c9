"""What the tests of the tools share."""
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOLS = os.path.join(ROOT, 'tools')
if TOOLS not in sys.path:
    sys.path.insert(0, TOOLS)


def tool(name, *args, env=None, timeout=60, cwd=ROOT):
    """Runs tools/NAME; returns its CompletedProcess with text output."""
    return subprocess.run([os.path.join(TOOLS, name), *map(str, args)], cwd=cwd, env={**os.environ, **(env or {})},
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False)


def script(path, text):
    """Writes an executable shell script; returns its path."""
    with open(path, 'w', encoding='utf-8') as f:
        f.write('#!/bin/bash\n' + text)
    os.chmod(path, 0o755)
    return str(path)


def one_line(done, status=2):
    """Asserts that a command ended with that status and one line on stderr, nothing on stdout; returns the line."""
    assert done.returncode == status, done
    assert done.stdout == '', done
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]
