"""The look of the page. Nothing is loaded from anywhere; light and dark follow the reader's choice."""

STYLE = """
:root { color-scheme: light dark;
  --page: #fbfbfa; --card: #ffffff; --ink: #1d2125; --soft: #5b636b; --line: #e2e4e6; --band: #f3f4f4;
  --good: #17703f; --good-band: #e5f4eb; --bad: #b3261e; --bad-band: #fbe9e7; --note-band: #f4f1e6;
  --c0: #2a64c5; --c1: #c2570c; --c2: #0f7f86; --c3: #7a4fbf; --c4: #5b636b; --c5: #17703f; }
@media (prefers-color-scheme: dark) { :root {
  --page: #131517; --card: #1b1e21; --ink: #e8eaec; --soft: #a2a9b0; --line: #33383d; --band: #22262a;
  --good: #67cf98; --good-band: #17301f; --bad: #ff8f86; --bad-band: #3a1c1a; --note-band: #2b2819;
  --c0: #86b2ff; --c1: #ffa35c; --c2: #5fcbd0; --c3: #c3a4ff; --c4: #b3bac1; --c5: #67cf98; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 1100px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 6px; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 40px 0 12px; overflow-wrap: anywhere; }
h3 { font-size: 15px; margin: 24px 0 8px; }
p { margin: 8px 0; max-width: 80ch; overflow-wrap: anywhere; }
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
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(340px, 100%), 1fr)); gap: 14px; }
.plots .card { margin: 0; }
figure.card { padding: 14px 14px 10px; }
figcaption { color: var(--soft); font-size: 13px; padding: 2px 6px; }
.scroll { overflow-x: auto; margin: 8px 0; }
.scroll:focus-visible, summary:focus-visible { outline: 2px solid var(--c0); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); font-size: 13px; padding: 4px 0 6px; }
th, td { text-align: left; padding: 6px 14px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 500; } thead th { color: var(--soft); font-size: 13px; white-space: nowrap; }
tbody th { white-space: nowrap; }
tbody tr:last-child > * { border-bottom: 0; }
.n { text-align: right; white-space: nowrap; padding-right: 0; padding-left: 14px; }
.note { background: var(--note-band); border-radius: 8px; padding: 8px 14px; margin: 8px 0; max-width: none; }
.problem { background: var(--bad-band); border-radius: 8px; padding: 8px 14px; margin: 8px 0; max-width: none; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 18px; margin: 8px 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
summary { cursor: pointer; padding: 4px 0; }
.stack { display: grid; grid-template-columns: minmax(90px, 24ch) 1fr 9ch; gap: 6px 12px; align-items: center;
  margin: 10px 0; }
.stack .name { font-size: 13px; overflow-wrap: anywhere; }
.stack .track { display: flex; background: var(--band); border-radius: 4px; height: 16px; overflow: hidden; }
.stack .part { display: block; height: 16px; }
.stack .amount { text-align: right; font-size: 13px; white-space: nowrap; font-variant-numeric: tabular-nums; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; color: var(--soft); font-size: 13px; padding: 2px 6px; }
.legend .key { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 6px; }
.b0 { background: var(--c0); } .b1 { background: var(--c1); } .b2 { background: var(--c2); }
.b3 { background: var(--c3); } .b4 { background: var(--c4); } .b5 { background: var(--c5); }
svg { width: 100%; max-width: 680px; height: auto; display: block; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
svg .axis { font-size: 12px; } svg .label { fill: var(--ink); }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .limit { stroke: var(--bad); stroke-width: 1.5; stroke-dasharray: 5 4; }
svg .line { fill: none; stroke-width: 2; } svg .p { stroke: var(--card); stroke-width: 1.5; }
svg .s0 { stroke: var(--c0); } svg .s1 { stroke: var(--c1); } svg .s2 { stroke: var(--c2); }
svg .s3 { stroke: var(--c3); } svg .s4 { stroke: var(--c4); } svg .s5 { stroke: var(--c5); }
svg .f0 { fill: var(--c0); } svg .f1 { fill: var(--c1); } svg .f2 { fill: var(--c2); }
svg .f3 { fill: var(--c3); } svg .f4 { fill: var(--c4); } svg .f5 { fill: var(--c5); }
@media (max-width: 620px) { main { padding: 24px 14px 48px; } .stack { grid-template-columns: 1fr 9ch; }
  .stack .name { grid-column: 1 / -1; } dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: 6px; } }
@media print { :root { color-scheme: light; } .card { break-inside: avoid; } }
"""
