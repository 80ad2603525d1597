"""Several windows of one level as one, as if they had been measured without a pause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from tritonstack.load.histogram import LatencySummary
from tritonstack.load.interval import Distribution
from tritonstack.load.measurement import WorkerUse
from tritonstack.load.report import ClientSplit, GeneratorCost, LevelReport, RequestCounts, ServerBreakdown
from tritonstack.load.series import Second
from tritonstack.load.statistics_delta import ModelDelta
from tritonstack.load.tally import ErrorCount

_HIGHEST = frozenset({"peak_in_flight", "max_in_flight"})


def merged_level(levels: Sequence[LevelReport]) -> LevelReport:
    """One level of all the windows; latencies, counts and the server's times by what was in each."""
    if len(levels) == 1:
        return levels[0]
    first = levels[0]
    window_s = sum(level.window_s for level in levels)
    histogram = _merged_histograms([level.latency_histogram for level in levels])
    service = [level.service for level in levels if level.service is not None]
    lag = [level.lag for level in levels if level.lag is not None]
    return replace(
        first,
        window_s=window_s,
        interrupted=any(level.interrupted for level in levels),
        counts=_counts([level.counts for level in levels]),
        requests_per_s=_weighted(levels, lambda level: level.requests_per_s, lambda level: level.window_s) or 0.0,
        inferences_per_s=_weighted(levels, lambda level: level.inferences_per_s, lambda level: level.window_s) or 0.0,
        latency=_summary(Distribution.of(histogram), [level.latency for level in levels]),
        service=_worst(service) if service else None,
        lag=_worst(lag) if lag else None,
        latency_histogram=histogram.encode().decode("ascii"),
        errors=_errors(levels),
        server=_server([level.server for level in levels]),
        generator=_generator(levels),
        problems=_once(text for level in levels for text in level.problems),
        failures=_once(text for level in levels for text in level.failures),
        notes=_once(text for level in levels for text in level.notes),
        series=_series(levels),
        client=_client([level.client for level in levels if level.client is not None]),
        workers=_workers(levels),
        lost_workers=tuple(worker for level in levels for worker in level.lost_workers),
    )


def _merged_histograms(encoded: Sequence[str]) -> Any:
    from hdrh.histogram import HdrHistogram

    whole = HdrHistogram.decode(encoded[0])
    for other in encoded[1:]:
        whole.add(HdrHistogram.decode(other))
    return whole


def _worst(parts: Sequence[LatencySummary]) -> LatencySummary:
    """Summaries whose histograms are gone: the means by weight, percentiles of the worst window."""
    known = [part for part in parts if part.count]
    if not known:
        return LatencySummary(count=0)

    def most(name: str) -> float:
        return max(getattr(part, name) or 0.0 for part in known)

    return LatencySummary(
        count=sum(part.count for part in known),
        mean_us=_weighted(known, lambda part: part.mean_us or 0.0, lambda part: part.count),
        min_us=min(part.min_us or 0.0 for part in known),
        p50_us=most("p50_us"),
        p90_us=most("p90_us"),
        p95_us=most("p95_us"),
        p99_us=most("p99_us"),
        p999_us=most("p999_us"),
        max_us=most("max_us"),
    )


def _summary(whole: Distribution, parts: Sequence[LatencySummary]) -> LatencySummary:
    """Of summaries whose histogram is `whole`: its percentiles."""
    if not any(part.count for part in parts):
        return LatencySummary(count=0)
    p50, p90, p95, p99, p999 = (whole.percentile_us(percent) for percent in (50, 90, 95, 99, 99.9))
    return replace(_worst(parts), p50_us=p50, p90_us=p90, p95_us=p95, p99_us=p99, p999_us=p999)


def _counts(counts: Sequence[RequestCounts]) -> RequestCounts:
    merged: dict[str, Any] = {}
    for entry in fields(RequestCounts):
        values = [getattr(one, entry.name) for one in counts]
        known = [value for value in values if value is not None]
        merged[entry.name] = None if not known else max(known) if entry.name in _HIGHEST else sum(known)
    return RequestCounts(**merged)


def _errors(levels: Sequence[LevelReport]) -> tuple[ErrorCount, ...]:
    seen: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for level in levels:
        for error in level.errors:
            seen[error.kind] += error.count
            examples.setdefault(error.kind, error.example)
    return tuple(ErrorCount(kind, count, examples[kind]) for kind, count in seen.most_common())


def _server(parts: Sequence[ServerBreakdown]) -> ServerBreakdown:
    by_model: dict[tuple[str, str], list[ModelDelta]] = {}
    for part in parts:
        for entry in part.models:
            by_model.setdefault((entry.model, entry.version), []).append(entry)
    return ServerBreakdown(
        readable=all(part.readable for part in parts),
        models=tuple(_merged_delta(entries) for entries in by_model.values()),
        other_inferences=sum(part.other_inferences for part in parts),
    )


def _merged_delta(parts: Sequence[ModelDelta]) -> ModelDelta:
    def total(name: str) -> int:
        return sum(getattr(part, name) for part in parts)

    def mean(name: str) -> float:
        return _weighted(parts, lambda part: getattr(part, name), lambda part: part.requests) or 0.0

    sizes: Counter[int] = Counter()
    for part in parts:
        sizes.update(part.executions_by_batch)
    executions, inferences = total("executions"), total("inferences")
    return replace(
        parts[0],
        requests=total("requests"),
        failed_requests=total("failed_requests"),
        inferences=inferences,
        executions=executions,
        mean_batch=inferences / executions if executions else 0.0,
        request_us=mean("request_us"),
        queue_us=mean("queue_us"),
        compute_input_us=mean("compute_input_us"),
        compute_infer_us=mean("compute_infer_us"),
        compute_output_us=mean("compute_output_us"),
        cache_hits=total("cache_hits"),
        cache_misses=total("cache_misses"),
        executions_by_batch=dict(sorted(sizes.items())),
        reset=any(part.reset for part in parts),
    )


def _generator(levels: Sequence[LevelReport]) -> GeneratorCost:
    def mean(name: str, weight: Callable[[LevelReport], float]) -> float | None:
        known = [level for level in levels if getattr(level.generator, name) is not None]
        return _weighted(known, lambda level: getattr(level.generator, name), weight)

    return replace(
        levels[0].generator,
        cpu_us_per_request=mean("cpu_us_per_request", lambda level: level.counts.completed_in_window),
        cpu_cores=mean("cpu_cores", lambda level: level.window_s),
        loop_busy=mean("loop_busy", lambda level: level.window_s),
        gc_collections=sum(level.generator.gc_collections for level in levels),
        rss_bytes=max((level.generator.rss_bytes or 0 for level in levels), default=0) or None,
    )


def _client(parts: Sequence[ClientSplit]) -> ClientSplit | None:
    if not parts:
        return None
    return ClientSplit(
        _worst([part.send for part in parts]),
        _worst([part.wait for part in parts]),
        _worst([part.receive for part in parts]),
    )


def _workers(levels: Sequence[LevelReport]) -> tuple[WorkerUse, ...]:
    """Each process with what it did in all of the windows."""
    by_process: dict[tuple[str, int], list[tuple[WorkerUse, float]]] = {}
    for level in levels:
        for worker in level.workers:
            by_process.setdefault((worker.host, worker.pid), []).append((worker, level.window_s))
    merged = []
    for (host, pid), uses in by_process.items():
        known = [one for one in uses if one[0].loop_busy is not None]
        merged.append(
            WorkerUse(
                host=host,
                pid=pid,
                requests=sum(use.requests for use, _ in uses),
                cpu_s=sum(use.cpu_s for use, _ in uses),
                loop_busy=_weighted(known, lambda one: one[0].loop_busy, lambda one: one[1]),
                rss_bytes=max(use.rss_bytes for use, _ in uses),
            )
        )
    return tuple(merged)


def _series(levels: Sequence[LevelReport]) -> tuple[Second, ...]:
    """All seconds, the windows one after the other without the pauses between them."""
    seconds: list[Second] = []
    start_s = 0.0
    for level in levels:
        seconds += [replace(second, offset_s=start_s + second.offset_s) for second in level.series]
        start_s += level.window_s
    return tuple(seconds)


def _weighted(parts: Sequence[Any], value: Callable[[Any], float], weight: Callable[[Any], float]) -> float | None:
    total = sum(weight(part) for part in parts)
    return sum(value(part) * weight(part) for part in parts) / total if total else None


def _once(texts: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))
