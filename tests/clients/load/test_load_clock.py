from __future__ import annotations

import asyncio
import time
from pathlib import Path

from precise_timer import PreciseTimer


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
