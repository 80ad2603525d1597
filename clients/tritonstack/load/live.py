"""What a run shows while it goes: one redrawn line on a terminal, a plain line every few seconds elsewhere (stderr)."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from tritonstack.load.arrival import Arrival
from tritonstack.load.engine import Engine
from tritonstack.terminal import human_seconds

if TYPE_CHECKING:
    from tritonstack.load.monitor import Monitor
    from tritonstack.load.plan import LoadPlan

REDRAW_S = 0.5
PLAIN_S = 5.0
LEAST_WIDTH = 20


class Observer(Protocol):
    """Is told what happens; must return quickly, since it runs in the generator's loop."""

    def note(self, text: str) -> None:
        """A remark about what is being done."""

    async def follow(self, engine: Engine, arrival: Arrival) -> None:
        """Watch a run until cancelled."""


class Silent:
    """Shows nothing."""

    def note(self, text: str) -> None:
        return

    async def follow(self, engine: Engine, arrival: Arrival) -> None:
        while True:
            await asyncio.sleep(PLAIN_S)
            engine.tally.take_recent_s()


class LiveLine:
    """Rate, p50, p99, errors, requests in flight and pending at the server since the line before."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._color = self._terminal and not os.environ.get("NO_COLOR")
        self.monitor: Monitor | None = None

    def note(self, text: str) -> None:
        print(f"\r\033[2K{text}" if self._terminal else text, file=sys.stderr, flush=True)

    async def follow(self, engine: Engine, arrival: Arrival) -> None:
        period_s = REDRAW_S if self._terminal else PLAIN_S
        start_s = then_s = time.monotonic()
        ended = 0
        try:
            while True:
                await asyncio.sleep(period_s)
                now_s = time.monotonic()
                tally = engine.tally
                now_ended = tally.succeeded + tally.failed
                parts = describe(
                    label=f"{arrival.label}  {'warm-up ' if engine.in_warmup else ''}{now_s - start_s:.0f} s",
                    rate=(now_ended - ended) / (now_s - then_s),
                    recent_s=tally.take_recent_s(),
                    errors=tally.failed,
                    in_flight=tally.in_flight,
                    pending=self.monitor.pending if self.monitor is not None else None,
                )
                then_s, ended = now_s, now_ended
                self._show(parts, failing=tally.failed > 0)
        finally:
            if self._terminal:
                print("\r\033[2K", end="", file=sys.stderr, flush=True)

    def _show(self, parts: Sequence[str], *, failing: bool) -> None:
        if not self._terminal:
            print("  ".join(parts), file=sys.stderr, flush=True)
            return
        # A line that wraps could not be redrawn.
        line = fitted(parts, shutil.get_terminal_size().columns - 1)
        if failing and self._color:
            line = f"\033[31m{line}\033[0m"
        print(f"\r\033[2K{line}", end="", file=sys.stderr, flush=True)


class TimedObserver:
    """Passes everything on, remembers when each level of the current plan began and shows the server's queue."""

    def __init__(self, inner: Observer, monitor: Monitor) -> None:
        self._inner = inner
        self.starts_s: list[float] = []
        if isinstance(inner, LiveLine):
            inner.monitor = monitor

    def starting(self, plan: LoadPlan) -> None:
        """Another plan begins."""
        self.starts_s = []

    def note(self, text: str) -> None:
        self._inner.note(text)

    async def follow(self, engine: Engine, arrival: Arrival) -> None:
        self.starts_s.append(time.monotonic())
        await self._inner.follow(engine, arrival)


def describe(
    *, label: str, rate: float, recent_s: list[float], errors: int, in_flight: int, pending: float | None = None
) -> list[str]:
    """The parts of one line about the last interval, the most important first; latencies are left out where none was
    measured in it, and the server's queue where it is unknown."""
    parts = [label, f"{rate:.1f} req/s"]
    if recent_s:
        ordered = sorted(recent_s)
        p50_s, p99_s = (ordered[-(-percent * len(ordered) // 100) - 1] for percent in (50, 99))
        parts += [f"p50 {human_seconds(p50_s)}", f"p99 {human_seconds(p99_s)}"]
    parts += [f"{errors} errors", f"{in_flight} in flight"]
    if pending is not None:
        parts.append(f"{pending:.0f} queued at the server")
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
