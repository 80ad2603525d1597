"""Differences of Triton's cumulative counters."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tritonstack.client.model import BatchSizeStatistics, DurationTotal, EnsembleStep, ModelConfigView, ModelStatistics
from tritonstack.load.statistics_delta import ModelDelta, deltas, models_to_watch, settled_snapshot


def counters(requests: int, *, model: str = "m", version: str = "1", batch: int = 4) -> ModelStatistics:
    """A model that ran `requests` requests of one sample in batches of `batch`, 2 ms each after 1 ms of queue."""
    runs = requests // batch
    took = DurationTotal(requests, requests * 2_000_000)
    nothing = DurationTotal()
    return ModelStatistics(
        name=model,
        version=version,
        last_inference_ms=0,
        inference_count=requests,
        execution_count=runs,
        success=DurationTotal(requests, requests * 3_000_000),
        fail=nothing,
        queue=DurationTotal(requests, requests * 1_000_000),
        compute_input=nothing,
        compute_infer=took,
        compute_output=nothing,
        cache_hit=nothing,
        cache_miss=nothing,
        batches=(BatchSizeStatistics(batch, nothing, DurationTotal(runs, runs * 2_000_000), nothing),) if runs else (),
    )


def difference(before: ModelStatistics | None, after: ModelStatistics) -> ModelDelta:
    (entry,) = deltas(
        {} if before is None else {(before.name, before.version): before}, {(after.name, after.version): after}, ["m"]
    )
    return entry


def test_only_the_window_counts() -> None:
    entry = difference(counters(400), counters(1200))
    assert (entry.requests, entry.inferences, entry.executions, entry.mean_batch) == (800, 800, 200, 4)
    assert (entry.queue_us, entry.compute_infer_us, entry.request_us) == (1000, 2000, 3000)
    assert entry.executions_by_batch == {4: 200}
    assert not entry.reset


def test_a_version_that_appears_within_the_window_counts_from_zero() -> None:
    assert difference(None, counters(40)).requests == 40


def test_a_model_loaded_anew_within_the_window_counts_what_came_after() -> None:
    entry = difference(counters(400), counters(80))
    assert entry.reset
    assert entry.requests == 80 and entry.queue_us == 1000


def test_versions_that_did_nothing_are_left_out_and_the_order_is_that_of_the_models() -> None:
    before = {("b", "1"): counters(4, model="b"), ("a", "1"): counters(4, model="a")}
    after = {
        ("b", "1"): counters(8, model="b"),
        ("b", "2"): counters(0, model="b", version="2"),
        ("a", "1"): counters(8, model="a"),
    }
    assert [(entry.model, entry.version) for entry in deltas(before, after, ["a", "b"])] == [("a", "1"), ("b", "1")]


class Source:
    """Answers with the next of the prepared counters, the last one for good."""

    def __init__(self, *answers: ModelStatistics, steps: dict[str, tuple[str, ...]] | None = None) -> None:
        self.answers = list(answers)
        self.steps = steps or {}

    async def statistics(self, model: str | None = None) -> tuple[ModelStatistics, ...]:
        return (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0],)

    async def config(self, model: str) -> ModelConfigView:
        steps = tuple(EnsembleStep(name, -1, {}, {}) for name in self.steps.get(model, ()))
        return ModelConfigView(model, "", "", 0, {}, (), {}, False, (), 0, 1, False, False, steps)


def test_counters_that_lag_behind_the_answers_are_waited_for() -> None:
    late = replace(counters(8), inference_count=4, execution_count=1)
    source = Source(counters(4), late, counters(8))
    found = asyncio.run(settled_snapshot(source, ["m"], before={("m", "1"): counters(0)}, requests=8))
    assert found[("m", "1")].inference_count == 8


def test_counters_that_never_come_are_not_waited_for_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritonstack.load.statistics_delta.SETTLE_S", 0.1)
    found = asyncio.run(settled_snapshot(Source(counters(4)), ["m"], before={}, requests=8))
    assert found[("m", "1")].inference_count == 4


def test_ensembles_inside_ensembles_are_watched_once_each() -> None:
    source = Source(counters(0), steps={"top": ("a", "inner"), "inner": ("b", "a", "c")})
    assert asyncio.run(models_to_watch(source, "top")) == ("top", "a", "inner", "b", "c")
