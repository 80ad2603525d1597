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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonstack.load.failure import CANCELLED
from tritonstack.load.histogram import LatencyHistogram


@dataclass(frozen=True, slots=True)
class ErrorCount:
    """Failed requests of one kind (``ServerError INTERNAL``) with the first message seen."""

    kind: str
    count: int
    example: str


@dataclass(slots=True)
class Tally:
    """Counters of one run, or of one worker's share of it; changed in the loop's own thread only.

    `send`, `wait` and `receive` are the client's part of each measured answer: until the request was with the system,
    from there to the first byte of the answer, from there to the last. Requests added one by one do not tell them.
    """

    by_schedule: bool
    open_at_s: float
    close_at_s: float = math.inf
    requests: int | None = None

    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    service: LatencyHistogram = field(default_factory=LatencyHistogram)
    lag: LatencyHistogram = field(default_factory=LatencyHistogram)
    send: LatencyHistogram = field(default_factory=LatencyHistogram)
    wait: LatencyHistogram = field(default_factory=LatencyHistogram)
    receive: LatencyHistogram = field(default_factory=LatencyHistogram)
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

    def add_many(self, rows: NDArray[np.float64], failed: Mapping[int, tuple[str, str]]) -> None:
        """Count ended requests in the order in which they ended, as `add` does one by one.

        `rows` float64 [request, 6] are the moments due, ready, sent, handed over, first byte and done (see `add` and
        `Completion`), `failed` (kind, message) of those that failed by their row.
        """
        if not len(rows):
            return
        due_s, ready_s, sent_s, handed_s, first_s, done_s = rows.T
        good = np.ones(len(rows), bool)
        good[list(failed)] = False
        count = int(np.count_nonzero(good))
        self.succeeded += count
        self.failed += len(rows) - count
        if count:
            self.fastest_s = min(self.fastest_s, float((done_s - sent_s)[good].min()))
        late = done_s > self.close_at_s
        if late.any():
            self.drained += int(np.count_nonzero(late))
            self.drained_longest_s = max(self.drained_longest_s, float((done_s - due_s)[late].max()))
        inside = (done_s >= self.open_at_s) & ~late
        if self.by_schedule:
            measured = (due_s >= self.open_at_s) & (due_s < self.close_at_s)
        else:
            measured = np.where(good, inside, (done_s >= self.open_at_s) & (sent_s <= self.close_at_s))
        if self.requests is not None:
            # Whatever ends after the last one that was asked for counts neither here nor in the throughput.
            before = self.measured + np.cumsum(measured) - measured
            inside &= before < self.requests
            measured &= before < self.requests
        self.ended_in_window += int(np.count_nonzero(inside))
        self.in_window += int(np.count_nonzero(inside & good))
        if not measured.any():
            return
        self.last_measured_s = max(self.last_measured_s, float(done_s[measured].max()))
        if self.by_schedule:
            self.lag.record_many_s((sent_s - ready_s)[measured])
        for row, (kind, message) in failed.items():
            if measured[row]:
                self.measured_errors += 1
                self._kinds[kind] += 1
                self._examples.setdefault(kind, message)
        kept = measured & good
        self.latency.record_many_s((done_s - due_s)[kept])
        if self.by_schedule:
            self.service.record_many_s((done_s - sent_s)[kept])
        self.send.record_many_s((handed_s - sent_s)[kept])
        self.wait.record_many_s((first_s - handed_s)[kept])
        self.receive.record_many_s((done_s - first_s)[kept])

    def take_recent_s(self) -> list[float]:
        """Latencies measured since the last call, for the live line."""
        recent, self.recent_s = self.recent_s, []
        return recent

    @property
    def cancelled(self) -> int:
        """Measured requests that were taken back on purpose; `measured_errors` holds them too."""
        return self._kinds[CANCELLED]

    def errors(self) -> tuple[ErrorCount, ...]:
        """Errors by kind, the most frequent first, without what was taken back."""
        return tuple(
            ErrorCount(kind, count, self._examples[kind])
            for kind, count in self._kinds.most_common()
            if kind != CANCELLED
        )

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values, moments included, which mean something on the same clock only."""
        body: dict[str, Any] = {name: getattr(self, name) for name in (*_SUMS, *_MOST)}
        body |= {name: _finite(getattr(self, name)) for name in _MOMENTS}
        body |= {name: getattr(self, name).to_json() for name in _HISTOGRAMS}
        body["errors"] = [[kind, count, self._examples[kind]] for kind, count in self._kinds.items()]
        return {**body, "by_schedule": self.by_schedule, "requests": self.requests}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Tally:
        """What `to_json` gave."""
        low = {"last_measured_s": -math.inf}
        made = cls(by_schedule=body["by_schedule"], open_at_s=body["open_at_s"], requests=body["requests"])
        for name in (*_SUMS, *_MOST):
            setattr(made, name, body[name])
        for name in _MOMENTS:
            setattr(made, name, low.get(name, math.inf) if body[name] is None else body[name])
        for name in _HISTOGRAMS:
            setattr(made, name, LatencyHistogram.from_json(body[name]))
        for kind, count, example in body["errors"]:
            made._kinds[kind] = count
            made._examples[kind] = example
        return made

    @classmethod
    def merged(cls, parts: Sequence[Tally]) -> Tally:
        """The run whose requests were shared among `parts`, on one clock. `peak_in_flight` is the sum of the workers'
        own peaks, which need not have come at the same moment."""
        whole = cls(by_schedule=parts[0].by_schedule, open_at_s=parts[0].open_at_s)
        wanted = [part.requests for part in parts if part.requests is not None]
        whole.requests = sum(wanted) if wanted else None
        whole.close_at_s = max(part.close_at_s for part in parts)
        whole.last_measured_s = max(part.last_measured_s for part in parts)
        whole.fastest_s = min(part.fastest_s for part in parts)
        for name in _MOST:
            setattr(whole, name, max(getattr(part, name) for part in parts))
        for name in _SUMS:
            setattr(whole, name, sum(getattr(part, name) for part in parts))
        for name in _HISTOGRAMS:
            _add_all(getattr(whole, name), (getattr(part, name) for part in parts))
        for part in parts:
            whole._kinds.update(part._kinds)
            for kind, example in part._examples.items():
                whole._examples.setdefault(kind, example)
        return whole


_SUMS = (
    "in_window", "ended_in_window", "measured_errors", "sent", "warmup", "succeeded", "failed", "drained", "unsent",
    "limit_hits", "peak_in_flight",
)  # fmt: skip
_MOST = ("drained_longest_s",)
_MOMENTS = ("open_at_s", "close_at_s", "last_measured_s", "fastest_s")
_HISTOGRAMS = ("latency", "service", "lag", "send", "wait", "receive")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _add_all(whole: LatencyHistogram, parts: Iterable[LatencyHistogram]) -> None:
    for part in parts:
        whole.add(part)
