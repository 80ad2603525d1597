"""Differences of Triton's cumulative counters."""

from __future__ import annotations

import asyncio
import http.server
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tritonstack.client.endpoint import parse_endpoint
from tritonstack.client.model import BatchSizeStatistics, DurationTotal, EnsembleStep, ModelConfigView, ModelStatistics
from tritonstack.errors import UsageError
from tritonstack.load.monitor import Monitor
from tritonstack.load.server_metrics import MetricsPage, metrics_address, parse_metrics, reading_of, summarise
from tritonstack.load.server_process import ServerProcess, is_this_host
from tritonstack.load.statistics_delta import ModelDelta, deltas, models_to_watch, settled_snapshot


def counters(requests: int, *, model: str = "m", version: str = "1", batch: int = 4) -> ModelStatistics:
    """A model that ran `requests` requests of one sample in batches of `batch`, 2 ms each after 1 ms of queue."""
    runs = requests // batch
    took = DurationTotal(requests, requests * 2_000_000)
    nothing = DurationTotal()
    return ModelStatistics(
        name=model,
        version=version,
        last_inference_ms=0,
        inference_count=requests,
        execution_count=runs,
        success=DurationTotal(requests, requests * 3_000_000),
        fail=nothing,
        queue=DurationTotal(requests, requests * 1_000_000),
        compute_input=nothing,
        compute_infer=took,
        compute_output=nothing,
        cache_hit=nothing,
        cache_miss=nothing,
        batches=(BatchSizeStatistics(batch, nothing, DurationTotal(runs, runs * 2_000_000), nothing),) if runs else (),
    )


def difference(before: ModelStatistics | None, after: ModelStatistics) -> ModelDelta:
    (entry,) = deltas(
        {} if before is None else {(before.name, before.version): before}, {(after.name, after.version): after}, ["m"]
    )
    return entry


def test_only_the_window_counts() -> None:
    entry = difference(counters(400), counters(1200))
    assert (entry.requests, entry.inferences, entry.executions, entry.mean_batch) == (800, 800, 200, 4)
    assert (entry.queue_us, entry.compute_infer_us, entry.request_us) == (1000, 2000, 3000)
    assert entry.executions_by_batch == {4: 200}
    assert not entry.reset


def test_a_version_that_appears_within_the_window_counts_from_zero() -> None:
    assert difference(None, counters(40)).requests == 40


def test_a_model_loaded_anew_within_the_window_counts_what_came_after() -> None:
    entry = difference(counters(400), counters(80))
    assert entry.reset
    assert entry.requests == 80 and entry.queue_us == 1000


def test_versions_that_did_nothing_are_left_out_and_the_order_is_that_of_the_models() -> None:
    before = {("b", "1"): counters(4, model="b"), ("a", "1"): counters(4, model="a")}
    after = {
        ("b", "1"): counters(8, model="b"),
        ("b", "2"): counters(0, model="b", version="2"),
        ("a", "1"): counters(8, model="a"),
    }
    assert [(entry.model, entry.version) for entry in deltas(before, after, ["a", "b"])] == [("a", "1"), ("b", "1")]


class Source:
    """Answers with the next of the prepared counters, the last one for good."""

    def __init__(self, *answers: ModelStatistics, steps: dict[str, tuple[str, ...]] | None = None) -> None:
        self.answers = list(answers)
        self.steps = steps or {}

    async def statistics(self, model: str | None = None) -> tuple[ModelStatistics, ...]:
        return (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0],)

    async def config(self, model: str) -> ModelConfigView:
        steps = tuple(EnsembleStep(name, -1, {}, {}) for name in self.steps.get(model, ()))
        return ModelConfigView(model, "", "", 0, {}, (), {}, False, (), 0, 1, False, False, steps)


def test_counters_that_lag_behind_the_answers_are_waited_for() -> None:
    late = replace(counters(8), inference_count=4, execution_count=1)
    source = Source(counters(4), late, counters(8))
    found = asyncio.run(settled_snapshot(source, ["m"], before={("m", "1"): counters(0)}, requests=8))
    assert found[("m", "1")].inference_count == 8


def test_counters_that_never_come_are_not_waited_for_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritonstack.load.statistics_delta.SETTLE_S", 0.1)
    found = asyncio.run(settled_snapshot(Source(counters(4)), ["m"], before={}, requests=8))
    assert found[("m", "1")].inference_count == 4


def test_ensembles_inside_ensembles_are_watched_once_each() -> None:
    source = Source(counters(0), steps={"top": ("a", "inner"), "inner": ("b", "a", "c")})
    assert asyncio.run(models_to_watch(source, "top")) == ("top", "a", "inner", "b", "c")


PAGE = """# HELP nv_gpu_utilization GPU utilization rate
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.5
nv_gpu_utilization{gpu_uuid="GPU-2"} NaN
nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 2e+09
nv_gpu_memory_total_bytes{gpu_uuid="GPU-1"} 8e10
nv_gpu_power_usage{gpu_uuid="GPU-1"} 210.5
nv_inference_request_success{model="m",version="1"} 10
nv_inference_request_success{model="other",version="1"} 90
nv_inference_pending_request_count{model="m",version="1"} 3
nv_inference_pending_request_count{model="m",version="2"} 1 1395066363000
nv_inference_pending_request_count{model="other",version="1"} 50
nv_inference_request_failure{model="m",reason="REJECTED",version="1"} 7
nv_inference_request_failure{model="m",reason="CANCELED",version="1"} 0
no metric at all
nv_broken{model="m"
nv_word{model="m"} many
weird{a="x\\"y,} z",b="c"} +Inf
"""


def test_the_metrics_page_is_read_for_what_it_says() -> None:
    reading = reading_of(PAGE, ["m"], 5.0)
    (gpu,) = reading.gpus  # the other one told nothing
    assert (gpu.uuid, gpu.utilization, gpu.memory_used_bytes, gpu.power_w) == ("GPU-1", 0.5, 2e9, 210.5)
    assert reading.pending == 4 and reading.successes == 100 and reading.serves
    assert reading.failures == {"rejected": 7, "canceled": 0}
    odd = list(parse_metrics(PAGE))[-1]
    assert odd.labels == {"a": 'x"y,} z', "b": "c"} and odd.value == float("inf")
    assert not reading_of(PAGE, ["unknown"], 5.0).serves
    assert reading_of("", ["m"], 5.0).gpus == () and reading_of("<html>", ["m"], 0.0).pending is None


def reading(at_s: float, *, pending: float | None = 2, rejected: float = 0, successes: float = 0):  # type: ignore[no-untyped-def]
    lines = [f'nv_inference_request_failure{{model="m",reason="REJECTED"}} {rejected}']
    lines.append(f'nv_inference_request_success{{model="m"}} {successes}')
    if pending is not None:
        lines.append(f'nv_inference_pending_request_count{{model="m"}} {pending}')
    return reading_of("\n".join(lines), ["m"], at_s)


def test_counters_of_the_page_are_differences_and_survive_a_restart() -> None:
    found = summarise("u", [reading(0, rejected=5, successes=9), reading(1, rejected=7, successes=20, pending=4)], None)
    assert found.failures == {"rejected": 2} and not found.restarted
    assert (found.pending_mean, found.pending_max) == (3, 4)
    restarted = summarise("u", [reading(0, rejected=5, successes=9), reading(1, rejected=1, successes=2)], None)
    assert restarted.failures == {"rejected": 1} and restarted.restarted
    assert summarise("u", [reading(0, pending=None)], None).pending_mean is None
    assert summarise("u", [], "refused").problem == "refused"
    assert summarise("u", [], None).problem is not None


@pytest.mark.parametrize(
    ("url", "endpoint", "address"),
    [
        (None, "grpc://h:8001", "http://h:8002/metrics"),
        (None, "http://h:8000", "http://h:8002/metrics"),
        (None, "grpc://[::1]:8001", "http://[::1]:8002/metrics"),
        ("h:9", "grpc://x", "http://h:9/metrics"),
        ("https://h/own/page", "grpc://x", "https://h:443/own/page"),
        ("http://h:8002/", "grpc://x", "http://h:8002/metrics"),
    ],
)
def test_where_the_page_is(url: str | None, endpoint: str, address: str) -> None:
    assert str(metrics_address(url, parse_endpoint(endpoint))) == address


@pytest.mark.parametrize("url", ["ftp://h", "http://", "http://h:port", "http://h:99999", ""])
def test_bad_addresses_of_the_page(url: str) -> None:
    with pytest.raises(UsageError, match="--metrics-url"):
        metrics_address(url, parse_endpoint("grpc://x"))


class Pages(http.server.ThreadingHTTPServer):
    """Serves one page after the other; None closes the connection without an answer."""

    def __init__(self, *pages: str | None) -> None:
        self.pages = list(pages)
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                page = outer.pages.pop(0) if len(outer.pages) > 1 else outer.pages[0]
                if page is None:
                    self.close_connection = True
                    return
                body = page.encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                return

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


@pytest.fixture
def pages() -> Iterator[type[Pages]]:
    made: list[Pages] = []

    class Kept(Pages):
        def __init__(self, *pages: str | None) -> None:
            super().__init__(*pages)
            made.append(self)

    yield Kept
    for server in made:
        server.shutdown()
        server.server_close()


def watched(port: int, seconds: float = 2.4) -> Monitor:
    endpoint = parse_endpoint("grpc://127.0.0.1:1")
    with Monitor(metrics_address(f"127.0.0.1:{port}", endpoint), endpoint=endpoint, models=("m",)) as monitor:
        time.sleep(seconds)
    return monitor


def test_the_monitor_says_where_the_page_was_unreadable(pages: type[Pages]) -> None:
    start_s = time.monotonic()
    found = watched(pages(PAGE, None, None, PAGE).server_port).between(start_s, time.monotonic()).metrics
    assert found is not None and found.readings >= 1 and found.problem is not None and found.pending_max == 4
    found = watched(pages("<html>hello</html>").server_port, 0.5).between(start_s, time.monotonic()).metrics
    assert found is not None and found.readings == 0 and "knows nothing of m" in str(found.problem)
    found = watched(1, 0.5).between(start_s, time.monotonic()).metrics
    assert found is not None and "refused" in str(found.problem)


def test_a_kept_connection_that_was_closed_is_opened_again(pages: type[Pages]) -> None:
    server = pages(PAGE, None, PAGE)
    page = MetricsPage(metrics_address(f"127.0.0.1:{server.server_port}", parse_endpoint("grpc://x")))
    assert "nv_" in page.fetch()
    assert "nv_" in page.fetch(), "the second connection answers"
    page.close()


def test_the_process_of_the_server_is_found_by_its_port() -> None:
    server = Pages(PAGE)
    found = ServerProcess.listening_on("127.0.0.1", server.server_port)
    assert found is not None and found.pid == os.getpid()
    before = found.read(0.0)
    sum(i * i for i in range(2_000_000))
    after = found.read(1.0)
    assert before is not None and after is not None and after.cpu_s > before.cpu_s and after.rss_bytes > 1e6
    server.shutdown()
    server.server_close()
    assert ServerProcess.listening_on("127.0.0.1", 1) is None
    assert not is_this_host("192.0.2.1") and not is_this_host("no.such.host.invalid")
