"""`tritonstack load compare BEFORE.json AFTER.json`: a verdict on two reports, and an exit code for CI."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from tritonstack.arguments import Parser, require_output_file, some_path

if TYPE_CHECKING:
    from tritonstack.load.compare import Comparison

EPILOG = """gates: METRIC OP VALUE, several with commas. METRIC is mean, max, pNN, errors, throughput, goodput or lag;
VALUE is a time (50ms), a rate (900/s), errors in percent (0.1%) or a signed change (-5%).
exit codes: 0 compared and no gate broken, 1 a gate broken or not comparable, 2 wrong usage"""


def parser() -> Parser:
    """The parser of `tritonstack load compare`."""
    top = Parser(
        prog="tritonstack load compare",
        description="Compare two reports of `tritonstack load --output`: ratios with 95 % intervals.",
        epilog=EPILOG,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=26, width=108),
    )
    top.add_argument("before", type=some_path, metavar="BEFORE.json")
    top.add_argument("after", type=some_path, metavar="AFTER.json")
    top.add_argument("--fail-if", action="append", metavar="GATES", help="such as throughput<-5%%,p99>+10%%,p99>50ms")
    top.add_argument("--force", action="store_true", help="compare runs that are not alike")
    top.add_argument("--json", action="store_true", help="print the comparison as JSON")
    top.add_argument("--output", type=some_path, metavar="FILE", help="also write the JSON to a file")
    return top


def main(argv: list[str]) -> int:
    """Run the command; returns its exit code."""
    options = parser().parse_args(argv)
    require_output_file("--output", options.output)

    from tritonstack.load.objective import parse_gates

    gates = tuple(gate for text in options.fail_if or () for gate in parse_gates(text))

    from tritonstack.load.compare import compare
    from tritonstack.load.report import json_text, write_text
    from tritonstack.load.saved_report import read_report
    from tritonstack.terminal import print_json

    found = compare(read_report(options.before), read_report(options.after), gates=gates, force=options.force)
    if options.json:
        print_json(found.to_json())
    else:
        print(render(found))
    if options.output is not None:
        write_text(options.output, json_text(found.to_json()))
    for gate in found.broken:
        print(f"tritonstack load compare: gate broken: {gate}", file=sys.stderr)
    return 1 if found.broken else 0


def render(found: Comparison) -> str:
    """The comparison as text for people."""
    from tritonstack.load.gate import value_text
    from tritonstack.terminal import table

    header = ["load", "metric", "before", "after", "ratio", "95 % interval", "verdict"]
    rows = []
    for level in found.levels:
        for metric in level.metrics:
            interval = "–" if metric.interval is None else f"{metric.interval[0]:.3f} to {metric.interval[1]:.3f}"
            before, after = (value_text(metric.metric, value) for value in (metric.before, metric.after))
            rows.append([level.label, metric.metric, before, after, f"{metric.ratio:.3f}", interval, metric.verdict])
    parts = [table(header, rows, align="<<>>>><")]
    remarks = [f"unlike: {text}" for text in found.unlike] + [f"note: {text}" for text in found.notes]
    if remarks:
        parts.append("\n".join(remarks))
    return "\n\n".join(parts)
