"""The report of `ringside conform`: as data, as Markdown, and (html.py) as a page."""
import dataclasses

from . import known, kvm
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


def as_data(columns, head, counts=None):
    """What report.json holds. counts: kvm.load()'s."""
    def checks(column):
        return [{'number': c.number, 'area': c.area, 'section': c.section, 'text': c.text, 'state': c.state, 'reason': c.reason,
                 'evidence': [{'key': k, 'value': v} for k, v in c.evidence]} for c in column.outcome.checks]
    return {'format': 1, 'head': head, 'kvm': counts, 'backends': [{
        'name': c.name, 'about': c.about, 'status': c.status, 'reason': c.reason, 'seconds': round(c.seconds, 1),
        'good': c.status == RAN and not c.failed, 'faults': c.outcome.faults, 'counts': {state: c.outcome.count(state) for state in STATES},
        'device': [{'key': k, 'value': v} for k, v in c.outcome.device], 'facts': [{'key': k, 'value': v} for k, v in c.facts],
        'checks': checks(c), 'command': c.command, 'console': c.console} for c in columns]}


def failures(columns):
    """What failed, check by check: [(key, [Column])], in the order of the table."""
    found = [(key, [c for c in columns if (check := c.check(key)) and check.state == FAIL]) for key in rows(columns)]
    return [(key, who) for key, who in found if who]


def alike(key, columns):
    """[(text of the evidence, [Column])] of a check: those that tell the same are together."""
    found = {}
    for c in columns:
        if check := c.check(key):
            found.setdefault(evidence_text(check), []).append(c)
    return list(found.items())


def names(columns, text=''):
    """The names of columns, with the number of their finding if it is one (text: of the check that failed)."""
    remarks = {c.name: known.remark(c.name, text) for c in columns}
    if len(set(remarks.values())) == 1:
        return ', '.join(remarks) + next(iter(remarks.values()))
    return ', '.join(name + remark for name, remark in remarks.items())


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


def as_markdown(columns, head, counts=None):
    """The whole report. counts: kvm.load()'s."""
    ran = [c for c in columns if c.status == RAN]
    out = ['# Backend conformance\n', *(f'{line}\n' for line in head)]
    out += ['## Backends\n', _table(['backend', 'is', 'result', 's'], [
        [f'`{c.name}`', _cell(c.about), _cell(c.line()), f'{c.seconds:.0f}' if c.status == RAN else ''] for c in columns])]
    failed = failures(ran)
    if failed or any(c.outcome.faults for c in ran):
        out.append('## What failed\n')
    for c in ran:
        for fault in c.outcome.faults:
            out.append(f'- **{c.name}**, the run as a whole: {_cell(fault)}')
    for key, who in failed:
        area, section, text = key
        out.append(f'- **{area} {section} {_cell(text)}**')
        for _, group in alike(key, who):
            shown = '; '.join(f'{k}: {v}' if k else v for k, v in group[0].check(key).notes)
            out.append(f'  - {names(group, text)}: {_cell(shown)}. Again: `{reproduce(group[0], area)}`')
    keys = rows(ran)
    if keys:
        out += ['\n## Checks\n', MEANING + '\n', _table(['area', 'virtio 1.3', 'check', *(c.name for c in ran)], [
            [area, section, _cell(text), *(WORDS[c.check((area, section, text)).state if c.check((area, section, text)) else None]
                                           for c in ran)] for area, section, text in keys])]
    if offers := features(ran):
        out += ['## Features offered\n', _table(['feature', *(c.name for c in ran)], [
            [name, *('yes' if c.name in who else '' for c in ran)] for name, who in offers])]
    out.append(f'## {kvm.TITLE}\n')
    if counts is None:
        out.append(kvm.MISSING + '\n')
    else:
        heads, lines = kvm.table(counts)
        out += [_cell(counts['head']) + '\n', _table(heads, [map(_cell, line) for line in lines])]
    out.append('## Evidence\n')
    for c in ran:
        out.append(f'### {c.name}\n')
        out.append(_table(['', ''], [[_cell(k), _cell(v)] for k, v in c.outcome.device + c.facts]))
        checks = '\n'.join(f'{x.area} {x.section} {x.text}\n    ' + evidence_text(x).replace('\n', '\n    ') for x in c.outcome.checks)
        out += [_details(f'flight recorder of {x.area} {x.section} {_cell(x.text)}', x.trace) for x in c.outcome.checks if x.trace]
        out += [_details(title, text) for title, text in (
            ('every check', checks), ('command', c.command), ('console', c.console.strip())) if text]
    return '\n'.join(out) + '\n'
