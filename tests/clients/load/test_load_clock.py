from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tritonstack.load.clock import PreciseTimer
from tritonstack.load.live import describe


def test_the_timer_never_returns_early_and_a_passed_moment_returns_at_once() -> None:
    async def main() -> None:
        with PreciseTimer() as timer:
            for _ in range(50):
                moment_s = time.monotonic() + 0.0013
                await timer.sleep_until(moment_s)
                assert time.monotonic() >= moment_s
            await asyncio.wait_for(timer.sleep_until(time.monotonic() - 1), 1)

    asyncio.run(main())


def test_the_timer_can_be_woken_and_used_again() -> None:
    async def main() -> None:
        with PreciseTimer() as timer:
            loop = asyncio.get_running_loop()
            loop.call_later(0.01, timer.wake)
            await asyncio.wait_for(timer.sleep_until(time.monotonic() + 30), 5)
            moment_s = time.monotonic() + 0.05
            await timer.sleep_until(moment_s)
            assert time.monotonic() >= moment_s, "the abandoned alarm does not end the next wait"

    asyncio.run(main())


def test_the_timer_leaves_no_file_descriptor() -> None:
    async def main() -> None:
        with PreciseTimer() as timer:
            await timer.sleep_until(time.monotonic() + 0.001)

    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        asyncio.run(main())
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_the_live_line_shows_the_interval_by_nearest_rank() -> None:
    recent_s = [i / 1000 for i in range(1, 101)]
    line = describe(label="concurrency 4  3 s", rate=99.96, recent_s=recent_s, errors=2, in_flight=4)
    assert line == "concurrency 4  3 s  100.0 req/s  p50 50.0 ms  p99 99.0 ms  2 errors  4 in flight"
    assert "p50" not in describe(label="x", rate=0, recent_s=[], errors=0, in_flight=1)
