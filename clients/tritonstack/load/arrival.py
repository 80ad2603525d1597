"""When requests are sent: closed loop, or open loop by a timetable.

A closed loop keeps `concurrency` requests in flight and sends the next one when an answer comes, so a slow server
slows the load down. An open loop sends by the clock, whatever the server does, as independent users would.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tritonstack.errors import UsageError
from tritonstack.load.schedule import GapKind, Schedule, steady

ArrivalKind = Literal["poisson", "constant", "gamma", "schedule"]


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
    """`rate` requests per second by the clock, at gaps of `kind` (see `Gaps`), or whatever a `timetable` says.

    With a timetable of its own (`OpenLoop.following`), `kind` is ``schedule`` and `rate` its mean.
    """

    rate: float
    kind: ArrivalKind = "poisson"
    burstiness: float = 1.0
    timetable: Schedule | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if (self.kind == "schedule") != (self.timetable is not None):
            raise UsageError("an arrival of kind 'schedule' has a timetable, no other has", given=self.kind)
        if self.timetable is None:
            steady(self.rate, self._gap_kind, burstiness=self.burstiness)

    @classmethod
    def following(cls, timetable: Schedule) -> OpenLoop:
        """The open loop that sends by `timetable`: a ramp, steps, a trace."""
        return cls(timetable.mean_rate, "schedule", 1.0, timetable)

    @property
    def schedule(self) -> Schedule:
        """The timetable of this loop."""
        if self.timetable is not None:
            return self.timetable
        return steady(self.rate, self._gap_kind, burstiness=self.burstiness)

    def with_pool(self, pool_ids: Sequence[str]) -> OpenLoop:
        """The same loop with what its timetable sends looked up among the pool's ids; InputError where it is not."""
        return self if self.timetable is None else OpenLoop.following(self.timetable.with_pool(pool_ids))

    @property
    def label(self) -> str:
        return self.schedule.label

    def offsets_s(self, seed: int) -> Iterator[float]:
        """Send times in seconds from the start, ascending; endless unless the timetable ends."""
        for dues in self.schedule.chunks(seed):
            yield from dues.offset_s.tolist()

    @property
    def _gap_kind(self) -> GapKind:
        return "poisson" if self.kind == "schedule" else self.kind


Arrival = ClosedLoop | OpenLoop
