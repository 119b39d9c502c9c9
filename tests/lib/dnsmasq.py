"""dnsmasq as DHCP server and router on a tap wire, logging to a file the test can read."""
import os
import shutil
import subprocess
import time


def have():
    """True where dnsmasq is installed."""
    return shutil.which('dnsmasq', path=os.environ.get('PATH', '') + ':/usr/sbin') is not None


class Dnsmasq:
    """Runs in the wire's namespace; ended with it, or by stop()."""

    def __init__(self, wire, workdir, *options, pool='198.18.0.50,198.18.0.59', lease='2m'):
        self.log = os.path.join(str(workdir), 'dnsmasq.log')
        leases = os.path.join(str(workdir), 'leases')
        argv = ['dnsmasq', '--keep-in-foreground', '--conf-file=/dev/null', '--no-resolv', '--no-hosts', '--port=0', '--interface=tap0',
                '--bind-interfaces', '--no-ping', '--log-dhcp', '--log-facility=' + self.log, '--dhcp-leasefile=' + leases, '--user=',
                '--pid-file=', *options]
        if pool:
            argv.append(f'--dhcp-range={pool},{lease}')
        env = {**os.environ, 'PATH': os.environ.get('PATH', '') + ':/usr/sbin'}
        self._child = wire.netns.popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.wait_log('started')

    def text(self):
        """The log so far."""
        if not os.path.exists(self.log):
            return ''
        with open(self.log, encoding='utf-8', errors='replace') as f:
            return f.read()

    def wait_log(self, text, timeout=10, count=1):
        """Waits until the log holds text so many times."""
        deadline = time.monotonic() + timeout
        while self.text().count(text) < count:
            if self._child.poll() is not None:
                raise AssertionError(f'dnsmasq ended with {self._child.returncode}: {self._child.stderr.read().decode()}')
            assert time.monotonic() < deadline, f'dnsmasq: no {count} x {text!r} in {timeout} s; log:\n{self.text()}'
            time.sleep(0.05)

    def stop(self):
        """Ends it."""
        self._child.terminate()
        self._child.wait(5)
        self._child.stderr.close()
