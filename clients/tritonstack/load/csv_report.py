"""The levels of a report as CSV (RFC 4180): one row each, latencies in µs, an empty cell where there is no value."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from tritonstack.load.saved_report import SavedLevel, SavedReport

PERCENTILES = ("mean_us", "min_us", "p50_us", "p90_us", "p95_us", "p99_us", "p999_us", "max_us")
SERVER = ("queue_us", "compute_input_us", "compute_infer_us", "compute_output_us", "request_us", "mean_batch")


def render_csv(report: SavedReport) -> str:
    """The whole file."""
    rows = [dict(_row(report, level)) for level in report.levels]
    header = list(dict(_row(report, None)))
    out = io.StringIO()
    writer = csv.DictWriter(out, header)
    writer.writeheader()
    for row in rows:
        writer.writerow({key: "" if value is None else value for key, value in row.items()})
    return out.getvalue()


def _row(report: SavedReport, level: SavedLevel | None) -> Iterator[tuple[str, Any]]:
    """Column and value in order; the columns alone without a level."""
    body: Any = level.body if level is not None else {}
    arrival, counts, latency = (body.get(key) or {} for key in ("arrival", "counts", "latency"))
    yield "model", report.body["model"]
    yield "load", level.label if level else None
    yield "loop", arrival.get("loop")
    yield "concurrency", arrival.get("concurrency")
    yield "rate", arrival.get("rate")
    yield "batch", report.body["batch"]
    yield "ok", body.get("ok")
    yield "window_s", body.get("window_s")
    yield "requests_per_s", body.get("requests_per_s")
    yield "inferences_per_s", body.get("inferences_per_s")
    yield "goodput_per_s", body.get("goodput_per_s")
    for name in PERCENTILES:
        yield f"latency_{name}", latency.get(name)
    for name in ("p50_us", "p99_us"):
        yield f"service_{name}", (body.get("service") or {}).get(name)
    yield "lag_p99_us", (body.get("lag") or {}).get("p99_us")
    client = body.get("client") or {}
    for part in ("send", "wait", "receive"):
        yield f"client_{part}_mean_us", (client.get(part) or {}).get("mean_us")
    for name in ("sent", "measured", "errors", "unsent", "abandoned", "limit_hits", "peak_in_flight"):
        yield name, counts.get(name)
    models = (body.get("server") or {}).get("models") or [{}]
    for name in SERVER:
        yield f"server_{name}", models[0].get(name)
    use = body.get("server_use") or {}
    metrics, process = use.get("metrics") or {}, use.get("process") or {}
    gpus = metrics.get("gpus") or []
    yield "server_pending_mean", metrics.get("pending_mean")
    yield "server_cpu_cores", process.get("cpu_cores")
    yield "server_rss_bytes", process.get("rss_bytes")
    yield "gpu_utilization_mean", _mean([gpu["utilization_mean"] for gpu in gpus])
    yield "gpu_memory_used_bytes", sum(gpu["memory_used_bytes"] or 0 for gpu in gpus) if gpus else None
    yield "gpu_power_w_mean", _mean([gpu["power_w_mean"] for gpu in gpus])
    generator = body.get("generator") or {}
    for name in ("cpu_us_per_request", "cpu_cores", "loop_busy", "rss_bytes"):
        yield f"generator_{name}", generator.get(name)
    yield "problems", "; ".join(body.get("problems") or ())
    yield "failures", "; ".join(body.get("failures") or ())


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
