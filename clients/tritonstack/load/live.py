"""What a run shows while it goes: one redrawn line on a terminal, a plain line every few seconds elsewhere (stderr)."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Protocol

from tritonstack.load.arrival import Arrival
from tritonstack.load.engine import Engine
from tritonstack.terminal import human_seconds

REDRAW_S = 0.5
PLAIN_S = 5.0


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
    """Rate, p50, p99, errors and requests in flight since the line before."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()

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
                line = describe(
                    label=f"{arrival.label}  {'warm-up ' if engine.in_warmup else ''}{now_s - start_s:.0f} s",
                    rate=(now_ended - ended) / (now_s - then_s),
                    recent_s=tally.take_recent_s(),
                    errors=tally.failed,
                    in_flight=tally.in_flight,
                )
                then_s, ended = now_s, now_ended
                if self._terminal:
                    print(f"\r\033[2K{line}", end="", file=sys.stderr, flush=True)
                else:
                    print(line, file=sys.stderr, flush=True)
        finally:
            if self._terminal:
                print("\r\033[2K", end="", file=sys.stderr, flush=True)


def describe(*, label: str, rate: float, recent_s: list[float], errors: int, in_flight: int) -> str:
    """One line about the last interval; latencies are left out where none was measured in it."""
    parts = [label, f"{rate:.1f} req/s"]
    if recent_s:
        ordered = sorted(recent_s)
        p50_s, p99_s = (ordered[-(-percent * len(ordered) // 100) - 1] for percent in (50, 99))
        parts.append(f"p50 {human_seconds(p50_s)}  p99 {human_seconds(p99_s)}")
    parts += [f"{errors} errors", f"{in_flight} in flight"]
    return "  ".join(parts)
