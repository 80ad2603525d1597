"""A generator in one event loop: drives one `send` coroutine in a closed or an open loop and counts what comes back.

The load tester itself runs `WorkerLoop` in processes of their own; this one drives senders whose behaviour is known,
and shows what is counted of them.

It knows nothing of Triton: `send(index)` sends the index-th request of a prepared pool. One engine is one run in one
event loop. At the end nothing is cut: sending stops and calls in flight are awaited, since clients that hang up with
calls in flight can crash the server (triton-inference-server/server#7368).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from precise_timer import PreciseTimer

from tritonstack.load.arrival import Arrival, ClosedLoop, OpenLoop
from tritonstack.load.failure import Failure as Failure
from tritonstack.load.garbage import collect_where_needed, no_collections
from tritonstack.load.measurement import BACKLOG_GRACE_S, COUNTED_ONE_BY_ONE, Measurement
from tritonstack.load.tally import Tally

Send = Callable[[int], Awaitable[object]]
Classify = Callable[[Exception], "Failure | None"]


@dataclass(frozen=True, slots=True)
class Window:
    """What is measured: after `warmup_s`, `duration_s` seconds or `requests` requests, whichever ends first."""

    warmup_s: float
    duration_s: float | None
    requests: int | None


EngineResult = Measurement
"""One finished run; `loop_busy_s` is the CPU time of the event loop's thread alone."""


class Engine:
    """One run of one arrival pattern. `run` once; `stop` ends it early from the same loop."""

    def __init__(
        self,
        *,
        send: Send,
        pool_size: int,
        arrival: Arrival,
        window: Window,
        classify: Classify,
        max_in_flight: int,
        drain_s: float,
        seed: int = 0,
        on_open: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._send = send
        self._pool_size = pool_size
        self._arrival = arrival
        self._window = window
        self._classify = classify
        self._max_in_flight = max_in_flight
        self._drain_s = drain_s
        self._seed = seed
        self._on_open = on_open
        self._stopped = False
        self._interrupted = False
        self._failure: BaseException | None = None
        self._tasks: set[asyncio.Task[object]] = set()
        self._ended: asyncio.Future[None] | None = None
        self._timer: PreciseTimer | None = None
        self._slot: asyncio.Future[float] | None = None
        self.tally = Tally(by_schedule=isinstance(arrival, OpenLoop), open_at_s=0.0, requests=window.requests)

    @property
    def in_warmup(self) -> bool:
        return time.monotonic() < self.tally.open_at_s

    def stop(self) -> None:
        """Stop sending; what is in flight is awaited and `run` returns what was measured so far."""
        if not self._stopped:
            self._interrupted = True
            self.tally.close_at_s = min(self.tally.close_at_s, time.monotonic())
            self._finish()

    async def run(self) -> EngineResult:
        """Run to the end of the window and drain. Raises what `send` raised where `classify` did not know it."""
        loop = asyncio.get_running_loop()
        if self._on_open is not None and self._window.warmup_s <= 0:
            await self._on_open()
        with no_collections() as collections:
            start_s = time.monotonic()
            tally = self.tally
            tally.open_at_s = start_s + self._window.warmup_s
            if self._window.duration_s is not None and not self._interrupted:
                tally.close_at_s = tally.open_at_s + self._window.duration_s
            self._ended = loop.create_future()
            with PreciseTimer() as self._timer:
                if isinstance(self._arrival, ClosedLoop):
                    for index in range(self._arrival.concurrency):
                        self._spawn(self._closed_worker(index, self._arrival.concurrency))
                else:
                    self._spawn(self._dispatcher(self._arrival, start_s, self._timer))
                try:
                    cpu_s, loop_busy_s = await self._watch(self._ended)
                    abandoned = await self._drain()
                except BaseException:
                    # Whatever ended the run early, no call is left behind in the loop.
                    await self._cancel_all()
                    raise
        if self._failure is not None:
            raise self._failure
        window_s = max(min(tally.close_at_s, time.monotonic()) - tally.open_at_s, 0.0)
        return EngineResult(tally, window_s, cpu_s, loop_busy_s, self._interrupted, abandoned, collections[0])

    async def _watch(self, ended: asyncio.Future[None]) -> tuple[float, float]:
        """Wait through warm-up and window; returns the CPU seconds used inside it by the process and by this thread."""
        await self._until(self.tally.open_at_s, ended)
        cpu_at_open_s, thread_at_open_s = time.process_time(), time.thread_time()
        opening = None
        if self._on_open is not None and self._window.warmup_s > 0:
            opening = asyncio.ensure_future(self._on_open())
        await self._until(self.tally.close_at_s, ended)
        cpu_s, loop_busy_s = time.process_time() - cpu_at_open_s, time.thread_time() - thread_at_open_s
        if self.tally.close_at_s == float("inf"):
            self.tally.close_at_s = max(self.tally.last_measured_s, self.tally.open_at_s)
        self._stopped = self._stopped or not self.tally.by_schedule
        if opening is not None:
            await opening
        return cpu_s, loop_busy_s

    async def _until(self, moment_s: float, ended: asyncio.Future[None]) -> None:
        """Wait for a moment or for the end of the run; collects garbage where it piles up."""
        while not ended.done():
            left_s = moment_s - time.monotonic()
            if left_s <= 0:
                return
            await asyncio.wait([ended], timeout=min(left_s, 1.0))
            collect_where_needed()

    async def _drain(self) -> int:
        """Await what is in flight; cancel what outlives its own deadline. Returns how many were cancelled."""
        limit_s = time.monotonic() + self._drain_s + (BACKLOG_GRACE_S if self.tally.by_schedule else 0.0)
        while self._tasks and (left_s := limit_s - time.monotonic()) > 0:
            # The dispatcher may still add tasks, so one pass is not enough.
            await asyncio.wait(tuple(self._tasks), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        return await self._cancel_all()

    async def _cancel_all(self) -> int:
        leftovers = tuple(self._tasks)
        for task in leftovers:
            task.cancel()
        await asyncio.gather(*leftovers, return_exceptions=True)
        return len(leftovers)

    def _finish(self) -> None:
        self._stopped = True
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
        if self._timer is not None:
            self._timer.wake()

    def _spawn(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._reap)

    def _reap(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
            self._finish()

    async def _closed_worker(self, index: int, stride: int) -> None:
        """Send, await, count, again; each worker walks its own part of the pool."""
        pause_s = 0.0
        while not self._stopped and self._allowed():
            failure = await self._one(index % self._pool_size, due_s=None, ready_s=None)
            index += stride
            pause_s = 0.0 if failure is None or not failure.retreat else min(max(pause_s * 2, 0.01), 0.5)
            if pause_s and not self._stopped:
                await asyncio.sleep(pause_s)

    def _allowed(self) -> bool:
        """Whether one more request may start without measuring more than was asked for."""
        wanted = self._window.requests
        return wanted is None or self.in_warmup or self.tally.measured + self.tally.in_flight < wanted

    async def _dispatcher(self, arrival: OpenLoop, start_s: float, timer: PreciseTimer) -> None:
        """Send by the clock. A full house delays a request; it never drops it, and its latency keeps the wait."""
        tally = self.tally
        wanted = self._window.requests
        scheduled = 0
        full_until_s = start_s
        for offset_s, index in _dues(arrival, self._seed, self._pool_size):
            due_s = start_s + offset_s
            counts = due_s >= tally.open_at_s
            if due_s >= tally.close_at_s or (counts and wanted is not None and scheduled >= wanted):
                break
            scheduled += counts
            if self._stopped or time.monotonic() > tally.close_at_s + BACKLOG_GRACE_S:
                # Nothing more is sent, so what is left is only counted: one by one, or, where that would take long,
                # as the rate says.
                tally.unsent += counts
                rest = arrival.schedule.remaining(
                    max(due_s, tally.open_at_s) - start_s, min(tally.close_at_s - start_s, 1e12)
                )
                if wanted is not None:
                    rest = min(rest, wanted - scheduled)
                if COUNTED_ONE_BY_ONE < rest < float("inf"):
                    tally.unsent += round(rest)
                    break
                continue
            if due_s > time.monotonic():
                await timer.sleep_until(due_s)
            else:
                await asyncio.sleep(0)
            if self._failure is not None or due_s >= tally.close_at_s:
                break
            if tally.in_flight >= self._max_in_flight:
                full_until_s = await self._wait_for_slot()
            # What was due while the house was full could not go before a place was free, whoever got that place.
            ready_s = max(due_s, full_until_s)
            tally.limit_hits += counts and full_until_s > due_s
            if self._stopped or time.monotonic() > tally.close_at_s + BACKLOG_GRACE_S:
                tally.unsent += counts
                continue
            tally.started(due_s)
            self._spawn(self._one(index, due_s=due_s, ready_s=ready_s))

    async def _wait_for_slot(self) -> float:
        """Wait until fewer than the bound are in flight; returns when the place became free."""
        freed_s = time.monotonic()
        while self.tally.in_flight >= self._max_in_flight and not self._stopped:
            self._slot = asyncio.get_running_loop().create_future()
            left_s = self.tally.close_at_s + BACKLOG_GRACE_S - time.monotonic()
            await asyncio.wait([self._slot], timeout=None if left_s == float("inf") else max(left_s, 0.0))
            freed_s = self._slot.result() if self._slot.done() else time.monotonic()
            if left_s <= 0:
                break
        return freed_s

    async def _one(self, index: int, *, due_s: float | None, ready_s: float | None) -> Failure | None:
        """Send one request and count it. `due_s` None: a closed loop, where due and sent are the same moment."""
        tally = self.tally
        sent_s = time.monotonic()
        if due_s is None:
            tally.started(sent_s)
        failure = None
        try:
            await self._send(index)
        except Exception as error:
            failure = self._classify(error)
            if failure is None:
                raise
        done_s = time.monotonic()
        tally.add(
            due_s=sent_s if due_s is None else due_s,
            ready_s=sent_s if ready_s is None else ready_s,
            sent_s=sent_s,
            done_s=done_s,
            error=None if failure is None else (failure.kind, failure.message),
        )
        if self._slot is not None and not self._slot.done():
            self._slot.set_result(done_s)
        if tally.requests is not None and tally.measured >= tally.requests:
            self._finish()
        return failure


def _dues(arrival: OpenLoop, seed: int, pool_size: int) -> Iterator[tuple[float, int]]:
    """When each request is due, in seconds from the start, and which of the pool it is."""
    for dues in arrival.schedule.chunks(seed):
        yield from zip(dues.offset_s.tolist(), dues.entries(pool_size).tolist(), strict=True)
