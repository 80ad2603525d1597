"""Sleeping until a moment in an asyncio loop, whose own timers round up to a whole millisecond."""

from __future__ import annotations

import asyncio
import ctypes
import os
from types import TracebackType

from tritonstack.load.clock import (
    CLOCK_MONOTONIC,
    TFD_CLOEXEC,
    TFD_NONBLOCK,
    TFD_TIMER_ABSTIME,
    Itimerspec,
    Timespec,
)


class PreciseTimer:
    """One waiter at a time, on the clock of `time.monotonic`. Use as a context manager inside a running loop.

    Where the system has no timerfd, asyncio's own timer is used.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = -1
        if hasattr(self._libc, "timerfd_create"):
            self._fd = self._libc.timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._fired)

    def __enter__(self) -> PreciseTimer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    async def sleep_until(self, moment_s: float) -> None:
        """Return at `moment_s` of `time.monotonic`, at once if it has passed, or early after `wake`."""
        delay_s = moment_s - self._loop.time()
        if delay_s <= 0:
            return
        self._waiter = self._loop.create_future()
        fallback = None
        whole_s = int(moment_s)
        spec = Itimerspec(Timespec(0, 0), Timespec(whole_s, int((moment_s - whole_s) * 1e9)))
        if self._fd < 0 or self._libc.timerfd_settime(self._fd, TFD_TIMER_ABSTIME, ctypes.byref(spec), None) != 0:
            fallback = self._loop.call_later(delay_s, self.wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if fallback is not None:
                fallback.cancel()

    def wake(self) -> None:
        """End the current wait early."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        self.wake()
