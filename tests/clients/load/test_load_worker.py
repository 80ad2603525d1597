"""Worker processes: their counts against the server's, kills, restarts, shares, validation; and what they merge."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from misbehaving_server import MODEL, KnownServer

from tritonstack.load import ArrayInputs, ClosedLoop, LevelReport, LoadPlan, LoadReport, OpenLoop, ZeroInputs, run_load
from tritonstack.load.arrival import Arrival
from tritonstack.load.histogram import LatencyHistogram
from tritonstack.load.live import Running
from tritonstack.load.measurement import WorkerResult, merged
from tritonstack.load.request_pool import PoolEntry, RequestPool
from tritonstack.load.tally import Tally
from tritonstack.load.trace import read_trace
from tritonstack_deploy.embedded import EmbeddedServer


def load(server: EmbeddedServer, model: str = "plus_one", **options: object) -> LoadReport:
    wanted: dict[str, object] = {"arrivals": [ClosedLoop(4)], "warmup_s": 0.0, "requests": 60, "duration_s": None}
    wanted |= {"url": server.grpc_url, "max_lag_s": 5.0, **options}
    return run_load(LoadPlan(model=model, **wanted))  # type: ignore[arg-type]


def children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("arrival", [ClosedLoop(7), OpenLoop(300.0), OpenLoop(300.0, "constant")])
def test_shares_add_up_to_what_was_asked_and_to_what_the_server_counted(
    load_server: EmbeddedServer, workers: int, arrival: Arrival
) -> None:
    before = children()
    report = load(load_server, arrivals=[arrival], workers=workers, requests=101)
    (level,) = report.levels
    assert level.counts.sent == level.counts.measured == level.latency.count == 101
    (entry,) = level.server.models
    assert entry.requests == 101
    assert len(level.workers) == workers
    assert sum(worker.requests for worker in level.workers) == 101
    assert len({worker.pid for worker in level.workers}) == workers
    assert report.sending is not None and report.sending.transport == "h2" and report.sending.workers == workers
    assert report.versions == ("1",)
    assert children() <= before, "no process is left"


def test_no_more_workers_than_the_load_has_places_for(load_server: EmbeddedServer) -> None:
    (level,) = load(load_server, arrivals=[ClosedLoop(2)], workers=4).levels
    assert len(level.workers) == 2
    assert level.counts.peak_in_flight == 2


def test_the_client_split_and_the_seconds_explain_the_latency(load_server: EmbeddedServer) -> None:
    report = load(
        load_server, "sleepy", arrivals=[OpenLoop(30.0, "constant")], requests=None, duration_s=3.2, workers=2
    )
    (level,) = report.levels
    assert level.client is not None and level.service is not None
    parts = (level.client.send, level.client.wait, level.client.receive)
    assert [part.count for part in parts] == [level.latency.count] * 3
    assert sum(part.mean_us or 0.0 for part in parts) == pytest.approx(level.service.mean_us, rel=0.01)
    assert level.client.wait.mean_us is not None and level.client.wait.mean_us > 15_000
    assert [second.offset_s for second in level.series] == [0.0, 1.0, 2.0]
    assert [second.due for second in level.series] == [30, 30, 30]
    for second in level.series:
        assert second.sent == pytest.approx(30, abs=2) and second.errors == 0
        assert second.p50_us is not None and second.max_us is not None and second.p50_us <= second.max_us
    assert level.generator.rss_bytes is not None and level.generator.rss_bytes > 10_000_000


def test_a_trace_is_shared_among_workers(load_server: EmbeddedServer, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time,id\n" + "".join(f"{n * 0.01:.2f},{n % 5}\n" for n in range(60)))
    arrival = OpenLoop.following(read_trace(path).schedule(speed=1.0))
    report = load(load_server, arrivals=[arrival], requests=None, duration_s=1.0, workers=2, pool=5, warmup_s=0.2)
    (level,) = report.levels
    assert level.counts.measured == level.latency.count == 60
    assert level.counts.warmup == 0
    assert sorted(worker.requests for worker in level.workers) == [30, 30]


class At:
    """An observer that does something when a run has gone on for a while."""

    def __init__(self, after_s: float, act: Callable[[], None]) -> None:
        self.after_s = after_s
        self.act = act

    def note(self, text: str) -> None:
        return

    async def follow(self, run: Running, arrival: Arrival) -> None:
        await asyncio.sleep(self.after_s)
        self.act()
        await asyncio.sleep(60)


def workers_running() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children():
        with psutil.Process(process.pid).oneshot():
            if "tritonstack.load.worker" in process.cmdline():
                found.append(process)
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_is_killed_makes_the_run_invalid_and_ends_it(
    load_server: EmbeddedServer, number: signal.Signals
) -> None:
    killed: list[int] = []

    def kill() -> None:
        victim = workers_running()[0]
        killed.append(victim.pid)
        os.kill(victim.pid, number)

    plan = LoadPlan(
        model="plus_one", url=load_server.grpc_url, arrivals=[ClosedLoop(4), ClosedLoop(3)], duration_s=4.0,
        warmup_s=0.0, workers=2,
    )  # fmt: skip
    start_s = time.monotonic()
    observer = At(1.0, lambda: kill() if not killed else None)
    report = run_load(plan, observer=observer)
    first, second = report.levels
    assert [worker.pid for worker in first.lost_workers] == killed
    assert number.name in first.lost_workers[0].reason
    assert any(str(killed[0]) in problem and "lost" in problem for problem in first.problems)
    assert not report.ok and not report.interrupted and not first.interrupted
    assert first.window_s < 3, "the others end in order, and early"
    assert first.latency.count > 0 and len(first.workers) == 1
    assert not second.lost_workers and len(second.workers) == 2, "the next level has a new one in its place"
    assert second.ok
    assert time.monotonic() - start_s < 20


def test_when_every_worker_is_killed_the_run_still_ends_in_words(load_server: EmbeddedServer) -> None:
    observer = At(0.8, lambda: [process.kill() for process in workers_running()] and None)
    plan = LoadPlan(
        model="plus_one", url=load_server.grpc_url, arrivals=[ClosedLoop(4)], duration_s=5.0, warmup_s=0.0, workers=2
    )
    report = run_load(plan, observer=observer)
    (level,) = report.levels
    assert len(level.lost_workers) == 2 and level.latency.count == 0
    assert not report.ok
    json.dumps(report.to_json(), allow_nan=False)


def test_ctrl_c_drains_all_workers(load_server: EmbeddedServer) -> None:
    command = [sys.executable, "-m", "tritonstack", "load", "plus_one", "--url", load_server.grpc_url, "--json"]
    command += ["--concurrency", "4", "--workers", "2", "--duration", "60", "--warmup", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end_s = time.monotonic() + 20
    while time.monotonic() < end_s and len(psutil.Process(process.pid).children()) < 2:
        time.sleep(0.05)
    pids = [child.pid for child in psutil.Process(process.pid).children()]
    time.sleep(2.0)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    body = json.loads(out)
    (level,) = body["levels"]
    assert level["interrupted"] and body["interrupted"]
    assert level["counts"]["abandoned"] == 0 and not level["lost_workers"]
    (entry,) = level["server"]["models"]
    assert entry["requests"] == level["counts"]["sent"], "nothing that was sent is missing"
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_workers_end_when_the_session_is_killed(load_server: EmbeddedServer) -> None:
    command = [sys.executable, "-m", "tritonstack", "load", "plus_one", "--url", load_server.grpc_url]
    command += ["--concurrency", "4", "--workers", "2", "--duration", "60"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end_s = time.monotonic() + 20
    while time.monotonic() < end_s and len(psutil.Process(process.pid).children()) < 2:
        time.sleep(0.05)
    workers = psutil.Process(process.pid).children()
    assert len(workers) == 2
    time.sleep(1.0)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive


def test_a_server_that_is_restarted_in_the_middle_costs_errors_and_no_count(tmp_path: Path) -> None:
    with KnownServer(distribution="constant", mean_s=0.01) as server:
        timer = threading.Timer(1.5, server.restart)
        timer.start()
        plan = LoadPlan(
            model=MODEL, url=server.url, arrivals=[OpenLoop(60.0, "constant")], duration_s=5.0, warmup_s=0.0,
            workers=2, timeout_s=5.0, max_error_rate=1.0, max_lag_s=5.0,
        )  # fmt: skip
        (level,) = run_load(plan).levels
        timer.join()
    assert level.counts.measured == 300
    assert 0 < level.counts.errors < 250
    assert not level.lost_workers


# ---- validation


def answers(level: LevelReport) -> dict[str, int]:
    return {error.kind: error.count for error in level.errors}


def test_answers_are_compared_with_the_expected_ones(load_server: EmbeddedServer) -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    right = load(load_server, inputs=ArrayInputs({"x": x}), expected={"y": x + 1}, workers=2)
    assert right.ok and right.sending is not None and right.sending.validate == "expected"
    y = x + 1
    y[2, 1] += 0.5
    wrong = load(load_server, inputs=ArrayInputs({"x": x}), expected={"y": y}, max_error_rate=1.0)
    assert answers(wrong.levels[0]) == {"ValidationFailed": 15}
    assert "output 'y': 8.0 at [0, 1] where 8.5 is expected" in wrong.levels[0].errors[0].example
    assert load(load_server, inputs=ArrayInputs({"x": x}), expected={"y": y}, atol=0.6).ok
    off = load(load_server, inputs=ArrayInputs({"x": x}), expected={"y": y}, validate="off")
    assert off.ok and off.sending is not None and off.sending.validate == "off"


def test_nan_is_right_only_where_that_was_said(load_server: EmbeddedServer) -> None:
    x = np.full((1, 3), np.nan, np.float32)
    level = load(load_server, inputs=ArrayInputs({"x": x}), expected={"y": x}, max_error_rate=1.0).levels[0]
    assert answers(level) == {"ValidationFailed": 60}
    assert "--nan-equal" in level.errors[0].example
    assert load(load_server, inputs=ArrayInputs({"x": x}), expected={"y": x}, nan_equal=True).ok


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_recorded_answers_are_expected_from_then_on(load_server: EmbeddedServer, protocol: str) -> None:
    url = load_server.grpc_url if protocol == "grpc" else load_server.http_url
    report = load(load_server, url=url, validate="recorded", workers=2)
    assert report.ok and report.sending is not None and report.sending.validate == "recorded"
    assert load(load_server, "text", url=url, validate="recorded", requests=20).ok


# ---- what is merged


def test_many_records_are_those_recorded_one_by_one() -> None:
    chance = np.random.default_rng(1)
    values_s = np.concatenate([
        10 ** chance.uniform(-8, 5, 3000), np.arange(5000) / 1e6, 2.0 ** np.arange(-20, 17), [-1.0, 0.0, 1e6, 86_400.0]
    ])  # fmt: skip
    one, many = LatencyHistogram(), LatencyHistogram()
    for value in values_s:
        one.record_s(float(value))
    for part in np.array_split(values_s, 7):
        many.record_many_s(part)
    first, second = one.summary(), many.summary()
    assert first.mean_us == pytest.approx(second.mean_us)
    assert first == second or first.__class__(**{**_fields(first), "mean_us": second.mean_us}) == second
    assert one.encoded() == many.encoded()


def _fields(summary: object) -> dict[str, object]:
    return {name: getattr(summary, name) for name in summary.__slots__}  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(4))
def test_merged_histograms_are_those_of_all_values(seed: int) -> None:
    chance = np.random.default_rng(seed)
    parts = [10 ** chance.uniform(-6, 2, size) for size in (0, 1, 500, 3000)]
    whole, together = LatencyHistogram(), LatencyHistogram()
    whole.record_many_s(np.concatenate(parts))
    for part in parts:
        one = LatencyHistogram()
        one.record_many_s(part)
        together.add(LatencyHistogram.from_json(json.loads(json.dumps(one.to_json()))))
    assert together.encoded() == whole.encoded()
    assert together.summary().count == whole.summary().count
    assert together.percentile_us(99) == whole.percentile_us(99)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("by_schedule", [True, False])
def test_counting_in_bulk_is_counting_one_by_one(seed: int, by_schedule: bool) -> None:
    chance = random.Random(seed)
    requests = 40 if seed % 2 and not by_schedule else None
    one, many = (Tally(by_schedule=by_schedule, open_at_s=1.0, close_at_s=3.0, requests=requests) for _ in range(2))
    rows, failed = [], {}
    for number, done_s in enumerate(sorted(chance.uniform(0, 4) for _ in range(200))):
        sent_s = done_s - chance.uniform(0, 0.7)
        ready_s = sent_s - chance.uniform(0, 0.01)
        due_s = ready_s - chance.choice((0.0, 0.2)) if by_schedule else sent_s
        handed_s, first_s = sent_s + (done_s - sent_s) / 3, sent_s + (done_s - sent_s) / 2
        error = ("Refused", f"request {number}") if chance.random() < 0.2 else None
        for tally in (one, many):
            tally.started(due_s)
        one.add(due_s=due_s, ready_s=ready_s, sent_s=sent_s, done_s=done_s, error=error)
        rows.append((due_s, ready_s, sent_s, handed_s, first_s, done_s))
        if error is not None:
            failed[number] = error
    for start in range(0, 200, 13):
        part = {row - start: error for row, error in failed.items() if start <= row < start + 13}
        many.add_many(np.array(rows[start : start + 13]), part)
    first, second = one.to_json(), many.to_json()
    for name in ("send", "wait", "receive"):
        assert (second.pop(name) is None) == (many.latency.count == 0)
        first.pop(name)
    for name in ("latency", "service", "lag"):
        left, right = first.pop(name), second.pop(name)
        assert (left is None) == (right is None)
        if left is not None:
            assert left["hdr"] == right["hdr"] and left["sum_us"] == pytest.approx(right["sum_us"])
    # All of them were begun before one was counted.
    assert second.pop("peak_in_flight") == 200 and first.pop("peak_in_flight") == 1
    assert first == second


def test_results_of_workers_merge_to_the_whole() -> None:
    def result(pid: int, tally: Tally) -> WorkerResult:
        made = WorkerResult(
            host="here", pid=pid, tally=tally, interrupted=False, abandoned=1, cpu_s=0.5, thread_s=0.1 * pid,
            gc_collections=0, rss_bytes=1000, versions=(str(pid),),
        )  # fmt: skip
        return WorkerResult.from_json(json.loads(json.dumps(made.to_json())))

    tallies = [Tally(by_schedule=False, open_at_s=1.0, close_at_s=3.0) for _ in range(3)]
    for number, tally in enumerate(tallies):
        for place in range(number):
            tally.started(1.5)
            error = ("Refused", "no") if place else None
            tally.add(due_s=1.5, ready_s=1.5, sent_s=1.5, done_s=2.0, error=error)
    whole = merged([result(pid, tally) for pid, tally in enumerate(tallies)])
    assert (whole.tally.sent, whole.tally.in_window, whole.tally.measured_errors) == (3, 2, 1)
    assert whole.window_s == 2.0 and whole.abandoned == 3 and whole.cpu_s == 1.5
    assert whole.loop_busy_s == pytest.approx(0.2) and whole.rss_bytes == 3000
    assert whole.versions == {"0", "1", "2"}
    assert [worker.requests for worker in whole.workers] == [0, 1, 2]


def test_a_pool_reads_the_same_in_another_process_and_from_empty_parts() -> None:
    entries = [
        PoolEntry("/a", b"", b"", (("H", "1"),)),
        PoolEntry("/b", bytes(range(256)) * 300, b"head", (), b""),
        PoolEntry("/a", b"x", b"\0\0\0\0\1", (), b"expected"),
    ]
    pool = RequestPool.of(iter(entries))
    same = RequestPool.from_fd(os.dup(pool.to_memory_file()))
    for one in (pool, same):
        assert len(one) == 3 and one.has_expected and one.largest == 76_800
        for index, entry in enumerate(entries):
            head, body = one.entry(index)
            assert (bytes(head), bytes(body)) == (entry.head, entry.body)
            assert bytes(one.framed(index)) == entry.head + bytes(entry.body)
            expected = one.expected(index)
            assert (None if expected is None else bytes(expected)) == entry.expected
            assert one.target(index) == entry.target and one.headers(index) == entry.headers
            head.release(), body.release()
    del expected
    same.close()
    pool.close()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_requests(load_server: EmbeddedServer) -> None:
    few, many = (
        load(load_server, inputs=ZeroInputs(), requests=count, arrivals=[ClosedLoop(16)]).levels[0].generator.rss_bytes
        for count in (5_000, 100_000)
    )
    assert few is not None and many is not None
    assert many < few + 12_000_000
