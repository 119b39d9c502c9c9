"""`ringside bench`: what the guest costs per transaction, and where."""
import os

from ..common import UsageError, build_dir, packages, shown
from ..netns import NetnsError
from . import clients, counter, profile, session

TESTS = tuple(clients.TESTS)


def _image():
    """The built image and the program in it; UsageError if they are not there."""
    image, program = (os.path.join(build_dir(), name) for name in ('ringside.elf', 'program.elf'))
    for path in (image, program):
        if not os.path.exists(path):
            raise UsageError(f'there is no {shown(path)}: run make first')
    return image, program


def main(options):
    """The command: returns the exit status."""
    packages('run')
    image, program = _image()
    if not os.access('/dev/net/tun', os.R_OK | os.W_OK):
        raise UsageError('no rights to /dev/net/tun: run it as root')
    netperf = clients.find_netperf()
    folder = os.path.join(build_dir(), 'bench')
    plugin = counter.build_plugin(folder)
    if options.profile is None:
        raise UsageError(f'say what to measure: --profile TEST; tests: {", ".join(TESTS)}')
    test = clients.TESTS[options.profile]
    wanted = session.Wanted(image, options.append, options.cpus)
    try:
        return profile.run(wanted, program, plugin, netperf, test, options.count or test.count, folder)
    except (clients.ClientError, NetnsError) as e:
        raise UsageError(str(e)) from None
