"""A strict reader of Prometheus' text format (version 0.0.4) as the guest writes it: every line must be right. And a client of
the guest's web server that takes nothing for granted."""
import re
import socket
from decimal import Decimal

from traffic import LINGER_RESET

NAME = r'ringside_[a-z0-9_]+'
HELP = re.compile(rf'# HELP ({NAME}) (\S.*\S)')
TYPE = re.compile(rf'# TYPE ({NAME}) (counter|gauge)')
LABEL = r'[a-z][a-z0-9_]*="[^"\\\n]*"'
SAMPLE = re.compile(rf'({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (0|[1-9][0-9]*|(?:0|[1-9][0-9]*)\.[0-9]{{9}})')
LARGEST = (1 << 64) - 1


class Sample(dict):
    """What a scrape said: {(name, (label, value), ...): Decimal}, with ways to ask. types: {name: counter or gauge}."""

    types = {}

    def get_one(self, name, **labels):
        """The value with exactly these labels; their order makes no difference."""
        return self[(name, *sorted((k, str(v)) for k, v in labels.items()))]

    def total(self, name, **labels):
        """The sum of all samples of a name that have these labels among theirs."""
        wanted = {(k, str(v)) for k, v in labels.items()}
        values = [v for (n, *have), v in self.items() if n == name and wanted <= set(have)]
        assert values, f'no sample of {name} with {labels}'
        return sum(values)

    def labels(self, name):
        """The labels of each sample of a name, as dicts."""
        return [dict(labels) for n, *labels in self if n == name]


def parse(text):
    """Reads a scrape; AssertionError with the line that is not as it must be."""
    assert text.endswith('\n') and text.isascii(), 'not ASCII, or the last line is cut'
    sample = Sample()
    sample.types = types = {}
    name = kind = None              # of the family that is being read
    expect_type = False
    for number, line in enumerate(text[:-1].split('\n'), 1):
        where = f'line {number}: {line!r}'
        if match := HELP.fullmatch(line):
            assert not expect_type and (name is None or any(key[0] == name for key in sample)), f'{where}: {name} has no samples'
            name, expect_type = match.group(1), True
            assert name not in types, f'{where}: its family was there before'
        elif match := TYPE.fullmatch(line):
            assert expect_type and match.group(1) == name, f'{where}: not after its HELP'
            kind, expect_type = match.group(2), False
            types[name] = kind
            assert name.endswith('_total') == (kind == 'counter'), f'{where}: name and type do not go together'
        else:
            match = SAMPLE.fullmatch(line)
            assert match, where
            assert not expect_type and match.group(1) == name, f'{where}: in the family of {name}'
            labels = re.findall(r'([a-z0-9_]+)="([^"]*)"', match.group(2) or '')
            key = (name, *sorted(labels))
            assert len(dict(labels)) == len(labels), f'{where}: a label twice'
            assert key not in sample, f'{where}: twice'
            value = Decimal(match.group(3))
            assert value <= LARGEST, f'{where}: no 64-bit number'
            sample[key] = value
    assert not expect_type and any(key[0] == name for key in sample), f'{name} has no samples'
    return sample


def from_json(told):
    """The same from the parsed JSON, keyed as parse() does; a name's suffix _total is left out on both sides."""
    sample = Sample()
    for key, value in told.items():
        if key == 'info':
            sample[('ringside_info', *sorted(value.items()))] = Decimal(1)
        elif key == 'feature':
            sample.update({('ringside_feature', ('name', name)): Decimal(1) for name in value})
        elif key == 'cores':
            for core in value:
                sample.update(_core(core))
        elif isinstance(value, dict):
            sample.update({(f'ringside_{key}', ('protocol', protocol)): n for protocol, n in value.items()})
        else:
            sample[(f'ringside_{key}',)] = value
    return sample


def _core(core):
    """One core's object. Which numbers have a queue label the JSON does not say: left out here, see without_queue()."""
    labels = [('core', str(core['core']))]
    for key, value in core.items():
        if key in ('core', 'queue'):
            continue
        for reason, n in (value.items() if isinstance(value, dict) else [(None, value)]):
            yield (f'ringside_{key}', *sorted(labels + ([('reason', reason)] if reason else []))), n


def plain(sample):
    """A parsed scrape in the form that from_json() gives: without _total and without queue labels."""
    return {(key[0].removesuffix('_total'), *(pair for pair in key[1:] if pair[0] != 'queue')): value
            for key, value in sample.items()}


class Answer:
    """What the server sent on a connection, read to its end."""

    def __init__(self, data):
        head, blank, self.body = data.partition(b'\r\n\r\n')
        assert blank, f'no end of the header in {data[:200]!r}'
        lines = head.decode('ascii').split('\r\n')
        match = re.fullmatch(r'HTTP/1\.1 (\d{3}) [A-Z][A-Za-z ]+', lines[0])
        assert match, f'status line {lines[0]!r}'
        self.status = int(match.group(1))
        self.headers = {}
        for line in lines[1:]:
            match = re.fullmatch(r'([A-Z][A-Za-z-]*): (\S.*)', line)
            assert match and match.group(1).lower() not in self.headers, f'header line {line!r}'
            self.headers[match.group(1).lower()] = match.group(2)
        assert self.headers.get('connection') == 'close'
        if 'content-length' in self.headers:
            assert len(self.body) == int(self.headers['content-length']), f'{len(self.body)} bytes of {self.headers}'


def read_all(sock):
    """Everything up to the end of the stream."""
    data = bytearray()
    while chunk := sock.recv(65536):
        data += chunk
    return bytes(data)


def ask(sock, request, reset=False):
    """Sends a request (bytes), reads the answer to its end and closes the socket, by a reset if asked: closed in order, the
    server's end of it stays in TIME_WAIT for two minutes."""
    with sock:
        if reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
        sock.sendall(request)
        return Answer(read_all(sock))


def get_request(path):
    """What a browser or a scraper sends."""
    return (f'GET {path} HTTP/1.1\r\nHost: guest\r\nUser-Agent: test\r\nAccept: */*\r\n'
            'Accept-Encoding: gzip\r\nConnection: keep-alive\r\n\r\n').encode()
