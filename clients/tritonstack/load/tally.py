"""What one run counts: which requests belong to the measured window, their latencies, their errors.

Membership (all moments on `time.monotonic`, window = [open_at_s, close_at_s]):

* closed loop: an answer is measured when it *completes* inside the window; an error also when it comes while
  draining, so that calls which hang at the end cannot vanish.
* open loop: a request is measured when it was *scheduled* inside the window, however late its answer comes, so that
  the slowest requests at the end are not cut off. Throughput counts completions inside the window in both.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from tritonstack.load.histogram import LatencyHistogram


@dataclass(frozen=True, slots=True)
class ErrorCount:
    """Failed requests of one kind (``ServerError INTERNAL``) with the first message seen."""

    kind: str
    count: int
    example: str


@dataclass(slots=True)
class Tally:
    """Counters of one run; changed only by `add`, in the loop's own thread."""

    by_schedule: bool
    open_at_s: float
    close_at_s: float = math.inf
    requests: int | None = None

    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    service: LatencyHistogram = field(default_factory=LatencyHistogram)
    lag: LatencyHistogram = field(default_factory=LatencyHistogram)
    in_window: int = 0
    ended_in_window: int = 0
    measured_errors: int = 0
    last_measured_s: float = -math.inf
    sent: int = 0
    warmup: int = 0
    succeeded: int = 0
    fastest_s: float = math.inf
    failed: int = 0
    drained: int = 0
    drained_longest_s: float = 0.0
    unsent: int = 0
    limit_hits: int = 0
    peak_in_flight: int = 0
    recent_s: list[float] = field(default_factory=list)
    _kinds: Counter[str] = field(default_factory=Counter)
    _examples: dict[str, str] = field(default_factory=dict)

    @property
    def in_flight(self) -> int:
        return self.sent - self.succeeded - self.failed

    @property
    def measured(self) -> int:
        """Measured requests that have ended, well or not."""
        return self.latency.count + self.measured_errors

    def started(self, due_s: float) -> None:
        """Count one request that goes out now and was due at `due_s`."""
        self.sent += 1
        self.warmup += due_s < self.open_at_s
        if self.in_flight > self.peak_in_flight:
            self.peak_in_flight = self.in_flight

    def add(
        self, *, due_s: float, ready_s: float, sent_s: float, done_s: float, error: tuple[str, str] | None = None
    ) -> None:
        """Count one ended request.

        `due_s` is when it was scheduled, `ready_s` when it was allowed to go (later than due only where the bound on
        requests in flight held it back), `sent_s` when it really went. `error` is (kind, message).
        """
        if error is None:
            self.succeeded += 1
            self.fastest_s = min(self.fastest_s, done_s - sent_s)
        else:
            self.failed += 1
        inside = self.open_at_s <= done_s <= self.close_at_s
        if done_s > self.close_at_s:
            self.drained += 1
            self.drained_longest_s = max(self.drained_longest_s, done_s - due_s)
        full = self.requests is not None and self.measured >= self.requests
        if inside and not full:
            self.ended_in_window += 1
            if error is None:
                self.in_window += 1
        if self.by_schedule:
            measured = self.open_at_s <= due_s < self.close_at_s
        elif error is None:
            measured = inside
        else:
            measured = done_s >= self.open_at_s and sent_s <= self.close_at_s
        if not measured or full:
            return
        self.last_measured_s = max(self.last_measured_s, done_s)
        if self.by_schedule:
            self.lag.record_s(sent_s - ready_s)
        if error is None:
            self.latency.record_s(done_s - due_s)
            if self.by_schedule:
                self.service.record_s(done_s - sent_s)
            self.recent_s.append(done_s - due_s)
        else:
            kind, message = error
            self.measured_errors += 1
            self._kinds[kind] += 1
            self._examples.setdefault(kind, message)

    def take_recent_s(self) -> list[float]:
        """Latencies measured since the last call, for the live line."""
        recent, self.recent_s = self.recent_s, []
        return recent

    def errors(self) -> tuple[ErrorCount, ...]:
        """Errors by kind, the most frequent first."""
        return tuple(ErrorCount(kind, count, self._examples[kind]) for kind, count in self._kinds.most_common())
