"""Kicks and interrupts of a guest, counted from QEMU's trace events (log backend): virtio_queue_notify names the queue by
number and by address, virtio_notify by address only."""
import collections
import re

EVENTS = ('virtio_queue_notify', 'virtio_notify', 'virtio_notify_irqfd')
_KICK = re.compile(r'virtio_queue_notify vdev 0x[0-9a-f]+ n (\d+) vq (0x[0-9a-f]+)')
_INTERRUPT = re.compile(r'virtio_notify(?:_irqfd)? vdev 0x[0-9a-f]+ vq (0x[0-9a-f]+)')


class Trace:
    """Follows a trace file as it grows."""

    def __init__(self, path):
        self._path = path
        self._at = 0
        self._rest = ''
        self.numbers = {}       # address of a queue -> its number

    def read(self):
        """What came since the last time: {(what, direction): count}, what 'kicks' or 'interrupts', direction 'rx' or 'tx'
        (the control queue's are left out)."""
        try:
            with open(self._path, encoding='ascii', errors='replace') as f:
                f.seek(self._at)
                text = f.read()
                self._at = f.tell()
        except FileNotFoundError:
            text = ''
        text = self._rest + text
        whole, newline, self._rest = text.rpartition('\n')
        return self.count(whole + newline)

    def count(self, text):
        """The same of some lines."""
        kicks, interrupts = collections.Counter(), collections.Counter()
        for number, address in _KICK.findall(text):
            self.numbers[address] = int(number)
            kicks[address] += 1
        for address in _INTERRUPT.findall(text):
            interrupts[address] += 1
        self._number_the_rest(interrupts)
        found = {(what, direction): 0 for what in ('kicks', 'interrupts') for direction in ('rx', 'tx')}
        for what, counts in (('kicks', kicks), ('interrupts', interrupts)):
            for address, n in counts.items():
                found[what, 'tx' if self.numbers.get(address, 0) & 1 else 'rx'] += n
        return found

    def _number_the_rest(self, addresses):
        """Queues that were never kicked: they lie in an array, so two known ones give their distance."""
        known = sorted((int(address, 16), n) for address, n in self.numbers.items())
        if len(known) < 2 or known[0][1] == known[-1][1]:
            return
        step = (known[-1][0] - known[0][0]) // (known[-1][1] - known[0][1])
        for address in addresses:
            if address not in self.numbers and step:
                self.numbers[address] = known[0][1] + (int(address, 16) - known[0][0]) // step
