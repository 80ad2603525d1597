"""The report as JUnit XML: one test suite per variant, one test case per gate, for the CI systems that show those."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from tritonstack_export.report.data import ExportReport, GateLimit, NumericRow, Variant
from tritonstack_export.report.wording import METRICS, figure, gate_figure, percent, sizes_text

# What XML 1.0 cannot hold, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class _Case:
    """`failure` None: passed. `error`: the variant was not made at all."""

    name: str
    failure: str | None = None
    error: bool = False


def render_junit(report: ExportReport) -> str:
    """The whole document. Attributes `tests`, `failures` and `errors` count what is below."""
    root = ElementTree.Element("testsuites", name=_text(f"tritonstack export {report.model}"))
    total = {"tests": 0, "failures": 0, "errors": 0}
    for variant in report.variants:
        cases = list(_cases(variant))
        counts = {
            "tests": len(cases),
            "failures": sum(case.failure is not None and not case.error for case in cases),
            "errors": sum(case.error for case in cases),
        }
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            {"name": _text(variant.name), **{k: str(v) for k, v in counts.items()}, "skipped": "0"},
            timestamp=_text(report.created_at),
        )
        properties = ElementTree.SubElement(suite, "properties")
        for key, value in _properties(variant):
            ElementTree.SubElement(properties, "property", name=_text(key), value=_text(value))
        for case in cases:
            _add(suite, variant, case)
        total = {key: total[key] + counts[key] for key in total}
    root.attrib.update({key: str(value) for key, value in total.items()})
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _add(suite: ElementTree.Element, variant: Variant, case: _Case) -> None:
    element = ElementTree.SubElement(suite, "testcase", classname=_text(variant.name), name=_text(case.name), time="0")
    if case.failure is not None:
        kind = "error" if case.error else "failure"
        outcome = ElementTree.SubElement(element, kind, message=_text(case.failure), type="GateError")
        outcome.text = _text(case.failure)


def _properties(variant: Variant) -> Iterator[tuple[str, str]]:
    yield "precision", variant.precision
    if variant.sha256:
        yield "sha256", variant.sha256
    if variant.size_bytes is not None:
        yield "size_bytes", str(variant.size_bytes)
    if variant.accuracy is not None:
        yield variant.accuracy.metric, f"{variant.accuracy.value:.6f}"
    for row in variant.latency:
        yield f"p50_ms_batch_{row.batch}", f"{row.p50_ms:.3f}"


def _cases(variant: Variant) -> Iterator[_Case]:
    yield _Case("made", variant.error, error=variant.error is not None)
    for row in variant.rows:
        yield from _row_cases(row)
    if variant.independence is not None:
        detail = variant.independence.detail or "a sample's result depends on the others in its batch"
        yield _Case("independent of the batch", None if variant.independence.passed else detail)
    if (accuracy := variant.accuracy) is not None:
        said = f"{percent(accuracy.value)} on {accuracy.samples} samples"
        if accuracy.drop is not None and accuracy.max_drop is not None:
            said += f": {figure(accuracy.drop)} points lost where {figure(accuracy.max_drop)} are allowed"
        yield _Case(f"accuracy: {accuracy.metric}", None if accuracy.passed else said)
    if variant.served is not None:
        yield _Case("right as served on this CPU", None if variant.served.passed else variant.served.detail)
    for build in variant.preflight:
        name = f"pre-flight: {build.builder} for {', '.join(build.compute_capabilities)}"
        yield _Case(name, None if build.passed else "; ".join(build.problems) or "it failed")


def _row_cases(row: NumericRow) -> Iterator[_Case]:
    where = f"{row.output} at {sizes_text(row.sizes)}"
    if row.problem is not None or not row.gates:
        yield _Case(where, row.problem)
    for gate in row.gates:
        yield _Case(f"{where}: {METRICS.get(gate.metric, gate.metric)}", None if gate.passed else _missed(row, gate))


def _missed(row: NumericRow, gate: GateLimit) -> str:
    return (
        f"{row.output} at {sizes_text(row.sizes)}: {METRICS.get(gate.metric, gate.metric)} is "
        f"{gate_figure(gate.metric, gate.value)}, at {gate.direction} {gate_figure(gate.metric, gate.limit)} is needed"
    )


def _text(value: str) -> str:
    return _NOT_XML.sub("\ufffd", value)
