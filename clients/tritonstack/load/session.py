"""Runs a load plan against a server: prepares the requests, drives an engine per level, gathers the report."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tritonstack.client.endpoint import parse_endpoint
from tritonstack.errors import (
    DeadlineExceeded,
    InputError,
    ServerError,
    ServerUnavailable,
    TritonstackError,
)
from tritonstack.load import environment
from tritonstack.load.arrival import Arrival, OpenLoop
from tritonstack.load.engine import Engine, EngineResult, Failure, Window
from tritonstack.load.inputs import InputPool, build_pool
from tritonstack.load.live import Observer, Silent
from tritonstack.load.plan import LoadPlan
from tritonstack.load.report import (
    GeneratorCost,
    InputDescription,
    LevelReport,
    LoadReport,
    RequestCounts,
    ServerBreakdown,
)
from tritonstack.load.statistics_delta import Snapshot, deltas, models_to_watch, settled_snapshot, snapshot
from tritonstack.load.verdict import judge

if TYPE_CHECKING:
    from tritonstack import AsyncClient
    from tritonstack.client.model import ModelMetadata
    from tritonstack.client.request import PreparedRequest

MAX_IN_FLIGHT = 1024
IN_FLIGHT_BYTES = 512_000_000
"""Requests in flight hold a copy of their bytes each, so the default bound shrinks for large ones."""
DRAIN_MARGIN_S = 5.0
"""A request that outlives its own deadline by this much is given up."""
VERSION_PERIOD_S = 1.0
"""How often one answer is decoded to see which model version gave it."""


def run_load(plan: LoadPlan, *, observer: Observer | None = None, command: Sequence[str] = ()) -> LoadReport:
    """Run `plan` and return its report; blocks until the last request was answered.

    The first SIGINT or SIGTERM stops sending, drains and reports what was measured (`report.interrupted`); a second
    one raises KeyboardInterrupt. `command` is only recorded. Raises UsageError or InputError where the plan does not
    fit the model, ServerUnavailable where nothing answers, ServerError where the server refuses the model.
    """
    try:
        return asyncio.run(run_load_async(plan, observer=observer, command=command, stop_on_signal=True))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def run_load_async(
    plan: LoadPlan, *, observer: Observer | None = None, command: Sequence[str] = (), stop_on_signal: bool = False
) -> LoadReport:
    """`run_load` inside a running event loop, which it needs for itself: other work in it would show as lag.

    Signals are left alone unless `stop_on_signal` (main thread only).
    """
    from tritonstack import AsyncClient

    observer = observer or Silent()
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    here = environment.here()
    endpoint = parse_endpoint(plan.url, protocol=plan.protocol)
    stopper = _Stopper(observer)
    # No retries: a repeated request would hide a failure in a long latency.
    async with AsyncClient(plan.url, protocol=plan.protocol, timeout_s=plan.timeout_s, retries=0) as client:
        with stopper.on_signals() if stop_on_signal else contextlib.nullcontext():
            server = await client.server_metadata()
            target = await _prepare(client, plan)
            observer.note(
                f"{plan.model} on {server.name} {server.version} at {endpoint}: {len(target.prepared)} distinct "
                f"requests, batch {plan.batch}, {target.pool.origin}"
            )
            watched = await models_to_watch(client, plan.model)
            levels: list[LevelReport] = []
            for arrival in plan.arrivals:
                if stopper.stopped:
                    break
                levels.append(await _run_level(client, plan, target, arrival, watched, stopper, observer))
    return LoadReport(
        started_at=started_at,
        command=tuple(command),
        environment=here,
        server=environment.Server(server.name, server.version),
        url=str(endpoint),
        protocol=endpoint.protocol,
        model=plan.model,
        versions=tuple(sorted(target.versions)),
        batch=plan.batch,
        input_origin=target.pool.origin,
        inputs=target.described,
        distinct_requests=len(target.prepared),
        request_bytes=target.request_bytes,
        seed=plan.seed,
        timeout_s=plan.timeout_s,
        duration_s=plan.duration_s,
        requests=plan.requests,
        max_lag_s=plan.max_lag_s,
        max_error_rate=plan.max_error_rate,
        levels=tuple(levels),
    )


@dataclass
class _Target:
    """The prepared requests and, as answers come, the model versions that gave them."""

    pool: InputPool
    prepared: tuple[PreparedRequest, ...]
    described: tuple[InputDescription, ...]
    versions: set[str] = field(default_factory=set)

    @property
    def request_bytes(self) -> int:
        return max(request.byte_size for request in self.prepared)

    def sender(self, client: AsyncClient, timeout_s: float) -> Callable[[int], Awaitable[object]]:
        """`send(index)` for the engine. Answers are not decoded, except one a second for its model version."""
        prepared, versions, send = self.prepared, self.versions, client.send
        look_at_s = 0.0

        async def send_one(index: int) -> object:
            nonlocal look_at_s
            result = await send(prepared[index], timeout_s=timeout_s)
            now_s = time.monotonic()
            if now_s >= look_at_s:
                look_at_s = now_s + VERSION_PERIOD_S
                versions.add(result.model_version)
            return result

        return send_one


async def _prepare(client: AsyncClient, plan: LoadPlan) -> _Target:
    metadata = await client.metadata(plan.model, plan.version)
    config = await client.config(plan.model)
    if config.decoupled:
        raise InputError(
            f"model {plan.model!r} is decoupled: it may send any number of answers to one request",
            expected="a model with one answer per request",
        )
    pool = build_pool(plan.inputs, metadata=metadata, config=config, batch=plan.batch, shapes=plan.shapes)
    prepared = [
        await client.prepare(plan.model, request, version=plan.version, cast=pool.cast) for request in pool.requests
    ]
    return _Target(pool, tuple(prepared), _describe(pool, metadata))


def _describe(pool: InputPool, metadata: ModelMetadata) -> tuple[InputDescription, ...]:
    first = pool.requests[0]
    return tuple(
        InputDescription(spec.name, spec.datatype, tuple(first[spec.name].shape))
        for spec in metadata.inputs
        if spec.name in first
    )


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


async def _run_level(
    client: AsyncClient,
    plan: LoadPlan,
    target: _Target,
    arrival: Arrival,
    watched: Sequence[str],
    stopper: _Stopper,
    observer: Observer,
) -> LevelReport:
    is_open = isinstance(arrival, OpenLoop)
    bound = _bound(plan, target.request_bytes) if is_open else None
    opening = _Opening(client, watched)
    engine = Engine(
        send=target.sender(client, plan.timeout_s),
        pool_size=len(target.prepared),
        arrival=arrival,
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


async def _breakdown(
    client: AsyncClient, plan: LoadPlan, watched: Sequence[str], opening: _Opening, result: EngineResult
) -> ServerBreakdown:
    """The server's counters over the window, unreadable where it did not answer at either end of it."""
    if opening.counters is None:
        return ServerBreakdown(readable=False, models=(), other_inferences=0)
    ours = result.tally.succeeded - opening.succeeded_before
    try:
        closing = await settled_snapshot(client, watched, before=opening.counters, requests=ours)
    except TritonstackError:
        return ServerBreakdown(readable=False, models=(), other_inferences=0)
    models = deltas(opening.counters, closing, watched)
    own_model = [entry for entry in models if entry.model == plan.model]
    # Inferences do not count cache hits, so they can only be fewer than ours. Requests that were in flight when the
    # counters were read may be on either side.
    most = (ours + result.tally.failed + result.tally.peak_in_flight) * plan.batch
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


class _Stopper:
    """Turns signals into an orderly stop."""

    def __init__(self, observer: Observer) -> None:
        self.stopped = False
        self._observer = observer
        self._engine: Engine | None = None
        self._task = asyncio.current_task()

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM while inside, in the main thread; elsewhere signals cannot be had."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    @contextmanager
    def stopping(self, engine: Engine) -> Iterator[None]:
        """Let signals stop `engine`."""
        self._engine = engine
        try:
            yield
        finally:
            self._engine = None

    def _signalled(self) -> None:
        if self._engine is not None and not self.stopped:
            self._engine.stop()
            self._observer.note(f"stopping: waiting for {self._engine.tally.in_flight} requests in flight")
        elif self._task is not None:
            self._task.cancel()
        self.stopped = True
