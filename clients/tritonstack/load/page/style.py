"""The look of the page, beyond what all pages share: six colours, stacked bars, lines of plots."""

from __future__ import annotations

from tritonstack.page.look import style_sheet

STYLE = style_sheet(
    light="--c0: #2a64c5; --c1: #c2570c; --c2: #0f7f86; --c3: #7a4fbf; --c4: #5b636b; --c5: #17703f;",
    dark="--c0: #86b2ff; --c1: #ffa35c; --c2: #5fcbd0; --c3: #c3a4ff; --c4: #b3bac1; --c5: #67cf98;",
    rules="""
h2 { margin: 40px 0 12px; }
h3 { margin: 24px 0 8px; }
p { margin: 8px 0; max-width: 80ch; overflow-wrap: anywhere; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(340px, 100%), 1fr)); gap: 14px; }
.plots .card { margin: 0; }
.scroll:focus-visible, summary:focus-visible { outline: 2px solid var(--c0); outline-offset: 2px; }
th, td { padding: 6px 14px 6px 0; }
tbody th { white-space: nowrap; }
.n { padding-right: 0; padding-left: 14px; }
.note, .problem { margin: 8px 0; max-width: none; }
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
svg { max-width: 680px; }
svg .limit { stroke: var(--bad); stroke-width: 1.5; stroke-dasharray: 5 4; }
svg .line { fill: none; stroke-width: 2; } svg .p { stroke: var(--card); stroke-width: 1.5; }
svg .s0 { stroke: var(--c0); } svg .s1 { stroke: var(--c1); } svg .s2 { stroke: var(--c2); }
svg .s3 { stroke: var(--c3); } svg .s4 { stroke: var(--c4); } svg .s5 { stroke: var(--c5); }
svg .f0 { fill: var(--c0); } svg .f1 { fill: var(--c1); } svg .f2 { fill: var(--c2); }
svg .f3 { fill: var(--c3); } svg .f4 { fill: var(--c4); } svg .f5 { fill: var(--c5); }
""",
    narrow=".stack { grid-template-columns: 1fr 9ch; } .stack .name { grid-column: 1 / -1; }",
)
