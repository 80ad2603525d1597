"""The search for the knee: on servers of known behaviour, and on the real one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from load_report_samples import level

from tritonstack.errors import UsageError
from tritonstack.load.arrival import OpenLoop
from tritonstack.load.findings import saved_level
from tritonstack.load.histogram import LatencyHistogram
from tritonstack.load.knee import Knee, KneeQuestion, find_knee, generator_limit, window_s
from tritonstack.load.objective import parse_objectives
from tritonstack.load.saved_report import SavedLevel
from tritonstack_deploy.embedded import EmbeddedServer

Array = np.ndarray[Any, Any]


class Server:
    """One worker that takes exponential times (mean `1 / capacity`): an M/M/1 queue, simulated request by request.

    Its sojourn time is exponential with rate ``capacity - rate``, so p99 stays under T up to
    ``capacity - ln(100) / T`` requests a second.
    """

    def __init__(self, capacity: float, *, errors: float = 0.0, lag_above: float = float("inf")) -> None:
        self.capacity, self.errors, self.lag_above = capacity, errors, lag_above
        self.generator = np.random.Generator(np.random.PCG64(7))
        self.now_s = 0.0
        self.asked: list[tuple[float, float]] = []

    def clock(self) -> float:
        return self.now_s

    def measure(self, rate: float, duration_s: float) -> SavedLevel:
        self.asked.append((rate, duration_s))
        self.now_s += duration_s + 0.5
        lead_s = 2.0
        count = self.generator.poisson(rate * (duration_s + lead_s))
        due_s = np.sort(self.generator.random(count)) * (duration_s + lead_s)
        work_s = self.generator.exponential(1 / self.capacity, count)
        done_s = np.empty(count)
        free_s = 0.0
        for i in range(count):
            free_s = max(free_s, due_s[i]) + work_s[i]
            done_s[i] = free_s
        inside = due_s >= lead_s
        histogram = LatencyHistogram()
        for value in (done_s - due_s)[inside]:
            histogram.record_s(float(value))
        answered = int(((done_s >= lead_s) & (done_s < lead_s + duration_s)).sum())
        bad = int(self.generator.binomial(histogram.count, self.errors))
        made = level(OpenLoop(rate), seconds=1, per_second=1)
        body = dict(saved_level(made).body)
        lag_us = 50_000.0 if rate > self.lag_above else 100.0
        body |= {
            "window_s": duration_s,
            "requests_per_s": answered / duration_s,
            "latency": vars_of(histogram),
            "latency_histogram": histogram.encoded(),
            "series": seconds_of(due_s[inside] - lead_s, (done_s - due_s)[inside], duration_s),
            "lag": {**body["lag"], "p99_us": lag_us},
            "counts": {**body["counts"], "measured": histogram.count, "errors": bad, "unsent": 0, "abandoned": 0},
        }
        return SavedLevel(body)


def vars_of(histogram: LatencyHistogram) -> dict[str, object]:
    summary = histogram.summary()
    return {name: getattr(summary, name) for name in summary.__slots__}


def seconds_of(due_s: Array, latency_s: Array, duration_s: float) -> list[dict[str, float]]:
    found = []
    for second in range(int(duration_s)):
        own = np.sort(latency_s[(due_s >= second) & (due_s < second + 1)]) * 1e6
        if len(own):
            p50, p99 = own[-(-50 * len(own) // 100) - 1], own[-(-99 * len(own) // 100) - 1]
            found.append({"completed": len(own), "p50_us": p50, "p99_us": p99, "max_us": own[-1]})
    return found


def search(server: Server, slo: str = "p99<50ms", **options: float) -> Knee:
    question = KneeQuestion(parse_objectives(slo), **{"start_rate": 100.0, "budget_s": 3000.0, **options})  # type: ignore[arg-type]
    return find_knee(question, server.measure, clock=server.clock)


@pytest.mark.parametrize("start_rate", [3.0, 400.0, 20_000.0])
def test_the_knee_of_a_queue_of_known_behaviour(start_rate: float) -> None:
    capacity, limit_s = 500.0, 0.05
    true_knee = capacity - np.log(100) / limit_s  # 407.9
    found = search(Server(capacity), start_rate=start_rate)
    assert found.rate is not None and found.called
    assert 0.88 * true_knee <= found.rate <= 1.06 * true_knee
    low, high = found.interval
    assert high is not None and high / low <= 1.05 and low == found.rate
    assert "p99<50ms" in found.limited_by or "answered" in found.limited_by or "neither" in found.limited_by


def test_precision_narrows_the_bracket() -> None:
    found = search(Server(500.0), precision=0.5)
    low, high = found.interval
    assert high is not None and 1.05 < high / low <= 1.5
    assert len(found.probes) < len(search(Server(500.0)).probes)


def test_no_knee_is_called_where_the_generator_is_the_limit() -> None:
    found = search(Server(500.0, lag_above=150.0))
    assert found.rate is None and not found.called
    assert found.limited_by.startswith("the generator, not the server")
    low, high = found.interval
    assert 100 <= low <= 150 and high is None
    assert "no knee is called" in found.notes[-1]


def test_errors_break_a_rate_too() -> None:
    assert search(Server(500.0, errors=0.05), budget_s=200).rate is None
    assert search(Server(500.0, errors=0.05), "errors<20%", budget_s=200).rate is not None
    assert search(Server(500.0, errors=0.05), "errors<1%", budget_s=200).rate is None


def test_the_budget_is_kept() -> None:
    server = Server(500.0)
    found = search(server, budget_s=20.0)
    assert server.now_s <= 26
    assert not found.called
    assert any("budget" in note for note in found.notes)


def test_a_rate_that_nothing_breaks_is_a_lower_bound() -> None:
    found = search(Server(1e9), budget_s=30.0)
    assert found.rate is not None and found.interval[1] is None and not found.called
    assert "nothing broke" in found.limited_by


def test_stopping_ends_the_search() -> None:
    server = Server(500.0)
    question = KneeQuestion(parse_objectives("p99<50ms"), 100.0)
    found = find_knee(question, server.measure, clock=server.clock, stopped=lambda: len(server.asked) >= 2)
    assert len(server.asked) == 2 and found.notes == ("interrupted",)


def test_answers_seldom_err() -> None:
    """A knee within a tenth of the true one in nearly all of a dozen searches."""
    true_knee = 500 - np.log(100) / 0.05
    ratios = []
    for seed in range(12):
        server = Server(500.0)
        server.generator = np.random.Generator(np.random.PCG64(100 + seed))
        found = search(server, start_rate=60.0, budget_s=400.0)
        assert found.rate is not None
        ratios.append(found.rate / true_knee)
    assert sum(0.85 <= ratio <= 1.06 for ratio in ratios) >= 11, ratios


def test_windows_are_as_long_as_the_objective_needs() -> None:
    def window(slo: str, rate: float) -> float:
        return window_s(KneeQuestion(parse_objectives(slo), rate), rate)

    assert window("p99<50ms", 10_000) == 4
    assert window("p50<50ms", 100) == 4
    assert 4 < window("p99<50ms", 100) < 6
    assert window("p99.9<50ms", 10) == 30


def test_signs_of_a_generator_at_its_limit() -> None:
    quiet = saved_level(level(OpenLoop(50.0), median_ms=1)).body
    quiet = {**quiet, "lag": {**quiet["lag"], "p99_us": 200.0}}
    assert generator_limit(quiet, 0.01) == ""
    assert "lag" in generator_limit({**quiet, "lag": {**quiet["lag"], "p99_us": 20_000.0}}, 0.01)
    assert "busy" in generator_limit({**quiet, "workers": [{"loop_busy": 0.99}]}, 0.01)
    assert "busy" in generator_limit({**quiet, "generator": {"loop_busy": 0.97}}, 0.01)
    assert "lost" in generator_limit({**quiet, "lost_workers": ["w0"]}, 0.01)


def test_only_shares_can_be_searched() -> None:
    with pytest.raises(UsageError, match="max<50ms"):
        KneeQuestion(parse_objectives("max<50ms"), 1.0)


@pytest.mark.slow
def test_on_the_real_server(load_server: EmbeddedServer, tmp_path: Path) -> None:
    """`sleepy` takes 20 ms a request and one at a time: no rate above 50/s can hold, 10/s holds easily."""
    command = [sys.executable, "-m", "tritonstack", "load", "sleepy", "--url", load_server.grpc_url]
    command += ["--metrics-url", load_server.metrics_url, "--find-knee", "--slo", "p50<150ms", "--budget", "60s"]
    command += [
        "--start-rate",
        "10",
        "--precision",
        "60%",
        "--max-lag",
        "500",
        "--quiet",
        "--html",
        f"{tmp_path}/k.html",
    ]
    done = subprocess.run(
        [*command, "--output", f"{tmp_path}/k.json"], capture_output=True, text=True, timeout=100
    )  # fmt: skip
    report = json.loads((tmp_path / "k.json").read_text())
    knee = report["knee"]
    assert done.returncode == 0, (done.stderr, knee)
    assert 15 <= knee["rate"] <= 50
    assert any(probe["verdict"] == "breaks" and probe["rate"] > 45 for probe in knee["probes"]), knee
    assert f"knee: {knee['rate']:.4g} requests/s hold" in done.stdout
    assert len(report["levels"]) == sum(probe["windows"] for probe in knee["probes"])
    assert "The knee" in (tmp_path / "k.html").read_text()
