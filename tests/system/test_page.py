"""The status page in a real browser: charts of what passes, light and dark, on a desk and on a phone, nothing from outside."""
import os
import select
import shutil
import socketserver
import threading
import time

import pytest

import many
import rows
import wires
from rslib.qemu import Guest, Machine

webdriver = pytest.importorskip('selenium.webdriver', reason='python3-selenium is not installed')
BROWSER, DRIVER = shutil.which('chromium'), shutil.which('chromedriver')
PICTURES = os.environ.get('RINGSIDE_PICTURES')      # a folder: keep the screenshots there
pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason='chromium and chromedriver are not installed')


@pytest.fixture(scope='module')
def browser():
    """A headless Chromium."""
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for word in ('--headless=new', '--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking', '--hide-scrollbars',
                 '--disable-component-update', '--no-proxy-server'):
        options.add_argument(word)
    options.set_capability('goog:loggingPrefs', {'browser': 'ALL', 'performance': 'ALL'})
    one = webdriver.Chrome(service=webdriver.chrome.service.Service(DRIVER), options=options)
    one.set_page_load_timeout(30)
    try:
        yield one
    finally:
        one.quit()


class Busy(threading.Thread):
    """Two connections that discard and echo until it is stopped."""

    def __init__(self, wire):
        super().__init__()
        self._wire, self._end = wire, threading.Event()
        self.failure = None
        self.start()

    def run(self):
        try:
            with self._wire.tcp(9) as sink:
                while not self._end.is_set():
                    sink.sendall(bytes(200_000))
                    many.echo(self._wire, 20_000, count=2)
                    time.sleep(0.02)
        except OSError as error:
            self.failure = error

    def stop(self):
        """Ends it; raises what went wrong."""
        self._end.set()
        self.join(20)
        if self.failure:
            raise self.failure


class Relay(socketserver.ThreadingTCPServer):
    """Connections to a port of 127.0.0.1 go on to the guest's port 80 on the wire: the browser is not in its namespace."""

    daemon_threads = True

    def __init__(self, wire):
        super().__init__(('127.0.0.1', 0), self._Both)
        self.wire, self.address = wire, f'http://127.0.0.1:{self.server_address[1]}/'
        threading.Thread(target=self.serve_forever, daemon=True).start()

    class _Both(socketserver.BaseRequestHandler):
        def handle(self):
            with self.server.wire.tcp(80) as guest:
                ends = {self.request: guest, guest: self.request}
                while True:
                    for one in select.select(list(ends), [], [], 30)[0]:
                        data = one.recv(65536)
                        if not data:
                            return
                        ends[one].sendall(data)


def lines(browser, chart):
    """The numbers of points in each core's line."""
    return browser.execute_script(
        f"return [...document.querySelectorAll('#chart-{chart} path')].map(p => (p.getAttribute('d').match(/[ML]/g) || []).length)")


def wait(seconds, condition, what):
    """Waits until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f'not within {seconds} s: {what}'
        time.sleep(0.2)


def picture(browser, name):
    """Keeps a screenshot, if a folder for it was given."""
    if PICTURES:
        browser.save_screenshot(os.path.join(PICTURES, name + '.png'))


def look(browser, width, height, scheme):
    """Sets the window's size and the colour scheme."""
    browser.execute_cdp_cmd('Emulation.setDeviceMetricsOverride',
                            {'width': width, 'height': height, 'deviceScaleFactor': 1, 'mobile': width < 600})
    browser.execute_cdp_cmd('Emulation.setEmulatedMedia', {'features': [{'name': 'prefers-color-scheme', 'value': scheme}]})


def brightness(browser):
    """Of the page's background, 0 to 255."""
    color = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    return sum(int(x) for x in color[color.index('(') + 1:-1].split(',')[:3]) / 3


def test_page(image, browser):
    """A line per core that grows while traffic passes; the other measures; light and dark; a phone's width needs no sideways
    scrolling; no error in the console and no request to anywhere else."""
    with wires.make('tap', queues=2) as wire, Relay(wire) as relay:
        machine = Machine(image, smp=2, memory='128M', append=wire.words(), netdev=wire.netdev(), props={'mq': 'on', 'vectors': 6})
        with Guest(machine, netns=wire.netns) as guest:
            guest.wait_ready(rows.SHORT)
            address = relay.address
            busy = Busy(wire)
            try:
                look(browser, 1100, 900, 'light')
                browser.get(address)
                wait(30, lambda: min(lines(browser, 'in'), default=0) >= 5, 'five points of a line per core')
                assert len(lines(browser, 'in')) == len(lines(browser, 'out')) == 2
                caption = browser.execute_script("return document.getElementById('in').textContent")
                assert 'Mbit/s' in caption and float(caption.split()[1].replace(',', '')) > 0, caption
                assert brightness(browser) > 200
                picture(browser, 'status-light')
                for index, unit in enumerate(('Mbit/s', 'frames/s', 'kicks/s', 'interrupts/s')):
                    browser.execute_script(f"const m = document.getElementById('measure'); m.value = {index}; m.onchange()")
                    assert unit in browser.execute_script("return document.getElementById('out').textContent")
                    assert min(lines(browser, 'in')) >= 5
                look(browser, 390, 844, 'dark')
                assert brightness(browser) < 60
                assert browser.execute_script('return document.documentElement.scrollWidth <= innerWidth'), 'wider than a phone'
                assert browser.execute_script("return document.getElementById('chart-in').getBoundingClientRect().width") > 300
                picture(browser, 'status-phone')
            finally:
                busy.stop()
            said = [entry for entry in browser.get_log('browser') if entry['level'] in ('SEVERE', 'WARNING')]
            assert not said, said
            sent = [entry['message'] for entry in browser.get_log('performance') if '"Network.requestWillBeSent"' in entry['message']]
            assert sent and not [m for m in sent if '"url":"' in m and address not in m and 'data:,' not in m]
            guest.finish()
