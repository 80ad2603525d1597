"""Throughput against latency: the points of a search or sweep, and the best trade-offs among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tritonstack.load.saved_report import SavedLevel

Point = TypeVar("Point")


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One measured level. `offered_per_s` is None in a closed loop; latencies in µs, None where nothing succeeded."""

    label: str
    offered_per_s: float | None
    throughput_per_s: float
    p50_us: float | None
    p99_us: float | None
    errors: float
    verdict: str = ""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def curve_point(level: SavedLevel, verdict: str = "") -> CurvePoint:
    """The point of a level."""
    body = level.body
    return CurvePoint(
        level.label,
        body["arrival"].get("rate"),
        body["requests_per_s"],
        body["latency"]["p50_us"],
        body["latency"]["p99_us"],
        level.metric("errors") or 0.0,
        verdict,
    )


def pareto_set(points: Sequence[Point], costs: Callable[[Point], Sequence[float]]) -> list[Point]:
    """The points that no other beats in one cost without losing in another (less is better), in their order. Of
    points with the same costs the first stays."""
    found = []
    valued = [(point, tuple(costs(point))) for point in points]
    for index, (point, mine) in enumerate(valued):
        beaten = any(
            all(a <= b for a, b in zip(theirs, mine, strict=True)) and (theirs != mine or other < index)
            for other, (_, theirs) in enumerate(valued)
            if other != index
        )
        if not beaten:
            found.append(point)
    return found
