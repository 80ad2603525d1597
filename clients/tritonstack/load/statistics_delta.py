"""What the server itself says about a window: differences of Triton's cumulative statistics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tritonstack.client.model import DurationTotal, ModelConfigView, ModelStatistics

SETTLE_S = 1.0
"""How long to wait for the server's counters, which it raises a little after it sent the answer."""


class StatisticsSource(Protocol):
    """The part of AsyncClient that is needed here."""

    async def statistics(self, model: str | None = None) -> tuple[ModelStatistics, ...]: ...
    async def config(self, model: str) -> ModelConfigView: ...


@dataclass(frozen=True)
class ModelDelta:
    """One model version over a window, means in microseconds per request.

    `requests` counts successful requests, `inferences` their samples, `executions` runs of the model (a formed batch
    is one). With dynamic batching each request of a batch is charged the whole time of the batch. `reset`: the
    counters went back, so the model was loaded anew within the window and only what came after is counted.
    """

    model: str
    version: str
    requests: int
    failed_requests: int
    inferences: int
    executions: int
    mean_batch: float
    request_us: float
    queue_us: float
    compute_input_us: float
    compute_infer_us: float
    compute_output_us: float
    cache_hits: int
    cache_misses: int
    executions_by_batch: Mapping[int, int]
    reset: bool


Snapshot = Mapping[tuple[str, str], ModelStatistics]


async def models_to_watch(source: StatisticsSource, model: str) -> tuple[str, ...]:
    """`model` and, where it is an ensemble, every model below it in order of first use."""
    found = [model]
    for name in found:  # grows while it is walked
        for step in (await source.config(name)).steps:
            if step.model not in found:
                found.append(step.model)
    return tuple(found)


async def snapshot(source: StatisticsSource, models: Sequence[str]) -> Snapshot:
    """The counters of `models` now, keyed by (name, version)."""
    answers = await asyncio.gather(*(source.statistics(model) for model in models))
    return {(entry.name, entry.version): entry for answer in answers for entry in answer}


async def settled_snapshot(
    source: StatisticsSource, models: Sequence[str], *, before: Snapshot, requests: int
) -> Snapshot:
    """The counters once the first model shows `requests` more ended requests than `before` and nothing moves any
    more (a batch is counted after its requests), or after SETTLE_S."""
    deadline_s = asyncio.get_running_loop().time() + SETTLE_S
    earlier: Snapshot = {}
    while True:
        now = await snapshot(source, models)
        complete = _ended(now, models[0]) - _ended(before, models[0]) >= requests
        if (complete and now == earlier) or asyncio.get_running_loop().time() >= deadline_s:
            return now
        earlier = now
        await asyncio.sleep(0.02)


def _ended(counters: Snapshot, model: str) -> int:
    return sum(e.success.count + e.fail.count for (name, _), e in counters.items() if name == model)


def deltas(before: Snapshot, after: Snapshot, models: Sequence[str]) -> tuple[ModelDelta, ...]:
    """One entry per model version that did anything in between, in the order of `models`."""
    changed = [_delta(entry, before.get(key)) for key, entry in after.items()]
    busy = [d for d in changed if d.requests or d.failed_requests or d.inferences]
    return tuple(sorted(busy, key=lambda d: (models.index(d.model), d.version)))


def _delta(after: ModelStatistics, before: ModelStatistics | None) -> ModelDelta:
    reset = before is not None and (
        after.success.count < before.success.count or after.inference_count < before.inference_count
    )
    if before is None or reset:
        nothing = DurationTotal()
        before = replace(
            after,
            inference_count=0,
            execution_count=0,
            success=nothing,
            fail=nothing,
            queue=nothing,
            compute_input=nothing,
            compute_infer=nothing,
            compute_output=nothing,
            cache_hit=nothing,
            cache_miss=nothing,
            batches=(),
        )
    inferences = after.inference_count - before.inference_count
    executions = after.execution_count - before.execution_count
    earlier = {entry.batch_size: entry.compute_infer.count for entry in before.batches}
    by_batch = {e.batch_size: e.compute_infer.count - earlier.get(e.batch_size, 0) for e in after.batches}
    return ModelDelta(
        model=after.name,
        version=after.version,
        requests=after.success.count - before.success.count,
        failed_requests=after.fail.count - before.fail.count,
        inferences=inferences,
        executions=executions,
        mean_batch=inferences / executions if executions else 0.0,
        request_us=(after.success - before.success).mean_us,
        queue_us=(after.queue - before.queue).mean_us,
        compute_input_us=(after.compute_input - before.compute_input).mean_us,
        compute_infer_us=(after.compute_infer - before.compute_infer).mean_us,
        compute_output_us=(after.compute_output - before.compute_output).mean_us,
        cache_hits=after.cache_hit.count - before.cache_hit.count,
        cache_misses=after.cache_miss.count - before.cache_miss.count,
        executions_by_batch={size: count for size, count in sorted(by_batch.items()) if count},
        reset=reset,
    )
