"""One level of a load test: an engine driven at one concurrency or rate, and what is reported of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tritonstack.errors import DeadlineExceeded, ServerError, ServerUnavailable, TritonstackError
from tritonstack.load.arrival import Arrival, OpenLoop
from tritonstack.load.engine import Engine, EngineResult, Failure, Send, Window
from tritonstack.load.interruption import Stopper
from tritonstack.load.live import Observer
from tritonstack.load.plan import LoadPlan
from tritonstack.load.report import GeneratorCost, LevelReport, RequestCounts, ServerBreakdown
from tritonstack.load.statistics_delta import Snapshot, deltas, settled_snapshot, snapshot
from tritonstack.load.verdict import judge

if TYPE_CHECKING:
    from tritonstack import AsyncClient

MAX_IN_FLIGHT = 1024
IN_FLIGHT_BYTES = 512_000_000
"""Requests in flight hold a copy of their bytes each, so the default bound shrinks for large ones."""
DRAIN_MARGIN_S = 5.0
"""A request that outlives its own deadline by this much is given up."""


def _bound(plan: LoadPlan, request_bytes: int) -> int:
    """How many requests an open loop may have in flight."""
    return plan.max_in_flight or max(8, min(MAX_IN_FLIGHT, IN_FLIGHT_BYTES // max(request_bytes, 1)))


class _Opening:
    """The server's counters at the start of the window, and how many of our own requests they may already hold."""

    def __init__(self, client: AsyncClient, models: Sequence[str]) -> None:
        self._client = client
        self._models = models
        self.counters: Snapshot | None = None
        self.succeeded_before = 0
        self.engine: Engine | None = None

    async def take(self) -> None:
        if self.engine is not None:
            self.succeeded_before = self.engine.tally.succeeded
        # A run is worth having without them too; the report says that they are missing.
        with contextlib.suppress(TritonstackError):
            self.counters = await snapshot(self._client, self._models)


async def run_level(
    client: AsyncClient,
    plan: LoadPlan,
    arrival: Arrival,
    *,
    send: Send,
    pool_size: int,
    request_bytes: int,
    watched: Sequence[str],
    stopper: Stopper,
    observer: Observer,
) -> LevelReport:
    """Drive `send` at one level of `plan` and report it.

    `request_bytes` is the size of the largest of the `pool_size` prepared requests, `watched` the models whose
    statistics are read, the loaded one first.
    """
    bound = _bound(plan, request_bytes) if isinstance(arrival, OpenLoop) else None
    opening = _Opening(client, watched)
    engine = Engine(
        send=send,
        pool_size=pool_size,
        arrival=_behind_warmup(arrival, plan.warmup_s),
        window=Window(plan.warmup_s, plan.duration_s, plan.requests),
        classify=classify,
        max_in_flight=bound or 0,
        drain_s=plan.timeout_s + DRAIN_MARGIN_S,
        seed=plan.seed,
        on_open=opening.take,
    )
    opening.engine = engine
    watcher = asyncio.create_task(observer.follow(engine, arrival))
    try:
        with stopper.stopping(engine):
            result = await engine.run()
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher
    breakdown = await _breakdown(client, plan, watched, opening, result)
    return _level_report(plan, arrival, result, breakdown, bound)


def _behind_warmup(arrival: Arrival, warmup_s: float) -> Arrival:
    """A timetable that ends, behind the warm-up, so that all of it is measured."""
    if isinstance(arrival, OpenLoop) and arrival.timetable is not None:
        return OpenLoop.following(arrival.timetable.after(warmup_s))
    return arrival


async def _breakdown(
    client: AsyncClient, plan: LoadPlan, watched: Sequence[str], opening: _Opening, result: EngineResult
) -> ServerBreakdown:
    """The server's counters over the window, unreadable where it did not answer at either end of it."""
    if opening.counters is None:
        return ServerBreakdown(readable=False, models=(), other_inferences=0)
    ours = result.tally.succeeded - opening.succeeded_before
    # Requests that were in flight when the counters were first read may be on either side of that.
    uncertain = result.tally.peak_in_flight if plan.warmup_s > 0 else 0
    try:
        closing = await settled_snapshot(client, watched, before=opening.counters, requests=ours - uncertain)
    except TritonstackError:
        return ServerBreakdown(readable=False, models=(), other_inferences=0)
    models = deltas(opening.counters, closing, watched)
    own_model = [entry for entry in models if entry.model == plan.model]
    # Inferences do not count cache hits, so they can only be fewer than ours.
    most = (ours + result.tally.failed + uncertain) * plan.batch
    excess = sum(entry.inferences for entry in own_model) - most
    return ServerBreakdown(readable=True, models=models, other_inferences=max(excess, 0))


def _level_report(
    plan: LoadPlan, arrival: Arrival, result: EngineResult, server: ServerBreakdown, bound: int | None
) -> LevelReport:
    tally = result.tally
    is_open = isinstance(arrival, OpenLoop)
    verdict = judge(plan, arrival if isinstance(arrival, OpenLoop) else None, result, server, bound)
    rate = tally.in_window / result.window_s if result.window_s > 0 else 0.0
    return LevelReport(
        arrival=arrival,
        warmup_s=plan.warmup_s,
        window_s=result.window_s,
        interrupted=result.interrupted,
        counts=RequestCounts(
            sent=tally.sent,
            warmup=tally.warmup,
            measured=tally.measured,
            errors=tally.measured_errors,
            completed_in_window=tally.in_window,
            drained=tally.drained,
            unsent=tally.unsent,
            abandoned=result.abandoned,
            peak_in_flight=tally.peak_in_flight,
            max_in_flight=bound,
            limit_hits=tally.limit_hits,
        ),
        requests_per_s=rate,
        inferences_per_s=rate * plan.batch,
        latency=tally.latency.summary(),
        service=tally.service.summary() if is_open else None,
        lag=tally.lag.summary() if is_open else None,
        latency_histogram=tally.latency.encoded(),
        errors=tally.errors(),
        server=server,
        generator=GeneratorCost(
            cpu_us_per_request=result.cpu_s * 1e6 / tally.ended_in_window if tally.ended_in_window else None,
            cpu_cores=result.cpu_s / result.window_s if result.window_s > 0 else None,
            loop_busy=result.loop_busy_s / result.window_s if result.window_s > 0 else None,
            gc_collections=result.gc_collections,
        ),
        problems=verdict.problems,
        failures=verdict.failures,
        notes=verdict.notes,
    )


def classify(error: Exception) -> Failure | None:
    """How a failed request is counted; None for what is no failure of a request but a defect."""
    if isinstance(error, ServerError):
        return Failure(f"ServerError {error.code}", error.summary)
    if isinstance(error, ServerUnavailable):
        return Failure("ServerUnavailable", error.summary, retreat=True)
    if isinstance(error, DeadlineExceeded):
        return Failure("DeadlineExceeded", error.summary)
    return None
