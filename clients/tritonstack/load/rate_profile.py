"""Arrivals per second over the time of a run: steady, a ramp, or steps. Pieces of linear rate, integrated exactly."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonstack.errors import UsageError

_UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_STEP = re.compile(r"(?P<rate>[0-9.eE+-]+)\s*:\s*(?P<time>[0-9.eE+-]+?)\s*(?P<unit>ms|s|min|m|h)?")
STEP_FORM = "RATE:TIME,… such as 10:30s,50:1m,0:5s"


@dataclass(frozen=True, slots=True)
class Segment:
    """`duration_s` seconds in which the rate (arrivals per second) goes evenly from `start_rate` to `end_rate`."""

    start_rate: float
    end_rate: float
    duration_s: float

    @property
    def arrivals(self) -> float:
        return (self.start_rate + self.end_rate) / 2 * self.duration_s


@dataclass(frozen=True)
class RateProfile:
    """Segments one after the other; `endless`: the last rate is held for ever. Raises UsageError for one without any
    arrival, with a negative rate or without a length."""

    segments: tuple[Segment, ...]
    label: str
    endless: bool = False

    def __post_init__(self) -> None:
        for segment in self.segments:
            rates = (segment.start_rate, segment.end_rate)
            if not all(math.isfinite(rate) and rate >= 0 for rate in rates):
                raise UsageError(
                    "a rate must be a positive number of requests per second",
                    given=", ".join(f"{rate:g}" for rate in rates if not (math.isfinite(rate) and rate >= 0)),
                    expected="0 or above",
                )
            if not (math.isfinite(segment.duration_s) and segment.duration_s > 0):
                raise UsageError("a step lasts no time", given=f"{segment.duration_s:g} s", expected="above 0")
        total = sum(segment.arrivals for segment in self.segments)
        if not 0 < total < math.inf or (self.endless and self.segments[-1].end_rate <= 0):
            raise UsageError("a profile without arrivals", given=self.label, expected="a rate above 0 somewhere")

    @classmethod
    def steady(cls, rate: float) -> RateProfile:
        """`rate` arrivals per second for ever."""
        if not 0 < rate < math.inf:
            raise UsageError(
                "a rate must be a positive number of requests per second", given=f"{rate:g}", expected="> 0"
            )
        return cls((Segment(rate, rate, 1.0),), label=f"rate {rate:g}/s", endless=True)

    @classmethod
    def ramp(cls, start_rate: float, end_rate: float, duration_s: float) -> RateProfile:
        """From one rate to another over `duration_s`, evenly in time."""
        label = f"ramp {start_rate:g} to {end_rate:g}/s in {duration_s:g} s"
        return cls((Segment(start_rate, end_rate, duration_s),), label=label)

    @classmethod
    def steps(cls, text: str) -> RateProfile:
        """The profile written as ``10:30s,50:1m``: a rate and how long it is held, seconds where no unit is given."""
        segments = []
        for part in text.split(","):
            found = _STEP.fullmatch(part.strip())
            try:
                if found is None:
                    raise ValueError
                rate = float(found["rate"])
                segments.append(Segment(rate, rate, float(found["time"]) * _UNITS_S[found["unit"] or "s"]))
            except ValueError:
                raise UsageError("not a step of a rate profile", given=repr(part), expected=STEP_FORM) from None
        return cls(tuple(segments), label=f"steps {text.replace(' ', '')}")

    @property
    def duration_s(self) -> float | None:
        """Its length; None where it never ends."""
        return None if self.endless else float(self._end_s[-1])

    @property
    def mean_rate(self) -> float:
        """Arrivals per second over all of it; of an endless one, those of the last rate."""
        return self.segments[-1].end_rate if self.endless else float(self._total[-1] / self._end_s[-1])

    def after(self, lead_s: float) -> RateProfile:
        """The same behind `lead_s` seconds of its first rate."""
        first = self.segments[0].start_rate
        if lead_s <= 0 or (self.endless and len(self.segments) == 1):
            return self
        return RateProfile((Segment(first, first, lead_s), *self.segments), self.label, self.endless)

    def passed(self, moment_s: float) -> float:
        """Arrivals let through until `moment_s`: the integral of the rate from 0."""
        before = 0.0
        start_s = 0.0
        for segment in self.segments:
            inside_s = min(max(moment_s - start_s, 0.0), segment.duration_s)
            slope = (segment.end_rate - segment.start_rate) / segment.duration_s
            before += segment.start_rate * inside_s + slope * inside_s * inside_s / 2
            start_s += segment.duration_s
        if self.endless and moment_s > start_s:
            before += self.segments[-1].end_rate * (moment_s - start_s)
        return before

    def moments_s(self, passed: NDArray[np.float64]) -> NDArray[np.float64]:
        """When that many arrivals have been let through, in seconds; float64 [arrival], ascending as `passed` is.

        Those that the profile never reaches are left out at the end.
        """
        if self.endless and len(self.segments) == 1:
            return passed / self.segments[0].end_rate
        total, end_s = self._total, self._end_s
        if not self.endless:
            passed = passed[: int(np.searchsorted(passed, total[-1], side="left"))]
        # Segments without arrivals are passed over, since their end has as many arrivals behind it as their start.
        index = np.minimum(np.searchsorted(total, passed, side="right"), len(total) - 1)
        starts, ends, lengths = (
            np.array([getattr(segment, name) for segment in self.segments])
            for name in ("start_rate", "end_rate", "duration_s")
        )
        inside = passed - np.concatenate([[0.0], total])[index]
        slope = ((ends - starts) / lengths)[index]
        first = starts[index]
        # The smaller root of first*t + slope*t²/2 = inside, in the form that stays exact for a slope of zero.
        root = np.sqrt(np.maximum(first * first + 2 * slope * inside, 0.0))
        divisor = first + root
        within_s = np.divide(2 * inside, divisor, out=np.zeros_like(inside), where=divisor > 0)
        moments_s = np.concatenate([[0.0], end_s])[index] + within_s
        if self.endless:
            beyond = passed >= total[-1]
            moments_s[beyond] = end_s[-1] + (passed[beyond] - total[-1]) / self.segments[-1].end_rate
        else:
            # Rounding may not carry an arrival across the end, where a run of that length would not send it.
            np.minimum(moments_s, np.nextafter(end_s[-1], 0.0), out=moments_s)
        return np.maximum.accumulate(moments_s)

    def to_json(self) -> dict[str, Any]:
        segments = [[s.start_rate, s.end_rate, s.duration_s] for s in self.segments]
        return {"label": self.label, "endless": self.endless, "segments": segments}

    @cached_property
    def _end_s(self) -> NDArray[np.float64]:
        return np.cumsum([segment.duration_s for segment in self.segments])

    @cached_property
    def _total(self) -> NDArray[np.float64]:
        """Arrivals let through at the end of each segment, float64 [segment]."""
        return np.cumsum([segment.arrivals for segment in self.segments])
