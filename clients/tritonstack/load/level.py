"""One level of a load test: the fleet driven at one concurrency or rate, and what is reported of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tritonstack.errors import TritonstackError
from tritonstack.load.arrival import Arrival, OpenLoop
from tritonstack.load.fleet import Fleet, LevelRequest, LevelRun
from tritonstack.load.interruption import Stopper
from tritonstack.load.live import Observer
from tritonstack.load.measurement import Measurement
from tritonstack.load.plan import LoadPlan
from tritonstack.load.report import ClientSplit, GeneratorCost, LevelReport, RequestCounts, ServerBreakdown
from tritonstack.load.statistics_delta import Snapshot, deltas, settled_snapshot, snapshot
from tritonstack.load.verdict import judge

if TYPE_CHECKING:
    from tritonstack import AsyncClient

MAX_IN_FLIGHT = 1024
IN_FLIGHT_BYTES = 512_000_000
"""The server holds the bytes of what is in flight, so the default bound shrinks for large requests."""
DRAIN_MARGIN_S = 5.0
"""A request that outlives its own deadline by this much is given up."""


def bound_of(plan: LoadPlan, request_bytes: int) -> int:
    """How many requests an open loop may have in flight."""
    return plan.max_in_flight or max(8, min(MAX_IN_FLIGHT, IN_FLIGHT_BYTES // max(request_bytes, 1)))


@dataclass(frozen=True)
class Target:
    """What a level is run against: `watched` are the models whose statistics are read, the loaded one first."""

    client: AsyncClient
    fleet: Fleet
    request_bytes: int
    watched: Sequence[str]
    validate: bool


class _Opening:
    """The server's counters at the start of the window, and how many of our own requests they may already hold."""

    def __init__(self, client: AsyncClient, models: Sequence[str]) -> None:
        self._client = client
        self._models = models
        self.counters: Snapshot | None = None
        self.succeeded_before = 0
        self.run: LevelRun | None = None

    async def take(self) -> None:
        if self.run is not None:
            self.succeeded_before = self.run.tally.succeeded
        # A run is worth having without them too; the report says that they are missing.
        with contextlib.suppress(TritonstackError):
            self.counters = await snapshot(self._client, self._models)


async def run_level(
    target: Target, plan: LoadPlan, arrival: Arrival, *, trace: int | None, stopper: Stopper, observer: Observer
) -> tuple[LevelReport, frozenset[str]]:
    """Drive the fleet at one level of `plan`; its report, and the versions of the model that answered.

    `trace` is the number of the arrival's trace among those of the fleet.
    """
    bound = bound_of(plan, target.request_bytes) if isinstance(arrival, OpenLoop) else None
    opening = _Opening(target.client, target.watched)
    request = LevelRequest(
        arrival=_behind_warmup(arrival, plan.warmup_s),
        warmup_s=plan.warmup_s,
        duration_s=plan.duration_s,
        requests=plan.requests,
        max_in_flight=bound or 0,
        timeout_s=plan.timeout_s,
        drain_s=plan.timeout_s + DRAIN_MARGIN_S,
        seed=plan.seed,
        validate=target.validate,
        trace=trace,
    )
    run = opening.run = target.fleet.level(request, on_open=opening.take)
    watcher = asyncio.create_task(observer.follow(run, arrival))
    try:
        with stopper.stopping(run):
            result = await run.run()
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher
    breakdown = await _breakdown(target.client, plan, target.watched, opening, result)
    return _level_report(plan, arrival, result, breakdown, bound), result.versions


def _behind_warmup(arrival: Arrival, warmup_s: float) -> Arrival:
    """A timetable that ends, behind the warm-up, so that all of it is measured."""
    if isinstance(arrival, OpenLoop) and arrival.timetable is not None:
        return OpenLoop.following(arrival.timetable.after(warmup_s))
    return arrival


async def _breakdown(
    client: AsyncClient, plan: LoadPlan, watched: Sequence[str], opening: _Opening, result: Measurement
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
    plan: LoadPlan, arrival: Arrival, result: Measurement, server: ServerBreakdown, bound: int | None
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
            measured=tally.measured - tally.cancelled,
            errors=tally.measured_errors - tally.cancelled,
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
            rss_bytes=result.rss_bytes,
        ),
        problems=verdict.problems,
        failures=verdict.failures,
        notes=verdict.notes,
        series=result.series,
        client=ClientSplit(tally.send.summary(), tally.wait.summary(), tally.receive.summary())
        if result.client_split
        else None,
        workers=result.workers,
        lost_workers=result.lost,
        conversation=result.conversation,
    )
