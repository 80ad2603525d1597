"""A run as the session sees it while its workers drive it: counts so far, and its seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonstack.load.request_log import TICK_S
from tritonstack.load.schedule import Schedule
from tritonstack.load.series import Second

TICKS = round(1.0 / TICK_S)
COUNTED_ARRIVALS = 5_000_000
"""Up to so many arrivals are drawn again to count those due in each second; above it their expected number is told."""


class _Bin:
    """What all workers told of one second."""

    def __init__(self) -> None:
        self.sent = self.completed = self.errors = self.in_flight = self.told = 0
        self.latencies_us: list[NDArray[np.float32]] = []


class Progress:
    """Counts of all workers together, as of their last ticks. Moments on `time.monotonic`."""

    def __init__(self) -> None:
        self.open_at_s = 0.0
        self.close_at_s = math.inf
        self.sent = self.succeeded = self.failed = 0
        self._recent_s: list[float] = []
        self._workers = 1
        self._bins: dict[int, _Bin] = {}
        self._seconds: dict[int, Second] = {}

    @property
    def in_flight(self) -> int:
        """Requests that have no answer yet."""
        return self.sent - self.succeeded - self.failed

    def begin(self, open_at_s: float, duration_s: float | None, workers: int) -> None:
        """The run has begun; its window opens at `open_at_s`."""
        self.open_at_s = open_at_s
        self._workers = workers
        if duration_s is not None:
            self.close_at_s = min(self.close_at_s, open_at_s + duration_s)

    def took(self, tick: Mapping[str, Any], latencies_us: NDArray[np.float32]) -> None:
        """One worker told of one tick."""
        self.sent += tick["sent"]
        self.succeeded += tick["completed"]
        self.failed += tick["errors"]
        self._recent_s += (latencies_us.astype(np.float64) / 1e6).tolist()
        number, rest = divmod(tick["number"], TICKS)
        if number < 0:
            return
        found = self._bins.setdefault(number, _Bin())
        found.sent += tick["sent"]
        found.completed += tick["completed"]
        found.errors += tick["errors"]
        found.latencies_us.append(latencies_us)
        if rest == TICKS - 1:
            found.in_flight += tick["in_flight"]
            found.told += 1
            if found.told == self._workers:
                # Of a long run only the figures of each second are kept.
                self._seconds[number] = _second(number, self._bins.pop(number))

    def take_recent_s(self) -> list[float]:
        """Latencies told since the last call, for the live line."""
        recent, self._recent_s = self._recent_s, []
        return recent

    def seconds(self, close_at_s: float, schedule: Schedule | None, seed: int, warmup_s: float) -> tuple[Second, ...]:
        """The whole seconds of the window, which ended at `close_at_s`."""
        whole = dict(self._seconds)
        whole |= {number: _second(number, found) for number, found in self._bins.items() if found.told}
        window_s = close_at_s - self.open_at_s
        kept = [whole[number] for number in sorted(whole) if number + 1 <= window_s + 1e-6]
        due = _due(schedule, seed, warmup_s, len(kept)) if schedule is not None else [second.sent for second in kept]
        return tuple(replace(second, due=due[int(second.offset_s)]) for second in kept if second.offset_s < len(due))


def _second(number: int, found: _Bin) -> Second:
    latencies_us = np.sort(np.concatenate(found.latencies_us))
    p50_us, p99_us = (_rank(latencies_us, percent) for percent in (50, 99))
    return Second(
        offset_s=float(number),
        duration_s=1.0,
        sent=found.sent,
        completed=found.completed,
        errors=found.errors,
        in_flight=found.in_flight,
        p50_us=p50_us,
        p99_us=p99_us,
        max_us=float(latencies_us[-1]) if len(latencies_us) else None,
    )


def _rank(ordered: NDArray[np.float32], percent: int) -> float | None:
    return float(ordered[-(-percent * len(ordered) // 100) - 1]) if len(ordered) else None


def _due(schedule: Schedule, seed: int, warmup_s: float, seconds: int) -> list[int]:
    """How many requests were due in each of the first `seconds` seconds of the window."""
    if schedule.remaining(0.0, warmup_s + seconds) > COUNTED_ARRIVALS:
        return [round(schedule.remaining(warmup_s + at, warmup_s + at + 1)) for at in range(seconds)]
    counts = np.zeros(seconds, np.int64)
    for dues in schedule.chunks(seed):
        at = np.floor(dues.offset_s - warmup_s)
        inside = at[(at >= 0) & (at < seconds)].astype(np.int64)
        counts += np.bincount(inside, minlength=seconds)[:seconds]
        if at[-1] >= seconds:
            break
    return [int(count) for count in counts]
