"""The report as text for people."""

from __future__ import annotations

from tritonstack.load.arrival import ClosedLoop
from tritonstack.load.knee import Knee
from tritonstack.load.report import LevelReport, LoadReport
from tritonstack.load.statistics_delta import ModelDelta
from tritonstack.load.sweep import Sweep
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
    parts = [_head(report)]
    if report.knee is not None:
        parts.append(_knee(report.knee))
    elif report.sweep is not None:
        parts.append(_sweep(report.sweep))
    else:
        parts.append(_latencies(report))
        if any(level.server.models for level in report.levels):
            parts.append(_server(report))
        if uses := _uses(report):
            parts.append(uses)
    if any(level.errors for level in report.levels):
        parts.append(_errors(report))
    searched = report.knee is not None or report.sweep is not None
    shown = () if searched else report.levels
    remarks = [f"{mark}: {level.arrival.label}: {text}" for level in shown for mark, text in _remarks(level)]
    remarks += [f"FAILED: {text}" for text in report.broken_gates]
    if remarks:
        parts.append("\n".join(remarks))
    return "\n\n".join(parts)


def _knee(knee: Knee) -> str:
    """Every rate that was tried, and the answer."""
    header = ["rate", "verdict", "answered/s", "p50", "p99", "requests", "why"]
    rows = [
        (
            f"{p.rate:.4g}/s", p.verdict, f"{p.point.throughput_per_s:.1f}", _time(p.point.p50_us),
            _time(p.point.p99_us), str(p.requests), p.reason,
        )
        for p in sorted(knee.probes, key=lambda probe: probe.rate)
    ]  # fmt: skip
    low, high = knee.interval
    if knee.rate is None:
        said = f"no knee is called; {low:.4g}/s were shown to hold" if low else "no rate was shown to hold"
    else:
        top = "nothing above was shown to break" if high is None else f"{high:.4g}/s did not"
        said = f"knee: {knee.rate:.4g} requests/s hold, {top}"
        said += "" if knee.called else " (the search ended before the bracket was as narrow as asked)"
    lines = [said, f"limited by: {knee.limited_by}", *(f"note: {note}" for note in knee.notes)]
    return table(header, rows, align="><>>>><") + "\n\n" + "\n".join(lines)


def _sweep(sweep: Sweep) -> str:
    """Every setting that was tried, the best trade-offs marked."""
    memory = any(point.gpu_memory_bytes is not None for point in sweep.points)
    header = ["", "setting", "req/s", "p50", "p99"] + (["GPU memory"] if memory else []) + ["remark"]
    rows = []
    for entry in sweep.points:
        point = entry.point
        cells = ["*" if entry.best else "", entry.setting.label]
        cells += ["–"] * 3 if point is None else [
            f"{point.throughput_per_s:.1f}", _time(point.p50_us), _time(point.p99_us)
        ]  # fmt: skip
        if memory:
            cells.append("–" if entry.gpu_memory_bytes is None else human_bytes(entry.gpu_memory_bytes))
        rows.append([*cells, entry.problem])
    words = "* beaten by none in throughput and p99" + (" and GPU memory" if memory else "")
    lines = [words, *(f"note: {note}" for note in sweep.notes)]
    return table(header, rows, align="<<>>>" + (">" if memory else "")) + "\n\n" + "\n".join(lines)


def _uses(report: LoadReport) -> str:
    """What the server's process and GPUs did, a dash where it could not be seen."""
    header = ["server's use", "CPU", "memory", "queued", "most", "GPU", "GPU memory", "power"]
    rows = []
    for level in report.levels:
        use = level.findings.server_use
        if use is None or (use.process is None and (use.metrics is None or not use.metrics.readings)):
            continue
        process, metrics = use.process, use.metrics
        row = [level.arrival.label]
        row.append("–" if process is None or process.cpu_cores is None else f"{process.cpu_cores:.2f} cores")
        row.append("–" if process is None else human_bytes(process.rss_bytes))
        pending = (None, None) if metrics is None else (metrics.pending_mean, metrics.pending_max)
        row += ["–" if value is None else f"{value:.1f}" for value in pending]
        gpus = metrics.gpus if metrics is not None else ()
        busy = [g.utilization_mean for g in gpus if g.utilization_mean is not None]
        memory = [g.memory_used_bytes for g in gpus if g.memory_used_bytes is not None]
        power = [g.power_w_mean for g in gpus if g.power_w_mean is not None]
        row.append(f"{100 * sum(busy) / len(busy):.0f} %" if busy else "–")
        row.append(human_bytes(sum(memory)) if memory else "–")
        rows.append([*row, f"{sum(power):.0f} W" if power else "–"])
    return table(header, rows, align="<" + ">" * (len(header) - 1)) if rows else ""


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
    header[2:2] = ["goodput/s"] if any(level.findings.goodput_per_s is not None for level in report.levels) else []
    header += ["lag p99", "own CPU"] if is_open else ["own CPU"]
    rows = []
    for level in report.levels:
        latency = level.latency
        row = [level.arrival.label, f"{level.requests_per_s:.1f}"]
        if "goodput/s" in header:
            goodput = level.findings.goodput_per_s
            row.append("–" if goodput is None else f"{goodput:.1f}")
        row.append(f"{level.inferences_per_s:.1f}")
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
