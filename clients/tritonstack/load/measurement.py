"""What the workers of one run measured, one by one and together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tritonstack.load.loop_sender import LoopFigures
from tritonstack.load.series import Second
from tritonstack.load.tally import Tally

BACKLOG_GRACE_S = 2.0
"""How long requests that were due inside the window may still be sent after it, where the bound held them back."""
COUNTED_ONE_BY_ONE = 200_000
"""How many requests that are never sent are still counted exactly."""
LAG_SHARE = 0.1
"""A late generator is tolerated up to this share of the 99th percentile of the latency, which includes its lag."""


def lag_allowed_us(max_lag_s: float, latency_p99_us: float | None) -> float:
    """The largest 99th percentile of a generator's own lag with which its latencies are still the server's."""
    return max(max_lag_s * 1e6, LAG_SHARE * (latency_p99_us or 0.0))


@dataclass(frozen=True)
class WorkerUse:
    """One worker process: `requests` that it sent, its CPU time inside the window and, where the window has a length,
    which share of it its thread was on a CPU; the most memory it ever had resident."""

    host: str
    pid: int
    requests: int
    cpu_s: float
    loop_busy: float | None
    rss_bytes: int


@dataclass(frozen=True)
class LostWorker:
    """A worker that ended before its result was there; what it had sent is missing."""

    host: str
    pid: int
    reason: str


@dataclass(frozen=True)
class WorkerResult:
    """What one worker hands back at the end of a run. `thread_s` is the CPU time of its sending thread, `figures` what
    only conversations have."""

    host: str
    pid: int
    tally: Tally
    interrupted: bool
    abandoned: int
    cpu_s: float
    thread_s: float
    gc_collections: int
    rss_bytes: int
    versions: tuple[str, ...] = ()
    figures: LoopFigures | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "pid": self.pid,
            "tally": self.tally.to_json(),
            "interrupted": self.interrupted,
            "abandoned": self.abandoned,
            "cpu_s": self.cpu_s,
            "thread_s": self.thread_s,
            "gc_collections": self.gc_collections,
            "rss_bytes": self.rss_bytes,
            "versions": list(self.versions),
            "figures": None if self.figures is None else self.figures.to_json(),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> WorkerResult:
        """What `to_json` gave."""
        figures = body["figures"]
        return cls(
            **{
                **body,
                "tally": Tally.from_json(body["tally"]),
                "versions": tuple(body["versions"]),
                "figures": None if figures is None else LoopFigures.from_json(figures),
            }
        )

    @property
    def window_s(self) -> float:
        """Length of its window."""
        return max(self.tally.close_at_s - self.tally.open_at_s, 0.0)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One finished run, merged over its workers. Times in seconds; `cpu_s` is the generator's CPU time inside the
    window, `loop_busy_s` that of its busiest sending thread. `client_split` tells whether the tally's client split was
    measured."""

    tally: Tally
    window_s: float
    cpu_s: float
    loop_busy_s: float
    interrupted: bool
    abandoned: int
    gc_collections: int
    rss_bytes: int | None = None
    client_split: bool = False
    workers: tuple[WorkerUse, ...] = ()
    lost: tuple[LostWorker, ...] = ()
    series: tuple[Second, ...] = ()
    versions: frozenset[str] = field(default_factory=frozenset)
    conversation: LoopFigures | None = None


def merged(
    results: Sequence[WorkerResult], *, lost: Sequence[LostWorker] = (), series: Sequence[Second] = ()
) -> Measurement:
    """The run that these workers shared; at least one of them has a result."""
    tally = Tally.merged([result.tally for result in results])
    window_s = max(tally.close_at_s - tally.open_at_s, 0.0) if math.isfinite(tally.close_at_s) else 0.0
    return Measurement(
        tally=tally,
        window_s=window_s,
        cpu_s=sum(result.cpu_s for result in results),
        loop_busy_s=max(result.thread_s for result in results),
        interrupted=any(result.interrupted for result in results),
        abandoned=sum(result.abandoned for result in results),
        gc_collections=sum(result.gc_collections for result in results),
        rss_bytes=sum(result.rss_bytes for result in results),
        client_split=True,
        workers=tuple(_use(result) for result in results),
        lost=tuple(lost),
        series=tuple(series),
        versions=frozenset(version for result in results for version in result.versions),
        # Conversations have one worker.
        conversation=results[0].figures,
    )


def _use(result: WorkerResult) -> WorkerUse:
    busy = result.thread_s / result.window_s if result.window_s > 0 else None
    return WorkerUse(result.host, result.pid, result.tally.sent, result.cpu_s, busy, result.rss_bytes)
