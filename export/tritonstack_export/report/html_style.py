"""The look of the HTML report, beyond what all pages share: a colour per precision, bars, the Pareto plots."""

from __future__ import annotations

from tritonstack.page.look import style_sheet

STYLE = style_sheet(
    light="--fp32: #5b636b; --fp16: #2a64c5; --bf16: #0f7f86; --int8: #c2570c; --other: #7a4fbf;",
    dark="--fp32: #b3bac1; --fp16: #86b2ff; --bf16: #5fcbd0; --int8: #ffa35c; --other: #c3a4ff;",
    rules="""
h2 { margin: 44px 0 12px; }
h2 .verdict { margin-left: 8px; vertical-align: 2px; }
h3 { margin: 26px 0 8px; }
p { margin: 8px 0; max-width: 76ch; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(340px, 1fr)); gap: 14px; }
.plots figure { margin: 0; }
.scroll:focus-visible, a:focus-visible, summary:focus-visible { outline: 2px solid var(--fp16); outline-offset: 2px; }
th, td { padding: 6px 12px 6px 0; }
.named { display: inline-block; min-width: min(22ch, 40vw); padding-left: 17px; text-indent: -17px; }
h2 .named { min-width: 0; }
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
.note, .problem { margin: 8px 0; }
svg .label { font-size: 12px; font-weight: 600; }
svg .front { fill: none; stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 5 4; }
svg .reference { stroke: var(--fp32); stroke-width: 2; stroke-dasharray: 2 4; }
svg .p { stroke: var(--card); stroke-width: 2; fill: var(--other); }
svg .p.fp32 { fill: var(--fp32); } svg .p.fp16 { fill: var(--fp16); }
svg .p.bf16 { fill: var(--bf16); } svg .p.int8 { fill: var(--int8); }
""",
    narrow=".bars { grid-template-columns: 1fr 9ch; } .bars .name { grid-column: 1 / -1; }",
)
