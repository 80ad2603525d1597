"""A report in Prometheus' text exposition format, for a node exporter's textfile collector or a push gateway.

Times are in seconds and sizes in bytes, as Prometheus wants them. Values that were not measured are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tritonstack.load.saved_report import SavedLevel, SavedReport

QUANTILES = (("0.5", "p50_us"), ("0.9", "p90_us"), ("0.95", "p95_us"), ("0.99", "p99_us"), ("0.999", "p999_us"))


@dataclass
class _Family:
    """One metric: its samples are (suffix of the name, labels, value)."""

    kind: str
    help: str
    samples: list[tuple[str, dict[str, str], float]] = field(default_factory=list)


def render_prometheus(report: SavedReport) -> str:
    """The whole text; every level has the labels `model`, `protocol` and `load`."""
    families: dict[str, _Family] = {}

    def add(name: str, kind: str, text: str, labels: dict[str, str], value: float | None, suffix: str = "") -> None:
        if value is not None and math.isfinite(value):
            families.setdefault(f"tritonstack_load_{name}", _Family(kind, text)).samples.append((suffix, labels, value))

    for level in report.levels:
        labels = {"model": str(report.body["model"]), "protocol": str(report.body["protocol"]), "load": level.label}
        for name, text, extra, value in _gauges(level):
            add(name, "gauge", text, {**labels, **extra}, value)
        latency = level.body["latency"]
        text = "Latency, in an open loop from the scheduled moment."
        for quantile, key in QUANTILES:
            add("latency_seconds", "summary", text, {**labels, "quantile": quantile}, _seconds(latency[key]))
        if latency["count"]:
            total = latency["mean_us"] * latency["count"] / 1e6
            add("latency_seconds", "summary", text, labels, total, "_sum")
            add("latency_seconds", "summary", text, labels, float(latency["count"]), "_count")
    knee = report.body.get("knee")
    if knee is not None:
        labels = {"model": str(report.body["model"]), "protocol": str(report.body["protocol"])}
        add("knee_requests_per_second", "gauge", "Highest rate whose objectives hold.", labels, knee["rate"])
    return "".join(_written(name, family) for name, family in families.items())


def _gauges(level: SavedLevel) -> Iterator[tuple[str, str, dict[str, str], float | None]]:
    body = level.body
    yield "ok", "Whether the run is valid and kept its limits.", {}, float(bool(body.get("ok")))
    yield "requests_per_second", "Answered requests per second.", {}, body["requests_per_s"]
    yield "inferences_per_second", "Answered samples per second.", {}, body.get("inferences_per_s")
    yield "goodput_per_second", "Requests answered within the objectives per second.", {}, body.get("goodput_per_s")
    yield "window_seconds", "Length of the measured window.", {}, body["window_s"]
    for name in ("measured", "errors", "unsent", "abandoned"):
        yield "requests", "Requests of the run by what became of them.", {"outcome": name}, body["counts"][name]
    for error in body.get("errors") or ():
        yield "errors", "Failed requests by kind.", {"kind": str(error["kind"])}, error["count"]
    if body.get("lag"):
        yield "lag_p99_seconds", "How late the generator itself was.", {}, _seconds(body["lag"]["p99_us"])
    for entry in (body.get("server") or {}).get("models") or ():
        labels = {"served_model": str(entry["model"]), "version": str(entry["version"])}
        for part in ("queue", "compute_input", "compute_infer", "compute_output"):
            text = "The server's own times, mean per request."
            yield "server_seconds", text, {**labels, "part": part}, _seconds(entry[f"{part}_us"])
        yield "server_batch_size", "Batch that formed at the server, mean.", labels, entry["mean_batch"]
    metrics = (body.get("server_use") or {}).get("metrics") or {}
    yield "server_pending", "Requests pending at the server, mean.", {}, metrics.get("pending_mean")
    for gpu in metrics.get("gpus") or ():
        labels = {"gpu": str(gpu["uuid"])}
        yield "gpu_utilization", "Utilisation of the GPU, mean share.", labels, gpu["utilization_mean"]
        yield "gpu_memory_used_bytes", "Most memory in use.", labels, gpu["memory_used_bytes"]
        yield "gpu_power_watts", "Power, mean.", labels, gpu["power_w_mean"]


def _seconds(value_us: float | None) -> float | None:
    return None if value_us is None else value_us / 1e6


def _written(name: str, family: _Family) -> str:
    lines = [f"# HELP {name} {family.help}", f"# TYPE {name} {family.kind}"]
    lines += [f"{name}{suffix}{_labels(labels)} {value!r}" for suffix, labels, value in family.samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
