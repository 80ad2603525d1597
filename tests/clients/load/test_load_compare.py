"""Two reports against each other."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from load_report_samples import level, report, saved

from tritonstack.errors import InputError
from tritonstack.load.arrival import ClosedLoop, OpenLoop
from tritonstack.load.compare import Comparison, compare
from tritonstack.load.objective import parse_gates
from tritonstack.load.report import write_report
from tritonstack.load.saved_report import read_report


def verdicts(found: Comparison) -> dict[str, str]:
    (one,) = found.levels
    return {metric.metric: metric.verdict for metric in one.metrics}


def test_a_slower_server_is_shown_to_be_slower() -> None:
    found = compare(saved(level(seed=1)), saved(level(seed=2, median_ms=6, per_second=400)))
    assert verdicts(found) == {"throughput": "worse", "p50": "worse", "p99": "worse"}
    assert found.levels[0].metrics[0].ratio == pytest.approx(0.8, rel=0.02)


def test_runs_of_the_same_server_seldom_seem_to_differ() -> None:
    """95 % intervals err in one of twenty; a little more is allowed for the bootstrap of few seconds."""
    wrong = {"throughput": 0, "p50": 0, "p99": 0}
    for seed in range(40):
        one, other = (saved(level(seed=s, per_second=300, wobble=0.05)) for s in (seed, 1000 + seed))
        for metric, verdict in verdicts(compare(one, other)).items():
            wrong[metric] += verdict != "no difference shown"
    assert all(count <= 7 for count in wrong.values()), wrong


def test_short_runs_show_nothing() -> None:
    found = compare(saved(level(seconds=2, per_second=20)), saved(level(seed=2, seconds=2, per_second=20)))
    assert set(verdicts(found).values()) <= {"too little data", "no difference shown"}


def test_relative_gates_break_only_where_a_difference_is_shown() -> None:
    before, same = saved(level(seed=1)), saved(level(seed=2))
    slower = saved(level(seed=3, median_ms=6, per_second=400))
    gates = parse_gates("throughput<-5%,p99>+10%,p99>50ms")
    assert compare(before, same, gates=gates).broken == ()
    assert [gate.gate for gate in compare(before, slower, gates=gates).broken] == ["throughput<-5%", "p99>+10%"]
    # A change beyond the gate that the noise explains is none.
    noisy = [saved(level(seed=seed, seconds=5, wobble=0.3)) for seed in (4, 5)]
    assert all(not m.shown for m in compare(*noisy).levels[0].metrics if m.metric == "throughput")


def test_absolute_gates_judge_the_second_report() -> None:
    slow, fast = saved(level(median_ms=9)), saved(level(median_ms=3))
    assert compare(slow, fast, gates=parse_gates("p50>5ms")).broken == ()
    assert len(compare(fast, slow, gates=parse_gates("p50>5ms")).broken) == 1


@pytest.mark.parametrize(
    ("key", "value"), [("model", "other"), ("batch", 8), ("protocol", "http"), ("request_bytes", 99)]
)
def test_unlike_runs_are_refused(key: str, value: object) -> None:
    before, after = saved(level()), saved(level(seed=1))
    after = replace(after, body={**after.body, key: value})
    with pytest.raises(InputError, match=r"not alike.*--force"):
        compare(before, after)
    found = compare(before, after, force=True)
    assert found.levels and key in found.unlike[0]


def test_levels_are_matched_by_their_load() -> None:
    before = saved(level(ClosedLoop(1)), level(ClosedLoop(4)))
    after = saved(level(ClosedLoop(4), seed=1), level(ClosedLoop(8), seed=2))
    found = compare(before, after)
    assert [one.label for one in found.levels] == ["concurrency 4"]
    assert any("only in" in note and "concurrency 8" in note for note in found.notes)
    with pytest.raises(InputError, match="no level in common"):
        compare(saved(level(OpenLoop(50.0, "poisson"))), saved(level(OpenLoop(50.0, "constant"))))
    forced = compare(saved(level(OpenLoop(50.0))), saved(level(OpenLoop(60.0))), force=True)
    assert "arrival" in forced.unlike


def version_1(one: dict[str, object]) -> dict[str, object]:
    """The report as version 1 wrote it."""
    keys = ("series", "intervals", "goodput_per_s", "objectives", "server_use", "stability")
    levels = []
    for body in one["levels"]:  # type: ignore[attr-defined]
        level = {key: value for key, value in body.items() if key not in keys}
        levels.append({**level, "arrival": {k: v for k, v in level["arrival"].items() if k != "label"}})
    left = ("slo", "knee", "sweep", "gates", "broken_gates")
    return {**{k: v for k, v in one.items() if k not in left}, "schema_version": 1, "levels": levels}


def test_reports_of_version_1_can_be_compared(tmp_path: Path) -> None:
    write_report(tmp_path / "old.json", version_1(report(level(seed=1)).to_json()))
    write_report(tmp_path / "new.json", report(level(seed=2, median_ms=7, per_second=350)).to_json())
    found = compare(read_report(tmp_path / "old.json"), read_report(tmp_path / "new.json"))
    assert verdicts(found) == {"throughput": "too little data", "p50": "worse", "p99": "worse"}
    assert any("schema version 1" in note for note in found.notes)


def load_compare(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tritonstack", "load", "compare", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_command(tmp_path: Path) -> None:
    before, after, out = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "c.json"
    write_report(before, report(level(seed=1)).to_json())
    write_report(after, report(level(seed=2, median_ms=6, per_second=400)).to_json())
    done = load_compare(before, after)
    assert done.returncode == 0 and "worse" in done.stdout and done.stderr == ""
    done = load_compare(before, after, "--fail-if", "throughput<-5%", "--json", "--output", out)
    assert done.returncode == 1
    assert "gate broken: concurrency 4: throughput<-5%: -2" in done.stderr
    assert json.loads(done.stdout) == json.loads(out.read_text())
    assert load_compare(before, after, "--fail-if", "throughput>+5%,p99>1s").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "BEFORE.json"),
        (("a.json", "b.json", "--fail-if", "p99"), 2, "METRIC OP VALUE"),
        (("a.json", "b.json"), 1, "cannot read a.json"),
        (("{none}", "{none}"), 1, "is no JSON"),
        (("{list}", "{list}"), 1, "is no load report"),
        (("{future}", "{future}"), 1, "schema version 3"),
        (("{torn}", "{torn}"), 1, "damaged"),
        (("{histogram}", "{histogram}"), 1, "damaged"),
    ],
)
def test_what_cannot_be_compared_is_said_in_one_line(
    tmp_path: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    whole = report(level(seconds=1)).to_json()
    torn = {**whole, "levels": [{"arrival": {}}]}
    histogram = {**whole, "levels": [{**whole["levels"][0], "latency_histogram": "HISTFAAA"}]}
    for name, text in (
        ("none", "{"), ("list", "[]"), ("future", json.dumps({**whole, "schema_version": 3})),
        ("torn", json.dumps(torn)), ("histogram", json.dumps(histogram)),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
    done = load_compare(*(str(tmp_path / a[1:-1]) if a.startswith("{") else a for a in arguments))
    assert done.returncode == code, done.stderr
    assert words in done.stderr and done.stderr.count("\n") == 1 and done.stdout == ""
