"""By which way the requests of a plan are sent, and how they are encoded for it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tritonstack.client.endpoint import Endpoint, Protocol
from tritonstack.client.model import ModelMetadata
from tritonstack.errors import ServerError, UsageError
from tritonstack.load.arrival import ClosedLoop
from tritonstack.load.expected import Tolerance, expected_answer, recorded, reply_of
from tritonstack.load.fleet import default_workers
from tritonstack.load.input_pool import InputPool
from tritonstack.load.plan import LoadPlan
from tritonstack.load.request_encoding import Encoding, RequestOptions, build, encode, in_shared_memory
from tritonstack.load.request_pool import PoolEntry, RequestPool, grpc_entry
from tritonstack.load.sequence import SequencePlan, scripts_of
from tritonstack.load.shared_inputs import SharedInputs
from tritonstack.load.transport import Completion, TransportKind, TransportOptions, open_transport

MOST_CONNECTIONS = 4096
"""Of one worker over HTTP/1.1, where every request in flight takes one."""
RECORDED_AT_A_TIME = 16


def transport_of(plan: LoadPlan, endpoint: Endpoint) -> TransportKind:
    """The way that `plan` asks for. Raises UsageError where it does not lead to `endpoint`."""
    if plan.conversation:
        if plan.conversation.stream and endpoint.protocol != "grpc":
            raise UsageError("streams exist over gRPC only", given=str(endpoint), expected="grpc://…")
        if plan.transport != "auto":
            raise UsageError(
                "sequences, streams and cancelled requests have a transport of their own", given=plan.transport
            )
        return "conversation"
    if plan.json_body and endpoint.protocol != "http":
        raise UsageError("a JSON body is of HTTP", given=str(endpoint), expected="--json-body with an HTTP address")
    if plan.shared_memory == "cuda":
        # Silently sending tensors over the wire instead would be measured as if it were shared memory.
        raise UsageError(
            "load tests through CUDA shared memory are not built in",
            given=plan.shared_memory,
            expected="system or none",
        )
    if plan.shared_memory == "system" and plan.json_body:
        raise UsageError("a JSON body carries its tensors", given="shared memory")
    if plan.transport == "auto":
        return "http" if endpoint.protocol == "http" else "grpcio" if endpoint.secure else "h2"
    if (plan.transport == "http") != (endpoint.protocol == "http"):
        raise UsageError(
            f"the transport {plan.transport} does not speak {endpoint.protocol}",
            given=str(endpoint),
            expected="http for HTTP, h2 or grpcio for gRPC",
        )
    if plan.transport == "h2" and endpoint.secure:
        raise UsageError("the transport h2 has no TLS", given=str(endpoint), expected="grpcio")
    return plan.transport


def with_scripts(plan: LoadPlan, pool: InputPool) -> LoadPlan:
    """The plan with the sequences that the entries of a JSONL file name; as it was where they name none.

    Raises UsageError where only some entries belong to a sequence.
    """
    scripts = scripts_of(pool)
    if not scripts:
        return plan
    wanted = plan.conversation.sequences
    if wanted is None:
        at_once = max(a.concurrency if isinstance(a, ClosedLoop) else len(scripts) for a in plan.arrivals)
        wanted = SequencePlan(min(at_once, len(scripts)), seed=plan.seed)
    return replace(plan, conversation=replace(plan.conversation, sequences=replace(wanted, scripts=scripts)))


def workers_of(plan: LoadPlan) -> int:
    """How many worker processes the plan's levels take."""
    if plan.conversation:
        return 1
    return plan.workers or max(default_workers(arrival) for arrival in plan.arrivals)


def transport_options(plan: LoadPlan, endpoint: Endpoint, *, workers: int, bound: int) -> TransportOptions:
    """The transport of each worker; `bound` is how many requests an open loop may have in flight."""
    kind = transport_of(plan, endpoint)
    connections = plan.connections
    if connections is None:
        connections = 1
        if kind == "http":
            places = max(a.concurrency if isinstance(a, ClosedLoop) else bound for a in plan.arrivals)
            connections = min(-(-places // workers), MOST_CONNECTIONS)
    conversation = plan.conversation.to_json(timeout_s=plan.timeout_s) if plan.conversation else None
    return TransportOptions(
        kind=kind,
        url=str(endpoint),
        connections=connections,
        tls=plan.tls,
        headers=plan.headers,
        conversation=conversation,
    )


def encoded_pool(
    pool: InputPool,
    metadata: ModelMetadata,
    plan: LoadPlan,
    endpoint: Endpoint,
    *,
    shared: SharedInputs | None = None,
) -> RequestPool:
    """The pool as bytes, with the answers that the inputs bring with them where the plan looks at those.

    `shared`: where the inputs lie that the server reads from shared memory.

    Raises TensorError naming the input or output that does not fit the model.
    """
    return RequestPool.of(_entries(pool, metadata, plan, endpoint, shared))


def tolerance_of(plan: LoadPlan) -> Tolerance:
    return Tolerance(plan.rtol, plan.atol, plan.nan_equal)


def _entries(
    pool: InputPool,
    metadata: ModelMetadata,
    plan: LoadPlan,
    endpoint: Endpoint,
    shared: SharedInputs | None,
) -> Iterator[PoolEntry]:
    encoding: Encoding = "grpc" if endpoint.protocol == "grpc" else "json" if plan.json_body else "http"
    tolerance = tolerance_of(plan)
    for index in range(len(pool.requests)):
        extras = pool.extras_of(index)
        options = RequestOptions(
            version=plan.version,
            request_id=extras.request_id,
            priority=plan.priority,
            queue_timeout_us=plan.queue_timeout_us,
            parameters={**plan.parameters, **extras.parameters},
        )
        request = build(metadata, pool.requests[index], options, cast=pool.cast)
        if shared is not None:
            request = in_shared_memory(request, inputs=shared.of(index))
        encoded = encode(request, encoding, prefix=endpoint.prefix)
        expected: bytes | None = None
        if plan.validate == "expected" and extras.expected is not None:
            expected = _encoded_answer(extras.expected, metadata, tolerance)
        if encoding == "grpc":
            yield grpc_entry(encoded.target, encoded.body, expected=expected)
        else:
            yield PoolEntry(encoded.target, encoded.body, b"", encoded.headers, expected)


def _encoded_answer(values: Mapping[str, object], metadata: ModelMetadata, tolerance: Tolerance) -> bytes:
    return expected_answer(values, metadata.outputs, model=metadata.name, tolerance=tolerance).encoded()


def recorded_answers(pool: RequestPool, options: TransportOptions, plan: LoadPlan) -> list[bytes | None]:
    """The answer to each request of the pool, sent once, as what is expected from then on; blocks.

    Raises ServerError where the server refuses one: an error is nothing to compare with.
    """
    answers: list[bytes | None] = [None] * len(pool)
    protocol = options.endpoint.protocol
    transport = open_transport(replace(options, connections=1), pool)
    try:
        waiting = iter(range(len(pool)))
        in_flight = 0
        for index in waiting:
            transport.send(index, index, plan.timeout_s)
            in_flight += 1
            if in_flight >= RECORDED_AT_A_TIME:
                in_flight -= _take(transport.poll(time.monotonic() + plan.timeout_s + 5), answers, protocol, plan)
        while in_flight:
            in_flight -= _take(transport.poll(time.monotonic() + plan.timeout_s + 5), answers, protocol, plan)
    finally:
        transport.close()
    return answers


def _take(completions: Sequence[Completion], answers: list[bytes | None], protocol: Protocol, plan: LoadPlan) -> int:
    for completion in completions:
        if completion.error is not None:
            raise ServerError(
                f"request {completion.token} of the pool has no answer to record: {completion.error[1]}",
                code=completion.error[0].removeprefix("ServerError "),
            )
        reply = reply_of(completion.body, completion.head_length)
        answers[completion.token] = recorded(reply, protocol, tolerance=tolerance_of(plan)).encoded()
    return len(completions)
