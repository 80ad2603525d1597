"""The HTML report: well formed, self-contained, escaped, accessible; rendered by a browser where one is installed."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from html_page import Page, contrast, schemes, show
from report_samples import failed, good, nasty

from tritonstack_export.report import ExportReport, LatencyRow
from tritonstack_export.report.html_report import render_html
from tritonstack_export.report.html_style import STYLE
from tritonstack_export.report.markup import escape, tag
from tritonstack_export.report.pareto_plot import Point, pareto_front, pareto_plot

REPORTS = pytest.mark.parametrize("report", [good(), failed(), nasty()], ids=["good", "failed", "nasty"])


@REPORTS
def test_well_formed_and_self_contained(report: ExportReport) -> None:
    text = render_html(report)
    page = Page(text)
    assert text.startswith("<!doctype html>\n<html lang=")
    assert {name for name, _ in page.elements}.isdisjoint({"script", "link", "img", "iframe", "object", "form", "a"})
    for _, attributes in page.elements:
        assert not [key for key in attributes if key.startswith("on") or key in ("src", "href", "srcset", "action")]
    assert "url(" not in STYLE and "@import" not in STYLE
    [policy] = [m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


@REPORTS
def test_accessible(report: ExportReport) -> None:
    page = Page(render_html(report))
    assert len(page.all("table")) == len(page.all("caption"))
    assert all(cell.get("scope") in ("col", "row") for cell in page.all("th"))
    identities = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(identities) == len(set(identities))
    for plot in page.all("svg"):
        assert plot["role"] == "img"
        assert set(str(plot["aria-labelledby"]).split()) <= set(identities)
    for section in page.all("section"):
        assert section["aria-labelledby"] in identities
    levels = [int(name[1]) for name, _ in page.elements if re.fullmatch("h[1-6]", name)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_says_what_matters() -> None:
    text = Page(render_html(good())).text
    for words in (
        "efficientnet_lite0_int8", "5.2 MB", "22.2 dB", "74.42 %", "0.68", "4.9 ms", "30 November 2026, 22:30 UTC",
        "node_conv2d (Conv)", "4.6 dB", "its values reach 1.2e+06", "session.disable_quant_qdq = 1", "avx512_vnni",
        "tritonstack export spec.yaml", "64 pictures of calibration/", "A proxy for TensorRT",
        "calibrated on 64 pictures",
    ):  # fmt: skip
        assert words in text, words
    assert "✗ failed" not in text


def test_says_what_failed() -> None:
    text = Page(render_html(failed())).text
    for words in (
        "nothing was published", "Did not pass: efficientnet_lite0_fp16, efficientnet_lite0_int8.",
        "AutoCast: not a number in 'logits'", "SNR in dB ≥ 20 (missed)", "node 'custom0' (MyOp): no such operator",
    ):  # fmt: skip
        assert words in text, words


def test_names_stay_text() -> None:
    page = Page(render_html(nasty()))
    assert """<script>alert("x")</script>&amp;'" ü""" in page.text
    assert not page.all("script")
    assert all(mark not in render_html(nasty()) for mark in ("\x00", "\x1b", "\u202e", "\udcff"))


def test_one_variant_without_anything_measured() -> None:
    bare = replace(good().variants[0], rows=(), accuracy=None, latency=(), preflight=(), size_bytes=None, nodes={})
    text = render_html(replace(good(), variants=(bare,), seconds={}))
    page = Page(text)
    assert not page.all("svg") and "Pre-flight" not in page.text


def test_plots_rank_by_snr_without_a_labelled_set() -> None:
    variants = tuple(replace(variant, accuracy=None) for variant in good().variants)
    text = render_html(replace(good(), variants=variants))
    assert "lowest SNR against FP32, dB" in text
    # FP32 is what the others are compared with: a line at its cost, no point.
    assert text.count('<line x1="') > 0 and text.count('class="reference"') == 2


def test_pareto_front() -> None:
    points = [
        Point("fast", "int8", 1.0, 70.0), Point("worse", "fp16", 3.0, 75.0), Point("best", "fp32", 2.0, 75.0),
        Point("twin", "fp32", 1.0, 60.0), Point("unrated", "fp32", 0.5, None),
    ]  # fmt: skip
    assert [point.label for point in pareto_front(points)] == ["fast", "best"]


@pytest.mark.parametrize(
    "values",
    [[(1.0, 1.0)], [(0.0, 0.0), (0.0, 0.0)], [(5, None)], [(1e-9, -3.0), (1e9, 1e-12)], [(3.0, 75.0), (3.0, 75.0)]],
)
def test_plots_of_odd_values(values: list[tuple[float, float | None]]) -> None:
    points = [Point(f"m{i}", "fp32", cost, quality) for i, (cost, quality) in enumerate(values)]
    text = pareto_plot("t", points, cost="ms", quality="%", identity="i")
    assert "nan" not in text and "inf" not in text
    for number in re.findall(r' (?:x|y|x1|y1|x2|y2|cx|cy)="([^"]*)"', text):
        assert -60 <= float(number) <= 520


def test_latency_that_is_no_number_is_left_out_of_the_plots() -> None:
    first, *rest = good().variants
    odd = replace(first, latency=(LatencyRow(1, 0, float("nan"), float("nan"), float("nan")),))
    assert "nan" not in Page(render_html(replace(good(), variants=(odd, *rest)))).text.lower().replace("tenant", "")


def test_markup() -> None:
    assert tag("p", "a<b", tag("b", 1), None, class_="x", hidden=True, title=None) == (
        '<p class="x" hidden>a&lt;b<b>1</b></p>'
    )
    assert escape("\x1b[0m\x7f\ud800") == "␛[0m\ufffd\ufffd"


def test_colours_can_be_told_from_their_ground() -> None:
    """WCAG 2 AA: 4.5 for text, 3 for the marks of a plot; in both schemes."""
    for colors in schemes(STYLE):
        for ground in ("page", "card"):
            for ink in ("ink", "soft"):
                assert contrast(colors[ink], colors[ground]) >= 4.5, (ink, ground)
            for mark in ("fp32", "fp16", "bf16", "int8", "other"):
                assert contrast(colors[mark], colors[ground]) >= 3, mark
        assert contrast(colors["good"], colors["good-band"]) >= 4.5
        assert contrast(colors["bad"], colors["bad-band"]) >= 4.5
        assert contrast(colors["ink"], colors["note-band"]) >= 4.5


@pytest.mark.browser
@pytest.mark.parametrize("width", [1200, 420])
def test_in_a_browser(tmp_path: Path, width: int) -> None:
    """A browser shows it whole: nothing is refused, and nothing but the tables' own frames scrolls sideways."""
    page = show(tmp_path, render_html(failed()), width=width, counted="d.querySelectorAll('table').length")
    assert page.wide <= page.shown and page.height > 1500 and page.count >= 8
    assert "Refused to" not in page.log and "CONSOLE" not in page.log
