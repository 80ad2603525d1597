"""Axes of a plot: a range, where its ticks are, where a value lies on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tritonstack.page.ticks import round_step


@dataclass(frozen=True)
class Axis:
    """From `low` to `high`, linear or logarithmic."""

    low: float
    high: float
    ticks: tuple[float, ...]
    logarithmic: bool = False

    @classmethod
    def linear(cls, values: Sequence[float]) -> Axis:
        """From zero over all `values` with about five round ticks."""
        high = max([*values, 0.0]) * 1.08 or 1.0
        step = round_step(high / 5)
        return cls(0.0, high, tuple(step * index for index in range(math.floor(high / step + 1e-9) + 1)))

    @classmethod
    def log(cls, values: Sequence[float]) -> Axis:
        """Whole and third decades around the positive ones of `values`."""
        positive = [value for value in values if value > 0] or [1.0]
        low, high = _step_down(min(positive)), round_step(max(positive))
        if low >= high:
            high = low * 10
        decades = math.log10(high / low)
        steps = (1.0,) if decades > 5 else (1.0, 3.0) if decades > 2 else (1.0, 2.0, 5.0)
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        ticks = [s * 10.0**e for e in range(first, last + 1) for s in steps]
        return cls(low, high, tuple(t for t in ticks if low * 0.999 <= t <= high * 1.001), True)

    def position(self, value: float) -> float:
        """Where `value` lies, 0 at `low` and 1 at `high`, kept within."""
        if self.logarithmic:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(max(share, 0.0), 1.0)


def _step_down(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * factor for factor in (5, 2, 1) if power * factor <= value * (1 + 1e-9))
