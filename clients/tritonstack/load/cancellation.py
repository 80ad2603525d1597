"""Cancelling some requests on purpose, as impatient users do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tritonstack.errors import TritonstackError, UsageError

# splitmix64 (Steele, Lea, Flood 2014): every bit of the number and of the seed reaches every bit of the result.
_INCREMENT, _FIRST, _SECOND, _MASK = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 2**64 - 1


class CancelledOnPurpose(TritonstackError):
    """A request that the load tester itself took back; no error of the server."""


@dataclass(frozen=True, slots=True)
class CancelPlan:
    """The fraction `fraction` of requests is cancelled `after_s` seconds after it was sent, unless it is answered by
    then. Which ones depends on their number in the timetable and the seed alone, not on workers."""

    fraction: float
    after_s: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise UsageError(
                "a fraction of requests to cancel", given=f"{self.fraction:g}", expected="above 0, up to 1"
            )
        if not 0 <= self.after_s < math.inf:
            raise UsageError("a delay before cancelling", given=f"{self.after_s:g} s", expected="0 or above")

    def after_of(self, number: int) -> float | None:
        """When the `number`-th request is cancelled, in seconds after it was sent; None where it is not."""
        mixed = (self.seed * _INCREMENT + number + 1) * _INCREMENT & _MASK
        mixed = (mixed ^ mixed >> 30) * _FIRST & _MASK
        mixed = (mixed ^ mixed >> 27) * _SECOND & _MASK
        return self.after_s if (mixed ^ mixed >> 31) < self.fraction * 2**64 else None

    def to_json(self) -> dict[str, Any]:
        return {"fraction": self.fraction, "after_s": self.after_s, "seed": self.seed}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> CancelPlan:
        """What `to_json` described."""
        return cls(float(document["fraction"]), float(document["after_s"]), int(document["seed"]))
