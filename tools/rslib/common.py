"""What the modules of tools/ringside share: where the project lies, and the error that ends in one line."""
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


class UsageError(Exception):
    """The command line asks for what is not valid or not to be had here. Its text is one line; exit status 2."""


def build_dir():
    """Where the build lies: the make variable BUILD from the environment, else build; relative to the project."""
    return os.path.join(ROOT, os.environ.get('BUILD') or 'build')


def shown(path):
    """A path as a user in the current folder would type it."""
    relative = os.path.relpath(path)
    return path if relative.startswith('..') else relative


def packages(*groups):
    """Installs what is missing of these package groups; a UsageError if that is not possible."""
    done = subprocess.run([os.path.join(ROOT, 'tools', 'packages.sh'), *groups], stdin=None, check=False)
    if done.returncode:
        sys.exit(done.returncode)       # it has said why, in one line


def need_program(program, group=None, why=''):
    """The full path of a program. Missing: it is installed if it belongs to a package group, else a UsageError."""
    found = shutil.which(program)
    if not found and group:
        packages(group)
        found = shutil.which(program)
    if not found:
        raise UsageError(f"there is no program '{program}'{why}")
    return found
