"""The look that the pages share; light and dark follow the reader's choice."""

from __future__ import annotations


def style_sheet(*, light: str, dark: str, rules: str, narrow: str) -> str:
    """The style of one kind of page: its own colours in both schemes, its own rules, and those for narrow screens."""
    return f"""
:root {{ color-scheme: light dark;
{_LIGHT}
  {light} }}
@media (prefers-color-scheme: dark) {{ :root {{
{_DARK}
  {dark} }} }}
{_RULES}
{rules.strip()}
@media (max-width: 620px) {{ main {{ padding: 24px 14px 48px; }} {narrow}
  dl {{ grid-template-columns: 1fr; gap: 0; }} dd {{ margin-bottom: 6px; }} }}
@media print {{ :root {{ color-scheme: light; }} .card {{ break-inside: avoid; }} }}
"""


_LIGHT = """\
  --page: #fbfbfa; --card: #ffffff; --ink: #1d2125; --soft: #5b636b; --line: #e2e4e6; --band: #f3f4f4;
  --good: #17703f; --good-band: #e5f4eb; --bad: #b3261e; --bad-band: #fbe9e7; --note-band: #f4f1e6;"""
_DARK = """\
  --page: #131517; --card: #1b1e21; --ink: #e8eaec; --soft: #a2a9b0; --line: #33383d; --band: #22262a;
  --good: #67cf98; --good-band: #17301f; --bad: #ff8f86; --bad-band: #3a1c1a; --note-band: #2b2819;"""
_RULES = """\
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 1100px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 6px; overflow-wrap: anywhere; }
h2 { font-size: 19px; overflow-wrap: anywhere; }
h3 { font-size: 15px; }
.soft { color: var(--soft); }
code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 0.88em;
  overflow-wrap: anywhere; }
pre { background: var(--band); border-radius: 8px; padding: 12px 14px; white-space: pre-wrap; margin: 8px 0; }
.verdict { display: inline-block; border-radius: 999px; padding: 1px 11px; font-weight: 600; font-size: 13px;
  white-space: nowrap; }
.good { color: var(--good); background: var(--good-band); }
.bad { color: var(--bad); background: var(--bad-band); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 18px 20px;
  margin: 14px 0; }
figure.card { padding: 14px 14px 10px; }
figcaption { color: var(--soft); font-size: 13px; padding: 2px 6px; }
.scroll { overflow-x: auto; margin: 8px 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); font-size: 13px; padding: 4px 0 6px; }
th, td { text-align: left; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 500; } thead th { color: var(--soft); font-size: 13px; white-space: nowrap; }
tbody tr:last-child > * { border-bottom: 0; }
.n { text-align: right; white-space: nowrap; }
.note { background: var(--note-band); border-radius: 8px; padding: 8px 14px; }
.problem { background: var(--bad-band); border-radius: 8px; padding: 8px 14px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 18px; margin: 8px 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
summary { cursor: pointer; padding: 4px 0; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
svg .axis { font-size: 12px; } svg .label { fill: var(--ink); }
svg .grid { stroke: var(--line); stroke-width: 1; }"""
