"""What a run shows while it goes: one redrawn line on a terminal, a plain line every few seconds elsewhere (stderr)."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tritonstack.load.arrival import Arrival
from tritonstack.load.series import Second, Totals, percentiles, second_of
from tritonstack.terminal import human_seconds

if TYPE_CHECKING:
    from tritonstack.load.monitor import Monitor

REDRAW_S = 0.5
PLAIN_S = 5.0
LEAST_WIDTH = 20


class Counts(Protocol):
    """What is counted of a run while it goes. Moments on `time.monotonic`; infinite where not known."""

    @property
    def open_at_s(self) -> float: ...
    @property
    def close_at_s(self) -> float: ...
    @property
    def sent(self) -> int: ...
    @property
    def succeeded(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    def take_recent_s(self) -> list[float]:
        """Latencies since the last call."""
        ...


class Running(Protocol):
    """A run that is going on."""

    @property
    def tally(self) -> Counts: ...
    @property
    def in_warmup(self) -> bool: ...
    def stop(self) -> None:
        """Stop sending; what is in flight is awaited."""
        ...


class Observer(Protocol):
    """Is told what happens; must return quickly, since it runs in the generator's loop."""

    def note(self, text: str) -> None:
        """A remark about what is being done."""

    async def follow(self, engine: Running, arrival: Arrival) -> None:
        """Watch a run until cancelled."""


class Silent:
    """Shows nothing."""

    def note(self, text: str) -> None:
        return

    async def follow(self, engine: Running, arrival: Arrival) -> None:
        while True:
            await asyncio.sleep(PLAIN_S)
            engine.tally.take_recent_s()


@dataclass(frozen=True, slots=True)
class Moment:
    """What is shown: the state of a run and its last interval. `pending` are requests queued at the server, None where
    it does not tell."""

    label: str
    in_warmup: bool
    elapsed_s: float
    rate: float
    latencies_s: Sequence[float]
    errors: int
    in_flight: int
    pending: float | None


class Display(Protocol):
    """Shows moments. `period_s` is how often it wants one."""

    @property
    def period_s(self) -> float: ...
    def note(self, text: str) -> None: ...
    def show(self, moment: Moment) -> None: ...
    def clear(self) -> None: ...


class Nothing:
    """Shows nothing."""

    period_s = PLAIN_S

    def note(self, text: str) -> None:
        return

    def show(self, moment: Moment) -> None:
        return

    def clear(self) -> None:
        return


class LiveLine:
    """One line on stderr: redrawn in place on a terminal, another one every few seconds elsewhere."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._color = self._terminal and not os.environ.get("NO_COLOR")
        self.period_s = REDRAW_S if self._terminal else PLAIN_S

    def note(self, text: str) -> None:
        print(f"\r\033[2K{text}" if self._terminal else text, file=sys.stderr, flush=True)

    def show(self, moment: Moment) -> None:
        parts = describe(moment)
        if not self._terminal:
            print("  ".join(parts), file=sys.stderr, flush=True)
            return
        # A line that wraps could not be redrawn.
        line = fitted(parts, _columns() - 1)
        if moment.errors and self._color:
            line = f"\033[31m{line}\033[0m"
        print(f"\r\033[2K{line}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._terminal:
            print("\r\033[2K", end="", file=sys.stderr, flush=True)


class Watcher:
    """Follows runs: keeps their seconds, and hands what a display shows to it."""

    def __init__(self, display: Display, monitor: Monitor | None = None) -> None:
        self._display = display
        self._monitor = monitor
        self.opened_s: list[float] = []
        """When the window of each run opened, on the clock of `time.monotonic`."""
        self.seconds: list[list[Second]] = []
        """The whole seconds of each run's window."""

    def forget(self) -> None:
        """Other runs begin."""
        self.opened_s, self.seconds = [], []

    def note(self, text: str) -> None:
        self._display.note(text)

    async def follow(self, engine: Running, arrival: Arrival) -> None:
        seconds: list[Second] = []
        self.opened_s.append(time.monotonic())
        self.seconds.append(seconds)
        await asyncio.sleep(0)
        tally = engine.tally
        start_s = shown_s = time.monotonic()
        begun_s: float | None = None
        shown = begun = Totals(0, 0, 0)
        recent: list[float] = []
        fresh: list[float] = []
        try:
            while True:
                await asyncio.sleep(_until_tick(tally.open_at_s))
                now_s = time.monotonic()
                self.opened_s[-1] = tally.open_at_s
                now = Totals(tally.sent, tally.succeeded, tally.failed)
                latencies_s = tally.take_recent_s()
                recent += latencies_s
                fresh += latencies_s
                if now_s >= tally.open_at_s and begun_s is None:
                    begun_s, begun, recent = now_s, now, []
                elif begun_s is not None and now_s - begun_s > 0.75 and now_s <= tally.close_at_s + 0.1:
                    offset_s = begun_s - tally.open_at_s
                    seconds.append(second_of(offset_s, now_s - begun_s, begun, now, recent))
                    begun_s, begun, recent = now_s, now, []
                if now_s - shown_s >= self._display.period_s - 0.1:
                    done, before = (t.succeeded + t.failed for t in (now, shown))
                    self._display.show(
                        Moment(
                            label=arrival.label,
                            in_warmup=engine.in_warmup,
                            elapsed_s=now_s - start_s,
                            rate=(done - before) / (now_s - shown_s),
                            latencies_s=fresh,
                            errors=tally.failed,
                            in_flight=tally.in_flight,
                            pending=self._monitor.pending if self._monitor is not None else None,
                        )
                    )
                    shown_s, shown, fresh = now_s, now, []
        finally:
            self.opened_s[-1] = tally.open_at_s or self.opened_s[-1]
            self._display.clear()


def _columns() -> int:
    """The width of the terminal behind stderr, 80 where it does not tell."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except OSError:
        return 80


def _until_tick(opened_s: float) -> float:
    """Seconds to the next half second counted from the opening of the window."""
    return REDRAW_S - (time.monotonic() - opened_s) % REDRAW_S


def describe(moment: Moment) -> list[str]:
    """The parts of the line, the most important first; latencies are left out where none was measured in the interval,
    and the server's queue where it is unknown."""
    parts = [f"{moment.label}  {'warm-up ' if moment.in_warmup else ''}{moment.elapsed_s:.0f} s"]
    parts.append(f"{moment.rate:.1f} req/s")
    p50_s, p99_s = percentiles(moment.latencies_s)
    if p50_s is not None and p99_s is not None:
        parts += [f"p50 {human_seconds(p50_s)}", f"p99 {human_seconds(p99_s)}"]
    parts += [f"{moment.errors} errors", f"{moment.in_flight} in flight"]
    if moment.pending is not None:
        parts.append(f"{moment.pending:.0f} queued at the server")
    return parts


def fitted(parts: Sequence[str], width: int) -> str:
    """As many of `parts` as fit into `width` columns, at least the first one, cut where even that is too long."""
    width = max(width, LEAST_WIDTH)
    line = parts[0]
    for part in parts[1:]:
        if len(line) + 2 + len(part) > width:
            break
        line += f"  {part}"
    return line[:width]
