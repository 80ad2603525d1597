"""The report in its written forms: JSON by its schema, CSV, Prometheus text."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from load_report_samples import level, report, saved

from tritonstack.errors import SetupError
from tritonstack.load.arrival import ClosedLoop, OpenLoop
from tritonstack.load.csv_report import render_csv
from tritonstack.load.curve import CurvePoint
from tritonstack.load.knee import Knee, Probe
from tritonstack.load.objective import parse_objectives
from tritonstack.load.prometheus_text import render_prometheus
from tritonstack.load.rate_profile import RateProfile
from tritonstack.load.report import LoadReport, write_text
from tritonstack.load.saved_report import checked_report
from tritonstack.load.schedule import Timetable
from tritonstack.load.schema import report_schema
from tritonstack.load.server_metrics import parse_metrics
from tritonstack.load.stability import Stability, WindowFigures
from tritonstack.load.sweep import Sweep, SweepPoint
from tritonstack.load.sweep_space import Setting
from tritonstack.load.table import render

SLO = parse_objectives("p99<50ms,errors<1%")
POINT = CurvePoint("rate 10/s poisson", 10.0, 9.9, 1000.0, 2000.0, 0.0, "holds")
KNEE = Knee(10.0, (10.0, 20.0), True, "p99<50ms: …", (Probe(10.0, "holds", "fine", 1, 100, POINT),), ("a note",))
SWEEP = Sweep(
    (
        SweepPoint(Setting((("instance_count", 2),), (("concurrency", 4.0),)), POINT, 2e9, "", True),
        SweepPoint(Setting((("instance_count", 3),), (("concurrency", 4.0),)), None, None, "refused"),
    ),
    (Setting((("instance_count", 4),), (("concurrency", 4.0),)),),
    True,
    ("the budget was spent",),
)


def reports() -> dict[str, LoadReport]:
    plain = report(level(slo=SLO), level(OpenLoop(500.0), seed=1, errors=3, gpu=False, slo=SLO), slo=SLO)
    stable = level()
    stability = Stability(0.1, 5.0, 99.0, (WindowFigures(10.0, 5.0), WindowFigures(10.0, None)), False)
    stable = replace(stable, findings=replace(stable.findings, stability=stability))
    return {
        "plain": plain,
        "nothing answered": report(level(seconds=0)),
        "knee": replace(plain, knee=KNEE),
        "no knee": replace(plain, knee=replace(KNEE, rate=None, interval=(0.0, None), called=False)),
        "sweep": replace(plain, sweep=SWEEP),
        "stability": report(stable),
        "gates": replace(plain, gates=("p99>5ms",), broken_gates=("concurrency 4: p99>5ms: 6 ms",)),
        "nothing beside": report(replace(level(), findings=replace(level().findings, server_use=None))),
        "schedule": report(level(OpenLoop.following(Timetable(RateProfile.steps("10:2s,50:1m"))))),
        "gamma": report(level(OpenLoop(50.0, "gamma", 3.0))),
        "interrupted": replace(plain, levels=(), interrupted=True),
    }


CASES = pytest.mark.parametrize("name", list(reports()))


@CASES
def test_every_report_is_valid_by_the_schema(name: str) -> None:
    schema = report_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    text = json.dumps(reports()[name].to_json(), allow_nan=False)
    jsonschema.validate(json.loads(text), schema)
    checked_report("x", json.loads(text))


def test_the_schema_refuses_what_is_no_report() -> None:
    body = json.loads(json.dumps(reports()["plain"].to_json()))
    for change in ({"schema_version": 1}, {"more": 1}, {"levels": [{}]}, {"model": None}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**body, **change}, report_schema())


@CASES
def test_every_report_is_shown_as_text(name: str) -> None:
    shown = render(reports()[name])
    assert "m version 1 on triton 2.51.0" in shown
    assert ("knee: 10 requests/s hold, 20/s did not" in shown) is (name == "knee")
    assert ("no rate was shown to hold" in shown) is (name == "no knee")
    assert ("* beaten by none" in shown) is (name == "sweep")


def test_csv_has_a_row_per_level() -> None:
    rows = list(csv.DictReader(io.StringIO(render_csv(saved(level(slo=SLO), level(OpenLoop(500.0), errors=3))))))
    assert [row["load"] for row in rows] == ["concurrency 4", "rate 500/s poisson"]
    first, second = rows
    assert float(first["requests_per_s"]) == pytest.approx(500, rel=0.02)
    assert float(first["goodput_per_s"]) > 0 and second["goodput_per_s"] == ""
    assert (first["concurrency"], first["rate"], second["concurrency"], second["rate"]) == ("4", "", "", "500.0")
    assert (second["errors"], first["server_queue_us"], first["gpu_power_w_mean"]) == ("3", "1000.0", "210.0")
    assert second["failures"] == "too many errors"
    assert all(None not in row and None not in row.values() for row in rows), "as many cells as columns"


@CASES
def test_csv_of_every_report(name: str) -> None:
    body = json.loads(json.dumps(reports()[name].to_json()))
    rows = list(csv.reader(io.StringIO(render_csv(checked_report("x", body)))))
    assert len(rows) == 1 + len(body["levels"]) and len({len(row) for row in rows}) == 1


@CASES
def test_prometheus_text_of_every_report_is_valid(name: str) -> None:
    """Each metric has one HELP and one TYPE before its samples, which lie together; no sample comes twice."""
    text = render_prometheus(checked_report("x", json.loads(json.dumps(reports()[name].to_json()))))
    seen: list[str] = []
    current, keys = "", set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            current = line.split()[2]
            assert current not in seen, f"{current} in two places"
            seen.append(current)
        elif line.startswith("# TYPE "):
            assert line.split()[2] == current and line.split()[3] in ("gauge", "summary")
        else:
            (sample,) = parse_metrics(line)
            assert sample.name.removesuffix("_sum").removesuffix("_count") == current
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in keys
            keys.add(key)
            assert math.isfinite(sample.value)
    assert text == "" or text.endswith("\n")


def test_prometheus_text_says_what_was_measured() -> None:
    made = saved(level(ClosedLoop(4), errors=2), model='a"b\\c\nd')
    samples = {
        (s.name, s.labels.get("quantile"), s.labels.get("kind")): s for s in parse_metrics(render_prometheus(made))
    }
    p99 = samples["tritonstack_load_latency_seconds", "0.99", None]
    assert p99.value == pytest.approx(made.levels[0].body["latency"]["p99_us"] / 1e6)
    assert p99.labels["model"] == 'a"b\\c\nd'
    assert samples["tritonstack_load_errors", None, "ServerError INTERNAL"].value == 2
    assert samples["tritonstack_load_gpu_utilization", None, None].value == 0.5
    knee = checked_report("x", json.loads(json.dumps(reports()["knee"].to_json())))
    assert "tritonstack_load_knee_requests_per_second" in render_prometheus(knee)


def test_files_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "r.txt"
    write_text(path, "one\udcff")
    assert path.read_text() == "one\\udcff"
    assert path.stat().st_mode & 0o777 == 0o644
    with pytest.raises(SetupError, match="cannot write"):
        write_text(tmp_path / "no" / "r.txt", "x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["r.txt"]
