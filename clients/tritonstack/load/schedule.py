"""When the requests of an open loop are due: one whole timetable per seed, whatever the number of workers.

A timetable is a process of gaps laid over a profile of rates. The gaps have mean 1 and say how regular or bursty the
arrivals are; the profile says how many arrivals a second there are at each moment. The n-th request is due when the
profile has let through as many arrivals as the first n gaps add up to (inversion of the integrated rate), so a ramp of
Poisson arrivals is a true inhomogeneous Poisson process and a constant one is evenly spaced in arrivals.

Every machine draws the same timetable from the same seed: gaps are rounded to 2^-30 of the mean gap and added up as
integers, so neither the order of additions nor the last bit of a logarithm shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tritonstack.errors import UsageError
from tritonstack.load.rate_profile import RateProfile, Segment

CHUNK = 4096
"""Arrivals made at a time, so that a timetable of any length costs constant memory."""
GAP_STEPS = 2**30
"""Steps of the mean gap to which every gap is rounded."""
MOST_BURSTY = 20.0
"""Above it nearly all gaps are zero and no run is long enough to show the mean."""

GapKind = Literal["constant", "poisson", "gamma"]


@dataclass(frozen=True, slots=True)
class Dues:
    """Some arrivals in order.

    `offset_s` float64 [arrival]: seconds from the start of the run, never descending. `number` int64 [arrival]: place
    in the whole timetable, from 0. `entry` int32 [arrival]: which entry of the request pool is sent; None leaves it to
    the number.
    """

    offset_s: NDArray[np.float64]
    number: NDArray[np.int64]
    entry: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.offset_s)

    def entries(self, pool_size: int) -> NDArray[np.int64]:
        """The index into a pool of `pool_size` requests of each arrival, int64 [arrival]."""
        chosen = self.number if self.entry is None else self.entry.astype(np.int64)
        return chosen % pool_size

    def every(self, step: int, offset: int) -> Dues:
        """Those whose number is `offset` modulo `step`."""
        kept = self.number % step == offset
        return Dues(self.offset_s[kept], self.number[kept], None if self.entry is None else self.entry[kept])


class Schedule(Protocol):
    """A timetable of arrivals. `mean_rate`: arrivals per second over all of it; `duration_s`: its length, None where
    it never ends."""

    @property
    def label(self) -> str: ...
    @property
    def mean_rate(self) -> float: ...
    @property
    def duration_s(self) -> float | None: ...
    def chunks(self, seed: int) -> Iterator[Dues]:
        """All arrivals in order, at most `CHUNK` at a time."""
        ...

    def remaining(self, from_s: float, to_s: float) -> float:
        """Arrivals to be expected between two moments, in seconds from the start; exact for a trace."""
        ...

    def after(self, lead_s: float) -> Schedule:
        """The same timetable behind a warm-up of `lead_s` seconds."""
        ...

    def with_pool(self, pool_ids: Sequence[str]) -> Schedule:
        """The same with what it sends looked up among the ids of the pool's entries; a trace may raise InputError."""
        ...

    def to_json(self) -> dict[str, Any]: ...


def slice_of(schedule: Schedule, seed: int, *, worker: int, workers: int) -> Iterator[Dues]:
    """The arrivals w, w + n, w + 2n, … of worker `w` of `n`; all workers together send exactly the whole timetable.

    Raises UsageError where there is no such worker.
    """
    if not 0 <= worker < workers:
        raise UsageError("no such worker", given=f"worker {worker} of {workers}", expected="0 to workers - 1")
    for dues in schedule.chunks(seed):
        part = dues if workers == 1 else dues.every(workers, worker)
        if len(part):
            yield part


@dataclass(frozen=True, slots=True)
class Gaps:
    """How regular arrivals are: gaps of mean 1 and coefficient of variation (deviation / mean) `burstiness`.

    Constant: all gaps are 1. Poisson: exponential gaps, burstiness 1. Gamma: shape ``1 / burstiness²`` and scale
    ``burstiness²``, so the mean stays 1 and the coefficient of variation is `burstiness`: below 1 more regular than
    Poisson, above 1 in bursts with pauses between them.
    """

    kind: GapKind = "poisson"
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in ("constant", "poisson", "gamma"):
            raise UsageError("no such kind of arrivals", given=str(self.kind), expected="constant, poisson or gamma")
        if self.kind == "gamma":
            if not 0 < self.burstiness <= MOST_BURSTY:
                raise UsageError(
                    "a burstiness is the coefficient of variation of the gaps",
                    given=f"{self.burstiness:g}",
                    expected=f"above 0 and at most {MOST_BURSTY:g}; 1 is Poisson",
                )
        elif self.burstiness != 1.0:
            raise UsageError(
                f"{self.kind} arrivals have no burstiness", given=f"{self.burstiness:g}", expected="gamma arrivals"
            )

    @property
    def label(self) -> str:
        return f"gamma (burstiness {self.burstiness:g})" if self.kind == "gamma" else self.kind

    def arrivals(self, seed: int) -> Iterator[NDArray[np.float64]]:
        """Endless arrival times of rate 1, ascending, float64 [CHUNK] at a time; constant ones begin at 0."""
        if self.kind == "constant":
            first = 0
            while True:
                yield np.arange(first, first + CHUNK, dtype=np.float64)
                first += CHUNK
        generator = np.random.Generator(np.random.PCG64(seed))
        total = 0
        while True:
            steps = total + np.cumsum(np.rint(self._draw(generator) * GAP_STEPS).astype(np.int64))
            total = int(steps[-1])
            yield steps / GAP_STEPS

    def _draw(self, generator: np.random.Generator) -> NDArray[np.float64]:
        if self.kind == "poisson":
            # Inversion: one uniform number a gap in every version of numpy.
            gaps: NDArray[np.float64] = -np.log1p(-generator.random(CHUNK))
            return gaps
        shape = 1.0 / self.burstiness**2
        return generator.standard_gamma(shape, CHUNK) / shape


@dataclass(frozen=True, slots=True)
class Timetable:
    """Gaps over a profile of rates. Where the profile ends, so do the arrivals."""

    profile: RateProfile
    gaps: Gaps = Gaps()

    @property
    def label(self) -> str:
        return f"{self.profile.label} {self.gaps.label}"

    @property
    def mean_rate(self) -> float:
        return self.profile.mean_rate

    @property
    def duration_s(self) -> float | None:
        return self.profile.duration_s

    def chunks(self, seed: int) -> Iterator[Dues]:
        first = 0
        for passed in self.gaps.arrivals(seed):
            offset_s = self.profile.moments_s(passed)
            if len(offset_s):
                yield Dues(offset_s, np.arange(first, first + len(offset_s), dtype=np.int64))
            if len(offset_s) < len(passed):
                return
            first += len(offset_s)

    def remaining(self, from_s: float, to_s: float) -> float:
        return max(self.profile.passed(to_s) - self.profile.passed(from_s), 0.0)

    def after(self, lead_s: float) -> Timetable:
        """The profile's first rate is held through the warm-up; a steady rate needs no lead."""
        return Timetable(self.profile.after(lead_s), self.gaps)

    def with_pool(self, pool_ids: Sequence[str]) -> Timetable:
        """Itself: it names no entries."""
        return self

    def to_json(self) -> dict[str, Any]:
        return {"gaps": self.gaps.kind, "burstiness": self.gaps.burstiness, "profile": self.profile.to_json()}


def steady(rate: float, kind: GapKind = "poisson", *, burstiness: float = 1.0) -> Timetable:
    """`rate` arrivals per second for ever."""
    return Timetable(RateProfile.steady(rate), Gaps(kind, burstiness))


def timetable_from_json(document: Mapping[str, Any]) -> Timetable:
    """The timetable that `Timetable.to_json` described. Raises UsageError where it makes no sense."""
    try:
        profile = document["profile"]
        return Timetable(
            RateProfile(
                tuple(Segment(*map(float, segment)) for segment in profile["segments"]),
                label=str(profile["label"]),
                endless=bool(profile["endless"]),
            ),
            Gaps(document["gaps"], float(document["burstiness"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"not a timetable: {error}", given=str(document)[:200]) from None
