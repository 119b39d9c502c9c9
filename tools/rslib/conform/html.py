"""The report of `ringside conform` as one page without anything outside it: light and dark, and on a phone each check is a card."""
from html import escape

from . import kvm
from .protocol import FAIL, NOT_OFFERED, PASS, SKIPPED
from .report import CANNOT, MEANING, RAN, alike, failures, features, names, reproduce, rows

_STYLE = """
:root { color-scheme: light dark; --bg: #fff; --fg: #1b1f24; --dim: #5b6570; --line: #d5dae0; --band: #f3f5f7;
  --pass: #d3f0d9; --fail: #b3261e; --none: #e9ecef; --skip: #fdf0c4; --on: #14361c; }
@media (prefers-color-scheme: dark) { :root { --bg: #14171a; --fg: #e4e7ea; --dim: #9aa4ae; --line: #353b42; --band: #1d2125;
  --pass: #1f4a2b; --fail: #d6453c; --none: #2a2f35; --skip: #57491a; --on: #d6f5dd; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 130rem; background: var(--bg); color: var(--fg); font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; } h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
p, li { max-width: 60rem; } .dim { color: var(--dim); } code, pre { font: 13px/1.4 ui-monospace, monospace; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--band); padding: .6rem; margin: .4rem 0; border-radius: .3rem; }
summary { cursor: pointer; } ul { padding-left: 1.2rem; } dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem .8rem; margin: .4rem 0; }
dt { color: var(--dim); } dd { margin: 0; overflow-wrap: anywhere; }
.sum { display: grid; grid-template-columns: max-content 1fr; gap: .3rem .8rem; align-items: baseline; }
.sum .n { font-weight: 600; } .bad { color: var(--fail); font-weight: 600; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; }
td, th { padding: .15rem .6rem .15rem 0; text-align: left; border-top: 1px solid var(--line); }
.head, .row { display: grid; grid-template-columns: minmax(16rem, 26rem) repeat(var(--n), 2.8rem); gap: 2px; align-items: stretch; }
.grid { min-width: max-content; } .head > span { writing-mode: vertical-rl; transform: rotate(180deg); justify-self: center; padding: .3rem 0; }
.head > b { align-self: end; } details.c { border-top: 1px solid var(--line); } details.c > summary { list-style: none; }
details.c > summary::-webkit-details-marker { display: none; } .row > .t { padding: .25rem .4rem .25rem 0; position: sticky; left: 0; background: var(--bg); }
.row .s { color: var(--dim); font-size: .85em; white-space: nowrap; } .x { display: flex; align-items: center; justify-content: center; font-size: .82rem; }
.x i, .all { display: none; font-style: normal; } .pass { background: var(--pass); color: var(--on); } .fail { background: var(--fail); color: #fff; font-weight: 700; }
.none { background: var(--none); color: var(--dim); } .skip { background: var(--skip); } details.c > div { padding: .2rem 0 .8rem 1rem; max-width: min(60rem, 92vw); position: sticky; left: 0; }
.who { font-weight: 600; margin: .5rem 0 0; }
.key span { padding: .1rem .5rem; border-radius: .2rem; }
@media (max-width: 760px) {
  .grid { min-width: 0; } .scroll { overflow: visible; } .head { display: none; } .row { display: flex; flex-wrap: wrap; padding: .4rem 0; }
  .row > .t { flex: 0 0 100%; padding: 0 0 .2rem; } .x { padding: .05rem .45rem; border-radius: .2rem; } .x i { display: inline; margin-right: .35em; }
  .x:empty, .check .x.pass { display: none; } .check .x.all { display: flex; } .sum { grid-template-columns: 1fr; gap: 0; } .sum .n { margin-top: .5rem; } dl { grid-template-columns: 1fr; } dt { margin-top: .3rem; }
}
"""
_SHOWN = {PASS: ('pass', 'pass'), FAIL: ('fail', 'FAIL'), NOT_OFFERED: ('none', 'n/o'), SKIPPED: ('skip', 'skip')}


def _details(summary, inside, name=''):
    return f'<details{f" class={name}" if name else ""}><summary>{summary}</summary>{inside}</details>'


def _pre(text):
    return f'<pre>{escape(text)}</pre>'


def _chip(name, check):
    if check is None:
        return f'<span class="x none" title="{escape(name)}: not told"></span>'
    look, word = _SHOWN[check.state]
    return (f'<span class="x {look}" title="{escape(name)}: {escape(check.state)}{escape(": " + check.reason) if check.reason else ""}">'
            f'<i>{escape(name)}</i>{word}</span>')


def _recorder(check):
    return _details('flight recorder', _pre(check.trace)) if check.trace else ''


def _row(key, columns):
    area, section, text = key
    found = [(c, c.check(key)) for c in columns]
    passed = sum(check is not None and check.state == PASS for _, check in found)
    head = (f'<div class="row check"><div class=t><span class=s>{escape(area)} {escape(section)}</span> {escape(text)}</div>' +
            ''.join(_chip(c.name, check) for c, check in found) + f'<span class="x pass all">{passed} pass</span></div>')
    return _details(head, f'<div>{_evidence(key, columns)}</div>', 'c')


def _evidence(key, columns):
    out = []
    for text, group in alike(key, columns):
        check = group[0].check(key)
        failed = check.state == FAIL
        out.append(f'<div class=who>{escape(names(group, key[2] if failed else ""))}</div>{_pre(text)}{_recorder(check)}' +
                   (f'<p>Again: <code>{escape(reproduce(group[0], key[0]))}</code></p>' if failed else ''))
    return ''.join(out)


def _grid(columns, title, body):
    heads = ''.join(f'<span>{escape(c.name)}</span>' for c in columns)
    return (f'<div class=scroll><div class=grid style="--n:{len(columns)}"><div class=head><b>{title}</b>{heads}</div>'
            f'{body}</div></div>')


def _summary(columns):
    out = []
    for c in columns:
        look = 'bad' if c.failed else 'dim' if c.status == CANNOT else 'good'
        out.append(f'<div class=n>{escape(c.name)}</div><div><span class={look}>{escape(c.line())}</span> '
                   f'<span class=dim>({escape(c.about)})</span></div>')
    return f'<div class=sum>{"".join(out)}</div>'


def _failures(columns):
    out = [f'<li><b>{escape(c.name)}</b>, the run as a whole: {escape(fault)}</li>' for c in columns for fault in c.outcome.faults]
    for key, who in failures(columns):
        out.append(f'<li><b>{escape(" ".join(key))}</b>: {escape(names(who, key[2]))}{_details("evidence", _evidence(key, who))}</li>')
    return f'<h2>What failed</h2><ul>{"".join(out)}</ul>' if out else ''


def _offers(columns):
    out = []
    for name, who in features(columns):
        chips = ''.join(f'<span class="x {"pass" if c.name in who else "none"}">' + (f'<i>{escape(c.name)}</i>yes' if c.name in who else '')
                        + '</span>' for c in columns)
        out.append(f'<details class=c><summary><div class=row><div class=t>{escape(name)}</div>{chips}</div></summary></details>')
    return '<h2>Features offered</h2>' + _grid(columns, 'feature', ''.join(out)) if out else ''


def _backend(c):
    pairs = ''.join(f'<dt>{escape(k)}</dt><dd>{escape(v)}</dd>' for k, v in c.outcome.device + c.facts)
    return (f'<h3 id="b-{escape(c.name, quote=True)}">{escape(c.name)} <span class=dim>{escape(c.about)}, {c.seconds:.0f} s</span></h3>'
            f'<dl>{pairs}</dl>' + _details("QEMU's command", _pre(c.command)) + _details('console', _pre(c.console.strip())))


def _kvm(counts):
    head = f'<h2>{escape(kvm.TITLE)}</h2>'
    if counts is None:
        return f'{head}<p>{escape(kvm.MISSING)}</p>'
    heads, lines = kvm.table(counts)
    return (f'{head}<p>{escape(counts["head"])}</p><div class=scroll><table><tr>' + ''.join(f'<th>{escape(h)}</th>' for h in heads) + '</tr>' +
            ''.join('<tr>' + ''.join(f'<td>{escape(cell)}</td>' for cell in line) + '</tr>' for line in lines) + '</table></div>')


def page(columns, head, counts=None):
    """The whole page. counts: kvm.load()'s."""
    ran = [c for c in columns if c.status == RAN]
    keys = rows(ran)
    legend = '<p class=key>' + ' '.join(f'<span class={look}>{word}</span>' for look, word in _SHOWN.values()) + f' {escape(MEANING)} A row opens.</p>'
    body = ['<h1>Backend conformance</h1>', *(f'<p>{escape(line)}</p>' for line in head), '<h2>Backends</h2>', _summary(columns), _failures(ran)]
    if keys:
        body += ['<h2>Checks</h2>', legend, _grid(ran, 'check, by section of virtio 1.3', ''.join(_row(key, ran) for key in keys))]
    body += [_offers(ran), _kvm(counts), '<h2>Evidence by backend</h2>' if ran else '', *(_backend(c) for c in ran)]
    return ('<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport content="width=device-width, initial-scale=1">'
            f'<title>Backend conformance</title><style>{_STYLE}</style></head><body>' + '\n'.join(body) + '</body></html>\n')
