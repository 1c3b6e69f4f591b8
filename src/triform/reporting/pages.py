"""A page that opens anywhere, offline: the document, its style and script, and the parts that pages are made of."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Iterable
from html import escape
from pathlib import Path

from triform.io.files import write_text


def render_html_page(title: str, body: str, version: str) -> str:
    """The document. Its policy lets nothing load and no script run but ours, whatever a sample holds."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)} · Triform</title>'
        f"<style>{STYLE}</style></head>\n<body><main>{body}</main>"
        f"<footer>{escape(version)}</footer><script>{SCRIPT}</script></body></html>\n"
    )


def render_section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>\n"


def render_table(header: Iterable[str], rows: Iterable[str], *, numeric: Collection[int] = ()) -> str:
    columns = ((escape(name), " class=num" if i in numeric else "") for i, name in enumerate(header))
    header_cells = "".join(f'<th scope="col"{attribute}>{name}</th>' for name, attribute in columns)
    html = f"<table><thead><tr>{header_cells}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<div class="card wide">{html}</div>'


def render_stat_card(name: str, value: str, note: str = "", extra: str = "") -> str:
    css_class = " long" if len(value) > 10 else ""
    return (
        f'<div class="tile"><dt>{escape(name)}</dt><dd class="value{css_class}">{escape(value)}</dd>'
        f'<dd class="note">{escape(note)}{extra}</dd></div>'
    )


def render_notices(title: str, texts: Iterable[str], *, warning: bool = False) -> str:
    """A box of sentences, each once: facts on a card, warnings in their own colour. Without texts, nothing."""
    items = "".join(f"<li>{escape(text)}</li>" for text in dict.fromkeys(texts))
    css_class = "warnings" if warning else "card"
    return (
        f'<section class="notices {css_class}"><h2>{escape(title)}</h2><ul>{items}</ul></section>\n'
        if items
        else ""
    )


def format_duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, remainder = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} m" if hours else f"{minutes} m {remainder:02d} s"


def write_page(path: Path, text: str) -> Path:
    write_text(path, text)
    return path


# Text reaches the page through textContent only, so a name can never become markup.
SCRIPT = """
document.documentElement.classList.add('js');
const say = v => Math.abs(v) >= 1000 ? Math.round(v).toLocaleString('en-US') : String(+v.toPrecision(4));
const make = (tag, parent, name, text = '') => {
  const node = parent.appendChild(document.createElement(tag));
  node.className = name; node.textContent = text; return node;
};
const near = (points, step) => points.reduce(
  (best, p, i) => Math.abs(p[0] - step) < Math.abs(points[best][0] - step) ? i : best, 0);
for (const plot of document.querySelectorAll('[data-chart]')) {
  const {last, low, high, log, curves, times, unit} = JSON.parse(plot.dataset.chart);
  const value = v => unit ? (times * v).toFixed(2) + unit : say(v);
  const scale = v => log ? Math.log(Math.max(v, low)) : v;
  const height = v => Math.min(1, Math.max(0, (scale(v) - scale(low)) / (scale(high) - scale(low))));
  const rule = make('i', plot, 'rule'), tip = make('div', plot, 'tip');
  const rings = curves.map(([, tone]) => make('i', plot, 'ring tone-' + tone));
  tip.setAttribute('role', 'status');
  const densest = curves.map(curve => curve[3]).reduce((a, b) => b.length > a.length ? b : a);
  let at = densest.length - 1;
  const hide = () => plot.classList.remove('live');
  const show = index => {
    at = Math.min(densest.length - 1, Math.max(0, index));
    const step = densest[at][0], x = 100 * step / last;
    plot.classList.add('live');
    rule.style.left = tip.style.left = x + '%';
    tip.classList.toggle('flip', x > 55);
    tip.textContent = '';
    make('div', tip, 'tip-step', 'step ' + say(step));
    curves.forEach(([name, tone, faint, points], i) => {
      const [s, v] = points[near(points, step)], row = make('div', tip, 'tip-row tone-' + tone);
      make('span', row, faint ? 'faint' : '', name + (s === step ? '' : ' at ' + say(s)));
      make('b', row, '', value(v));
      rings[i].hidden = faint;
      rings[i].style.left = 100 * s / last + '%';
      rings[i].style.top = 100 - 100 * height(v) + '%';
    });
  };
  const follow = e => {
    const box = plot.querySelector('svg').getBoundingClientRect();
    show(near(densest, last * (e.clientX - box.left) / box.width));
  };
  for (const name of ['pointermove', 'pointerdown']) plot.addEventListener(name, follow);
  for (const name of ['pointerleave', 'blur']) plot.addEventListener(name, hide);
  plot.addEventListener('keydown', e => {
    const move = {ArrowLeft: -1, ArrowRight: 1}[e.key];
    if (move) { e.preventDefault(); show(plot.classList.contains('live') ? at + move : at); }
    if (e.key === 'Escape') hide();
  });
}
"""

# Contrast of text on its ground is at least 4.5 to 1 in both schemes; print takes the light one.
STYLE = """
:root { --paper: #f7f6f3; --card: #fff; --ink: #1b1e25; --soft: #5b606b; --line: #e4e1da; --grid: #eceae4;
  --a: #2f5fd0; --b: #c2500f; --c: #17803f; --d: #8a3fb5; --e: #c2185b;
  --f: #0b7f8c; --g: #8a6d00; --h: #555b66;
  --good: #17703f; --good-bg: #e0f2e7; --warn: #8f4a00; --warn-bg: #fdeed6;
  --live: #2450b5; --live-bg: #e3ebfd; --mono: ui-monospace, "SF Mono", Menlo, Consolas, monospace }
@media screen and (prefers-color-scheme: dark) { :root { --paper: #121419; --card: #1a1d24; --ink: #eceae6;
  --soft: #a3a8b4; --line: #2c303a; --grid: #262a33; --a: #86a9ff; --b: #ffa066; --c: #6fd695; --d: #cf9bff;
  --e: #ff85b3; --f: #5fd3df; --g: #e3c34d; --h: #b4bac6; --good: #7fdca6;
  --good-bg: #17372a; --warn: #ffc37a; --warn-bg: #3a2b16; --live: #a5beff; --live-bg: #1d2b52 } }
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif }
main, footer { max-width: 1160px; margin: 0 auto; padding: clamp(28px, 5vw, 56px) clamp(16px, 4vw, 40px) 0 }
footer { padding-bottom: 40px; color: var(--soft); font-size: 13px }
h1 { font-size: clamp(26px, 4vw, 36px); line-height: 1.15; letter-spacing: -.022em; font-weight: 680;
  margin: 6px 0 8px; display: flex; flex-wrap: wrap; align-items: center; gap: 8px 16px }
h2 { font-size: 19px; letter-spacing: -.01em; font-weight: 650; margin: 48px 0 14px }
h3 { font-size: 14px; font-weight: 620; margin: 0 }
p { margin: 0 0 10px }
a { color: var(--a); text-underline-offset: 3px }
a, .pill, .tip, .num, .name, .hint, thead th { white-space: nowrap }
h1, dd, td, pre { overflow-wrap: anywhere }
.eyebrow { font-size: 13px; font-weight: 600; margin: 0 }
.eyebrow, .lead, .empty, .hint, .tile dt, .tile .note, .legend, .tip-step, thead th { color: var(--soft) }
.hint { font-weight: 400; font-size: 12px; margin-left: 6px }
.pill { display: inline-block; font-size: 13px; font-weight: 600; letter-spacing: 0; line-height: 1;
  padding: 6px 11px; border-radius: 99px; color: var(--good); background: var(--good-bg) }
.pill.warn, .warnings { color: var(--warn); background: var(--warn-bg) }
.pill.live { color: var(--live); background: var(--live-bg) }
.card, .tile { background: var(--card); border: 1px solid var(--line); border-radius: 12px }
.tiles { display: grid;
  grid-template-columns: repeat(auto-fill, minmax(156px, 1fr)); gap: 12px; margin: 28px 0 12px }
.tile { padding: 14px 16px 13px; font-size: 13px }
.tile dd { margin: 0 }
.tile .value { font-size: 24px; line-height: 1.35; font-weight: 650; letter-spacing: -.02em }
.tile .long { font-size: 18px; line-height: 1.8 }
.tile:first-child .value { color: var(--b) }
progress { appearance: none; border: 0; display: block; width: 100%; height: 4px; margin-top: 6px }
progress, progress::-webkit-progress-bar { background: var(--grid); border-radius: 9px; overflow: hidden }
progress::-webkit-progress-value { background: var(--a) }
progress::-moz-progress-bar { background: var(--a) }
.notices { border-radius: 12px; padding: 11px 16px; margin-top: 12px; font-size: 14px }
.notices h2 { font-size: 14px; margin: 0 0 2px }
.notices ul { margin: 0; padding: 0; list-style: none }
.notices li { overflow-wrap: anywhere }
.notices li + li { margin-top: 4px }
.charts { display: flex; flex-wrap: wrap; gap: 12px; margin-bottom: 12px }
.chart { flex: 1 1 420px; min-width: 0; margin: 0; padding: 16px 24px 40px 14px }
.chart.small { flex-basis: 236px; padding-bottom: 36px }
.thirds .chart.small { flex-basis: 290px }
figcaption { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 16px; margin: 0 0 28px }
.small figcaption { margin-bottom: 16px; flex-wrap: nowrap }
.legend { display: flex; flex-wrap: wrap; gap: 0 16px; list-style: none; margin: 0; padding: 0; font-size: 13px }
.legend span::before, .tip-row::before { content: ""; display: inline-block; width: 12px; height: 3px;
  border-radius: 2px; background: var(--tone); vertical-align: middle; margin-right: 7px }
.legend b, .tip b { color: var(--ink); font-weight: 620 }
.small .legend span { display: none }
.tone-a { --tone: var(--a) }
.tone-b { --tone: var(--b) }
.tone-c { --tone: var(--c) }
.tone-d { --tone: var(--d) }
.tone-e { --tone: var(--e) }
.tone-f { --tone: var(--f) }
.tone-g { --tone: var(--g) }
.tone-h { --tone: var(--h) }
.plot { position: relative; margin-left: 48px; touch-action: pan-y; border-radius: 4px; outline-offset: 6px }
.frame { display: block; width: 100%; height: 270px }
.small .frame { height: 120px }
.frame, .curves { overflow: visible }
.js .frame { pointer-events: none }
.grid { stroke: var(--grid) }
.base { stroke: var(--line) }
.tick { font-size: 12px; fill: var(--soft); font-variant-numeric: tabular-nums }
.mark { stroke: var(--soft); stroke-dasharray: 2 4 }
.line { fill: none; stroke: var(--tone); stroke-width: 2; vector-effect: non-scaling-stroke;
  stroke-linejoin: round }
.small .line { stroke-width: 1.6 }
.line.faint { stroke-width: 1; opacity: .35 }
.line.dashed { stroke-dasharray: 6 4 }
.legend .dashed span::before { background: linear-gradient(90deg, var(--tone) 40%, #0000 40% 60%, var(--tone) 60%) }
.band { fill: var(--tone); opacity: .15 }
.crowded .band { opacity: .07 }
.chart.short { padding-bottom: 14px }
.short figcaption { margin-bottom: 12px }
summary { cursor: pointer; margin: 0 0 12px }
.said { list-style: none; margin: 0 0 12px; padding: 6px 16px }
.said li { padding: 7px 0 }
.said .pill { padding: 4px 9px; margin-right: 4px }
.strips { display: grid; grid-template-columns: fit-content(34%) minmax(100px, 1fr) max-content;
  gap: 0 16px; align-items: center; padding: 0 0 0 10px; font-size: 13px; font-variant-numeric: tabular-nums }
.strips svg { display: block; width: 100%; height: 30px; overflow: visible }
.strips b { font-weight: 620; overflow-wrap: anywhere }
.strips .reach { fill: var(--tone); opacity: .28 }
.strips .bar { fill: var(--tone); opacity: .75 }
.strips .mean { stroke: var(--tone); stroke-width: 3 }
.strips .run { fill: var(--tone); opacity: .75 }
@media (max-width: 600px) { .strips { grid-template-columns: minmax(0, 1fr) max-content }
  .strips b { grid-column: 1 / -1; margin-top: 6px } .strips i:first-of-type { display: none } }
.strips .value { text-align: right; white-space: nowrap }
.dot { fill: var(--card); stroke: var(--tone); stroke-width: 2 }
.small .dot { r: 1.6px }
.rule, .ring, .tip { position: absolute; visibility: hidden; pointer-events: none }
.live > .rule, .live > .ring:not([hidden]), .live > .tip { visibility: visible }
.rule { top: 0; bottom: 0; border-left: 1px solid var(--soft) }
.ring { padding: 4px; margin: -4px; border-radius: 9px; background: var(--tone) }
.tip { top: 4px; z-index: 2; margin-left: 14px; padding: 8px 12px; border-radius: 8px; font-size: 13px;
  background: var(--card); border: 1px solid var(--line); box-shadow: 0 6px 20px rgb(0 0 0 / .16) }
.tip.flip { transform: translateX(calc(-100% - 28px)) }
.tip-row { display: flex; align-items: center; font-variant-numeric: tabular-nums }
.tip-row span { flex: 1; margin-right: 18px }
.tip-row .faint { color: var(--soft) }
.wide { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums }
th, td { text-align: left; vertical-align: top; padding: 10px 16px; border-top: 1px solid var(--grid) }
th { font-weight: 600 }
thead th { font-size: 13px; border-top: 0; font-weight: 400 }
.num { text-align: right }
.text { white-space: pre-wrap; min-width: 130px }
.text div { max-height: 11em; overflow-y: auto }
.miss :nth-child(2) { color: var(--warn) }
.groups { columns: 310px; column-gap: 12px }
.group { break-inside: avoid; margin-bottom: 12px; padding: 13px 16px 8px }
.group th, .group td { padding: 5px 0; font-size: 13px }
.group th { color: var(--soft); font-weight: 400; padding-right: 14px }
.group td, pre, code { font-family: var(--mono) }
.group td { text-align: right }
pre { margin: 0 0 14px; padding: 12px 16px; font-size: 13px; white-space: pre-wrap }
@media print { :root { --paper: #fff } * { print-color-adjust: exact; -webkit-print-color-adjust: exact }
  main, footer { max-width: none; padding: 0 } h2 { margin-top: 24px; break-after: avoid }
  .card, .tile, tr { break-inside: avoid } .frame { height: 200px }
  .chart { flex-basis: 300px } .chart.small, .thirds .chart.small { flex-basis: 190px }
  .tip, .rule, .ring { display: none } .text div { max-height: none } }
"""
