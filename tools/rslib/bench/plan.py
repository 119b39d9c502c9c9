"""What is measured: cells, and the tables they make up. Sizes and sessions of tables A to E are those of the mailing-list
results they stand beside (docs/bench.md); the short form takes some of them, --full all."""
import dataclasses

from .clients import TESTS
from .station import Setup

SESSIONS_A = (1, 2, 4, 8, 16, 32, 64, 96, 128)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One thing to measure on every guest, or on ours alone. mode: cost (by count, on a counted set-up), rate (by time), or
    idle (no traffic)."""
    mode: str
    test: str
    setup: Setup
    sessions: int = 1
    size: int = 0
    ours: bool = False

    def __str__(self):
        many = f', {self.sessions} sessions' if self.sessions > 1 else ''
        size = f' {self.size} bytes' if self.size else ''
        return f'{self.test}{size}{many}'


def _size(test, size):
    """0 for the test's own size: what two tables have in common is measured once."""
    return 0 if size == TESTS[test].size else size


def rate(test, sessions=1, size=0, ours=False, **setup):
    """A rate cell."""
    return Cell('rate', test, Setup(**setup), sessions, _size(test, size), ours)


def cost(test, sessions=1, size=0, ours=False, **setup):
    """A cost cell."""
    return Cell('cost', test, Setup(counted=True, **setup), sessions, _size(test, size), ours)


@dataclasses.dataclass(frozen=True)
class Target:
    """What a row of the costs is to reach: instructions, kicks, interrupts per unit."""
    instructions: int
    kicks: float
    interrupts: float


TARGETS = {'TCP_RR': Target(2500, 1, 1), 'UDP_RR': Target(1800, 1, 1), 'TCP_CRR': Target(12000, 3, 3),
           'TCP_STREAM': Target(150, 0.005, 0.005), 'TCP_MAERTS': Target(120, 0.010, 0.005),
           'UDP_STREAM': Target(900, 0.01, 0.02), 'PING': Target(1200, 1, 1)}
IDLE_TARGET = (50000, 15)       # instructions and wake-ups a second


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table: its heading cells, and what is measured, by column."""
    labels: tuple
    cells: dict


@dataclasses.dataclass(frozen=True)
class Table:
    """A table. kind: how report.py lays it out. columns: keys of Row.cells in order, with what to call them. notes: said
    below it."""
    name: str
    title: str
    kind: str
    labels: tuple
    columns: dict
    rows: tuple
    notes: tuple = ()

    def cells(self):
        """All its cells, each once."""
        return list(dict.fromkeys(cell for row in self.rows for cell in row.cells.values()))


def costs(_):
    """The target table: what a unit of each test costs, and idling."""
    # Idling first: clients leave connections behind that wait for their time to be up.
    rows = [Row(('idle',), {'poll0': Cell('idle', 'idle', Setup(counted=True, words='poll=0')),
                            'auto': Cell('idle', 'idle', Setup(counted=True, words='poll=auto'), ours=True)})]
    rows += [Row((test,), {'poll0': cost(test, words='poll=0'), 'auto': cost(test, words='poll=auto', ours=True)})
             for test in TARGETS]
    return Table('costs', 'Costs per transaction, KiB or packet: one core, tap, counted', 'costs', ('test',),
                 {'poll0': 'poll=0', 'auto': 'poll=auto'}, tuple(rows),
                 ('Instructions count a repeated string instruction (rep movs: how Linux copies) once; "string steps" are '
                  'its steps, which an emulator executes one by one.',
                  'Interrupts with poll=auto depend on how fast the client answers: on a loaded machine it answers late.'))


def clients(full):
    """Rates by number of clients and cores."""
    tests = ('TCP_RR', 'UDP_RR', 'TCP_CRR', 'TCP_STREAM', 'TCP_MAERTS', 'UDP_STREAM') if full else (
        'TCP_RR', 'TCP_CRR', 'TCP_STREAM', 'TCP_MAERTS')
    rows = [Row((test, n), {cores: rate(test, n, cpus=cores) for cores in (1, 2)})
            for test in tests for n in ((1, 8, 32, 128) if full else (1, 32)) if test != 'UDP_STREAM' or n <= 8]
    return Table('clients', 'Rates by number of clients, one core and two', 'rates', ('test', 'clients'),
                 {1: '1 core', 2: '2 cores'}, tuple(rows),
                 ('UDP_STREAM with more than 8 clients is left out: in that flood their control connections drown.',) if full else ())


def clients_costs(full):
    """Costs by number of clients and cores: each client does its share of the same count."""
    rows = [Row((test, n), {cores: cost(test, n, cpus=cores, words='poll=0') for cores in (1, 2)})
            for test in (('TCP_RR', 'UDP_RR', 'TCP_CRR', 'TCP_STREAM', 'TCP_MAERTS') if full else ('TCP_RR',))
            for n in ((1, 8, 32, 128) if full else (32,))]
    return Table('clients-costs', 'Costs by number of clients: instructions / kicks / interrupts per transaction or KiB',
                 'variants', ('test', 'clients'), {1: '1 core', 2: '2 cores'}, tuple(rows))


def table_a(full):
    """Small packets: event index."""
    sizes = (1024, 2048, 16384)
    sessions = SESSIONS_A if full else (1, 8)
    rows = [Row((size, n), {'on': rate('TCP_MAERTS', n, size),
                            'off': rate('TCP_MAERTS', n, size, ours=True, words='features=-event_idx')})
            for size in sizes for n in sessions]
    return Table('A', 'A. Guest to host by message size: event index on and off', 'switch', ('bytes', 'sessions'),
                 {'on': 'event index', 'off': 'without'}, tuple(rows))


def table_b(full):
    """One queue against several."""
    queues = (1, 2, 4, 8) if full else (1, 2)
    rows = [Row((n,), {q: rate('TCP_MAERTS', n, cpus=q) for q in queues})
            for n in ((1, 2, 4, 8, 16, 32, 64, 128) if full else (1, 8, 32))]
    return Table('B', 'B. Guest to host: one queue against several (a core each)', 'rates', ('sessions',),
                 {q: f'{q} queue{"s" if q > 1 else ""}' for q in queues}, tuple(rows))


def table_c(_):
    """Small datagrams and echoes, with QEMU's own device."""
    rows = [Row((test,), {'own': rate(test)}) for test in ('UDP_RR', 'UDP_STREAM', 'PING', 'PING_LOAD')]
    return Table('C', 'C. Datagrams and echoes, QEMU\'s own device', 'loss', ('test',), {'own': "QEMU's device"}, tuple(rows),
                 ('UDP_STREAM has 22-byte payload (64-byte frames); PING_LOAD is ping -f -s 1024 -l 120. Kernel vhost-net '
                  'beside it: make bench LAB=kvm.',))


def table_d(full):
    """Several queues, by test."""
    queues = (1, 2, 4) if full else (1, 2)
    what = [('TCP_RR', 1, n) for n in ((1, 20, 50, 100) if full else (1, 20))]
    what += [('TCP_RR', 64, 100), ('TCP_RR', 256, 100)] if full else []
    what += [('TCP_CRR', 1, 1), ('TCP_CRR', 1, 100)] if full else [('TCP_CRR', 1, 1)]
    what += [('TCP_STREAM', 64, 4), ('TCP_STREAM', 1024, 4)] if full else [('TCP_STREAM', 64, 4)]
    what += [('TCP_MAERTS', 256, 4), ('TCP_MAERTS', 512, 2)] + ([('TCP_MAERTS', 16384, 1)] if full else [])
    rows = [Row((test, size, n), {q: rate(test, n, size, cpus=q) for q in queues}) for test, size, n in what]
    return Table('D', 'D. Several queues (a core each), by test', 'rates', ('test', 'bytes', 'sessions'),
                 {q: f'{q} queue{"s" if q > 1 else ""}' for q in queues}, tuple(rows))


def table_e(full):
    """ioeventfd."""
    rows = []
    for test, size in (('TCP_STREAM', 200), ('TCP_RR', 1)) if full else (('TCP_STREAM', 200),):
        rows.append(Row((test, size, 'on'), {'rate': rate(test, 1, size), 'cost': cost(test, 1, size)}))
        rows.append(Row((test, size, 'off'), {'rate': rate(test, 1, size, props=(('ioeventfd', 'off'),)),
                                              'cost': cost(test, 1, size, props=(('ioeventfd', 'off'),))}))
    return Table('E', 'E. ioeventfd on and off', 'kicks', ('test', 'bytes', 'ioeventfd'), {'rate': 'rate', 'cost': 'kicks'},
                 tuple(rows))


VARIANTS = (('as it is', {}), ('no event index', {'words': 'features=-event_idx'}),
            ('no indirect descriptors', {'words': 'features=-indirect_desc'}),
            ('transmit interrupt at the next frame', {'words': 'txirq=next'}),
            ('no mergeable buffers', {'words': 'features=-mrg_rxbuf'}),
            ('no checksum offload', {'words': 'features=-csum,-guest_csum'}),
            ('ioeventfd off', {'props': (('ioeventfd', 'off'),)}),
            ('packed ring', {'props': (('packed', 'on'),)}))
FULL_VARIANTS = ('transmit interrupt at the next frame', 'no mergeable buffers', 'ioeventfd off')
NO_MSIX = (('vectors', 0),)


def switches(full):
    """What each switch does to our guest's costs."""
    tests = ('TCP_RR', 'TCP_CRR', 'TCP_STREAM', 'TCP_MAERTS', 'UDP_STREAM') if full else ('TCP_RR', 'TCP_STREAM', 'TCP_MAERTS')
    rows = []
    for label, how in VARIANTS if full else [v for v in VARIANTS if v[0] not in FULL_VARIANTS]:
        words = f'poll=0 {how.get("words", "")}'.strip()
        rows.append(Row((label,), {test: cost(test, ours=True, words=words, props=how.get('props', ())) for test in tests}))
    for cores in (2, 4):
        if full or cores == 2:
            rows.append(Row((f'{cores} queues, {cores} cores',),
                            {test: cost(test, ours=True, cpus=cores, words='poll=0') for test in tests}))
    return Table('switches', 'What switches do to our guest\'s costs: instructions / kicks / interrupts per unit', 'variants',
                 ('guest',), {test: test for test in tests}, tuple(rows))


def vhost_user(full):
    """A vhost-user switch against QEMU's own device. QEMU 7.2 crashes where vhost-user and MSI-X meet, so both are without."""
    rows = [Row((test,), {'own': cost(test, words='poll=0'), 'intx': cost(test, words='poll=0', props=NO_MSIX),
                          'switch': cost(test, words='poll=0', props=NO_MSIX, switched=True)})
            for test in (('TCP_RR', 'UDP_RR', 'TCP_CRR', 'TCP_STREAM', 'TCP_MAERTS', 'PING') if full else ('TCP_RR',))]
    return Table('vhost-user', "A vhost-user switch against QEMU's own device: instructions / kicks / interrupts per unit", 'variants',
                 ('test',), {'own': "QEMU's device", 'intx': 'without MSI-X', 'switch': 'vhost-user'}, tuple(rows),
                 ("The switch is DPDK's testpmd, which polls, without MSI-X (QEMU 7.2 cannot do both), before the same tap device; it "
                  "offers no HOST_TSO. Its kicks and interrupts are our guest's own counts.",))


def layer2(full):
    """What a 64-byte frame costs without a stack."""
    what = (('macswap', 'MACSWAP', 'macswap'), ('rxonly', 'RXONLY', 'rxonly'), ('txonly', 'TXONLY', 'txonly:64,1000000000'))
    cores = (1, 2) if full else (1,)
    rows = [Row((label,), {n: cost(test, ours=True, cpus=n, words=f'poll=0 apps={app}') for n in cores})
            for label, test, app in what]
    return Table('layer2', 'Frames of 64 bytes without a stack: instructions / kicks / interrupts per frame', 'variants',
                 ('application',), {1: '1 core', **({2: '2 cores'} if full else {})}, tuple(rows),
                 ('Frames for macswap and rxonly come from one flow as fast as the host sends: with two cores one has them all. '
                  'txonly sends from each core.',))


TABLES = {'costs': costs, 'clients': clients, 'clients-costs': clients_costs, 'A': table_a, 'B': table_b, 'C': table_c,
          'D': table_d, 'E': table_e, 'switches': switches, 'vhost-user': vhost_user, 'layer2': layer2}


def quick():
    """A minute's worth, for a first look and for the bench's own test."""
    rows = tuple(Row((test,), {'poll0': cost(test, words='poll=0')}) for test in ('TCP_RR', 'TCP_STREAM'))
    return [Table('costs', 'Costs per transaction or KiB: one core, tap, counted', 'costs', ('test',), {'poll0': 'poll=0'}, rows),
            Table('rates', 'Rates', 'rates', ('test', 'clients'), {1: '1 core'},
                  tuple(Row((test, 1), {1: rate(test)}) for test in ('TCP_RR', 'TCP_STREAM')))]
