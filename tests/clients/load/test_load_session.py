"""Load tests against the real tritonserver."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from asyncio_engine import Engine
from load_models import make_repository

from tritonstack import AsyncClient
from tritonstack.errors import InputError, ServerError, ServerUnavailable, TensorError, UsageError
from tritonstack.load import (
    ArrayInputs,
    ClosedLoop,
    ImageInputs,
    LoadPlan,
    LoadReport,
    OpenLoop,
    RandomInputs,
    ZeroInputs,
    run_load,
)
from tritonstack.load.arrival import Arrival
from tritonstack.load.inputs import find_images
from tritonstack_deploy.embedded import EmbeddedServer


def load(server: EmbeddedServer, model: str, *, protocol: str = "grpc", **options: object) -> LoadReport:
    url = server.grpc_url if protocol == "grpc" else server.http_url
    defaults: dict[str, object] = {"warmup_s": 0.0, "requests": 60, "duration_s": None, "arrivals": [ClosedLoop(3)]}
    # The machine that runs the tests may be busy; only the tests about lag judge it.
    defaults |= {"max_lag_s": 5.0}
    return run_load(LoadPlan(model=model, url=url, **(defaults | options)))  # type: ignore[arg-type]


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server that a test may freeze or kill."""
    with EmbeddedServer(make_repository(tmp_path / "models", names=("plus_one", "sleepy"))) as server:
        yield server


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("arrival", [ClosedLoop(4), OpenLoop(200.0), OpenLoop(200.0, "constant")])
def test_the_servers_counters_equal_the_requests_sent(
    load_server: EmbeddedServer, protocol: str, arrival: ClosedLoop | OpenLoop
) -> None:
    report = load(load_server, "plus_one", protocol=protocol, arrivals=[arrival], batch=2)
    (level,) = report.levels
    assert level.counts.sent == level.counts.measured == level.latency.count == 60
    (entry,) = level.server.models
    assert (entry.model, entry.version) == ("plus_one", "1")
    assert entry.requests == 60
    assert entry.inferences == 120
    assert 15 <= entry.executions <= 60, "up to four requests of two make one batch of at most eight"
    assert entry.mean_batch == pytest.approx(120 / entry.executions)
    assert sum(size * count for size, count in entry.executions_by_batch.items()) == 120
    assert entry.queue_us > 0 and entry.compute_infer_us > 0
    assert report.ok and report.versions == ("1",)
    assert level.inferences_per_s == pytest.approx(2 * level.requests_per_s)
    assert level.server.other_inferences == 0
    latency = level.latency
    assert latency.mean_us is not None and entry.request_us < latency.mean_us, "the server's time is part of ours"
    assert report.protocol == protocol


def test_an_ensemble_is_broken_down_into_its_models(load_server: EmbeddedServer) -> None:
    (level,) = load(load_server, "both", requests=20).levels
    assert [entry.model for entry in level.server.models] == ["both", "plus_one", "sleepy"]
    assert [entry.requests for entry in level.server.models] == [20, 20, 20]
    assert level.server.models[2].compute_infer_us >= 20_000


def test_errors_are_counted_apart(load_server: EmbeddedServer) -> None:
    report = load(load_server, "flaky", requests=80, arrivals=[ClosedLoop(2)])
    (level,) = report.levels
    (error,) = level.errors
    assert error.kind.startswith("ServerError ")
    assert "refused on purpose" in error.example
    assert error.count == level.counts.errors == 20
    assert level.latency.count == 60
    assert not report.ok and "20 of 80 requests failed" in level.failures[0]
    assert not level.problems, "errors are a broken limit, not an invalid measurement"
    tolerant = load(load_server, "flaky", requests=80, arrivals=[ClosedLoop(2)], max_error_rate=0.25)
    assert tolerant.ok


def test_a_model_that_always_fails_is_an_invalid_run(load_server: EmbeddedServer) -> None:
    (level,) = load(load_server, "broken", max_error_rate=1.0).levels
    assert level.problems == ("no request succeeded",)
    assert level.latency.p50_us is None and level.requests_per_s == 0


def test_cache_hits_are_reported(load_server: EmbeddedServer) -> None:
    (level,) = load(load_server, "cached", inputs=ZeroInputs(), arrivals=[ClosedLoop(1)]).levels
    (entry,) = level.server.models
    assert (entry.cache_hits, entry.cache_misses, entry.executions) == (59, 1, 1)


def test_several_levels_each_have_their_own_window_and_warmup(load_server: EmbeddedServer) -> None:
    report = load(
        load_server,
        "plus_one",
        arrivals=[ClosedLoop(1), ClosedLoop(4)],
        warmup_s=0.2,
        duration_s=0.5,
        requests=None,
    )
    assert [level.arrival for level in report.levels] == [ClosedLoop(1), ClosedLoop(4)]
    for level in report.levels:
        assert level.counts.warmup > 0
        assert level.window_s == pytest.approx(0.5, abs=1e-6)
        assert level.requests_per_s == pytest.approx(level.counts.completed_in_window / 0.5)
        # Requests in flight when the window opens were sent before it and may be measured in it.
        assert abs(level.counts.sent - level.counts.warmup - level.counts.measured) <= 4
        assert level.generator.cpu_us_per_request and level.generator.cpu_us_per_request > 0
        (entry,) = level.server.models
        assert entry.requests <= level.counts.sent


def test_another_client_of_the_model_is_noticed(load_server: EmbeddedServer) -> None:
    stop = threading.Event()

    async def disturb() -> None:
        async with AsyncClient(load_server.grpc_url) as client:
            x = np.zeros((8, 3), np.float32)
            while not stop.is_set():
                await client.infer("plus_one", {"x": x})

    other = threading.Thread(target=lambda: asyncio.run(disturb()))
    other.start()
    try:
        (level,) = load(
            load_server, "plus_one", arrivals=[OpenLoop(20)], duration_s=1.0, requests=None, warmup_s=0.2
        ).levels
    finally:
        stop.set()
        other.join()
    assert level.server.other_inferences > 0
    assert any("other clients" in note for note in level.notes)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_frozen_server_shows_in_the_percentiles_of_an_open_loop(own_server: EmbeddedServer, protocol: str) -> None:
    """Coordinated omission: 2 s at 100/s, frozen for 600 ms. 30 % of the requests are due while it is frozen and wait
    up to 600 ms, so p90 is about 400 ms and p99 about 580 ms; a closed loop would show one slow request per slot."""
    pid = own_server.pid
    assert pid is not None

    def freeze() -> None:
        time.sleep(0.8)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.6)
        os.kill(pid, signal.SIGCONT)

    helper = threading.Thread(target=freeze)
    helper.start()
    try:
        (level,) = load(
            own_server,
            "plus_one",
            protocol=protocol,
            arrivals=[OpenLoop(100, "constant")],
            duration_s=2.0,
            requests=None,
        ).levels
    finally:
        helper.join()
    assert level.latency.count == 200
    assert not level.errors
    p90_us, p99_us = level.latency.p90_us, level.latency.p99_us
    assert p90_us is not None and p99_us is not None
    assert p90_us > 300_000
    assert p99_us > 500_000


def test_a_server_that_dies_is_reported_as_errors(own_server: EmbeddedServer) -> None:
    pid = own_server.pid
    assert pid is not None
    # Late enough for the first answers on a busy machine too.
    killer = threading.Timer(1.5, os.kill, (pid, signal.SIGKILL))
    killer.start()
    report = load(own_server, "plus_one", duration_s=3.0, requests=None, timeout_s=2.0)
    killer.join()
    (level,) = report.levels
    assert level.latency.count > 0
    assert {error.kind for error in level.errors} == {"ServerUnavailable"}
    assert level.counts.errors < 1000, "workers retreat instead of spinning"
    assert not level.server.readable and level.server.models == ()
    assert any("statistics" in note for note in level.notes)
    assert not report.ok


def test_requests_that_take_too_long_are_deadline_errors(own_server: EmbeddedServer) -> None:
    report = load(own_server, "sleepy", requests=5, arrivals=[ClosedLoop(1)], timeout_s=0.004)
    (error,) = report.levels[0].errors
    assert (error.kind, error.count) == ("DeadlineExceeded", 5)


def test_too_few_places_keep_the_wait_in_the_latency(load_server: EmbeddedServer) -> None:
    """50 requests at 100/s on a model that takes 20 ms each, two places: the last one waits about half a second."""
    report = load(load_server, "sleepy", arrivals=[OpenLoop(100, "constant")], requests=50, max_in_flight=2)
    (level,) = report.levels
    assert level.latency.count == 50
    assert level.counts.peak_in_flight == 2
    assert level.counts.limit_hits > 30
    assert level.latency.max_us is not None and level.latency.max_us > 400_000
    assert level.service is not None and level.service.max_us is not None
    assert level.service.max_us < level.latency.max_us / 2
    assert any("places in flight" in note for note in level.notes)


@pytest.mark.parametrize(("warmup_s", "duration_s"), [(0.0, 0.4), (0.3, 0.6)])
def test_overload_is_noted_only_where_there_is_one(
    load_server: EmbeddedServer, warmup_s: float, duration_s: float
) -> None:
    """A model of 20 ms a request answers at most 50/s."""
    times = {"warmup_s": warmup_s, "duration_s": duration_s, "requests": None}
    for rate, overloaded in ((20, False), (120, True)):
        (level,) = load(load_server, "sleepy", arrivals=[OpenLoop(rate, "constant")], **times).levels
        assert any("overloaded" in note for note in level.notes) is overloaded, level


def test_a_rate_beyond_the_generator_is_invalid(load_server: EmbeddedServer) -> None:
    report = load(load_server, "plus_one", arrivals=[OpenLoop(200_000)], requests=None, duration_s=0.2, max_lag_s=0.010)
    (level,) = report.levels
    assert not report.ok
    assert any("could not keep up" in problem or "never sent" in problem for problem in level.problems)


def test_user_arrays_reach_the_model_in_batches(load_server: EmbeddedServer) -> None:
    samples = np.arange(15, dtype=np.float32).reshape(5, 3)
    report = load(load_server, "plus_one", inputs=ArrayInputs({"x": samples}), batch=2)
    assert report.distinct_requests == 5
    assert report.inputs[0].shape == (2, 3)
    assert report.levels[0].server.models[0].inferences == 120


@pytest.mark.parametrize(
    ("model", "options", "error", "words"),
    [
        ("nope", {}, ServerError, "no model 'nope'"),
        ("ids", {}, UsageError, "--shape x:D"),
        ("ids", {"shapes": {"y": (3,)}}, UsageError, "no input 'y'"),
        ("plus_one", {"batch": 9}, UsageError, "1 to 8"),
        ("plus_one", {"shapes": {"x": (4,)}}, UsageError, "expected 3"),
        ("plus_one", {"shapes": {"x": (1, 3)}}, UsageError, "--batch"),
        ("unbatched", {"batch": 2}, UsageError, "does not batch"),
        ("plus_one", {"inputs": ArrayInputs({"z": np.zeros((2, 3), np.float32)})}, TensorError, "no input 'z'"),
        ("plus_one", {"inputs": ArrayInputs({"x": np.zeros((2, 3))})}, TensorError, "FP32"),
        ("plus_one", {"inputs": ArrayInputs({"x": np.zeros((0, 3), np.float32)})}, TensorError, "no sample"),
    ],
)
def test_what_cannot_run_is_said_before_the_run(
    load_server: EmbeddedServer, model: str, options: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        load(load_server, model, **options)


def test_nothing_listening_is_said_before_the_run() -> None:
    with pytest.raises(ServerUnavailable):
        run_load(LoadPlan(model="m", arrivals=[ClosedLoop(1)], url="127.0.0.1:1", timeout_s=5))


@pytest.mark.parametrize("model", ["ids", "unbatched", "text"])
def test_random_inputs_fit_every_kind_of_model(load_server: EmbeddedServer, model: str) -> None:
    shapes = {"x": (7,)} if model == "ids" else {}
    report = load(load_server, model, shapes=shapes, inputs=RandomInputs(3), requests=10)
    assert report.ok, report.levels[0].errors


def test_optional_inputs_are_sent_only_when_shaped(load_server: EmbeddedServer) -> None:
    without = load(load_server, "ids", shapes={"x": (7,)}, requests=2)
    with_mask = load(load_server, "ids", shapes={"x": (7,), "mask": (7,)}, requests=2)
    assert [i.name for i in without.inputs] == ["x"]
    assert [i.name for i in with_mask.inputs] == ["x", "mask"]


def test_calling_from_another_thread_leaves_signals_alone(load_server: EmbeddedServer) -> None:
    before = signal.getsignal(signal.SIGINT)
    reports: list[LoadReport] = []
    thread = threading.Thread(target=lambda: reports.append(load(load_server, "plus_one", requests=5)))
    thread.start()
    thread.join()
    assert reports[0].ok
    assert signal.getsignal(signal.SIGINT) is before


def test_many_requests_in_flight_over_http(load_server: EmbeddedServer) -> None:
    report = load(load_server, "sleepy", protocol="http", arrivals=[ClosedLoop(64)], requests=128)
    assert report.ok, report.levels[0].errors
    assert report.levels[0].counts.peak_in_flight == 64


def test_pictures_go_through_the_models_own_preprocessing(load_server: EmbeddedServer, tmp_path: Path) -> None:
    from PIL import Image

    for number in range(3):
        Image.new("RGB", (20, 30), (number * 50, 0, 0)).save(tmp_path / f"{number}.png")
    (tmp_path / "notes.txt").write_text("not a picture")
    report = load(load_server, "pictures", inputs=ImageInputs(find_images(tmp_path)), batch=2, requests=6)
    assert report.ok, report.levels[0].errors
    assert report.distinct_requests == 3
    assert report.input_origin == "3 images"
    assert report.inputs[0].shape == (2, 3, 8, 8)
    with pytest.raises(InputError, match=r"tritonstack\.image"):
        load(load_server, "plus_one", inputs=ImageInputs(find_images(tmp_path)))


class Interrupting:
    """An observer that sends us a signal at a chosen moment."""

    def __init__(self, *, at_note: str) -> None:
        self.at_note = at_note
        self.levels = 0

    def note(self, text: str) -> None:
        if self.at_note in text:
            signal.raise_signal(signal.SIGINT)

    async def follow(self, engine: Engine, arrival: Arrival) -> None:
        self.levels += 1
        try:
            await asyncio.sleep(60)
        finally:
            if self.at_note == "after the first level":
                signal.raise_signal(signal.SIGINT)


def test_a_signal_between_levels_keeps_what_was_measured(load_server: EmbeddedServer) -> None:
    before = signal.getsignal(signal.SIGINT)
    observer = Interrupting(at_note="after the first level")
    plan = LoadPlan(
        model="plus_one",
        url=load_server.grpc_url,
        arrivals=[ClosedLoop(1), ClosedLoop(2), ClosedLoop(3)],
        requests=20,
        duration_s=None,
        warmup_s=0,
    )
    report = run_load(plan, observer=observer)
    assert report.interrupted
    assert observer.levels == 1
    assert [level.latency.count for level in report.levels] == [20]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_before_anything_was_measured_is_an_interrupt(load_server: EmbeddedServer) -> None:
    plan = LoadPlan(model="plus_one", url=load_server.grpc_url, arrivals=[ClosedLoop(1)])
    with pytest.raises(KeyboardInterrupt):
        run_load(plan, observer=Interrupting(at_note="distinct requests"))
