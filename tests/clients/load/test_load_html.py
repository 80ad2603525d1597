"""The HTML page: well formed, self-contained, escaped, accessible; shown by a browser where one is installed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from html_page import Page, contrast, schemes, show
from load_report_samples import level, report
from test_load_report import reports

from tritonstack.load.html_report import duration, figure, render_html
from tritonstack.load.page.axis import Axis
from tritonstack.load.page.markup import escaped, tag
from tritonstack.load.page.plots import Frame, Line, histogram_plot, line_plot, stacked_bars
from tritonstack.load.page.style import STYLE
from tritonstack.load.report import LoadReport
from tritonstack.load.saved_report import checked_report

NASTY = '<script>alert("x")</script>&\'ü\u202e'


def page_of(made: LoadReport) -> str:
    return render_html(checked_report("x", json.loads(json.dumps(made.to_json()))))


def nasty() -> LoadReport:
    one = level(errors=2)
    error = replace(one.errors[0], kind=NASTY, example=NASTY)
    one = replace(one, errors=(error,), problems=(NASTY,), notes=(NASTY,))
    return replace(report(one, level(seed=1), model=NASTY), command=("tritonstack", NASTY), url=NASTY)


ALL = {**reports(), "nasty": nasty()}
CASES = pytest.mark.parametrize("name", list(ALL))


@CASES
def test_well_formed_and_self_contained(name: str) -> None:
    text = page_of(ALL[name])
    page = Page(text)
    assert text.startswith("<!doctype html>\n<html lang=")
    assert {element for element, _ in page.elements}.isdisjoint({"script", "link", "img", "iframe", "form", "a"})
    for _, attributes in page.elements:
        assert not [key for key in attributes if key.startswith("on") or key in ("src", "href", "srcset", "action")]
    assert "url(" not in STYLE and "@import" not in STYLE
    [policy] = [m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert "nan" not in page.text.lower().replace("tenant", "") and "None" not in page.text


@CASES
def test_accessible(name: str) -> None:
    page = Page(page_of(ALL[name]))
    assert len(page.all("table")) == len(page.all("caption"))
    assert all(cell.get("scope") in ("col", "row") for cell in page.all("th"))
    identities = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(identities) == len(set(identities))
    for plot in page.all("svg"):
        assert plot["role"] == "img" and set(str(plot["aria-labelledby"]).split()) <= set(identities)
    levels = [int(element[1]) for element, _ in page.elements if re.fullmatch("h[1-6]", element)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_says_what_matters() -> None:
    text = Page(page_of(ALL["plain"])).text
    for words in (
        "concurrency 4", "rate 500/s poisson", "p99<50ms", "too many errors", "ServerError INTERNAL", "goodput",
        "client and network", "tritonstack load m --concurrency 4", "Linux 6.1", "1.5 cores", "GPU-1",
        "50 % busy, 2.0 GB in use, 210 W", "rejected 2", "1 December 2026, 10:00 UTC", "not within its limits",
    ):  # fmt: skip
        assert words in text, words
    assert "10 requests/s hold the objectives; 20/s did not" in Page(page_of(ALL["knee"])).text
    assert "No knee is called." in Page(page_of(ALL["no knee"])).text
    assert "★ best trade-off" in Page(page_of(ALL["sweep"])).text
    assert "Gate broken: concurrency 4: p99>5ms: 6 ms" in Page(page_of(ALL["gates"])).text
    assert "not stable after 2 windows" in Page(page_of(ALL["stability"])).text


def test_names_stay_text() -> None:
    text = page_of(ALL["nasty"])
    assert NASTY.replace("\u202e", "\ufffd") in Page(text).text
    assert "\u202e" not in text


def test_markup() -> None:
    assert tag("p", "a<b", tag("b", 1), None, class_="x", title=None) == '<p class="x">a&lt;b<b>1</b></p>'
    assert escaped("\x1b[0m\x7f\ud800") == "\ufffd[0m\ufffd\ufffd"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0.5, "0.5 µs"), (999.4, "999 µs"), (1000, "1 ms"), (12_345, "12.3 ms"), (5e6, "5 s"), (0, "0 µs")],
)
def test_durations(value: float | None, shown: str) -> None:
    assert duration(value) == shown


def test_figures() -> None:
    assert [figure(v) for v in (0, 0.001234, 12.345, 123456.0, float("nan"), None)] == [
        "0", "0.00123", "12.3", "123,456", "–", "–",
    ]  # fmt: skip


@pytest.mark.parametrize("values", [[], [0.0], [1e-9, 1e12], [5.0, 5.0], [1.0, 2.0, 3.0]])
def test_axes_hold_their_values(values: list[float]) -> None:
    for axis in (Axis.linear(values), Axis.log(values)):
        assert axis.low < axis.high and 1 <= len(axis.ticks) <= 30
        assert all(0 <= axis.position(value) <= 1 for value in (*values, *axis.ticks))


@pytest.mark.parametrize("values", [[], [(0.0, 0.0)], [(1.0, 1e-9), (2.0, 1e9)], [(5.0, 3.0), (5.0, 3.0)]])
def test_plots_of_odd_values(values: list[tuple[float, float]]) -> None:
    frame = Frame("t", "i", "x", "y", str, str)
    for log_y in (False, True):
        text = line_plot(frame, [Line("l", tuple(values), 0)], log_y=log_y, limit=(1.0, "limit"))
        for number in re.findall(r' (?:x|y|x1|y1|x2|y2|cx|cy)="([^"]*)"', text):
            assert -60 <= float(number) <= 520
    ys = [max(y, 1) for _, y in values]
    assert "nan" not in histogram_plot(frame, ys, [1] * len(ys), [("p50", 1.0)])
    assert "nan" not in stacked_bars([("a", [y for _, y in values], "1")], ["x"])


def test_colours_can_be_told_from_their_ground() -> None:
    """WCAG 2 AA: 4.5 for text, 3 for the marks of a plot; in both schemes."""
    for colors in schemes(STYLE):
        for ground in ("page", "card"):
            assert all(contrast(colors[ink], colors[ground]) >= 4.5 for ink in ("ink", "soft"))
            assert all(contrast(colors[f"c{i}"], colors[ground]) >= 3 for i in range(6))
        assert contrast(colors["good"], colors["good-band"]) >= 4.5
        assert contrast(colors["bad"], colors["bad-band"]) >= 4.5
        assert contrast(colors["ink"], colors["note-band"]) >= 4.5


@pytest.mark.browser
@pytest.mark.parametrize("width", [1200, 420])
@pytest.mark.parametrize("name", ["knee", "sweep", "nasty"])
def test_in_a_browser(tmp_path: Path, width: int, name: str) -> None:
    """A browser shows it whole: nothing is refused, and nothing but the tables' own frames scrolls sideways."""
    page = show(
        tmp_path,
        page_of(ALL[name]),
        width=width,
        counted="[...d.querySelectorAll('svg')].filter(s=>s.getBoundingClientRect().height>100).length",
    )
    assert page.wide <= page.shown and page.height > 1500 and page.count >= 6
    assert "Refused to" not in page.log and "CONSOLE" not in page.log
