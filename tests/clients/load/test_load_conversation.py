"""Sequences, streams and requests that are taken back as a transport, and through `run_load`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sequence_models import make_sequence_repository

from tritonstack import Client
from tritonstack.load.cancellation import CancelPlan
from tritonstack.load.request_encoding import RequestOptions, build, encode
from tritonstack.load.request_pool import PoolEntry, RequestPool, grpc_entry
from tritonstack.load.sequence import SequenceLength, SequencePlan
from tritonstack.load.transport import Completion, TransportOptions, open_transport
from tritonstack_deploy.embedded import EmbeddedServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(make_sequence_repository(tmp_path_factory.mktemp("conversation") / "models")) as running:
        yield running


def pool_of(url: str, model: str, values: list[Any], encoding: str) -> RequestPool:
    with Client(url) as client:
        metadata = client.metadata(model)
    entries = []
    for value in values:
        request = encode(build(metadata, {"x": np.array(value)}, RequestOptions(), cast=True), encoding)  # type: ignore[arg-type]
        if encoding == "grpc":
            entries.append(grpc_entry(request.target, request.body))
        else:
            entries.append(PoolEntry(request.target, request.body, b"", request.headers))
    return RequestPool.of(entries)


def exchanged(transport: Any, pool: RequestPool, count: int, *, at_once: int) -> list[Completion]:
    """Completions of `count` requests, `at_once` of them in flight."""
    done: list[Completion] = []
    for token in range(min(at_once, count)):
        transport.send(token, token % len(pool), 10.0)
    sent = min(at_once, count)
    end_s = time.monotonic() + 30
    while len(done) < count and time.monotonic() < end_s:
        for completion in transport.poll(time.monotonic() + 1):
            done.append(completion)
            if sent < count:
                transport.send(completion.token, sent % len(pool), 10.0)
                sent += 1
    return done


def options(url: str, **conversation: Any) -> TransportOptions:
    plan = {"timeout_s": 10.0, "stream": False, "sequences": None, "cancel": None} | conversation
    return TransportOptions(kind="conversation", url=url, conversation=plan)


@pytest.mark.parametrize("encoding", ["grpc", "http", "json"])
def test_sequences(server: EmbeddedServer, encoding: str) -> None:
    url = server.grpc_url if encoding == "grpc" else server.http_url
    pool = pool_of(url, "sums", [[[1]], [[2]]], encoding)
    plan = SequencePlan(3, SequenceLength("constant", 5)).to_json()
    transport: Any = open_transport(options(url, sequences=plan), pool)
    try:
        done = exchanged(transport, pool, 40, at_once=6)
    finally:
        figures = transport.figures()
        transport.close()
    assert len(done) == 40 and not [one for one in done if one.error]
    assert figures.sequences.broken == 0 and figures.sequences.completed >= 6
    assert all(one.sent_s <= one.first_s <= one.done_s for one in done)


def test_streams(server: EmbeddedServer) -> None:
    pool = pool_of(server.grpc_url, "stream", [[3, 5, 0], [1, 5, 0], [0, 0, 1]], "grpc")
    transport: Any = open_transport(options(server.grpc_url, stream=True), pool)
    try:
        done = exchanged(transport, pool, 30, at_once=4)
    finally:
        figures = transport.figures()
        transport.close()
    errors = [one.error for one in done if one.error]
    assert len(errors) == 10 and all("broke off" in error[1] for error in errors)
    assert figures.streams.requests == 20 and figures.streams.responses == 40
    slow = [one for one in done if not one.error and one.done_s - one.first_s > 0.005]
    assert len(slow) >= 8, "the first response comes before the last"


def test_requests_are_taken_back_and_the_deadline_holds(server: EmbeddedServer) -> None:
    pool = pool_of(server.grpc_url, "patient", [[[0.2]]], "grpc")
    cancel = CancelPlan(0.5, 0.02, seed=1)
    transport: Any = open_transport(options(server.grpc_url, cancel=cancel.to_json()), pool)
    try:
        done = exchanged(transport, pool, 12, at_once=12)
    finally:
        transport.close()
    taken_back = [one for one in done if one.error and one.error[0] == "Cancelled"]
    assert len(taken_back) == sum(cancel.after_of(number) is not None for number in range(12))
    assert all(one.error is None for one in done if one not in taken_back)
    late: Any = open_transport(options(server.grpc_url, timeout_s=0.05), pool)
    try:
        (completion,) = exchanged(late, pool, 1, at_once=1)
    finally:
        late.close()
    assert completion.error is not None and completion.error[0] == "DeadlineExceeded"
