"""Guest instructions, counted by QEMU (tools/plugins/insn_count.c): exact, however loaded the machine is."""
import os
import struct
import subprocess
import tempfile
import time

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LINE = 64       # bytes that the plugin gives each vCPU


class Instructions:
    """Counts what a guest executes, as a context manager; arguments() are QEMU's. Steps of repeated string instructions
    (copying) are left out."""

    def __init__(self, vcpus=1):
        self._vcpus = vcpus

    def __enter__(self):
        self._dir = tempfile.TemporaryDirectory(prefix='ringside-insn-')
        self._plugin, self._map = (os.path.join(self._dir.name, name) for name in ('insn_count.so', 'map'))
        source = os.path.join(ROOT, 'tools', 'plugins', 'insn_count.c')
        subprocess.run(['gcc', '-O2', '-shared', '-fPIC', '-o', self._plugin, source], check=True, timeout=60)
        return self

    def __exit__(self, *_):
        self._dir.cleanup()

    def arguments(self):
        """For QEMU; skips the test if this QEMU has no plugins."""
        told = subprocess.run(['qemu-system-x86_64', '-plugin', 'help'], capture_output=True, text=True, timeout=20, check=False)
        if 'invalid option' in told.stderr:
            pytest.skip('this QEMU is built without plugins')
        return ['-plugin', f'{self._plugin},out={self._map}']

    def read(self):
        """So far, all vCPUs together."""
        with open(self._map, 'rb') as f:
            data = f.read(LINE * self._vcpus)
        lines = (struct.unpack_from('QQ', data, LINE * i) for i in range(self._vcpus))
        return sum(executed - steps for executed, steps in lines)

    def cost(self, work, count, quiet=1.5):
        """What each of `count` transactions costs that work() does, less what the guest executes in the same time without
        traffic (timers); that is measured afterwards, for `quiet` seconds. Returns (per transaction, idle per second)."""
        begin, before = time.monotonic(), self.read()
        work()
        time.sleep(0.1)     # what is on its way yet
        took, executed = time.monotonic() - begin, self.read() - before
        begin, before = time.monotonic(), self.read()
        time.sleep(quiet)
        idle = (self.read() - before) / (time.monotonic() - begin)
        return (executed - idle * took) / count, idle
