"""The load tester's figures against servers of known behaviour, and what it says of servers that misbehave."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from misbehaving_proxy import Fault, MisbehavingProxy
from misbehaving_server import FAILURE, MODEL, KnownServer

from tritonstack.load import ClosedLoop, LevelReport, LoadPlan, OpenLoop, run_load
from tritonstack_deploy.embedded import EmbeddedServer

PERCENTILES = (("p50_us", 50), ("p90_us", 90), ("p95_us", 95), ("p99_us", 99))


def measure(url: str, arrival: ClosedLoop | OpenLoop, **options: object) -> LevelReport:
    """One level without a warm-up, so that the server's own record holds the same requests as the report."""
    wanted = {"model": MODEL, "warmup_s": 0.0, "duration_s": None, "timeout_s": 10.0, "max_error_rate": 1.0, **options}
    return run_load(LoadPlan(url=url, arrivals=[arrival], **wanted)).levels[0]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def floor_us() -> dict[str, float]:
    """What a server that answers at once costs, as percentiles: the path, both event loops, and this machine's load."""
    with KnownServer() as server:
        latency = measure(server.url, OpenLoop(100.0, "constant"), requests=400).latency
    return {name: getattr(latency, name) for name, _ in PERCENTILES}


@pytest.mark.parametrize("distribution", ["constant", "exponential", "bimodal"])
@pytest.mark.parametrize("loop", ["closed", "open"])
def test_latencies_are_those_that_the_server_had(distribution: str, loop: str, floor_us: dict[str, float]) -> None:
    arrival = ClosedLoop(8) if loop == "closed" else OpenLoop(100.0)
    with KnownServer(distribution=distribution, mean_s=0.06) as server:
        level = measure(server.url, arrival, requests=300)
    truth_us = np.sort(np.array(server.took_s)) * 1e6
    assert level.counts.errors == 0
    assert level.latency.count == len(truth_us) == 300
    for name, percent in PERCENTILES:
        got = getattr(level.latency, name)
        want = float(truth_us[int(np.ceil(percent / 100 * len(truth_us))) - 1])
        # Answers take longer than the server's own part of them, by what the floor shows, and never less.
        assert want * 0.98 <= got <= want * 1.02 + floor_us["p99_us"] + 2000, (name, got, want, floor_us)


def test_a_stall_is_in_the_open_loops_latencies_in_full() -> None:
    """2 s of silence at 100/s: the requests of those 2 s wait from when they were due, 2 s down to nothing."""
    with KnownServer(stall_at_s=1.0, stall_s=2.0) as server:
        level = measure(server.url, OpenLoop(100.0, "constant"), duration_s=6.0)
    assert level.latency.count == 600
    assert level.counts.errors == 0
    # A third of the requests waited, evenly from 0 to 2 s: p90 is 2 s · (1 - 0.1 / (1/3)) = 1.4 s.
    assert level.latency.p90_us == pytest.approx(1.4e6, rel=0.05)
    assert level.latency.p99_us == pytest.approx(1.94e6, rel=0.03)
    assert level.latency.max_us is not None and 1.98e6 < level.latency.max_us < 2.5e6
    assert level.latency.p50_us is not None and level.latency.p50_us < 100_000


def test_a_closed_loop_stops_asking_while_the_server_stalls() -> None:
    """The same stall in a closed loop: one request for each in flight shows it, whatever the rate."""
    with KnownServer(stall_at_s=1.0, stall_s=2.0, distribution="constant", mean_s=0.01) as server:
        level = measure(server.url, ClosedLoop(2), duration_s=4.5)
    assert level.latency.max_us is not None and 1.98e6 < level.latency.max_us < 2.5e6
    assert level.latency.count > 200
    assert level.latency.p99_us is not None and level.latency.p99_us < 500_000


@pytest.mark.parametrize("loop", ["closed", "open"])
def test_one_failure_in_seven_is_counted_exactly_and_kept_out_of_the_latencies(loop: str) -> None:
    arrival = ClosedLoop(4) if loop == "closed" else OpenLoop(200.0)
    with KnownServer(fail_every=7, distribution="constant", mean_s=0.005) as server:
        level = measure(server.url, arrival, requests=700)
    assert level.counts.measured == 700
    assert level.counts.errors == 100
    (error,) = level.errors
    assert (error.kind, error.count) == ("ServerError INTERNAL", 100)
    assert FAILURE in error.example
    assert level.latency.count == len(server.took_s) == 600


def test_stall_and_failures_together() -> None:
    with KnownServer(stall_at_s=1.0, stall_s=2.0, fail_every=7) as server:
        level = measure(server.url, OpenLoop(100.0, "constant"), duration_s=4.0)
    assert level.counts.measured == 400
    assert level.counts.errors == 400 // 7
    assert level.latency.count == 400 - 400 // 7
    # Half of the requests waited: p99 is 2 s · (1 - 0.01 / 0.5).
    assert level.latency.p99_us == pytest.approx(1.96e6, rel=0.05)


def test_a_server_that_is_restarted_is_found_again() -> None:
    with KnownServer(distribution="constant", mean_s=0.01) as server:
        timer = threading.Timer(1.5, server.restart)
        timer.start()
        level = measure(server.url, OpenLoop(50.0, "constant"), duration_s=6.0)
        timer.join()
    assert level.counts.measured == 300, "every request is accounted for"
    assert 0 < level.counts.errors < 250
    assert {error.kind.split()[0] for error in level.errors} <= {"ServerUnavailable", "ServerError", "DeadlineExceeded"}
    assert len(server.took_s) > 50, "it was found again"


def test_a_server_that_dies_does_not_hang_the_run() -> None:
    with KnownServer(distribution="constant", mean_s=0.01) as server:
        timer = threading.Timer(1.0, server.kill)
        timer.start()
        level = measure(server.url, OpenLoop(50.0, "constant"), duration_s=3.0, timeout_s=2.0)
        timer.join()
    assert level.counts.measured + level.counts.unsent == 150
    assert level.counts.errors >= 80
    assert level.failures or level.problems or level.counts.errors


# ---- faults on the wire, in front of a real Triton


@pytest.fixture(scope="module")
def ports(load_server: EmbeddedServer) -> dict[bool, int]:
    """The real server's ports: True for gRPC, False for HTTP."""
    return {True: load_server.ports.grpc, False: load_server.ports.http}


@pytest.mark.parametrize("fault", ["reset", "hang_up", "garbage", "goaway", "rst_stream", "trickle"])
@pytest.mark.parametrize("loop", ["closed", "open"])
def test_faults_on_a_grpc_connection_are_counted_and_the_run_goes_on(
    ports: dict[bool, int], fault: Fault, loop: str
) -> None:
    arrival = ClosedLoop(4) if loop == "closed" else OpenLoop(200.0, "constant")
    with MisbehavingProxy(ports[True], fault, every=40, armed=True) as proxy:
        level = measure(proxy.url, arrival, model="plus_one", requests=200)
    assert proxy.broken > 0
    assert level.counts.measured == 200
    assert level.latency.count == 200 - level.counts.errors
    assert level.latency.count >= 100
    if fault in ("goaway", "trickle"):
        # Streams up to the last one that GOAWAY names are still answered; a trickle is only slow.
        assert level.counts.errors <= 4 * proxy.broken
    elif fault == "rst_stream":
        assert 0 < level.counts.errors <= proxy.broken
    else:
        assert level.counts.errors > 0


@pytest.mark.parametrize("fault", ["reset", "hang_up", "garbage", "trickle"])
@pytest.mark.parametrize("loop", ["closed", "open"])
def test_faults_on_http_connections_are_counted_and_the_run_goes_on(
    ports: dict[bool, int], fault: Fault, loop: str
) -> None:
    arrival = ClosedLoop(4) if loop == "closed" else OpenLoop(200.0, "constant")
    with MisbehavingProxy(ports[False], fault, every=10, http2=False) as proxy:
        level = measure(proxy.url, arrival, model="plus_one", requests=200)
    assert proxy.broken > 0
    assert level.counts.measured == 200
    assert level.latency.count == 200 - level.counts.errors >= 100
    assert (level.counts.errors > 0) == (fault != "trickle")


@pytest.mark.slow
def test_silence_is_a_deadline_for_each_request_and_not_a_hang(ports: dict[bool, int]) -> None:
    with MisbehavingProxy(ports[True], "silence", every=10_000, armed=False) as proxy:
        proxy._every = 1
        timer = threading.Timer(1.5, lambda: setattr(proxy, "armed", True))
        timer.start()
        level = measure(proxy.url, OpenLoop(20.0, "constant"), model="plus_one", duration_s=3.0, timeout_s=1.0)
        timer.join()
    assert level.counts.measured + level.counts.unsent == 60
    assert any(error.kind == "DeadlineExceeded" for error in level.errors)
