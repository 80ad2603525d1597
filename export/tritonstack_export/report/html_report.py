"""The report as one HTML file: no script, nothing loaded from anywhere, light and dark, readable without the plots."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime

from tritonstack.terminal import human_bytes, human_seconds
from tritonstack_export.report.data import ExportReport, Variant
from tritonstack_export.report.html_style import STYLE
from tritonstack_export.report.markup import Markup, data_table, escape, facts, join, page, tag
from tritonstack_export.report.pareto_plot import Point, pareto_plot
from tritonstack_export.report.variant_section import bars, color_class, named, render_variant, verdict
from tritonstack_export.report.wording import figure, percent


def render_html(report: ExportReport) -> str:
    """The whole page."""
    return page(f"{report.model}: export report", STYLE, _parts(report))


def _parts(report: ExportReport) -> Iterator[Markup]:
    yield _header(report)
    yield tag("h2", "Variants")
    yield tag("div", _overview(report), class_="card")
    plots = _plots(report)
    if plots:
        yield tag("h2", "What a variant costs and gives")
        yield tag("div", plots, class_="plots")
    for index, variant in enumerate(report.variants):
        yield render_variant(variant, identity=f"variant-{index}")
    yield tag("h2", "How it was made")
    yield tag("div", list(_circumstances(report)), class_="card")


def _header(report: ExportReport) -> Markup:
    failed = [variant.name for variant in report.variants if not variant.passed]
    said: list[Markup | str] = []
    if report.published:
        said.append("published")
        if report.repository:
            said += [" in ", tag("code", report.repository)]
    else:
        said.append("nothing was published")
    if report.published and report.default_variant:
        said += ["; served under the bare name: ", tag("strong", report.default_variant)]
    lines: list[Markup] = [
        tag("h1", report.model),
        tag(
            "p",
            verdict(report.passed),
            " ",
            tag("span", "exported ", _moment(report.created_at), ", ", said, class_="soft"),
        ),
    ]
    if failed:
        lines.append(tag("p", "Did not pass: ", ", ".join(failed), ".", class_="problem"))
    lines += [tag("p", note, class_="note") for note in report.notes]
    return tag("header", lines)


def _moment(text: str) -> Markup:
    """``30 November 2026, 22:30 UTC``; the text as it is when it is no time."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return escape(text)
    zone = moment.strftime("%z")
    zone = "UTC" if zone == "+0000" else f"UTC{zone[:3]}:{zone[3:5]}" if zone else ""
    return tag("time", f"{moment.day} {moment:%B %Y, %H:%M} {zone}".strip(), datetime=text)


def _overview(report: ExportReport) -> Markup:
    batches = sorted({row.batch for variant in report.variants for row in variant.latency})
    accurate = any(variant.accuracy for variant in report.variants)
    header = ["variant", "verdict", "size", "lowest SNR"]
    header += ["accuracy", "points lost"] if accurate else []
    header += [f"batch {batch}" for batch in batches]
    header += ["samples/s"] if batches else []
    header += ["pre-flight"] if any(variant.preflight for variant in report.variants) else []
    numbers = range(2, len(header) - (1 if header[-1] == "pre-flight" else 0))
    rows = [_overview_row(variant, batches, accurate, header) for variant in report.variants]
    caption = "Every variant at a glance" + ("; per batch: the median latency of one call" if batches else "")
    return data_table(caption, header, rows, numbers=numbers)


def _overview_row(variant: Variant, batches: list[int], accurate: bool, header: list[str]) -> list[Markup | str]:
    lowest = lowest_snr(variant)
    cells: list[Markup | str] = [
        named(variant),
        verdict(variant.passed),
        human_bytes(variant.size_bytes) if variant.size_bytes is not None else "–",
        f"{figure(lowest)} dB" if lowest is not None else "–",
    ]
    if accurate:
        accuracy = variant.accuracy
        cells.append(percent(accuracy.value) if accuracy else "–")
        cells.append(figure(accuracy.drop) if accuracy else "–")
    medians = {row.batch: row.p50_ms for row in variant.latency}
    cells += [f"{figure(medians[batch])} ms" if batch in medians else "–" for batch in batches]
    if batches:
        rates = [row.samples_per_s for row in variant.latency]
        cells.append(figure(max(rates)) if rates else "–")
    if "pre-flight" in header:
        cells.append(verdict(all(row.passed for row in variant.preflight)) if variant.preflight else "–")
    return cells


def lowest_snr(variant: Variant) -> float | None:
    """The worst signal-to-noise ratio over all outputs and sizes in dB, None where none is finite."""
    finite = [row.snr_db for row in variant.rows if row.snr_db is not None and math.isfinite(row.snr_db)]
    return min(finite, default=None)


def _plots(report: ExportReport) -> list[Markup]:
    """Latency and size against accuracy, or against the worst SNR where no accuracy was measured."""
    timed = [v for v in report.variants if v.latency and all(math.isfinite(row.p50_ms) for row in v.latency)]
    sized = [variant for variant in report.variants if variant.size_bytes is not None]
    accurate = [variant for variant in report.variants if variant.accuracy]
    if accurate:
        words = f"{accurate[0].accuracy.metric if accurate[0].accuracy else 'accuracy'}, %"
    else:
        words = "lowest SNR against FP32, dB"

    def quality(variant: Variant) -> float | None:
        if accurate:
            value = variant.accuracy.value if variant.accuracy else math.nan
            return 100 * value if math.isfinite(value) else None
        return lowest_snr(variant) if variant.made_from else None

    def panel(variants: list[Variant], costs: list[float], cost: str, title: str, identity: str) -> Markup:
        points = [
            Point(variant.name, color_class(variant.precision), value, quality(variant))
            for variant, value in zip(variants, costs, strict=True)
        ]
        plot = pareto_plot(title, points, cost=cost, quality=words, identity=identity)
        legend = "Better is up and to the left; the dashed line joins the best trade-offs."
        if any(point.quality is None for point in points):
            legend += " A dotted upright line is a variant without a value of its own on the upright axis."
        return tag("figure", plot, tag("figcaption", title, ". ", legend), class_="card")

    panels = []
    if len(timed) > 1:
        batch = min(row.batch for variant in timed for row in variant.latency)
        shown = [variant for variant in timed if any(row.batch == batch for row in variant.latency)]
        medians = [next(row.p50_ms for row in variant.latency if row.batch == batch) for variant in shown]
        cost = f"median latency at batch {batch}, ms"
        panels.append(panel(shown, medians, cost, "Latency on this machine and quality", "pareto-latency"))
    if len(sized) > 1:
        sizes = [(variant.size_bytes or 0) / 1e6 for variant in sized]
        panels.append(panel(sized, sizes, "size of the files, MB", "Size and quality", "pareto-size"))
    return panels


def _circumstances(report: ExportReport) -> Iterator[Markup]:
    environment = report.environment
    yield tag("h3", "Command")
    yield tag("pre", report.command)
    if report.calibration or report.evaluation:
        yield tag("h3", "Data")
        yield facts([("calibration", report.calibration), ("evaluation", report.evaluation)])
    if report.seconds:
        yield tag("h3", f"Time: {human_seconds(sum(report.seconds.values()))} in all")
        longest = max(report.seconds.values()) or 1.0
        rows = [(step, seconds / longest, human_seconds(seconds)) for step, seconds in report.seconds.items()]
        yield bars(rows, css="bars steps")
    yield tag("h3", "Machine and versions")
    terms = [
        ("processor", f"{environment.cpu}, {environment.cores} cores for this process"),
        ("instruction sets", ", ".join(environment.flags)),
        ("system", environment.system),
        ("versions", ", ".join(f"{name} {version}" for name, version in environment.versions.items())),
    ]
    yield facts(terms)
    yield join(
        tag("p", "Latencies belong to this machine and its load at the time; they rank variants, and do not promise "
            "what a GPU or another CPU will do.", class_="soft")
    )  # fmt: skip
