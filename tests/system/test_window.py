"""A peer that takes its window back: it drops what it has no room for, says so with window 0 and duplicate acknowledgements, and opens the
window again after the guest's retransmission timer has run. The stream must go on."""
import time

import pytest

import rawtcp
import wires
from rslib.qemu import Guest, Machine

SHUT_AFTER = 1448       # bytes: the first segment gets through, what follows is dropped
SHUT_SECONDS = 2.5      # longer than the guest's first retransmission time
WANTED = 60_000


class Shrinking(rawtcp.RawTcp):
    """Shuts its window by surprise, with four acknowledgements that say so; drops everything until open_again()."""

    shut = opened = False

    def _arrived(self, seg):
        if self.shut and not self.opened:
            return
        super()._arrived(seg)
        if not self.shut and self.received >= SHUT_AFTER:
            self.shut = True
            self.window = 0
            for _ in range(4):
                self._emit(rawtcp.f.ACK, self._edge(), b'')

    def open_again(self, window):
        """Takes segments again."""
        self.opened = True
        self.open_window(window)


@pytest.mark.parametrize('window', [3072, 65535])
def test_window_taken_back(image, window):
    """The rest of the stream comes when the window opens."""
    with wires.make('dgram') as wire:
        with Guest(Machine(image, append=wire.words(), netdev=wire.netdev())) as guest:
            guest.wait_ready(20)
            wire.resolve(wire.guest4)
            stream = Shrinking(wire, wire.guest4, 19, b'', echo=False, window=9000).start()
            time.sleep(SHUT_SECONDS)
            before = stream.received
            assert SHUT_AFTER <= before < 9000, stream.describe()
            stream.open_again(window)
            stream.wait(lambda: stream.received >= WANTED, 20, 'the rest of the stream')
            stream.reset()
            guest.finish()
