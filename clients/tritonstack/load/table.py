"""The report as text for people."""

from __future__ import annotations

from tritonstack.load.arrival import ClosedLoop
from tritonstack.load.report import LevelReport, LoadReport
from tritonstack.load.statistics_delta import ModelDelta
from tritonstack.terminal import human_bytes, human_seconds, table

PERCENTILES = (
    ("p50", "p50_us", 2),
    ("p90", "p90_us", 10),
    ("p95", "p95_us", 20),
    ("p99", "p99_us", 100),
    ("p99.9", "p999_us", 1000),
)
"""Column, field of LatencySummary, and the number of requests below which it would only repeat the slowest one."""


def render(report: LoadReport) -> str:
    """Head, one row per level, the server's own times, errors, and what to know about the figures."""
    parts = [_head(report), _latencies(report)]
    if any(level.server.models for level in report.levels):
        parts.append(_server(report))
    if any(level.errors for level in report.levels):
        parts.append(_errors(report))
    remarks = [f"{mark}: {level.arrival.label}: {text}" for level in report.levels for mark, text in _remarks(level)]
    if remarks:
        parts.append("\n".join(remarks))
    return "\n\n".join(parts)


def _remarks(level: LevelReport) -> list[tuple[str, str]]:
    return (
        [("INVALID", text) for text in level.problems]
        + [("FAILED", text) for text in level.failures]
        + [("note", text) for text in level.notes]
        + ([("note", "interrupted: what was measured until then")] if level.interrupted else [])
    )


def _head(report: LoadReport) -> str:
    versions = f" version {', '.join(report.versions)}" if report.versions else ""
    inputs = ", ".join(f"{i.name} {i.datatype} [{', '.join(map(str, i.shape))}]" for i in report.inputs)
    return (
        f"{report.model}{versions} on {report.server.name} {report.server.version} at {report.url}\n"
        f"{inputs}; {report.input_origin}; {report.distinct_requests} distinct "
        f"request{'s' if report.distinct_requests != 1 else ''} of {human_bytes(report.request_bytes)}"
    )


def _time(value_us: float | None) -> str:
    return "–" if value_us is None else human_seconds(value_us / 1e6) if value_us >= 1e5 else f"{value_us / 1e3:.2f} ms"


def _latencies(report: LoadReport) -> str:
    is_open = any(not isinstance(level.arrival, ClosedLoop) for level in report.levels)
    header = ["load", "req/s", "infer/s", "mean", *(name for name, _, _ in PERCENTILES), "max", "requests", "errors"]
    header += ["lag p99", "own CPU"] if is_open else ["own CPU"]
    rows = []
    for level in report.levels:
        latency = level.latency
        row = [level.arrival.label, f"{level.requests_per_s:.1f}", f"{level.inferences_per_s:.1f}"]
        row.append(_time(latency.mean_us))
        row += [_time(getattr(latency, key) if latency.count >= least else None) for _, key, least in PERCENTILES]
        row += [_time(latency.max_us), str(latency.count), str(level.counts.errors)]
        row += [_time(level.lag.p99_us) if level.lag else "–"] if is_open else []
        cpu_us = level.generator.cpu_us_per_request
        rows.append([*row, "–" if cpu_us is None else human_seconds(cpu_us / 1e6)])
    return table(header, rows, align="<" + ">" * (len(header) - 1))


def _server(report: LoadReport) -> str:
    header = ["server's own times", "model", "queue", "input", "infer", "output", "request", "batch", "executions"]
    cached = any(d.cache_hits or d.cache_misses for level in report.levels for d in level.server.models)
    header += ["cache hits"] if cached else []

    def row(level: LevelReport, d: ModelDelta) -> list[str]:
        cells = [level.arrival.label, f"{d.model} {d.version}"]
        cells += map(_time, (d.queue_us, d.compute_input_us, d.compute_infer_us, d.compute_output_us, d.request_us))
        cells += [f"{d.mean_batch:.2f}", str(d.executions)]
        return cells + ([f"{d.cache_hits} of {d.cache_hits + d.cache_misses}"] if cached else [])

    rows = [row(level, d) for level in report.levels for d in level.server.models]
    return table(header, rows, align="<<" + ">" * (len(header) - 2))


def _errors(report: LoadReport) -> str:
    rows = [
        (
            level.arrival.label,
            str(error.count),
            error.kind,
            error.example.partition("\n")[0][:120],
        )
        for level in report.levels
        for error in level.errors
    ]
    return table(["errors", "count", "kind", "for example"], rows, align="<><<")
