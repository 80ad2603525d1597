"""The report as one HTML page: no script, nothing loaded from anywhere, light and dark, every plot told in words."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from tritonstack.load.page.markup import Child, Markup, escaped, facts, grid, joined, page, tag
from tritonstack.load.page.plots import Frame, Line, histogram_plot, legend, line_plot, stacked_bars
from tritonstack.load.page.style import STYLE
from tritonstack.load.saved_report import SavedLevel, SavedReport
from tritonstack.terminal import human_bytes

PERCENTILES = (("p50", "p50_us"), ("p90", "p90_us"), ("p95", "p95_us"), ("p99", "p99_us"), ("p99.9", "p999_us"))
PARTS = ("queue", "input", "infer", "output", "other at the server", "client and network")


def render_html(report: SavedReport) -> str:
    """The whole page."""
    return page(f"{report.body['model']}: load report", STYLE, _parts(report))


def _parts(report: SavedReport) -> Iterator[Markup]:
    yield _header(report)
    if report.body.get("knee"):
        yield from _knee(report.body["knee"])
    if report.body.get("sweep"):
        yield from _sweep(report.body["sweep"])
    if report.levels:
        yield tag("h2", "Levels")
        yield tag("div", _overview(report), class_="card")
        yield from _curve(report)
        yield from _breakdown(report)
    for number, level in enumerate(report.levels):
        yield from _level(level, f"level-{number}")
    yield tag("h2", "How it was measured")
    yield tag("div", _circumstances(report), class_="card")


def verdict(good: bool, words: tuple[str, str] = ("valid", "not valid")) -> Markup:
    """A word and a mark, not a colour alone."""
    return tag("span", f"✓ {words[0]}" if good else f"✗ {words[1]}", class_=f"verdict {'good' if good else 'bad'}")


def _header(report: SavedReport) -> Markup:
    body = report.body
    server = body.get("server") or {}
    versions = body.get("versions") or ()
    said: list[Child] = [
        f"version {', '.join(versions)} on " if versions else "on ",
        f"{server.get('name', 'a server')} {server.get('version', '')} at ",
        tag("code", body.get("url", "")),
        ", ",
        _moment(str(body.get("started_at", ""))),
    ]
    lines: list[Child] = [
        tag("h1", body["model"]),
        tag("p", verdict(bool(body.get("ok")), ("within its limits", "not within its limits")), " ",
            tag("span", said, class_="soft")),
    ]  # fmt: skip
    if body.get("interrupted"):
        lines.append(tag("p", "Interrupted: what was measured until then.", class_="note"))
    for level in report.levels:
        for text in level.body.get("problems") or ():
            lines.append(tag("p", f"Invalid: {level.label}: {text}", class_="problem"))
        for text in level.body.get("failures") or ():
            lines.append(tag("p", f"Failed: {level.label}: {text}", class_="problem"))
    for text in body.get("broken_gates") or ():
        lines.append(tag("p", f"Gate broken: {text}", class_="problem"))
    return tag("header", lines)


def _moment(text: str) -> Markup:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return escaped(text)
    return tag("time", f"{moment.day} {moment:%B %Y, %H:%M} {moment:%Z}".strip(), datetime=text)


def figure(value: float | None, digits: int = 3) -> str:
    """A number with `digits` significant digits and no exponent; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(places, 9)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def duration(value_us: float | None) -> str:
    """Microseconds in a unit that keeps three digits."""
    if value_us is None or not math.isfinite(value_us):
        return "–"
    if value_us < 1e3:
        return f"{figure(value_us)} µs"
    return f"{figure(value_us / 1e3)} ms" if value_us < 1e6 else f"{figure(value_us / 1e6)} s"


def _interval(pair: Sequence[float] | None, text: Any) -> str:
    return "" if not pair else f" ({text(pair[0])} to {text(pair[1])})"


def _overview(report: SavedReport) -> Markup:
    slo = any(level.body.get("goodput_per_s") is not None for level in report.levels)
    header = ["load", "verdict", "requests/s"] + (["goodput/s"] if slo else [])
    header += [name for name, _ in PERCENTILES] + ["max", "requests", "errors"]
    rows = []
    for level in report.levels:
        body, latency = level.body, level.body["latency"]
        row: list[Child] = [level.label, verdict(bool(body.get("ok"))), figure(body["requests_per_s"], 4)]
        row += [figure(body.get("goodput_per_s"), 4)] if slo else []
        row += [duration(latency[key]) for _, key in PERCENTILES]
        rows.append([*row, duration(latency["max_us"]), f"{latency['count']:,}", f"{body['counts']['errors']:,}"])
    return grid("Every level at a glance; latencies of open loops count from the scheduled moment", header, rows,
                words=2)  # fmt: skip


def _curve(report: SavedReport) -> Iterator[Markup]:
    shown = [level for level in report.levels if level.body["latency"]["count"]]
    if len(shown) < 2:
        return
    ordered = sorted(shown, key=lambda level: level.body["requests_per_s"])
    lines = [
        Line(
            name,
            tuple((level.body["requests_per_s"], level.body["latency"][key] / 1e3) for level in ordered),
            color,
            tuple(_told(level, name, key) for level in ordered),
        )
        for color, (name, key) in enumerate((("p50", "p50_us"), ("p99", "p99_us")))
    ]
    frame = Frame("Throughput and latency", "curve", "requests per second", "latency, ms", figure, figure)
    yield tag("h2", "Throughput and latency")
    plot = line_plot(frame, lines, log_y=True, limit=_limit(report.body))
    yield tag("figure", plot, legend(("p50", "p99")), class_="card")


def _told(level: SavedLevel, name: str, key: str) -> str:
    rate, latency = level.body["requests_per_s"], level.body["latency"]
    return f"{level.label}: {figure(rate, 4)}/s, {name} {duration(latency[key])}"


def _limit(body: Mapping[str, Any]) -> tuple[float, str] | None:
    """The first latency objective as (ms, its text)."""
    for objective in body.get("slo") or ():
        if objective["metric"] != "errors":
            return objective["value"] / 1e3, str(objective["text"])
    return None


def _breakdown(report: SavedReport) -> Iterator[Markup]:
    """Where the mean request spends its time. The counters of an ensemble's steps are added, since it has none."""
    rows = []
    for level in report.levels:
        models = (level.body.get("server") or {}).get("models") or ()
        mean = level.body["latency"]["mean_us"]
        if not models or mean is None:
            continue
        asked = models[0]
        steps = models[1:] or models[:1]
        parts = [
            sum(m[f"{part}_us"] for m in steps)
            for part in ("queue", "compute_input", "compute_infer", "compute_output")
        ]
        parts.append(max(asked["request_us"] - sum(parts), 0.0))
        parts.append(max(mean - max(asked["request_us"], sum(parts)), 0.0))
        rows.append((level.label, parts, mean))
    if not rows:
        return
    yield tag("h2", "Where the time goes")
    bars = stacked_bars([(name, parts, duration(mean)) for name, parts, mean in rows], PARTS)
    table = grid(
        "Mean per request: the server's own times, and what is left of the latency",
        ["load", *PARTS, "latency"],
        [[name, *map(duration, parts), duration(mean)] for name, parts, mean in rows],
    )
    yield tag("div", bars, table, class_="card")


def _level(level: SavedLevel, identity: str) -> Iterator[Markup]:
    body = level.body
    yield tag("h2", level.label)
    plots = [*_histogram(level, identity), *_series(level, identity)]
    if plots:
        yield tag("div", plots, class_="plots")
    parts: list[Child] = [tag("p", text, class_="note") for text in body.get("notes") or ()]
    parts.append(facts(_figures(level)))
    if body.get("errors"):
        rows = [[e["kind"], e["example"], f"{e['count']:,}"] for e in body["errors"]]
        parts.append(grid("Errors, never mixed into latencies", ["kind", "for example", "count"], rows, words=2))
    models = (body.get("server") or {}).get("models") or ()
    if models:
        parts.append(_served(models))
    yield tag("div", parts, class_="card")


def _histogram(level: SavedLevel, identity: str) -> Iterator[Markup]:
    distribution, latency = level.distribution, level.body["latency"]
    if not latency["count"]:
        return
    frame = Frame(
        f"Latencies of {level.label}", f"{identity}-histogram", "latency (logarithmic)", "share of the requests",
        duration, lambda share: f"{figure(100 * share, 2)} %",
    )  # fmt: skip
    marks = [(name, latency[key]) for name, key in PERCENTILES if name in ("p50", "p90", "p99", "p99.9")]
    plot = histogram_plot(frame, distribution.values_us.tolist(), distribution.counts.tolist(), marks)
    yield tag("figure", plot, tag("figcaption", "How often each latency came."), class_="card")


def _series(level: SavedLevel, identity: str) -> Iterator[Markup]:
    seconds = level.series
    if len(seconds) < 2:
        return
    places = [float(entry["offset_s"]) for entry in seconds]
    shown = [("answered", "completed"), ("sent", "sent"), ("failed", "errors")]
    shown = [(name, key) for name, key in shown if key == "completed" or any(entry.get(key) for entry in seconds)]
    names = [name for name, _ in shown]
    rates = [
        Line(
            name, tuple((x, e[key] / (e.get("duration_s") or 1.0)) for x, e in zip(places, seconds, strict=True)), color
        )
        for color, (name, key) in enumerate(shown)
    ]
    frame = Frame(f"Requests per second of {level.label}", f"{identity}-rate", "seconds", "requests per second",
                  figure, figure)  # fmt: skip
    yield tag("figure", line_plot(frame, rates), legend(names), class_="card")
    lines = []
    for color, (name, key) in enumerate((("p50", "p50_us"), ("p99", "p99_us"), ("max", "max_us"))):
        points = tuple((x, e[key] / 1e3) for x, e in zip(places, seconds, strict=True) if e.get(key) is not None)
        if points:
            lines.append(Line(name, points, color))
    if lines:
        frame = Frame(f"Latency over time of {level.label}", f"{identity}-latency", "seconds", "latency, ms", figure,
                      figure)  # fmt: skip
        yield tag("figure", line_plot(frame, lines, log_y=True), legend([line.name for line in lines]), class_="card")


def _figures(level: SavedLevel) -> Iterator[tuple[str, Child]]:
    body = level.body
    latency, intervals = body["latency"], body.get("intervals") or {}
    yield (
        "throughput",
        f"{figure(body['requests_per_s'], 4)} requests/s" + _interval(intervals.get("requests_per_s"), figure),
    )
    if body.get("goodput_per_s") is not None:
        yield "goodput", f"{figure(body['goodput_per_s'], 4)} requests/s within the objectives"
    for name, key in PERCENTILES:
        yield name, duration(latency[key]) + _interval(intervals.get(key), duration)
    for objective in body.get("objectives") or ():
        met = objective["met"]
        yield f"objective {objective['text']}", "–" if met is None else verdict(bool(met), ("holds", "broken"))
    if body.get("lag"):
        yield "own lag, p99", duration(body["lag"]["p99_us"])
    client = body.get("client")
    if client:
        told = ", ".join(f"{part} {duration(client[part]['mean_us'])}" for part in ("send", "wait", "receive"))
        yield "client's share, mean", told
    stability = body.get("stability")
    if stability:
        said = "stable" if stability["stable"] else "not stable"
        yield "stability", f"{said} after {len(stability['windows'])} windows of {stability['window_s']:g} s"
    yield from _use(body.get("server_use") or {})
    for worker in body.get("workers") or ():
        told = f"{worker['requests']:,} requests, {figure(worker['cpu_s'])} s of CPU"
        if worker.get("loop_busy") is not None:
            told += f", {figure(100 * worker['loop_busy'])} % busy"
        yield f"worker {worker['host']}/{worker['pid']}", told


def _use(use: Mapping[str, Any]) -> Iterator[tuple[str, Child]]:
    metrics, process = use.get("metrics"), use.get("process")
    if process:
        cores = "" if process["cpu_cores"] is None else f"{figure(process['cpu_cores'])} cores, "
        yield "server process", f"{cores}{human_bytes(process['rss_bytes'])} resident"
    if not metrics:
        return
    if metrics["pending_mean"] is not None:
        most = figure(metrics["pending_max"])
        yield "pending at the server", f"{figure(metrics['pending_mean'])} on average, at most {most}"
    for gpu in metrics["gpus"]:
        share = "–" if gpu["utilization_mean"] is None else f"{figure(100 * gpu['utilization_mean'])} %"
        memory = "–" if gpu["memory_used_bytes"] is None else human_bytes(gpu["memory_used_bytes"])
        yield f"GPU {gpu['uuid']}", f"{share} busy, {memory} in use, {figure(gpu['power_w_mean'])} W"
    if metrics["failures"]:
        yield "failed at the server", ", ".join(f"{name} {count:g}" for name, count in metrics["failures"].items())
    if metrics["problem"]:
        yield "metrics", f"{metrics['url']}: {metrics['problem']}"


def _served(models: Sequence[Mapping[str, Any]]) -> Markup:
    rows = [
        [
            f"{m['model']} {m['version']}", f"{m['requests']:,}", f"{m['failed_requests']:,}", figure(m["mean_batch"]),
            f"{m['cache_hits']:,}", f"{m['cache_misses']:,}",
            ", ".join(f"{size}: {count:,}" for size, count in m["executions_by_batch"].items()),
        ]
        for m in models
    ]  # fmt: skip
    header = ["model", "requests", "failed", "mean batch", "cache hits", "misses", "executions by batch"]
    return grid("The server's own counters over the window", header, rows)


def _knee(knee: Mapping[str, Any]) -> Iterator[Markup]:
    yield tag("h2", "The knee")
    _, high = knee["interval"]
    if knee["rate"] is None:
        said = "No knee is called."
    else:
        top = f"{figure(high, 4)}/s did not" if high is not None else "nothing above was shown to break"
        said = f"{figure(knee['rate'], 4)} requests/s hold the objectives; {top}."
    parts: list[Child] = [tag("p", tag("strong", said)), tag("p", f"Limited by: {knee['limited_by']}.")]
    parts += [tag("p", note, class_="note") for note in knee["notes"]]
    ordered = sorted(knee["probes"], key=lambda probe: probe["rate"])
    rows = [
        [figure(p["rate"], 4) + "/s", p["verdict"], p["reason"], figure(p["point"]["throughput_per_s"], 4),
         duration(p["point"]["p50_us"]), duration(p["point"]["p99_us"]), f"{p['requests']:,}"]
        for p in ordered
    ]  # fmt: skip
    header = ["rate", "verdict", "why", "answered/s", "p50", "p99", "requests"]
    parts.append(grid(f"Every rate that was tried, judged at the level of {100 * knee['alpha']:g} %", header, rows,
                      words=3))  # fmt: skip
    yield tag("div", parts, class_="card")
    points = [p["point"] for p in ordered if p["point"]["p99_us"] is not None]
    if len(points) > 1:
        lines = [
            Line(
                name,
                tuple((p["offered_per_s"] or 0.0, p[key] / 1e3) for p in points),
                color,
                tuple(f"{p['label']}: {name} {duration(p[key])}, {p['verdict']}" for p in points),
            )
            for color, (name, key) in enumerate((("p50", "p50_us"), ("p99", "p99_us")))
        ]
        frame = Frame("Latency by offered rate", "knee", "requests per second offered", "latency, ms", figure, figure)
        yield tag("figure", line_plot(frame, lines, log_y=True), legend(("p50", "p99")), class_="card")


def _sweep(sweep: Mapping[str, Any]) -> Iterator[Markup]:
    yield tag("h2", "The sweep")
    rows = []
    for p in sweep["points"]:
        point = p["point"] or {}
        memory = human_bytes(p["gpu_memory_bytes"]) if p["gpu_memory_bytes"] is not None else "–"
        rows.append([
            p["label"], "★ best trade-off" if p["best"] else p["problem"], figure(point.get("throughput_per_s"), 4),
            duration(point.get("p50_us")), duration(point.get("p99_us")), memory,
        ])  # fmt: skip
    header = ["setting", "", "requests/s", "p50", "p99", "GPU memory"]
    parts: list[Child] = [tag("p", note, class_="note") for note in sweep["notes"]]
    parts.append(grid("Every setting; those marked are beaten by none in all of these", header, rows, words=2))
    yield tag("div", parts, class_="card")


def _circumstances(report: SavedReport) -> Iterator[Markup]:
    body = report.body
    environment = body.get("environment") or {}
    yield tag("h3", "Command")
    yield tag("pre", shlex.join(map(str, body.get("command") or ())) or "–")
    yield tag("h3", "Requests")
    inputs = ", ".join(f"{i['name']} {i['datatype']} {list(i['shape'])}" for i in body["inputs"])
    sending = body.get("sending") or {}
    yield facts([
        ("inputs", inputs),
        ("from", str(body.get("input_origin", ""))),
        ("distinct requests", f"{body.get('distinct_requests', '–')} of {human_bytes(body.get('request_bytes') or 0)}"),
        ("protocol", str(body["protocol"])),
        *((name.replace("_", " "), str(value)) for name, value in sending.items() if value),
    ])  # fmt: skip
    yield tag("h3", "Generator")
    packages = environment.get("packages") or {}
    yield facts([
        ("system", f"{environment.get('system', '–')} {environment.get('machine', '')}"),
        ("processor", str(environment.get("cpu", ""))),
        ("CPUs", f"{environment.get('cpus', '–')}, load {environment.get('load_1m', '–')} before the run"),
        ("Python", str(environment.get("python", ""))),
        ("versions", ", ".join(f"{name} {version}" for name, version in packages.items())),
    ])  # fmt: skip
    yield joined(tag("p", "Figures belong to these machines and their load at the time.", class_="soft"))
