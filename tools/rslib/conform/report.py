"""The report of `ringside conform`: as data, as Markdown, and (html.py) as a page."""
import dataclasses

from .protocol import FAIL, NOT_OFFERED, PASS, SKIPPED, STATES, Outcome

RAN, CANNOT = 'ran', 'cannot'
WORDS = {PASS: 'pass', FAIL: '**FAIL**', NOT_OFFERED: 'n/o', SKIPPED: 'skip', None: ''}
MEANING = ('pass: the device did what it must. FAIL: it did not. n/o: it does not offer the feature. skip: it could not be looked at, for '
           'the reason given. Empty: not told on this backend.')
AREAS = ('features', 'reset', 'config', 'queues', 'ring', 'events', 'receive', 'control', 'steering', 'link')


@dataclasses.dataclass
class Column:
    """One backend's result. status: RAN, or CANNOT with the reason why it could not be run here."""
    name: str
    about: str
    status: str = RAN
    reason: str = ''
    outcome: Outcome = dataclasses.field(default_factory=Outcome)
    facts: list = dataclasses.field(default_factory=list)       # (key, value) about the backend, from outside the guest
    command: str = ''
    console: str = ''
    seconds: float = 0

    @property
    def failed(self):
        """It ran, and not everything was well."""
        return self.status == RAN and not self.outcome.good

    def check(self, key):
        """The check of that key, or None."""
        return next((check for check in self.outcome.checks if check.key == key), None)

    def line(self):
        """What became of it, in a line."""
        if self.status == CANNOT:
            return f'skipped: {self.reason}'
        o = self.outcome
        text = (f'{o.count(PASS)} passed, {o.count(FAIL)} failed, {o.count(NOT_OFFERED)} not offered, {o.count(SKIPPED)} skipped')
        return text + (f'; THE RUN FAILED: {o.faults[0]}' if o.faults else '')


def reproduce(column, area=''):
    """The command that runs one backend again."""
    return f'tools/ringside conform --backend {column.name}' + (f' --area {area}' if area else '')


def rows(columns):
    """The keys of all checks, by area in their order, then as the guests told them."""
    found = {}
    for column in columns:
        for place, check in enumerate(column.outcome.checks):
            found.setdefault(check.key, place)
    order = {area: at for at, area in enumerate(AREAS)}
    return sorted(found, key=lambda key: (order.get(key[0], len(AREAS)), key[0], found[key]))


def features(columns):
    """[(feature, set of the names of the backends that offer it)], by name."""
    offers = {}
    for column in columns:
        for name in filter(None, (word.strip() for word in column.outcome.told('features offered').split(','))):
            offers.setdefault(name, set()).add(column.name)
    return sorted(offers.items())


def as_data(columns, head):
    """What report.json holds."""
    def checks(column):
        return [{'number': c.number, 'area': c.area, 'section': c.section, 'text': c.text, 'state': c.state, 'reason': c.reason,
                 'evidence': [{'key': k, 'value': v} for k, v in c.evidence]} for c in column.outcome.checks]
    return {'format': 1, 'head': head, 'backends': [{
        'name': c.name, 'about': c.about, 'status': c.status, 'reason': c.reason, 'seconds': round(c.seconds, 1),
        'good': c.status == RAN and not c.failed, 'faults': c.outcome.faults, 'counts': {state: c.outcome.count(state) for state in STATES},
        'device': [{'key': k, 'value': v} for k, v in c.outcome.device], 'facts': [{'key': k, 'value': v} for k, v in c.facts],
        'checks': checks(c), 'command': c.command, 'console': c.console} for c in columns]}


# ---- Markdown

def _cell(text):
    """Text inside a table's cell."""
    return str(text).replace('\\', '\\\\').replace('|', '\\|').replace('<', '&lt;').replace('\n', ' ')


def _table(heads, lines):
    out = ['| ' + ' | '.join(map(_cell, heads)) + ' |', '|' + '---|' * len(heads)]
    return '\n'.join(out + ['| ' + ' | '.join(line) + ' |' for line in lines]) + '\n'


def _details(summary, text):
    fence = '````' if '```' in text else '```'
    return f'<details><summary>{summary}</summary>\n\n{fence}\n{text}\n{fence}\n</details>\n'


def evidence_text(check):
    """What a check's lines say, as text."""
    lines = [check.reason if check.reason.startswith(check.state) else ': '.join(filter(None, (check.state, check.reason)))]
    return '\n'.join(lines + [f'{key}: {value}' if key else value for key, value in check.notes])


def as_markdown(columns, head):
    """The whole report."""
    ran = [c for c in columns if c.status == RAN]
    out = ['# Backend conformance\n', *(f'{line}\n' for line in head)]
    out += ['## Backends\n', _table(['backend', 'is', 'result', 's'], [
        [f'`{c.name}`', _cell(c.about), _cell(c.line()), f'{c.seconds:.0f}' if c.status == RAN else ''] for c in columns])]
    failures = [(c, check) for c in ran for check in c.outcome.checks if check.state == FAIL]
    if failures or any(c.outcome.faults for c in ran):
        out.append('## What failed\n')
    for c in ran:
        for fault in c.outcome.faults:
            out.append(f'- **{c.name}**, the run as a whole: {_cell(fault)}')
    for c, check in failures:
        shown = '; '.join(f'{k}: {v}' if k else v for k, v in check.notes)
        out.append(f'- **{c.name}**: {check.area} {check.section} {_cell(check.text)}' + (f' ({_cell(shown)})' if shown else '') +
                   f'. Again: `{reproduce(c, check.area)}`')
    keys = rows(ran)
    if keys:
        out += ['\n## Checks\n', MEANING + '\n', _table(['area', 'virtio 1.3', 'check', *(c.name for c in ran)], [
            [area, section, _cell(text), *(WORDS[c.check((area, section, text)).state if c.check((area, section, text)) else None]
                                           for c in ran)] for area, section, text in keys])]
    if offers := features(ran):
        out += ['## Features offered\n', _table(['feature', *(c.name for c in ran)], [
            [name, *('yes' if c.name in who else '' for c in ran)] for name, who in offers])]
    out.append('## Evidence\n')
    for c in ran:
        out.append(f'### {c.name}\n')
        out.append(_table(['', ''], [[_cell(k), _cell(v)] for k, v in c.outcome.device + c.facts]))
        checks = '\n'.join(f'{x.area} {x.section} {x.text}\n    ' + evidence_text(x).replace('\n', '\n    ') for x in c.outcome.checks)
        out += [_details(f'flight recorder of {x.area} {x.section} {_cell(x.text)}', x.trace) for x in c.outcome.checks if x.trace]
        out += [_details(title, text) for title, text in (
            ('every check', checks), ('command', c.command), ('console', c.console.strip())) if text]
    return '\n'.join(out) + '\n'
