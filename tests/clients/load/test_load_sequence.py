"""Sequences, streams and cancellation: the bookkeeping alone, and against models of a real server that tell."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from asyncio_engine import Engine, EngineResult, Failure, Window
from sequence_models import make_sequence_repository

from tritonstack.client.call import Call, Reply
from tritonstack.client.connection import Address
from tritonstack.client.endpoint import parse_endpoint
from tritonstack.client.grpc_codec import GrpcCodec
from tritonstack.client.http_codec import HttpCodec
from tritonstack.client.model import ModelMetadata
from tritonstack.errors import DeadlineExceeded, ServerError, ServerUnavailable, UsageError
from tritonstack.load.arrival import Arrival, ClosedLoop, OpenLoop
from tritonstack.load.cancellation import CancelledOnPurpose, CancelPlan
from tritonstack.load.expected import AnswerCheck, expected_answer
from tritonstack.load.input_pool import InputPool, RequestExtras
from tritonstack.load.request_encoding import EncodedRequest, Encoding, RequestOptions, build, encode, in_sequence
from tritonstack.load.sequence import SequenceBook, SequenceLength, SequencePlan, SequenceStep, scripts_of
from tritonstack.load.sequence_driver import SequenceDriver
from tritonstack.load.stream import STREAM_ERROR, StreamSender, StreamTally
from tritonstack.tensor.tensor_spec import TensorSpec
from tritonstack_deploy.embedded import EmbeddedServer

# ---- the bookkeeping


def play(book: SequenceBook, steps: int, *, in_flight: int, seed: int = 0) -> list[SequenceStep]:
    """Take and end steps in a random order with at most `in_flight` of them open."""
    generator = np.random.default_rng(seed)
    taken: list[SequenceStep] = []
    open_steps: list[SequenceStep] = []
    while len(taken) < steps or open_steps:
        step = book.take() if len(taken) < steps and len(open_steps) < in_flight else None
        if step is not None and generator.random() < 0.7:
            taken.append(step)
            open_steps.append(step)
        elif step is not None:
            taken.append(step)
            book.ended(step)
        elif open_steps:
            book.ended(open_steps.pop(int(generator.integers(len(open_steps)))))
    return taken


@pytest.mark.parametrize("length", ["1", "2", "7", "1-5", "~4", "~1"])
@pytest.mark.parametrize("concurrent", [1, 3, 16])
def test_every_sequence_starts_once_ends_once_and_goes_in_order(length: str, concurrent: int) -> None:
    plan = SequencePlan(concurrent, SequenceLength.parse(length), seed=3)
    book = SequenceBook(plan, pool_size=5)
    by_id: dict[int | str, list[SequenceStep]] = defaultdict(list)
    for step in play(book, 2000, in_flight=concurrent):
        by_id[step.place.sequence_id].append(step)
    complete = 0
    for steps in by_id.values():
        places = [step.place for step in steps]
        assert [place.start for place in places] == [True] + [False] * (len(places) - 1)
        assert not any(place.end for place in places[:-1])
        complete += places[-1].end
        assert len({step.slot for step in steps}) == 1
    assert len(by_id) - complete <= concurrent
    assert (book.begun, book.completed, book.broken) == (len(by_id), complete, 0)


def test_no_sequence_ever_has_two_requests_in_flight() -> None:
    book = SequenceBook(SequencePlan(3, SequenceLength("constant", 4)), pool_size=1)
    first = [book.take() for _ in range(3)]
    assert all(first)
    assert book.take() is None
    assert book.in_flight == 3
    assert first[1] is not None
    book.ended(first[1])
    following = book.take()
    assert following is not None
    assert following.place.sequence_id == first[1].place.sequence_id
    assert book.take() is None


@pytest.mark.parametrize(("text", "mean", "low", "high"), [("6", 6, 6, 6), ("2-10", 6, 2, 10), ("~6", 6, 1, math.inf)])
def test_lengths_follow_their_distribution(text: str, mean: float, low: float, high: float) -> None:
    length = SequenceLength.parse(text)
    drawn = np.array([length.draw(generator) for generator in [np.random.default_rng(1)] for _ in range(20_000)])
    assert drawn.mean() == pytest.approx(mean, rel=0.03)
    assert drawn.min() >= low
    assert drawn.max() <= high
    assert SequenceLength.parse(length.label) == length


@pytest.mark.parametrize("text", ["", "0", "-3", "5-2", "0-2", "~0", "~", "x", "1.5", "3-", "1-2-3", "9999999999"])
def test_lengths_without_meaning_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        SequenceLength.parse(text)


def test_scripts_are_played_in_order_and_ids_never_come_back() -> None:
    plan = SequencePlan(2, scripts=((4, 5, 6), (9,)), text_ids=True)
    book = SequenceBook(plan, pool_size=10, first_id=1)
    steps = play(book, 400, in_flight=2)
    entries: dict[int | str, list[int]] = defaultdict(list)
    for step in steps:
        entries[step.place.sequence_id].append(step.entry)
    assert all(isinstance(name, str) for name in entries)
    assert {tuple(played) for played in entries.values() if len(played) in (1, 3)} <= {(4, 5, 6), (9,), (4,)}
    counts = Counter(tuple(played) for played in entries.values())
    assert abs(counts[(4, 5, 6)] - counts[(9,)]) <= 3


def test_a_failed_sequence_is_ended_and_another_begins() -> None:
    book = SequenceBook(SequencePlan(1, SequenceLength("constant", 5)), pool_size=1)

    def next_step() -> SequenceStep:
        step = book.take()
        assert step is not None
        return step

    first = next_step()
    book.ended(first, failed=True)
    last = next_step()
    assert last.place.sequence_id == first.place.sequence_id
    assert (last.place.start, last.place.end) == (True, True), "the server may not have seen the first start"
    book.ended(last, failed=True)
    for failed in (False, True):
        step = next_step()
        assert step.place.sequence_id != first.place.sequence_id
        book.ended(step, failed=failed)
    last = next_step()
    assert (last.place.start, last.place.end) == (False, True)
    book.ended(last)
    assert next_step().place.start
    assert (book.begun, book.completed, book.broken) == (3, 1, 3)


def test_open_sequences_are_closed_at_the_end() -> None:
    book = SequenceBook(SequencePlan(3, SequenceLength("constant", 2)), pool_size=1)
    steps = [book.take() for _ in range(3)]
    for step in steps[:2]:
        assert step is not None
        book.ended(step)
    closing = book.closing_steps()
    assert [(step.place.start, step.place.end) for step in closing] == [(False, True)] * 2
    assert book.closing_steps() == []


def test_workers_share_the_sequences_and_their_ids_differ() -> None:
    plan = SequencePlan(7, seed=4)
    shares = [plan.share(worker=w, workers=3) for w in range(3)]
    assert [share.concurrent for share in shares if share] == [3, 2, 2]
    assert SequencePlan(1).share(worker=1, workers=2) is None
    ids = set()
    for share in shares:
        assert share is not None
        assert SequencePlan.from_json(share.to_json()) == share
        ids |= {step.place.sequence_id for step in play(SequenceBook(share, pool_size=1), 300, in_flight=2)}
    assert len(ids) >= 3 * 15
    assert all(isinstance(name, int) and 0 < name < 2**63 for name in ids)


def test_sequences_come_from_the_pool_all_or_none() -> None:
    def pool(*names: str | int | None) -> InputPool:
        return InputPool([{}] * len(names), "", False, [RequestExtras(sequence=name) for name in names])

    assert scripts_of(pool("a", 7, "a", 7, "b")) == ((0, 2), (1, 3), (4,))
    assert scripts_of(pool(None, None)) == ()
    with pytest.raises(UsageError, match="1 of 2"):
        scripts_of(pool("a", None))


@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.5, 1.0])
def test_the_fraction_to_cancel_is_met_and_depends_on_the_number_alone(fraction: float) -> None:
    plan = CancelPlan(fraction, 0.25, seed=9)
    chosen = np.array([plan.after_of(number) is not None for number in range(100_000)])
    assert chosen.mean() == pytest.approx(fraction, abs=5 * math.sqrt(fraction * (1 - fraction) / len(chosen)) + 1e-9)
    if 0.05 < fraction < 1:
        assert abs(np.corrcoef(chosen[:-1], chosen[1:])[0, 1]) < 0.02
        other = [CancelPlan(fraction, 0.25, seed=10).after_of(number) is not None for number in range(100_000)]
        assert abs(np.corrcoef(chosen, other)[0, 1]) < 0.02
    assert plan.after_of(int(np.argmax(chosen))) == 0.25
    assert CancelPlan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(("fraction", "after_s"), [(0, 1), (1.1, 1), (0.5, -1), (math.nan, 1), (0.5, math.inf)])
def test_cancelling_without_meaning_is_refused(fraction: float, after_s: float) -> None:
    with pytest.raises(UsageError):
        CancelPlan(fraction, after_s)


# ---- a real server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(make_sequence_repository(tmp_path_factory.mktemp("sequences") / "models")) as running:
        yield running


def metadata(name: str, kind: str, shape: tuple[int, ...], batch: int) -> ModelMetadata:
    outputs = (TensorSpec("y", kind, (-1,) * len(shape)),)
    return ModelMetadata(name, ("1",), "", (TensorSpec("x", kind, shape),), outputs, batch)


SUMS = metadata("sums", "INT32", (-1, 1), 4)
STREAM = metadata("stream", "INT32", (3,), 0)
PATIENT = metadata("patient", "FP32", (-1, 1), 1)


def encoded(model: ModelMetadata, values: list[Any], encoding: Encoding = "grpc", **options: Any) -> EncodedRequest:
    return encode(build(model, {"x": values}, RequestOptions(**options), cast=True), encoding)


def classify(error: Exception) -> Failure | None:
    if isinstance(error, CancelledOnPurpose | DeadlineExceeded | ServerError):
        return Failure(type(error).__name__, str(error))
    return None


async def drive(
    send: Callable[[int], Any], arrival: Arrival, *, requests: int, max_in_flight: int = 100
) -> EngineResult:
    engine = Engine(
        send=send,
        pool_size=1_000_000,
        arrival=arrival,
        window=Window(0.0, None, requests),
        classify=classify,
        max_in_flight=max_in_flight,
        drain_s=20.0,
    )
    return await engine.run()


async def run_sums(
    url: str, encoding: Encoding, model: ModelMetadata, plan: SequencePlan, arrival: Arrival, requests: int
) -> tuple[EngineResult, SequenceBook, list[tuple[SequenceStep, list[int]]], int]:
    """Drive a model that adds up sequences; returns its answers (total, sequences that it still remembers)."""
    pool = [encoded(model, [[number + 1]], encoding) for number in range(5)]
    transport = Address(url, protocol=None, timeout_s=10, tls=None, headers=None, retries=0).async_transport()
    codec = GrpcCodec() if encoding == "grpc" else HttpCodec()
    book = SequenceBook(plan, pool_size=len(pool))
    answers: list[tuple[SequenceStep, list[int]]] = []

    async def send_step(step: SequenceStep) -> object:
        request = in_sequence(pool[step.entry], step.place)
        reply = await transport.send(Call(request.target, (request.body,), "it", headers=request.headers), 10.0)
        output = codec.decode_infer(Reply(reply.body, reply.headers)).outputs["y"].data
        values = np.ravel(output) if isinstance(output, list) else np.frombuffer(output, np.int32)  # type: ignore[arg-type]
        answers.append((step, [int(value) for value in values]))
        return reply

    driver = SequenceDriver(book, send_step)
    result = await drive(driver.send, arrival, requests=requests)
    closed = await driver.finish()
    await transport.close()
    return result, book, answers, closed


@pytest.mark.parametrize("encoding", ["grpc", "http", "json"])
@pytest.mark.parametrize("text_ids", [False, True], ids=["numbers", "texts"])
@pytest.mark.parametrize("loop", ["closed", "open"])
def test_a_stateful_model_sees_each_sequence_whole_and_in_order(
    server: EmbeddedServer, encoding: Encoding, text_ids: bool, loop: str
) -> None:
    url = server.grpc_url if encoding == "grpc" else server.http_url
    plan = SequencePlan(4, SequenceLength("uniform", 1, 6), seed=1, text_ids=text_ids)
    arrival = ClosedLoop(4) if loop == "closed" else OpenLoop(400.0)
    result, book, answers, closed = asyncio.run(run_sums(url, encoding, SUMS, plan, arrival, 150))
    assert result.tally.errors() == ()
    assert result.tally.latency.count == 150
    totals: dict[int | str, int] = defaultdict(int)
    for step, (total, remembered) in answers:
        totals[step.place.sequence_id] += step.entry + 1
        assert total == totals[step.place.sequence_id], "the server adds in the order we sent"
        assert remembered <= 4
    assert book.begun == book.completed + closed
    assert answers[-1][1][1] == 0 or closed == 0, "the last request left no sequence at the server"


def test_more_callers_than_sequences_wait_their_turn(server: EmbeddedServer) -> None:
    plan = SequencePlan(2, SequenceLength("constant", 5))
    result, book, answers, _ = asyncio.run(run_sums(server.grpc_url, "grpc", SUMS, plan, ClosedLoop(8), 80))
    assert result.tally.errors() == ()
    assert len({step.slot for step, _ in answers}) == 2
    assert max(remembered for _, (_, remembered) in answers) <= 2
    assert book.begun >= 16


def test_scripts_send_their_own_requests(server: EmbeddedServer) -> None:
    plan = SequencePlan(1, scripts=((0, 1, 2), (4,)))
    result, _, answers, _ = asyncio.run(run_sums(server.grpc_url, "grpc", SUMS, plan, ClosedLoop(1), 8))
    assert result.tally.errors() == ()
    assert [total for _, (total, _) in answers] == [1, 3, 6, 5] * 2


def test_parameters_and_ids_of_a_request_stay_when_it_joins_a_sequence(server: EmbeddedServer) -> None:
    """Texts in every part of the head, with braces and quotes that a careless splice would trip over."""
    plan = SequencePlan(1, SequenceLength("constant", 2))
    for encoding in ("grpc", "http", "json"):
        options = {"request_id": 'größe"}}', "parameters": {"a": '"parameters":{', "b}": "}}"}, "outputs": ("y",)}
        request = encoded(SUMS, [[2]], encoding, **options)  # type: ignore[arg-type]
        url = server.grpc_url if encoding == "grpc" else server.http_url

        async def send(request: EncodedRequest = request, url: str = url) -> list[Reply]:
            transport = Address(url, protocol=None, timeout_s=10, tls=None, headers=None, retries=0).async_transport()
            book = SequenceBook(plan, pool_size=1)
            replies = []
            for _ in range(2):
                step = book.take()
                assert step is not None
                placed = in_sequence(request, step.place)
                call = Call(placed.target, (placed.body,), "it", headers=placed.headers)
                replies.append(await transport.send(call, 10.0))
                book.ended(step)
            await transport.close()
            return replies

        codec = GrpcCodec() if encoding == "grpc" else HttpCodec()
        decoded = [codec.decode_infer(reply) for reply in asyncio.run(send())]
        assert [answer.request_id for answer in decoded] == ['größe"}}'] * 2


def test_failures_in_sequences_do_not_block_the_server(server: EmbeddedServer) -> None:
    """The server holds a place for each sequence until its end, for 30 s here: broken ones must not fill them."""
    pool = [encoded(SUMS, [[value]]) for value in (1, 2, -1, 3, 4, 5, 6)]

    async def run() -> tuple[EngineResult, SequenceBook]:
        transport = Address(server.grpc_url, protocol=None, timeout_s=5, tls=None, headers=None, retries=0)
        channel = transport.async_transport()
        book = SequenceBook(SequencePlan(4, SequenceLength("uniform", 2, 5)), pool_size=len(pool))

        async def send_step(step: SequenceStep) -> object:
            request = in_sequence(pool[step.entry], step.place)
            return await channel.send(Call(request.target, (request.body,), "it"), 5.0)

        driver = SequenceDriver(book, send_step)
        result = await drive(driver.send, ClosedLoop(4), requests=210)
        await driver.finish()
        await channel.close()
        return result, book

    result, book = asyncio.run(run())
    (errors,) = result.tally.errors()
    assert (errors.kind, errors.count) == ("ServerError", 30)
    assert "negative" in errors.example
    assert book.broken >= 30


# ---- streams


def endpoint(server: EmbeddedServer) -> Any:
    return parse_endpoint(server.grpc_url)


def test_streams_count_responses_and_the_time_between_them(server: EmbeddedServer) -> None:
    bodies = [encoded(STREAM, [count, 10, 0]).body for count in (3, 1, 5, 0)]

    async def run() -> tuple[EngineResult, StreamTally]:
        tally = StreamTally()
        async with StreamSender(endpoint(server), channels=2) as sender:
            turn = itertools.cycle(bodies)

            async def send(_number: int) -> object:
                answer = await sender.send(next(turn), timeout_s=10)
                tally.add(answer)
                return answer

            return await drive(send, ClosedLoop(4), requests=80), tally

    result, tally = asyncio.run(run())
    assert result.tally.errors() == ()
    summary = tally.summary()
    assert summary.requests == 80
    assert summary.responses == 20 * (3 + 1 + 5 + 0)
    assert (summary.fewest, summary.most, summary.responses_per_request) == (0, 5, 9 / 4)
    assert summary.first.count == 60
    assert summary.between.count == 20 * (2 + 0 + 4)
    assert summary.first.min_us is not None and summary.first.min_us >= 10_000
    assert summary.between.p50_us == pytest.approx(10_000, rel=0.3)


def test_a_model_with_one_answer_can_be_streamed_and_checked(server: EmbeddedServer) -> None:
    body = encoded(PATIENT, [[0.0]]).body
    spec = TensorSpec("y", "FP32", (-1, 2))

    async def run() -> list[str | None]:
        check = AnswerCheck(expected_answer({"y": [[1, 0]]}, [spec], model="patient"), "grpc")
        async with StreamSender(endpoint(server)) as sender:
            answers = [await sender.send(body, timeout_s=10) for _ in range(3)]
        assert [len(answer.response_s) for answer in answers] == [1, 1, 1]
        return [check.difference(answer.first) for answer in answers]

    found = asyncio.run(run())
    assert sum(text is None for text in found) <= 1
    assert any(text is not None and text.startswith("output 'y': ") for text in found)


def test_an_error_in_a_stream_belongs_to_its_request_and_the_stream_goes_on(server: EmbeddedServer) -> None:
    good, bad = encoded(STREAM, [2, 0, 0]).body, encoded(STREAM, [1, 0, 1]).body
    foreign = encoded(metadata("nobody", "INT32", (3,), 0), [1, 0, 0]).body

    async def run() -> None:
        async with StreamSender(endpoint(server)) as sender:
            for _ in range(3):
                with pytest.raises(ServerError, match="broke off") as caught:
                    await sender.send(bad, timeout_s=10)
                assert caught.value.code == STREAM_ERROR
                assert len((await sender.send(good, timeout_s=10)).response_s) == 2
                with pytest.raises(ServerError, match="nobody"):
                    await sender.send(foreign, timeout_s=10)

    asyncio.run(run())


def test_deadline_and_cancellation_of_streams(server: EmbeddedServer) -> None:
    slow, quick = encoded(STREAM, [50, 20, 0]).body, encoded(STREAM, [1, 0, 0]).body

    async def run() -> None:
        async with StreamSender(endpoint(server)) as sender:
            with pytest.raises(DeadlineExceeded, match=r"within 0\.1 s"):
                await sender.send(slow, timeout_s=0.1)
            with pytest.raises(CancelledOnPurpose):
                await sender.send(slow, timeout_s=5, cancel_after_s=0.1)
            answer = await sender.send(quick, timeout_s=5, cancel_after_s=3)
            assert len(answer.response_s) == 1, "what is answered in time is not cancelled"

    asyncio.run(run())


def test_cancelling_frees_the_server(server: EmbeddedServer) -> None:
    """The model of one instance would need 40 × 0.5 s for what is cancelled after 20 ms."""
    long, none = encoded(PATIENT, [[0.5]]).body, encoded(PATIENT, [[0.0]]).body
    plan = CancelPlan(0.5, 0.02, seed=2)

    async def run() -> tuple[EngineResult, float]:
        async with StreamSender(endpoint(server)) as sender:

            async def send(number: int) -> object:
                after_s = plan.after_of(number)
                return await sender.send(none if after_s is None else long, timeout_s=30, cancel_after_s=after_s)

            start_s = asyncio.get_running_loop().time()
            result = await drive(send, ClosedLoop(1), requests=80)
            return result, asyncio.get_running_loop().time() - start_s

    result, took_s = asyncio.run(run())
    (cancelled,) = result.tally.errors()
    assert cancelled.kind == "CancelledOnPurpose"
    assert cancelled.count == sum(plan.after_of(number) is not None for number in range(80))
    assert 25 < cancelled.count < 55
    assert result.tally.latency.count + cancelled.count == 80
    assert took_s < 0.25 * cancelled.count


def test_a_server_that_is_not_there_is_unavailable() -> None:
    async def run() -> None:
        async with StreamSender(parse_endpoint("grpc://127.0.0.1:9")) as sender:
            with pytest.raises(ServerUnavailable):
                await sender.send(encoded(STREAM, [1, 0, 0]).body, timeout_s=5)

    asyncio.run(run())
