"""Sending sequences in an event loop: one request of each at a time, in order, and an end to each at the end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tritonstack.errors import TritonstackError
from tritonstack.load.sequence import SequenceBook, SequenceStep

SendStep = Callable[[SequenceStep], Awaitable[object]]


class SequenceDriver:
    """The `send` of an engine that sends sequences; used inside one running loop.

    `send_step` sends one step of a sequence and raises where it failed. Whoever calls `send` while all sequences have a
    request in flight waits for the first that is free, in the order of the calls.
    """

    def __init__(self, book: SequenceBook, send_step: SendStep) -> None:
        self._book = book
        self._send_step = send_step
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def send(self, _number: int) -> object:
        """Send the next step of a free sequence. The engine's own choice of a pool entry does not count."""
        while (step := self._book.take()) is None:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake_one()
                raise
        try:
            answer = await self._send_step(step)
        except BaseException:
            self._book.ended(step, failed=True)
            self._wake_one()
            raise
        self._book.ended(step)
        self._wake_one()
        return answer

    async def finish(self) -> int:
        """End the sequences that are in their middle, when nothing is in flight any more; returns how many there were.

        These last requests are not part of the run, and their failures are of no interest.
        """
        steps = self._book.closing_steps()
        for step in steps:
            with suppress(TritonstackError):
                await self._send_step(step)
        return len(steps)

    def _wake_one(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
