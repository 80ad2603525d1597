"""Runs a load plan against a server: prepares the requests, drives an engine per level, gathers the report."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tritonstack.client.endpoint import parse_endpoint
from tritonstack.errors import InputError
from tritonstack.load import environment
from tritonstack.load.arrival import Arrival, ClosedLoop
from tritonstack.load.engine import Send
from tritonstack.load.inputs import InputPool, build_pool
from tritonstack.load.interruption import Stopper
from tritonstack.load.level import run_level
from tritonstack.load.live import Observer, Silent
from tritonstack.load.plan import LoadPlan
from tritonstack.load.report import InputDescription, LevelReport, LoadReport
from tritonstack.load.statistics_delta import models_to_watch

if TYPE_CHECKING:
    from tritonstack import AsyncClient
    from tritonstack.client.model import ModelMetadata
    from tritonstack.client.request import PreparedRequest

CONTROL_TIMEOUT_S = 10.0
"""Deadline of questions about the model and its statistics; the plan's own is for inference alone."""
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
    stopper = Stopper(observer)
    # No retries: a repeated request would hide a failure in a long latency.
    async with AsyncClient(plan.url, protocol=plan.protocol, timeout_s=CONTROL_TIMEOUT_S, retries=0) as client:
        with stopper.on_signals() if stop_on_signal else contextlib.nullcontext():
            server = await client.server_metadata()
            target = await _prepare(client, plan)
            observer.note(
                f"{plan.model} on {server.name} {server.version} at {endpoint}: {len(target.prepared)} distinct "
                f"requests, batch {plan.batch}, {target.pool.origin}"
            )
            watched = await models_to_watch(client, plan.model)
            levels: list[LevelReport] = []
            for arrival in [_with_pool(arrival, target.pool) for arrival in plan.arrivals]:
                if stopper.stopped:
                    break
                levels.append(
                    await run_level(
                        client,
                        plan,
                        arrival,
                        send=target.sender(client, plan.timeout_s),
                        pool_size=len(target.prepared),
                        request_bytes=target.request_bytes,
                        watched=watched,
                        stopper=stopper,
                        observer=observer,
                    )
                )
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
        interrupted=stopper.stopped,
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

    def sender(self, client: AsyncClient, timeout_s: float) -> Send:
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
