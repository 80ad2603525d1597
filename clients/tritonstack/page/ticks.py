"""Round numbers for the ticks of an axis."""

from __future__ import annotations

import math


def round_step(raw: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is at least `raw`, which is above 0."""
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-9))
