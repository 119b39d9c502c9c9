"""Builds the stand-in guest (tests/lib/standin_guest): a few hundred bytes that speak the contract, for testing the harness."""
import os
import subprocess

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'standin_guest')


def build(workdir):
    """Compiles the stand-in guest into workdir; returns the ELF's path."""
    elf = os.path.join(str(workdir), 'standin.elf')
    subprocess.run(['gcc', '-m32', '-O1', '-ffreestanding', '-fno-pic', '-fno-stack-protector', '-nostdlib', '-static',
                    '-Wall', '-Wextra', '-Werror', '-Wl,-T,' + os.path.join(HERE, 'guest.ld'), '-Wl,--build-id=none',
                    '-Wl,-z,noexecstack', '-Wl,-z,max-page-size=4096', '-Wl,--no-warn-rwx-segments', '-o', elf,
                    os.path.join(HERE, 'entry.S'), os.path.join(HERE, 'guest.c')], check=True, timeout=60)
    return elf
