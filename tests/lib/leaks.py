"""What tests leave behind in a guest: its heaps, core by core, as the servers' debug lines tell them. `look` opens and closes a
connection and returns (core, heap bytes used) once the core that got it says that nothing else is open."""
import time

A_PCB = 480         # heap bytes that one connection takes at most while nothing is sent on it
TIME_WAITS = 1024   # connections in TIME_WAIT that a core keeps at most


def heaps(look, cores):
    """Heap bytes used on each core while nothing is open."""
    used = {}
    for _ in range(200):
        used.update([look()])
        if len(used) == cores:
            return used
    raise AssertionError(f'of {cores} cores only {sorted(used)} ever got a connection')


def settled(look, cores, tests):
    """The same once they grow no more. Every core keeps all the connections in TIME_WAIT that it will before this is called;
    tests: runs some."""
    before = dict.fromkeys(range(cores), 0)
    for _ in range(20):
        tests()
        last, before = before, heaps(look, cores)
        if all(before[core] - last[core] <= A_PCB for core in before):
            return before
    raise AssertionError(f'the heaps still grow: {last}, {before}')


def wait(look, before, more=5 * A_PCB, seconds=60):
    """Waits until no core uses more than `more` bytes above what it used before."""
    end = time.monotonic() + seconds
    while True:
        now = heaps(look, len(before))
        if all(now[core] - before[core] <= more for core in now):
            return
        assert time.monotonic() < end, f'not given back: heaps are {now}, were {before}'
        time.sleep(1)
