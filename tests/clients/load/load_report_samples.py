"""Reports with known figures, made by the types that real ones are made of."""

from __future__ import annotations

import numpy as np

from tritonstack.load.arrival import Arrival, ClosedLoop
from tritonstack.load.environment import Environment, Server
from tritonstack.load.findings import findings_of
from tritonstack.load.histogram import LatencyHistogram
from tritonstack.load.monitor import ServerUse
from tritonstack.load.objective import Condition
from tritonstack.load.report import (
    GeneratorCost,
    InputDescription,
    LevelReport,
    LoadReport,
    RequestCounts,
    ServerBreakdown,
)
from tritonstack.load.saved_report import SavedReport, checked_report
from tritonstack.load.series import Second
from tritonstack.load.server_metrics import GpuUse, MetricsSummary
from tritonstack.load.server_process import ProcessUse
from tritonstack.load.statistics_delta import ModelDelta
from tritonstack.load.tally import ErrorCount

FOUR = ClosedLoop(4)


def level(
    arrival: Arrival = FOUR,
    *,
    seed: int = 0,
    seconds: int = 20,
    per_second: float = 500,
    median_ms: float = 5.0,
    sigma: float = 0.4,
    errors: int = 0,
    wobble: float = 0.02,
    gpu: bool = True,
    slo: tuple[Condition, ...] = (),
) -> LevelReport:
    """A level with log-normal latencies; every second is slower or faster by about the share `wobble`."""
    generator = np.random.Generator(np.random.PCG64(seed))
    histogram = LatencyHistogram()
    series = []
    for second in range(seconds):
        speed = 1 + wobble * generator.standard_normal()
        count = round(per_second / speed)
        latencies_s = generator.lognormal(np.log(median_ms * speed / 1e3), sigma, count)
        for value in latencies_s:
            histogram.record_s(float(value))
        ordered = np.sort(latencies_s) * 1e6
        p50, p99 = ordered[-(-50 * count // 100) - 1], ordered[-(-99 * count // 100) - 1]
        series.append(Second(float(second), 1.0, count, count, 0, 4, float(p50), float(p99), float(ordered[-1])))
    done = histogram.count
    rate = done / seconds if seconds else 0.0
    summary = histogram.summary()
    delta = ModelDelta(
        model="m", version="1", requests=done, failed_requests=errors, inferences=done, executions=done // 2,
        mean_batch=2.0, request_us=4000.0, queue_us=1000.0, compute_input_us=100.0, compute_infer_us=2500.0,
        compute_output_us=300.0, cache_hits=3, cache_misses=7, executions_by_batch={1: 10, 2: done // 2}, reset=False,
    )  # fmt: skip
    gpus = (GpuUse("GPU-1", 0.5, 0.9, 2e9, 8e10, 210.0, 300.0),) if gpu else ()
    metrics = MetricsSummary("http://h:8002/metrics", seconds, None, False, gpus, 1.5, 6.0, {"rejected": 2.0})
    made = LevelReport(
        arrival=arrival,
        warmup_s=1.0,
        window_s=float(seconds),
        interrupted=False,
        counts=RequestCounts(done + errors, 0, done + errors, errors, done, 0, 0, 0, 4, None, 0),
        requests_per_s=rate,
        inferences_per_s=rate,
        latency=summary,
        service=None if isinstance(arrival, ClosedLoop) else summary,
        lag=None if isinstance(arrival, ClosedLoop) else summary,
        latency_histogram=histogram.encoded(),
        errors=(ErrorCount("ServerError INTERNAL", errors, 'bad "thing"\n<b>'),) if errors else (),
        server=ServerBreakdown(True, (delta,), 0),
        generator=GeneratorCost(100.0, 0.1, 0.1, 0),
        problems=(),
        failures=("too many errors",) if errors else (),
        notes=(),
        series=tuple(series),
    )
    found = findings_of(made, slo)
    return LevelReport(
        **{
            **vars(made),
            "findings": type(found)(
                **{**vars(found), "server_use": ServerUse(metrics, ProcessUse(7, 1.5, 300_000_000))},
            ),
        }
    )


def report(*levels: LevelReport, model: str = "m", batch: int = 1, slo: tuple[Condition, ...] = ()) -> LoadReport:
    """A report of `levels`."""
    return LoadReport(
        started_at="2026-12-01T10:00:00+00:00",
        command=("tritonstack", "load", model, "--concurrency", "4"),
        environment=Environment("3.11.7", "Linux 6.1", "x86_64", 2, 0.5, {"numpy": "2.4.6"}),
        server=Server("triton", "2.51.0"),
        url="grpc://127.0.0.1:8001",
        protocol="grpc",
        model=model,
        versions=("1",),
        batch=batch,
        input_origin="random, seed 0",
        inputs=(InputDescription("x", "FP32", (1, 3)),),
        distinct_requests=16,
        request_bytes=37,
        seed=0,
        timeout_s=30.0,
        duration_s=20.0,
        requests=None,
        max_lag_s=0.01,
        max_error_rate=0.0,
        interrupted=False,
        levels=levels,
        slo=slo,
    )


def saved(*levels: LevelReport, **options: object) -> SavedReport:
    """The same, read back from its JSON."""
    import json

    body = report(*levels, **options).to_json()  # type: ignore[arg-type]
    return checked_report("sample.json", json.loads(json.dumps(body, allow_nan=False)))
