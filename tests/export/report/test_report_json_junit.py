"""The report as JSON and JUnit XML, and the writing of report files."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from report_samples import NASTY, failed, good, nasty

from tritonstack.errors import SetupError, UsageError
from tritonstack_export.report import NumericRow, ServedPath, require_report_file, write_report
from tritonstack_export.report.json_report import render_json
from tritonstack_export.report.junit_report import render_junit
from tritonstack_export.report.wording import figure, gate_figure, percent


def strict_json(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_json_says_everything() -> None:
    value = strict_json(render_json(good()))
    assert value["schema_version"] == 1 and value["passed"] is True
    int8 = value["variants"][2]
    assert int8["passed"] and int8["accuracy"]["drop"] == 0.68 and int8["rows"][0]["passed"]
    assert int8["excluded"][0] == {
        "node": "node_conv2d", "operator": "Conv", "gain_db": 4.6, "macs_share": 0.028, "bytes_share": 0.0002,
        "by_hand": False,
    }  # fmt: skip
    assert int8["latency"][1]["batch"] == 8 and int8["preflight"][0]["compute_capabilities"] == ["8.9"]
    assert value["environment"]["flags"] == ["avx2", "avx512_vnni"]


def test_json_of_failures() -> None:
    value = strict_json(render_json(failed()))
    assert value["passed"] is False and value["published"] is False
    assert [variant["passed"] for variant in value["variants"]] == [True, False, False]
    assert value["variants"][2]["rows"][0]["gates"][0]["passed"] is False


def test_json_of_odd_values() -> None:
    text = render_json(nasty())
    value = strict_json(text)
    row = value["variants"][0]["rows"][0]
    assert row["max_abs"] is None and row["max_rel"] is None and row["snr_db"] is None
    assert value["model"].startswith("<script>")
    text.encode("utf-8")


def junit(report: Any) -> ElementTree.Element:
    return ElementTree.fromstring(render_junit(report))  # noqa: S314  # our own text


@pytest.mark.parametrize("report", [good(), failed(), nasty()], ids=["good", "failed", "nasty"])
def test_junit_counts_what_it_holds(report: Any) -> None:
    root = junit(report)
    suites = root.findall("testsuite")
    assert len(suites) == len(report.variants)
    for element, within in [(root, root), *((suite, suite) for suite in suites)]:
        assert int(element.attrib["tests"]) == len(list(within.iter("testcase")))
        assert int(element.attrib["failures"]) == len(list(within.iter("failure")))
        assert int(element.attrib["errors"]) == len(list(within.iter("error")))
    assert report.passed == (int(root.attrib["failures"]) + int(root.attrib["errors"]) == 0)


def test_junit_names_output_number_and_limit() -> None:
    messages = [failure.attrib["message"] for failure in junit(failed()).iter("failure")]
    assert "logits at batch 8: SNR in dB is 13.2, at least 20 is needed" in messages
    assert "70.00 % on 1000 samples: 5.1 points lost where 1 are allowed" in messages
    assert "node 'custom0' (MyOp): no such operator" in messages
    [error] = junit(failed()).iter("error")
    assert "AutoCast" in error.attrib["message"]


def test_junit_has_a_case_per_gate_and_output() -> None:
    suite = junit(good()).findall("testsuite")[1]
    names = [case.attrib["name"] for case in suite.iter("testcase")]
    assert names == [
        "made",
        *(f"logits at batch {batch}: SNR in dB" for batch in (1, 2, 8, 32)),
        "independent of the batch",
        "accuracy: top1",
        "pre-flight: TensorRT for RTX 1.7.1.116 for 8.9",
    ]
    properties = {p.attrib["name"]: p.attrib["value"] for p in suite.iter("property")}
    assert properties["precision"] == "fp16" and properties["p50_ms_batch_1"] == "17.300"


def test_verdicts_follow_every_part() -> None:
    variant = good().variants[1]
    assert variant.passed
    assert not replace(variant, error="no").passed
    assert not replace(variant, served=ServedPath(False, "saturates")).passed
    row = NumericRow("y", {}, 0.0, 0.0, 1.0, problem="the shape differs")
    assert not replace(variant, rows=(row,)).passed
    assert not replace(good(), variants=(replace(variant, rows=(row,)),)).passed


@pytest.mark.parametrize("suffix", [".html", ".json", ".xml", ".HTML"])
def test_written_in_one_step(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"report{suffix}"
    path.write_text("old")
    other = path.open()
    previous = os.umask(0o022)
    try:
        assert write_report(nasty(), path) == path
    finally:
        os.umask(previous)
    assert other.read() == "old", "the old file was written into instead of replaced"
    assert path.read_text("utf-8") and stat.S_IMODE(path.stat().st_mode) == 0o644
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["report", "report.pdf", "report.html.gz", ".html"])
def test_unknown_suffix(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="--report") as caught:
        require_report_file("--report", tmp_path / name)
    assert ".html or .json or .xml" in str(caught.value) and caught.value.exit_code == 2
    with pytest.raises(UsageError):
        write_report(good(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        require_report_file("--report", tmp_path / "missing" / "report.html")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        require_report_file("--report", tmp_path / "folder.html")
    with pytest.raises(SetupError, match="could not be written"):
        write_report(good(), tmp_path / "missing" / "report.html")
    with pytest.raises(SetupError, match="could not be written"):
        write_report(good(), tmp_path / "folder.html")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.html"]


def test_junit_keeps_only_what_xml_can_hold() -> None:
    text = render_junit(nasty())
    assert "\x00" not in text and "\x1b" not in text and "<script>" not in text
    assert NASTY.split("\x00")[0] in junit(nasty()).attrib["name"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (float("nan"), "–"), (float("inf"), "–"), (0.0, "0"), (0.0804, "0.0804"), (4.06e-06, "4.06e-06"),
        (43.68, "43.7"), (12, "12"), (1301.4, "1,301"), (-2.5, "-2.5"), (99.96, "100"), (100, "100"),
        (12345678, "1.23e+07"),
    ],
)  # fmt: skip
def test_figures(value: float | None, text: str) -> None:
    assert figure(value) == text


def test_limits_near_one_do_not_read_as_one() -> None:
    assert gate_figure("cosine", 0.99999) == "0.99999" and gate_figure("equal", 0.9995) == "0.9995"
    assert gate_figure("snr_db", 43.68) == "43.7" and gate_figure("cosine", None) == "–"


def test_percent() -> None:
    assert (percent(0.75071), percent(1.0), percent(None)) == ("75.07 %", "100.00 %", "–")


def keys(value: Any) -> set[str]:
    """Every key of nested records; not those of free mappings such as `versions`."""
    if isinstance(value, list):
        return set().union(*map(keys, value)) if value else set()
    if not isinstance(value, dict):
        return set()
    free = {"sizes", "versions", "nodes", "options", "seconds"}
    return set(value).union(*(keys(item) for key, item in value.items() if key not in free))


def test_docs_name_every_key() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "report.md").read_text("utf-8")
    missing = {key for key in keys(strict_json(render_json(good()))) if f"`{key}`" not in text}
    assert not missing
