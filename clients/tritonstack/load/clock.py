"""Waiting for a moment or for descriptors to within tens of microseconds.

The timeout of `epoll_wait` rounds up to a whole millisecond, which would be added to every
latency counted from its scheduled time. Linux's timerfd wakes at the moment itself.
"""

from __future__ import annotations

import ctypes
import os
import select
import time

CLOCK_MONOTONIC = 1
TFD_NONBLOCK = 0o4000
TFD_CLOEXEC = 0o2000000
TFD_TIMER_ABSTIME = 1


class Timespec(ctypes.Structure):
    _fields_ = [("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long)]


class Itimerspec(ctypes.Structure):
    _fields_ = [("it_interval", Timespec), ("it_value", Timespec)]


class Readiness:
    """Waits until one of many descriptors is ready or a moment has come; for one thread."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = -1
        if hasattr(self._libc, "timerfd_create"):
            self._timer = self._libc.timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        self._spec = Itimerspec()
        self._spec_at = ctypes.byref(self._spec)
        self._armed_s = 0.0
        if self._timer >= 0:
            self._epoll.register(self._timer, select.EPOLLIN)

    def register(self, fd: int, events: int) -> None:
        """Wait for `events` (``select.EPOLLIN`` and so on, level-triggered) of `fd` from now on."""
        self._epoll.register(fd, events)

    def modify(self, fd: int, events: int) -> None:
        """Wait for other events of `fd`."""
        self._epoll.modify(fd, events)

    def unregister(self, fd: int) -> None:
        """Wait for `fd` no longer; do so before it is closed."""
        self._epoll.unregister(fd)

    def wait(self, until_s: float) -> list[tuple[int, int]]:
        """The descriptors that are ready with their events; empty at the moment `until_s` of `time.monotonic`.

        With a moment that has passed it looks and does not wait.
        """
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            ready = self._epoll.poll(0)
        elif self._timer < 0 or left_s > 1e6:
            ready = self._epoll.poll(min(left_s, 1e6))
        else:
            if until_s != self._armed_s:
                self._arm(until_s)
            ready = self._epoll.poll()
        if len(ready) == 1 and ready[0][0] != self._timer:
            return ready
        return [one for one in ready if one[0] != self._timer]

    def close(self) -> None:
        """Close what is the object's own; registered descriptors stay open."""
        self._epoll.close()
        if self._timer >= 0:
            os.close(self._timer)
            self._timer = -1

    def _arm(self, moment_s: float) -> None:
        # Setting the timer anew also takes back an expiration that nobody has read.
        value = self._spec.it_value
        value.tv_sec = whole_s = int(moment_s)
        value.tv_nsec = int((moment_s - whole_s) * 1e9)
        if self._libc.timerfd_settime(self._timer, TFD_TIMER_ABSTIME, self._spec_at, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")
        self._armed_s = moment_s
