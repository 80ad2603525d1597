"""When requests are sent: closed loop, or open loop with Poisson or constant arrivals.

A closed loop keeps `concurrency` requests in flight and sends the next one when an answer comes, so a slow server
slows the load down. An open loop sends by the clock, whatever the server does, as independent users would.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tritonstack.errors import UsageError

_CHUNK = 4096
"""Gaps drawn at a time, so that a schedule of any length costs constant memory."""

ArrivalKind = Literal["poisson", "constant"]


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`concurrency` requests in flight at any time."""

    concurrency: int

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise UsageError("a concurrency must be at least 1", given=str(self.concurrency))

    @property
    def label(self) -> str:
        return f"concurrency {self.concurrency}"


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """`rate` requests per second by the clock, at Poisson or constant intervals."""

    rate: float
    kind: ArrivalKind = "poisson"

    def __post_init__(self) -> None:
        if not (0 < self.rate < float("inf")):
            raise UsageError(
                "a rate must be a positive number of requests per second", given=f"{self.rate:g}", expected="> 0"
            )

    @property
    def label(self) -> str:
        return f"rate {self.rate:g}/s {self.kind}"

    def offsets_s(self, seed: int) -> Iterator[float]:
        """Endless send times in seconds from the start, ascending.

        Constant: the i-th is exactly ``i / rate`` (no accumulated rounding). Poisson: gaps are exponential with mean
        ``1 / rate``, drawn from PCG64 seeded with `seed`, so the same seed gives the same arrivals everywhere.
        """
        if self.kind == "constant":
            index = 0
            while True:
                yield index / self.rate
                index += 1
        generator = np.random.Generator(np.random.PCG64(seed))
        now_s = 0.0
        while True:
            times_s = now_s + np.cumsum(generator.exponential(1.0 / self.rate, _CHUNK))
            yield from times_s.tolist()
            now_s = float(times_s[-1])


Arrival = ClosedLoop | OpenLoop
