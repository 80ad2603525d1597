"""When a figure has settled: three windows in a row agree, as perf_analyzer judges it.

Throughput and latency (the mean, or a chosen percentile) of the last three windows each have to lie within
``1 + limit`` of each other (largest over smallest). The result is that of the three windows together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

IN_A_ROW = 3


@dataclass(frozen=True, slots=True)
class StabilityRule:
    """`limit` is the share by which windows may differ (0.1 is ten percent), `percentile` whose latency has to agree,
    None for the mean. At most `max_windows` windows of `window_s` seconds are measured."""

    limit: float
    window_s: float = 5.0
    max_windows: int = 10
    percentile: float | None = None


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """One window: answered requests per second and the latency that is judged, None where nothing was answered."""

    requests_per_s: float
    latency_us: float | None


@dataclass(frozen=True)
class Stability:
    """The windows of one level in order, and whether the last three agree."""

    limit: float
    window_s: float
    percentile: float | None
    windows: tuple[WindowFigures, ...]
    stable: bool


def is_stable(rule: StabilityRule, windows: Sequence[WindowFigures]) -> bool:
    """Whether the last three windows agree."""
    last = windows[-IN_A_ROW:]
    latencies = [window.latency_us for window in last if window.latency_us is not None]
    if len(latencies) < IN_A_ROW:
        return False
    return all(
        min(values) > 0 and max(values) <= (1 + rule.limit) * min(values)
        for values in ([window.requests_per_s for window in last], latencies)
    )
