"""The generator against coroutines whose behaviour is known exactly."""

from __future__ import annotations

import asyncio
import time

import pytest
from asyncio_engine import Engine, EngineResult, Failure, Send, Window

from tritonstack.load.arrival import Arrival, ClosedLoop, OpenLoop


class Refused(Exception):
    pass


def classify(error: Exception) -> Failure | None:
    return Failure("Refused", str(error)) if isinstance(error, Refused) else None


def run(
    send: Send,
    arrival: Arrival,
    *,
    warmup_s: float = 0.0,
    duration_s: float | None = None,
    requests: int | None = None,
    max_in_flight: int = 1000,
    stop_after_s: float | None = None,
    drain_s: float = 5.0,
) -> EngineResult:
    async def main() -> EngineResult:
        engine = Engine(
            send=send,
            pool_size=3,
            arrival=arrival,
            window=Window(warmup_s, duration_s, requests),
            classify=classify,
            max_in_flight=max_in_flight,
            drain_s=drain_s,
        )
        if stop_after_s is not None:
            asyncio.get_running_loop().call_later(stop_after_s, engine.stop)
        return await engine.run()

    return asyncio.run(main())


class Server:
    """A coroutine that answers after `delay_s` and keeps count; `frozen` answers nothing in [start, end)."""

    def __init__(self, delay_s: float = 0.0, *, fail_every: int = 0) -> None:
        self.delay_s = delay_s
        self.fail_every = fail_every
        self.calls = 0
        self.in_flight = 0
        self.peak = 0
        self.indices: set[int] = set()
        self.frozen_until_s = 0.0

    async def send(self, index: int) -> object:
        self.calls += 1
        number = self.calls
        self.indices.add(index)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            await asyncio.sleep(max(self.delay_s, self.frozen_until_s - time.monotonic()))
        finally:
            self.in_flight -= 1
        if self.fail_every and number % self.fail_every == 0:
            raise Refused(f"request {number}")
        return number


def test_closed_loop_keeps_the_asked_number_in_flight() -> None:
    server = Server(0.01)
    result = run(server.send, ClosedLoop(4), duration_s=0.5)
    assert server.peak == 4
    assert server.in_flight == 0, "everything is drained"
    assert server.indices == {0, 1, 2}, "every prepared request is used"
    tally = result.tally
    assert tally.sent == server.calls == tally.succeeded
    assert tally.latency.count == tally.in_window == tally.sent - tally.drained
    assert result.window_s == pytest.approx(0.5, abs=1e-6)
    minimum = tally.latency.summary().min_us
    assert minimum is not None and minimum >= 9_000


@pytest.mark.parametrize("concurrency", [1, 4, 16])
def test_requests_without_warmup_sends_exactly_that_many(concurrency: int) -> None:
    server = Server(0.001)
    result = run(server.send, ClosedLoop(concurrency), requests=10)
    assert server.calls == 10
    assert result.tally.measured == result.tally.in_window == 10


def test_requests_after_a_warmup_measures_exactly_that_many() -> None:
    server = Server(0.005)
    result = run(server.send, ClosedLoop(4), warmup_s=0.1, requests=10)
    assert result.tally.measured == 10
    assert result.tally.warmup > 10
    assert server.calls == result.tally.sent > 20
    assert 0 < result.window_s < 0.1


def test_errors_are_counted_apart_and_keep_out_of_the_latencies() -> None:
    server = Server(0.0, fail_every=4)
    result = run(server.send, ClosedLoop(1), requests=100)
    (error,) = result.tally.errors()
    assert (error.kind, error.count, error.example) == ("Refused", 25, "request 4")
    assert result.tally.latency.count == 75
    assert result.tally.in_window == 75


def test_an_unknown_exception_ends_the_run_and_is_raised() -> None:
    async def send(index: int) -> object:
        raise RuntimeError("a defect")

    for arrival in (ClosedLoop(2), OpenLoop(100)):
        with pytest.raises(RuntimeError, match="a defect"):
            run(send, arrival, duration_s=5)


def test_open_loop_measures_each_scheduled_request_once() -> None:
    server = Server(0.05)
    result = run(server.send, OpenLoop(200, "constant"), warmup_s=0.1, duration_s=0.5)
    assert result.tally.latency.count == 100, "scheduled inside the window, including those that end after it"
    assert result.tally.drained > 0
    assert result.tally.warmup == 20
    assert server.calls == 120
    assert result.tally.lag.count == 100


def test_open_loop_with_requests_measures_exactly_that_many() -> None:
    server = Server(0.002)
    result = run(server.send, OpenLoop(500), warmup_s=0.05, requests=40)
    assert result.tally.latency.count == 40
    assert result.window_s > 0


def test_a_stall_is_seen_by_every_request_that_was_due_during_it() -> None:
    """Coordinated omission: of 1 s at 200/s, 300 ms are frozen, so 30 % of the requests wait, up to 300 ms."""
    server = Server(0.0)

    async def main() -> EngineResult:
        engine = Engine(
            send=server.send,
            pool_size=1,
            arrival=OpenLoop(200, "constant"),
            window=Window(0.0, 1.0, None),
            classify=classify,
            max_in_flight=1,
            drain_s=5,
        )

        def freeze() -> None:
            server.frozen_until_s = time.monotonic() + 0.3

        asyncio.get_running_loop().call_later(0.3, freeze)
        return await engine.run()

    result = asyncio.run(main())
    latency = result.tally.latency.summary()
    service = result.tally.service.summary()
    assert latency.count == 200, "with one slot only, nothing may be dropped"
    assert latency.p90_us is not None and service.p90_us is not None
    assert latency.p90_us > 150_000, "seen from the schedule, a tenth of all waited more than 150 ms"
    assert service.p90_us < latency.p90_us / 2, "seen from the real send, only one request was slow"
    assert result.tally.limit_hits > 40
    assert result.tally.peak_in_flight == 1


def test_waiting_for_a_place_is_no_lag_of_the_generator() -> None:
    """Answers come four at a time, as from a batching server, so several places are freed at the same moment."""
    waiting: list[asyncio.Future[None]] = []

    async def send(index: int) -> object:
        answer = asyncio.get_running_loop().create_future()
        waiting.append(answer)
        if len(waiting) == 4:
            batch, waiting[:] = list(waiting), []
            asyncio.get_running_loop().call_later(0.1, lambda: [one.set_result(None) for one in batch])
        return await answer

    result = run(send, OpenLoop(200, "constant"), requests=40, max_in_flight=4)
    latency, lag = result.tally.latency.summary(), result.tally.lag.summary()
    assert latency.p90_us is not None and lag.p90_us is not None
    assert latency.p90_us > 500_000, "the last ones wait for nine batches of 100 ms, less the 200 ms they are sent in"
    assert lag.p90_us < 50_000
    assert result.tally.limit_hits >= 30


def test_an_overloaded_open_loop_says_what_it_could_not_send(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncio_engine.BACKLOG_GRACE_S", 0.2)
    server = Server(0.1)
    result = run(server.send, OpenLoop(100, "constant"), duration_s=0.5, max_in_flight=2)
    tally = result.tally
    assert tally.unsent > 20
    assert tally.latency.count + tally.unsent == 50
    assert server.peak == 2


def test_a_rate_beyond_reach_ends_in_time_and_counts_what_was_due() -> None:
    result = run(Server().send, OpenLoop(1e8, "poisson"), duration_s=0.2, drain_s=0.1)
    assert result.abandoned == 0, "the dispatcher was taken for a request that never came back"
    tally = result.tally
    assert tally.measured + tally.unsent == pytest.approx(2e7, rel=0.01)


def test_hanging_calls_at_the_end_of_a_closed_loop_are_not_forgotten() -> None:
    async def send(index: int) -> object:
        await asyncio.sleep(0.4)
        raise Refused("too late")

    result = run(send, ClosedLoop(3), duration_s=0.1)
    (error,) = result.tally.errors()
    assert error.count == 3


def test_calls_that_outlive_their_deadline_are_cancelled_and_counted() -> None:
    async def send(index: int) -> object:
        await asyncio.sleep(60)
        return None

    result = run(send, ClosedLoop(3), duration_s=0.05, drain_s=0.1)
    assert result.abandoned == 3


@pytest.mark.parametrize("arrival", [ClosedLoop(2), OpenLoop(100)])
def test_stop_drains_and_keeps_what_was_measured(arrival: Arrival) -> None:
    server = Server(0.02)
    started = time.monotonic()
    # Long against a stall of a busy machine, short against the 30 s.
    result = run(server.send, arrival, duration_s=30, stop_after_s=1.5)
    assert time.monotonic() - started < 10
    assert result.interrupted
    assert server.in_flight == 0
    assert result.tally.latency.count > 5
    assert 0 < result.window_s < time.monotonic() - started, "the window ends where it was stopped"


def test_stop_during_the_warmup_measures_nothing() -> None:
    result = run(Server(0.01).send, ClosedLoop(2), warmup_s=30, duration_s=30, stop_after_s=0.1)
    assert result.interrupted
    assert result.tally.measured == 0
    assert result.window_s == 0


def test_a_closed_loop_retreats_when_nothing_listens() -> None:
    calls = 0

    async def send(index: int) -> object:
        nonlocal calls
        calls += 1
        raise Refused("connection refused")

    async def main() -> EngineResult:
        engine = Engine(
            send=send,
            pool_size=1,
            arrival=ClosedLoop(1),
            window=Window(0, 0.5, None),
            classify=lambda error: Failure("ServerUnavailable", str(error), retreat=True),
            max_in_flight=1,
            drain_s=1,
        )
        return await engine.run()

    result = asyncio.run(main())
    assert 2 <= calls <= 10
    assert result.tally.measured_errors == calls


def test_garbage_collection_is_on_again_afterwards() -> None:
    import gc

    run(Server().send, ClosedLoop(1), requests=5)
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
