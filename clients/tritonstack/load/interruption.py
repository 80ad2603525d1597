"""Stopping a load test by signal: the first one ends it in order, the second one at once."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tritonstack.load.live import Observer, Running


class Stopper:
    """Turns signals into an orderly stop."""

    def __init__(self, observer: Observer) -> None:
        self.stopped = False
        self._observer = observer
        self._engine: Running | None = None
        self._measuring = False
        self._task = asyncio.current_task()

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM while inside, in the main thread; elsewhere signals cannot be had."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
                signal.signal(number, before[number] or signal.SIG_DFL)

    @contextmanager
    def stopping(self, engine: Running) -> Iterator[None]:
        """Let signals stop `engine`."""
        self._measuring = True
        self._engine = engine
        try:
            yield
        finally:
            self._engine = None

    def _signalled(self) -> None:
        # Between two levels there is nothing to stop, but what was measured so far must not be lost either.
        if self._engine is not None and not self.stopped:
            self._engine.stop()
            self._observer.note(
                f"stopping: waiting for {self._engine.tally.in_flight} requests in flight (interrupt again to give up)"
            )
        elif self._task is not None and (self.stopped or not self._measuring):
            self._task.cancel()
        self.stopped = True
