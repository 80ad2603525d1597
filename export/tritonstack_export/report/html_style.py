"""The look of the HTML report. No font, picture or script is loaded from anywhere."""

STYLE = """
:root { color-scheme: light dark;
  --page: #fbfbfa; --card: #ffffff; --ink: #1d2125; --soft: #5b636b; --line: #e2e4e6; --band: #f3f4f4;
  --good: #17703f; --good-band: #e5f4eb; --bad: #b3261e; --bad-band: #fbe9e7; --note-band: #f4f1e6;
  --fp32: #5b636b; --fp16: #2a64c5; --bf16: #0f7f86; --int8: #c2570c; --other: #7a4fbf; }
@media (prefers-color-scheme: dark) { :root {
  --page: #131517; --card: #1b1e21; --ink: #e8eaec; --soft: #a2a9b0; --line: #33383d; --band: #22262a;
  --good: #67cf98; --good-band: #17301f; --bad: #ff8f86; --bad-band: #3a1c1a; --note-band: #2b2819;
  --fp32: #b3bac1; --fp16: #86b2ff; --bf16: #5fcbd0; --int8: #ffa35c; --other: #c3a4ff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 1100px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 6px; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 44px 0 12px; overflow-wrap: anywhere; }
h2 .verdict { margin-left: 8px; vertical-align: 2px; }
h2 .named { min-width: 0; }
h3 { font-size: 15px; margin: 26px 0 8px; }
p { margin: 8px 0; max-width: 76ch; }
.soft { color: var(--soft); }
.mono, code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: 0.88em; overflow-wrap: anywhere; }
pre { background: var(--band); border-radius: 8px; padding: 12px 14px; white-space: pre-wrap; margin: 8px 0; }
.verdict { display: inline-block; border-radius: 999px; padding: 1px 11px; font-weight: 600; font-size: 13px;
  white-space: nowrap; }
.good { color: var(--good); background: var(--good-band); }
.bad { color: var(--bad); background: var(--bad-band); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 18px 20px;
  margin: 14px 0; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(340px, 1fr)); gap: 14px; }
.plots figure { margin: 0; }
figure.card { padding: 14px 14px 10px; }
figcaption { color: var(--soft); font-size: 13px; padding: 2px 6px; }
.scroll { overflow-x: auto; margin: 8px 0; }
.scroll:focus-visible, a:focus-visible, summary:focus-visible { outline: 2px solid var(--fp16); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); font-size: 13px; padding: 4px 0 6px; }
th, td { text-align: left; padding: 6px 12px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 500; } thead th { color: var(--soft); font-size: 13px; white-space: nowrap; }
.named { display: inline-block; min-width: min(22ch, 40vw); padding-left: 17px; text-indent: -17px; }
tbody tr:last-child > * { border-bottom: 0; }
.n { text-align: right; white-space: nowrap; }
td.n + td:not(.n), th.n + th:not(.n) { padding-left: 14px; }
.dot { display: inline-block; width: 9px; height: 9px; border-radius: 50%; margin-right: 8px;
  background: var(--other); }
.dot.fp32 { background: var(--fp32); } .dot.fp16 { background: var(--fp16); }
.dot.bf16 { background: var(--bf16); } .dot.int8 { background: var(--int8); }
.bars { display: grid; grid-template-columns: minmax(120px, 30ch) 1fr 9ch; gap: 4px 12px; align-items: center;
  margin: 8px 0; }
.bars .name { overflow-wrap: anywhere; font-size: 13px; }
.bars .track { display: block; background: var(--band); border-radius: 4px; height: 12px; }
.bars .bar { display: block; background: var(--int8); border-radius: 4px; height: 12px; min-width: 2px; }
.bars.steps .bar { background: var(--fp32); }
.bars .amount { text-align: right; font-size: 13px; white-space: nowrap; font-variant-numeric: tabular-nums; }
.note { background: var(--note-band); border-radius: 8px; padding: 8px 14px; margin: 8px 0; }
.problem { background: var(--bad-band); border-radius: 8px; padding: 8px 14px; margin: 8px 0; }
ul { padding-left: 20px; margin: 8px 0; } li { margin: 3px 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 18px; margin: 8px 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
summary { cursor: pointer; padding: 4px 0; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
svg .axis { font-size: 12px; } svg .label { fill: var(--ink); font-size: 12px; font-weight: 600; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .front { fill: none; stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 5 4; }
svg .reference { stroke: var(--fp32); stroke-width: 2; stroke-dasharray: 2 4; }
svg .p { stroke: var(--card); stroke-width: 2; fill: var(--other); }
svg .p.fp32 { fill: var(--fp32); } svg .p.fp16 { fill: var(--fp16); }
svg .p.bf16 { fill: var(--bf16); } svg .p.int8 { fill: var(--int8); }
@media (max-width: 620px) { main { padding: 24px 14px 48px; } .bars { grid-template-columns: 1fr 9ch; }
  .bars .name { grid-column: 1 / -1; } dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: 6px; } }
@media print { :root { color-scheme: light; } .card { break-inside: avoid; } }
"""
