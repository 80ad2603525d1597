"""Sequences, streams and requests that are taken back, sent by `LoopSender` to models of a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sequence_models import make_sequence_repository

from tritonstack import AsyncClient
from tritonstack.client.endpoint import parse_endpoint
from tritonstack.errors import DeadlineExceeded, ServerError, UsageError
from tritonstack.load.cancellation import CancelledOnPurpose, CancelPlan
from tritonstack.load.expected import expected_answer
from tritonstack.load.loop_sender import LoopSender, WrongAnswer
from tritonstack.load.request_encoding import EncodedRequest, RequestOptions, build, encode
from tritonstack.load.sequence import SequenceLength, SequencePlan
from tritonstack_deploy.embedded import EmbeddedServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(make_sequence_repository(tmp_path_factory.mktemp("loop") / "models")) as running:
        yield running


def url_of(server: EmbeddedServer, protocol: str) -> str:
    return server.grpc_url if protocol == "grpc" else server.http_url


async def encoded(url: str, model: str, values: list[Any], protocol: str) -> EncodedRequest:
    async with AsyncClient(url) as client:
        metadata = await client.metadata(model)
    return encode(build(metadata, {"x": np.array(values)}, RequestOptions(), cast=True), protocol)  # type: ignore[arg-type]


async def gathered(sender: LoopSender, count: int, *, at_once: int) -> list[object]:
    """Results or exceptions of `count` sends, at most `at_once` of them in flight."""
    room = asyncio.Semaphore(at_once)

    async def one(number: int) -> object:
        async with room:
            try:
                return await sender.send(number % 2)
            except (ServerError, WrongAnswer, CancelledOnPurpose, DeadlineExceeded) as error:
                return error

    return list(await asyncio.gather(*(one(number) for number in range(count))))


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_sequences(server: EmbeddedServer, protocol: str) -> None:
    async def run() -> tuple[list[object], Any]:
        url = url_of(server, protocol)
        requests = [await encoded(url, "sums", [[n + 1]], protocol) for n in range(2)]
        plan = SequencePlan(3, SequenceLength("constant", 4))
        async with LoopSender(parse_endpoint(url), requests, timeout_s=10, sequences=plan) as sender:
            results = await gathered(sender, 26, at_once=8)
        return results, sender.figures()

    results, figures = asyncio.run(run())
    assert not [result for result in results if isinstance(result, Exception)]
    # 26 requests of sequences of 4: 6 whole ones and what is left in the middle of others.
    assert figures.sequences.broken == 0 and 5 <= figures.sequences.completed <= 6
    assert figures.streams is None and figures.cancelled == 0


def test_streams_are_counted_and_checked(server: EmbeddedServer) -> None:
    """The model answers x[0] times; the first answer of the second request is expected otherwise than it is."""

    async def run() -> tuple[list[object], Any]:
        url = server.grpc_url
        requests = [await encoded(url, "stream", values, "grpc") for values in ([3, 0, 0], [2, 0, 0])]
        async with LoopSender(parse_endpoint(url), requests, timeout_s=10, stream=True) as sender:
            results = await gathered(sender, 20, at_once=4)
        return results, sender.figures()

    results, figures = asyncio.run(run())
    assert not [result for result in results if isinstance(result, Exception)], results
    assert figures.streams.requests == 20
    assert figures.streams.fewest == 2 and figures.streams.most == 3
    assert figures.streams.responses == 50


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_requests_are_taken_back(server: EmbeddedServer, protocol: str) -> None:
    async def run() -> tuple[list[object], Any]:
        url = url_of(server, protocol)
        requests = [await encoded(url, "patient", [[0.3]], protocol)] * 2
        cancel = CancelPlan(0.5, 0.05, seed=3)
        async with LoopSender(parse_endpoint(url), requests, timeout_s=20, cancel=cancel) as sender:
            results = await gathered(sender, 8, at_once=8)
        return results, sender.figures()

    results, figures = asyncio.run(run())
    taken_back = sum(isinstance(result, CancelledOnPurpose) for result in results)
    assert (
        taken_back == figures.cancelled == sum(CancelPlan(0.5, 0.05, seed=3).after_of(n) is not None for n in range(8))
    )
    assert 0 < taken_back < 8
    assert not [result for result in results if isinstance(result, ServerError)]


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_wrong_answers_are_told(server: EmbeddedServer, protocol: str) -> None:
    async def run() -> list[object]:
        url = url_of(server, protocol)
        async with AsyncClient(url) as client:
            metadata = await client.metadata("patient")
        requests = [await encoded(url, "patient", [[0.0]], protocol)] * 2
        answers = [None, expected_answer({"y": [[1e9, 1e9]]}, metadata.outputs, model="patient").encoded()]
        async with LoopSender(parse_endpoint(url), requests, timeout_s=20, expected=answers) as sender:
            return await gathered(sender, 4, at_once=1)

    results = asyncio.run(run())
    assert [isinstance(result, WrongAnswer) for result in results] == [False, True, False, True]
    assert "'y'" in str(results[1])


def test_streams_need_grpc() -> None:
    with pytest.raises(UsageError, match="gRPC"):
        LoopSender(parse_endpoint("http://127.0.0.1:1"), [], timeout_s=1, stream=True)
