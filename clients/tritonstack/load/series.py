"""A run second by second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Second:
    """One second of the window, `offset_s` after its start and really `duration_s` long.

    `due`, `sent`, `completed` (answered well) and `errors` are requests in it, `in_flight` those at its end; in a
    closed loop a request is due when it is sent. Latencies in µs of the answers that came in it, None where none came;
    percentiles are nearest-rank.
    """

    offset_s: float
    duration_s: float
    sent: int
    completed: int
    errors: int
    in_flight: int
    p50_us: float | None
    p99_us: float | None
    max_us: float | None
    due: int = 0


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts since the start of a run."""

    sent: int
    succeeded: int
    failed: int


def second_of(
    offset_s: float, duration_s: float, before: Totals, after: Totals, latencies_s: Sequence[float]
) -> Second:
    """The second between two totals, with the latencies that ended in it."""
    p50_s, p99_s = percentiles(latencies_s)
    return Second(
        offset_s=offset_s,
        duration_s=duration_s,
        sent=after.sent - before.sent,
        completed=after.succeeded - before.succeeded,
        errors=after.failed - before.failed,
        in_flight=after.sent - after.succeeded - after.failed,
        p50_us=None if p50_s is None else p50_s * 1e6,
        p99_us=None if p99_s is None else p99_s * 1e6,
        max_us=max(latencies_s) * 1e6 if latencies_s else None,
        due=after.sent - before.sent,
    )


def percentiles(latencies_s: Sequence[float]) -> tuple[float | None, float | None]:
    """Median and 99th percentile, nearest rank."""
    if not latencies_s:
        return None, None
    ordered = sorted(latencies_s)
    p50_s, p99_s = (ordered[-(-percent * len(ordered) // 100) - 1] for percent in (50, 99))
    return p50_s, p99_s
