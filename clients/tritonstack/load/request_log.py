"""What one worker writes down of its requests: six moments each, worked up in bulk twice a second."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tritonstack.load.expected import AnswerCheck
from tritonstack.load.failure import WRONG_ANSWER
from tritonstack.load.tally import Tally
from tritonstack.load.transport import Completion

TICK_S = 0.5
"""Length of the intervals in which a run is told while it goes, counted from the opening of the window."""
_COLUMNS = 6


@dataclass(frozen=True, slots=True)
class Tick:
    """What happened in interval `number` of `TICK_S` from the opening of the window (below 0: before it).

    `sent`, `completed` and `errors` are requests in it, `in_flight` those at its end, `latencies_us` float32 [answer]
    of the good answers that came in it.
    """

    number: int
    sent: int
    completed: int
    errors: int
    in_flight: int
    latencies_us: NDArray[np.float32]


class Slot:
    """A place in flight and the moments of the request in it, on `time.monotonic`: due, allowed to go, sent."""

    __slots__ = ("due_s", "entry", "next_entry", "pause_s", "ready_s", "sent_s")

    def __init__(self, next_entry: int = 0) -> None:
        self.next_entry = next_entry
        self.entry = 0
        self.due_s = self.ready_s = self.sent_s = 0.0
        self.pause_s = 0.0


class RequestLog:
    """Counts requests into `tally` and tells ticks. `checks` holds one check per entry of the pool, None where nothing
    is expected of it; empty for none at all."""

    def __init__(self, tally: Tally, checks: Sequence[AnswerCheck | None], tell: Callable[[Tick], None]) -> None:
        self.tally = tally
        self.in_flight = 0
        self.measured = 0
        """Requests that a closed loop has measured; kept only where a number of requests was asked for."""
        self._checks = checks
        self._tell = tell
        self._rows = array("d")
        self._failed: dict[int, tuple[str, str]] = {}
        self._tick: int | None = None
        self._sent_told = 0
        self._good: dict[int, list[NDArray[np.float32]]] = {}
        self._bad: dict[int, int] = {}

    def began(self, count: int, warmup: int) -> None:
        """`count` requests went out, `warmup` of them due before the window."""
        self.in_flight += count
        tally = self.tally
        tally.sent += count
        tally.warmup += warmup
        if self.in_flight > tally.peak_in_flight:
            tally.peak_in_flight = self.in_flight

    def ended(self, completion: Completion, slot: Slot) -> tuple[str, str] | None:
        """Write down a request that ended; returns why it failed, None where it did not."""
        _, handed_s, first_s, done_s, error, body, head_length = completion
        if error is None and self._checks and (check := self._checks[slot.entry]) is not None:
            difference = check.difference(body, head_length)
            if difference is not None:
                error = WRONG_ANSWER, difference
        if error is not None:
            self._failed[len(self._rows) // _COLUMNS] = error
        self._rows.extend((slot.due_s, slot.ready_s, slot.sent_s, handed_s, first_s, done_s))
        self.in_flight -= 1
        tally = self.tally
        if tally.requests is not None and done_s >= tally.open_at_s:
            self.measured += (done_s if error is None else slot.sent_s) <= tally.close_at_s
        return error

    def fold(self) -> None:
        """Count what was written down."""
        if not self._rows:
            return
        rows = np.frombuffer(self._rows, np.float64).reshape(-1, _COLUMNS)
        self.tally.add_many(rows, self._failed)
        number = np.floor((rows[:, 5] - self.tally.open_at_s) / TICK_S).astype(np.int64)
        good = np.ones(len(rows), bool)
        good[list(self._failed)] = False
        latencies_us = ((rows[:, 5] - rows[:, 0]) * 1e6).astype(np.float32)
        for one in np.unique(number).tolist():
            here = number == one
            self._good.setdefault(one, []).append(latencies_us[here & good])
            self._bad[one] = self._bad.get(one, 0) + int(np.count_nonzero(here & ~good))
        # A new array, since an array cannot shrink while numpy looks at it.
        self._rows = array("d")
        self._failed = {}

    def tell_until(self, now_s: float) -> None:
        """Tell the ticks that are over; `fold` comes first."""
        current = math.floor((now_s - self.tally.open_at_s) / TICK_S)
        if self._tick is None:
            self._tick = min([current, *self._good])
        while self._tick < current:
            number = self._tick
            self._tick += 1
            good = self._good.pop(number, [])
            errors = self._bad.pop(number, 0)
            sent = self.tally.sent - self._sent_told
            self._sent_told = self.tally.sent
            latencies_us = np.concatenate(good) if good else np.empty(0, np.float32)
            self._tell(Tick(number, sent, len(latencies_us), errors, self.in_flight, latencies_us))
