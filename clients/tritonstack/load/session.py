"""Runs a load plan against a server: prepares the requests, drives a fleet of workers per level, gathers the report."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tritonstack.client.endpoint import Endpoint, parse_endpoint
from tritonstack.errors import InputError
from tritonstack.load import environment
from tritonstack.load.arrival import Arrival, ClosedLoop
from tritonstack.load.fleet import Fleet
from tritonstack.load.inputs import InputPool, build_pool
from tritonstack.load.interruption import Stopper
from tritonstack.load.level import Target, bound_of, run_level
from tritonstack.load.live import Observer, Silent
from tritonstack.load.plan import LoadPlan
from tritonstack.load.report import InputDescription, LevelReport, LoadReport, Sending
from tritonstack.load.request_pool import RequestPool
from tritonstack.load.sending import (
    encoded_pool,
    recorded_answers,
    transport_of,
    transport_options,
    with_scripts,
    workers_of,
)
from tritonstack.load.shared_inputs import PREFIX, SharedInputs
from tritonstack.load.statistics_delta import models_to_watch
from tritonstack.load.trace import TraceSchedule
from tritonstack.load.transport import TransportOptions

if TYPE_CHECKING:
    from tritonstack import AsyncClient
    from tritonstack.client.model import ModelMetadata

CONTROL_TIMEOUT_S = 10.0
"""Deadline of questions about the model and its statistics; the plan's own is for inference alone."""


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
    transport_of(plan, endpoint)
    stopper = Stopper(observer)
    # No retries: a repeated request would hide a failure in a long latency.
    async with AsyncClient(
        plan.url, protocol=plan.protocol, timeout_s=CONTROL_TIMEOUT_S, retries=0, tls=plan.tls, headers=plan.headers
    ) as client:
        with contextlib.ExitStack() as held, stopper.on_signals() if stop_on_signal else contextlib.nullcontext():
            server = await client.server_metadata()
            prepared = await _prepare(client, plan, endpoint, held)
            with contextlib.closing(prepared.encoded):
                observer.note(
                    f"{plan.model} on {server.name} {server.version} at {endpoint}: {len(prepared.encoded)} distinct "
                    f"requests, batch {plan.batch}, {prepared.pool.origin}"
                )
                levels, versions = await _run_levels(client, plan, prepared, stopper, observer)
    return LoadReport(
        started_at=started_at,
        command=tuple(command),
        environment=here,
        server=environment.Server(server.name, server.version),
        url=str(endpoint),
        protocol=endpoint.protocol,
        model=plan.model,
        versions=tuple(sorted(versions)),
        batch=plan.batch,
        input_origin=prepared.pool.origin,
        inputs=prepared.described,
        distinct_requests=len(prepared.pool.requests),
        request_bytes=prepared.request_bytes,
        seed=plan.seed,
        timeout_s=plan.timeout_s,
        duration_s=plan.duration_s,
        requests=plan.requests,
        max_lag_s=plan.max_lag_s,
        max_error_rate=plan.max_error_rate,
        interrupted=stopper.stopped,
        levels=tuple(levels),
        sending=Sending(
            transport=prepared.transport.kind,
            workers=prepared.workers,
            connections=prepared.transport.connections,
            shared_memory=plan.shared_memory,
            json_body=plan.json_body,
            validate=plan.validate if prepared.validate else "off",
            streaming=plan.conversation.stream,
            sequences=prepared.sequences,
        ),
    )


@dataclass(frozen=True)
class _Prepared:
    """The requests of a run, encoded, and how they are sent."""

    pool: InputPool
    encoded: RequestPool
    described: tuple[InputDescription, ...]
    transport: TransportOptions
    workers: int
    request_bytes: int
    validate: bool
    sequences: str | None


async def _prepare(client: AsyncClient, plan: LoadPlan, endpoint: Endpoint, held: contextlib.ExitStack) -> _Prepared:
    """`held` closes at the end of the run what the requests need until then."""
    metadata = await client.metadata(plan.model, plan.version)
    config = await client.config(plan.model)
    if config.decoupled and not plan.conversation.stream:
        raise InputError(
            f"model {plan.model!r} is decoupled: it may send any number of answers to one request",
            expected="--stream",
        )
    pool = build_pool(
        plan.inputs,
        metadata=metadata,
        config=config,
        batch=plan.batch,
        shapes=plan.shapes,
        size=plan.pool,
        expected=plan.expected or None,
    )
    plan = with_scripts(plan, pool)
    shared = None
    if plan.shared_memory == "system":
        shared = held.enter_context(contextlib.closing(SharedInputs(pool, metadata)))
        # What a killed run left behind must not fill /dev/shm, nor stay known to the server.
        await client.clean_shared_memory(PREFIX)
        await client.register(shared.region)
    encoded = encoded_pool(pool, metadata, plan, endpoint, shared=shared)
    try:
        workers = workers_of(plan)
        bound = bound_of(plan, encoded.largest)
        transport = transport_options(plan, endpoint, workers=workers, bound=bound)
        if plan.validate == "recorded":
            answers = await asyncio.to_thread(recorded_answers, encoded, transport, plan)
            with contextlib.closing(encoded):
                again = encoded.with_expected(answers)
            encoded = again
    except BaseException:
        encoded.close()
        raise
    validate = plan.validate != "off" and encoded.has_expected
    sequences = plan.conversation.sequences
    return _Prepared(
        pool,
        encoded,
        _describe(pool, metadata),
        transport,
        workers,
        encoded.largest,
        validate,
        None if sequences is None else sequences.label,
    )


async def _run_levels(
    client: AsyncClient, plan: LoadPlan, prepared: _Prepared, stopper: Stopper, observer: Observer
) -> tuple[list[LevelReport], set[str]]:
    """Every level until one is interrupted, and the model versions that answered."""
    watched = await models_to_watch(client, plan.model)
    levels: list[LevelReport] = []
    versions: set[str] = set()
    arrivals = [_with_pool(arrival, prepared.pool) for arrival in plan.arrivals]
    columns = [_columns(arrival) for arrival in arrivals]
    traces = [one for one in columns if one is not None]
    async with Fleet(prepared.encoded, prepared.transport, workers=prepared.workers, traces=traces) as fleet:
        target = Target(client, fleet, prepared.request_bytes, watched, prepared.validate)
        number = 0
        for arrival, recorded_arrivals in zip(arrivals, columns, strict=True):
            if stopper.stopped:
                break
            trace = None if recorded_arrivals is None else number
            number += recorded_arrivals is not None
            level, answered = await run_level(target, plan, arrival, trace=trace, stopper=stopper, observer=observer)
            levels.append(level)
            versions |= answered
    return levels, versions


def _columns(arrival: Arrival) -> bytes | None:
    """The arrivals of a trace; None where a timetable can be drawn again from its description."""
    if isinstance(arrival, ClosedLoop) or not isinstance(arrival.schedule, TraceSchedule):
        return None
    return arrival.schedule.columns()


def _with_pool(arrival: Arrival, pool: InputPool) -> Arrival:
    """A trace that names inputs, with the pool's entries in their place."""
    return arrival if isinstance(arrival, ClosedLoop) else arrival.with_pool(pool.ids)


def _describe(pool: InputPool, metadata: ModelMetadata) -> tuple[InputDescription, ...]:
    first = pool.requests[0]
    return tuple(
        InputDescription(spec.name, spec.datatype, tuple(first[spec.name].shape))
        for spec in metadata.inputs
        if spec.name in first
    )
