"""The command line of tools/ringside: subcommands, their options, and one clear line for each mistake (exit status 2)."""
import argparse
import ipaddress
import os
import re
import signal
import sys

from . import backend, run, testrun
from .bench import main as bench
from .conform import main as conform, report as conform_report
from .common import UsageError

VERSION = '0.1.0'

_RUN_NOTE = """
backends:
  user               QEMU's user networking: no privileges, forwards on 127.0.0.1 (the default)
  tap                a tap device in a network namespace that is made for the run and removed after it
  vhost-net          the same with the host kernel's vhost-net
  vhost-user:SOCKET  a vhost-user switch that listens at SOCKET (DPDK, Open vSwitch)
  passt              the program passt, started for the run
  dgram:PATH         raw Ethernet frames over unix datagrams: the guest's are sent to PATH.peer, PATH receives for it

exit status: 0 the guest ended well, 3 it panicked, 5 conformance failures, 2 wrong command line or something is missing
on this machine, 1 QEMU failed.
"""

_TEST_NOTE = """
Ends with one line `N passed, N failed` (and `, N skipped`); exit status 0 only if something passed and nothing failed.
"""


class _Parser(argparse.ArgumentParser):
    """argparse, with its mistakes told in one line."""

    def error(self, message):
        if message.startswith('unrecognized'):
            message += ' (--help lists the valid ones)'
        self.exit(2, f'{self.prog}: {message}\n')


def _number(what, least, most):
    """An argparse type: a whole number in that range."""
    def check(text):
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"'{text}' is not {what}; valid: {least} to {most}")
        return int(text)
    return check


def _checked(function):
    """An argparse type made of a function that raises UsageError."""
    def check(text):
        try:
            return function(text)
        except UsageError as e:
            raise argparse.ArgumentTypeError(str(e)) from None
    return check


def _one_of(*valid):
    def check(text):
        if text not in valid:
            raise argparse.ArgumentTypeError(f"'{text}' is not known; valid: {', '.join(valid)}")
        return text
    return check


def _add_run(commands):
    p = commands.add_parser('run', help='boot the guest under QEMU on this terminal', epilog=_RUN_NOTE, allow_abbrev=False,
                            description='Boots the guest under QEMU on this terminal; Ctrl-A X ends it.',
                            formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--backend', type=_checked(backend.parse), default='user', metavar='NAME',
                   help='how packets reach the guest, see below (default: user)')
    p.add_argument('--cpus', type=_number('a number of processors', 1, 255), default=1, metavar='N',
                   help='processors of the guest (default: 1)')
    p.add_argument('--queues', type=_number('a number of queue pairs', 1, 256), metavar='N',
                   help='queue pairs of the network device (default: one per processor where the backend can, else 1)')
    p.add_argument('--memory', type=_checked(backend.parse_memory), default='128M', metavar='SIZE',
                   help='memory of the guest, for example 64M or 2G (default: 128M)')
    p.add_argument('--machine', type=_one_of('q35', 'pc'), default='q35', help="QEMU's machine: q35 or pc (default: q35)")
    p.add_argument('--image', metavar='FILE', help='what to boot, an ELF or an .iso (default: build/ringside.elf)')
    p.add_argument('--qemu', default='qemu-system-x86_64', metavar='PROGRAM', help='the QEMU to run')
    p.add_argument('--append', default='', metavar='WORDS', help='boot line, for example "ip6=off log=debug"')
    p.add_argument('--ifname', type=_checked(backend.parse_ifname), metavar='TAP',
                   help='tap, vhost-net: use this tap device, which is there already, instead of making a namespace')
    p.add_argument('--forward', type=_checked(backend.parse_forward), action='append', default=[], metavar='GUEST:HOST',
                   help="user, passt: forward the guest's port GUEST from port HOST of 127.0.0.1; HOST 0: not at all")
    p.add_argument('--print', action='store_true', help='print the QEMU command line and run nothing')
    p.set_defaults(function=run.main)


def _add_test(commands):
    p = commands.add_parser('test', help='run the tests', epilog=_TEST_NOTE, allow_abbrev=False,
                            description='Builds what the tests need, then runs the unit tests on the host and the system '
                            'tests under QEMU.')
    p.add_argument('--full', action='store_true', help='every combination (takes long)')
    p.add_argument('-k', metavar='EXPRESSION', dest='select',
                   help="only the system and tool tests that match (pytest's -k); no unit tests")
    p.set_defaults(function=testrun.main)


_BENCH_NOTE = """
tables:
  costs     instructions, kicks and interrupts per transaction, KiB or packet, beside the targets; idling
  clients   rates by number of clients, on one core and two
  clients-costs   instructions, kicks and interrupts by number of clients
  A to E    rates by message size and sessions, queues, datagrams, ioeventfd (docs/bench.md)
  switches  what each switch does to our guest's costs
  layer2    what a 64-byte frame costs without a stack (macswap, rxonly, txonly)

Results go to build/bench/: report.md with plots, TABLE.json. As root only: a tap device is made in a namespace of its own.
exit status: 0 all was measured, 1 something failed, 2 wrong command line or something is missing on this machine.
"""


def _add_bench(commands):
    p = commands.add_parser('bench', help='measure the guest beside a Linux guest', allow_abbrev=False, epilog=_BENCH_NOTE,
                            description='Measures the guest and a Linux guest in turn, under the same QEMU, by counts and by '
                            'rates. Without options all tables in their short form, in less than 10 minutes.',
                            formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--table', type=_one_of(*bench.plan.TABLES), action='append', metavar='TABLE',
                   help='only this table, see below; may be given several times')
    p.add_argument('--full', action='store_true', help='all sizes and sessions, 5 runs of 3 s a cell (hours)')
    p.add_argument('--quick', action='store_true', help='a few cells, in less than a minute')
    p.add_argument('--image', action='append', default=[], metavar='FILE[:APPEND]',
                   help='a further guest: what -kernel boots, with its boot line; it must run a netserver at 198.18.0.2 '
                   '({ip}, {prefix}, {gw} in the boot line are filled in)')
    p.add_argument('--no-linux', action='store_true', help='without the Linux guest')
    p.add_argument('--lab', type=_one_of('kvm'), metavar='kvm',
                   help='in the nested machine with real KVM and vhost-net, in instruction time (docs/nested-kvm.md)')
    p.add_argument('--rounds', type=_number('a number of rounds', 1, 100), metavar='N', help='runs of each cell (default: 2; 5 with --full, 1 with --lab)')
    p.add_argument('--seconds', type=_number('a number of seconds', 1, 600), metavar='S',
                   help='how long a run for a rate takes (default: 1; 3 with --full)')
    p.add_argument('--out', metavar='FOLDER', help='where reports go (default: build/bench)')
    p.add_argument('--profile', type=_one_of(*bench.PROFILED), metavar='TEST',
                   help='instead of tables: where the instructions of a test go, by function; one of ' + ', '.join(bench.PROFILED))
    p.add_argument('--count', type=_number('a number of transactions', 10, 10000000), metavar='N',
                   help='for --profile: transactions (KiB, echoes) to measure')
    p.add_argument('--cpus', type=_number('a number of processors', 1, 64), default=1, metavar='N',
                   help='for --profile: processors and queue pairs of the guest (default: 1)')
    p.add_argument('--append', default='poll=0', metavar='WORDS', help='for --profile: boot line (default: "poll=0")')
    p.set_defaults(function=bench.main)


_CONFORM_NOTE = """
Boots the guest with `conform` on each backend: it checks what the device does and prints TAP. The backends are listed by --list and
described in docs/backends.md. What a backend needs is fetched the first time, into the cache; what cannot be had is skipped, with its
reason. Results go to build/conform/: report.md, report.html, report.json.

exit status: 0 nothing failed, 1 a check or a whole run failed, 2 wrong command line or the one backend asked for cannot be run here.
"""


def _area(text):
    if not re.fullmatch(r'[a-z][a-z0-9_]{0,14}', text):
        raise UsageError(f"'{text}' is not an area; valid: {', '.join(conform_report.AREAS)}")
    return text


def _peer(text):
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        raise UsageError(f"'{text}' is not an IPv4 address; valid: A.B.C.D") from None


def _add_conform(commands):
    p = commands.add_parser('conform', help='check backends against the virtio specification', epilog=_CONFORM_NOTE, allow_abbrev=False,
                            description='Checks whether backends do what the virtio specification says a device must.',
                            formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--backend', action='append', default=[], metavar='NAME',
                   help='only this backend, one of --list, vhost-user:SOCKET or dgram:PATH; may be given several times')
    p.add_argument('--list', action='store_true', help='list the backends and run nothing')
    p.add_argument('--area', type=_checked(_area), metavar='AREA', help=f'only these checks: {", ".join(conform_report.AREAS)}')
    p.add_argument('--append', default='', metavar='WORDS', help='more words for the boot line, for example "features=-event_idx"')
    p.add_argument('--peer', type=_checked(_peer), metavar='ADDRESS', help='who answers ARP and ping (default: the gateway)')
    p.add_argument('--queues', type=_number('a number of queue pairs', 1, 256), default=1, metavar='N',
                   help='for vhost-user:SOCKET: queue pairs and processors (default: 1)')
    p.add_argument('--image', metavar='FILE', help='what to boot (default: build/ringside.elf)')
    p.add_argument('--qemu', metavar='PROGRAM', help='the QEMU to run (default: qemu-system-x86_64)')
    p.add_argument('--seconds', type=_number('a number of seconds', 1, 3600), default=180, metavar='S',
                   help='how long a guest may take (default: 180)')
    p.add_argument('--out', metavar='FOLDER', help='where the report goes (default: build/conform)')
    p.set_defaults(function=conform.main)


def parser():
    """The whole command line."""
    p = _Parser(prog='ringside', allow_abbrev=False, description='Runs and tests the Ringside guest.')
    p.add_argument('--version', action='version', version=f'ringside {VERSION}')
    commands = p.add_subparsers(dest='command', metavar='COMMAND', parser_class=_Parser)
    _add_run(commands)
    _add_test(commands)
    _add_bench(commands)
    _add_conform(commands)
    return p, commands


def main(argv):
    """Runs one command; returns the exit status."""
    whole, commands = parser()
    valid = ', '.join(commands.choices)
    if not argv:
        whole.error(f'which command? valid: {valid} (--help tells more)')
    if not argv[0].startswith('-') and argv[0] not in commands.choices:
        whole.error(f"no command '{argv[0]}'; valid: {valid}")
    options = whole.parse_args(argv)
    # Ending by signal leaves through the same clean-up as any other end.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda n, _: sys.exit(128 + n))
    try:
        return options.function(options)
    except UsageError as e:
        print(f'ringside {options.command}: {e}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:         # whoever read our output has gone; nothing more is to be said, at the exit neither
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
