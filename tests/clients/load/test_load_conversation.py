"""Sequences, streams and requests that are taken back as a transport, and through `run_load`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import validate
from sequence_models import make_sequence_repository

from tritonstack import Client
from tritonstack.errors import InputError, UsageError
from tritonstack.load.arrival import ClosedLoop, OpenLoop
from tritonstack.load.cancellation import CancelPlan
from tritonstack.load.conversation import Conversation
from tritonstack.load.inputs import ArrayInputs, JsonlInputs
from tritonstack.load.plan import LoadPlan
from tritonstack.load.request_encoding import RequestOptions, build, encode
from tritonstack.load.request_pool import PoolEntry, RequestPool, grpc_entry
from tritonstack.load.schema import report_schema
from tritonstack.load.sequence import SequenceLength, SequencePlan
from tritonstack.load.session import run_load
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


# ---- through run_load


def loaded(url: str, model: str, conversation: Conversation, **plan: Any) -> Any:
    # Counts are of interest here, whatever else the machine does.
    plan = {"arrivals": [ClosedLoop(4)], "duration_s": None, "requests": 60, "warmup_s": 0.0, "max_lag_s": 10.0} | plan
    return run_load(LoadPlan(model=model, url=url, conversation=conversation, **plan))


def test_a_run_of_sequences(server: EmbeddedServer) -> None:
    source = ArrayInputs({"x": np.ones((4, 1), np.int32)})
    sequences = SequencePlan(4, SequenceLength("uniform", 2, 6), seed=3)
    report = loaded(server.grpc_url, "sums", Conversation(sequences=sequences), inputs=source)
    (level,) = report.levels
    assert report.ok, (level.problems, level.failures)
    assert level.counts.measured >= 60 and level.counts.errors == 0
    figures = level.conversation.sequences
    assert figures.broken == 0 and figures.begun >= 10 and figures.completed <= figures.begun
    validate(json.loads(json.dumps(report.to_json())), report_schema())


def test_a_run_of_sequences_that_a_file_names(server: EmbeddedServer, tmp_path: Path) -> None:
    """Each sequence adds up its own values; the expected totals hold only where the order is kept."""
    file = tmp_path / "sequences.jsonl"
    lines = []
    for name in range(3):
        total = 0
        for step in range(4):
            total += 10 * name + step
            lines.append({"x": [[10 * name + step]], "sequence": f"s{name}"})
    file.write_text("\n".join(map(json.dumps, lines)) + "\n")
    report = loaded(server.http_url, "sums", Conversation(), inputs=JsonlInputs(file), arrivals=[ClosedLoop(2)])
    (level,) = report.levels
    assert report.ok, (level.problems, level.failures, level.errors)
    assert level.conversation.sequences.broken == 0 and level.conversation.sequences.completed >= 14


def test_a_run_of_streams_with_an_open_loop(server: EmbeddedServer) -> None:
    source = ArrayInputs({"x": np.array([2, 1, 0], np.int32)})
    with pytest.raises(InputError, match="decoupled"):
        loaded(server.grpc_url, "stream", Conversation(), inputs=source)
    report = loaded(
        server.grpc_url, "stream", Conversation(stream=True), inputs=source, arrivals=[OpenLoop(80.0)], requests=80
    )
    (level,) = report.levels
    assert report.ok, (level.problems, level.failures, level.errors)
    streams = level.conversation.streams
    assert streams.fewest == streams.most == 2 and streams.requests >= 80
    assert streams.between.p50_us >= 900
    validate(json.loads(json.dumps(report.to_json())), report_schema())


def test_what_is_taken_back_is_no_error(server: EmbeddedServer) -> None:
    source = ArrayInputs({"x": np.array([[0.05]], np.float32)})
    report = loaded(
        server.grpc_url, "patient", Conversation(cancel=CancelPlan(0.3, 0.01, seed=2)), inputs=source, requests=30
    )
    (level,) = report.levels
    assert report.ok, (level.problems, level.failures)
    assert level.counts.errors == 0 and level.errors == ()
    assert 3 <= level.conversation.cancelled <= 20
    assert level.counts.measured + level.conversation.cancelled >= 30


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_answers_are_read_as_the_protocol_has_them(load_server: EmbeddedServer, protocol: str) -> None:
    """Nothing is late enough to be taken back here, so every answer is compared with the recorded one."""
    url = load_server.grpc_url if protocol == "grpc" else load_server.http_url
    source = ArrayInputs({"x": np.arange(12, dtype=np.float32).reshape(4, 3)})
    never = Conversation(cancel=CancelPlan(0.5, 5.0, seed=1))
    report = loaded(url, "plus_one", never, inputs=source, validate="recorded")
    assert report.ok, (report.levels[0].problems, report.levels[0].failures, report.levels[0].errors)
    assert report.levels[0].counts.errors == 0 and report.versions == ("1",)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"workers": 2}, "one worker"),
        ({"shared_memory": "system"}, "carry their tensors"),
        ({"transport": "h2"}, "transport of their own"),
    ],
)
def test_what_does_not_go_with_a_conversation(server: EmbeddedServer, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        loaded(server.grpc_url, "sums", Conversation(sequences=SequencePlan(2)), **wrong)


# ---- by flags


def command(server: EmbeddedServer, *arguments: str, model: str = "sums") -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "tritonstack", "load", model, "--url", server.grpc_url, "--warmup", "0", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=60)


def test_flags_of_a_conversation(server: EmbeddedServer, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((3, 1), np.int32))
    done = command(
        server, "--concurrency", "3", "--requests", "40", "--input", f"x=@{tmp_path / 'x.npy'}", "--sequences", "3",
        "--sequence-length", "2-5", "--parameter", "tenant=blue", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["sending"]["sequences"] == "3 sequences of 2-5 requests"
    assert report["levels"][0]["conversation"]["sequences"]["broken"] == 0
    np.save(tmp_path / "s.npy", np.array([2, 1, 0], np.int32))
    done = command(
        server, "--rate", "50", "--requests", "20", "--input", f"x=@{tmp_path / 's.npy'}", "--stream", "--json",
        "--max-lag", "10000", model="stream",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["levels"][0]["conversation"]["streams"]["most"] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sequence-length", "3"], "--sequences beside it"),
        (["--sequences", "2", "--sequence-length", "5-2"], "20, 5-40 or ~20"),
        (["--cancel", "half"], "0.1@0.05"),
        (["--cancel", "2@1"], "above 0, up to 1"),
        (["--parameter", "novalue"], "NAME=VALUE"),
        (["--sequences", "2", "--workers", "3"], "one worker"),
        (["--stream", "--url", "http://127.0.0.1:1"], "gRPC only"),
    ],
)
def test_wrong_flags(server: EmbeddedServer, arguments: list[str], words: str) -> None:
    done = command(server, "--concurrency", "1", *arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr and "Traceback" not in done.stderr
