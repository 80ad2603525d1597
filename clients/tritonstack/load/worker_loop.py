"""The loop of one worker: sends by the answers or by the clock over a transport, and writes down what comes back.

One thread and no event loop, so that a request costs a few steps here and the transport's own. The semantics are those
of `engine.Engine`: at the end nothing is cut, sending stops and what is in flight is awaited.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tritonstack.load.expected import AnswerCheck
from tritonstack.load.failure import UNAVAILABLE
from tritonstack.load.garbage import collect_where_needed, no_collections
from tritonstack.load.measurement import BACKLOG_GRACE_S, COUNTED_ONE_BY_ONE
from tritonstack.load.request_log import TICK_S, RequestLog, Slot, Tick
from tritonstack.load.schedule import Dues, Schedule
from tritonstack.load.tally import Tally
from tritonstack.load.transport import Completion, Transport

LISTEN_S = 0.1
"""How often it is looked whether the run was stopped."""
LOOK_S = 1.0
"""How often one answer is shown to `look`."""
BACKLOG_SENDS = 32
"""Requests of a backlog that are sent before answers are looked for again."""
FIRST_RETREAT_S, LONGEST_RETREAT_S = 0.01, 0.5
"""How long a place of a closed loop pauses where nothing listens."""
_NEVER_S = math.inf


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """The share of worker `worker` of `workers` in one run.

    `concurrency` is that of all workers together, None in an open loop. `requests` is this worker's own share in a
    closed loop, the number of all workers together in an open one. `max_in_flight` bounds this worker in an open loop.
    `start_s` is a moment of `time.monotonic`.
    """

    worker: int
    workers: int
    start_s: float
    warmup_s: float
    duration_s: float | None
    requests: int | None
    concurrency: int | None
    max_in_flight: int
    timeout_s: float
    drain_s: float
    seed: int


class WorkerLoop:
    """One run of one worker; `run` it once, then `tally` and the other results are there.

    `checks` as in `RequestLog`; `stopped` is asked ten times a second whether to end early; `look` is shown a good
    answer each second.
    """

    def __init__(
        self,
        transport: Transport,
        options: LoopOptions,
        *,
        pool_size: int,
        schedule: Schedule | None = None,
        checks: Sequence[AnswerCheck | None] = (),
        tell: Callable[[Tick], None] = lambda tick: None,
        stopped: Callable[[], bool] = lambda: False,
        look: Callable[[Completion], None] = lambda completion: None,
    ) -> None:
        self._transport = transport
        self._options = options
        self._pool_size = pool_size
        self._schedule = schedule
        self._asked_to_stop = stopped
        self._look = look
        self._look_at_s = 0.0
        self._slots: list[Slot] = []
        self._fresh: list[Slot] = []
        self._over = False
        self._next_s = 0.0
        self._cpu_from: tuple[float, float] | None = None
        open_at_s = options.start_s + options.warmup_s
        self.tally = Tally(
            by_schedule=schedule is not None,
            open_at_s=open_at_s,
            close_at_s=_NEVER_S if options.duration_s is None else open_at_s + options.duration_s,
            requests=options.requests if schedule is None else None,
        )
        self._log = RequestLog(self.tally, checks, tell)
        self.interrupted = False
        self.abandoned = 0
        """Requests that outlived their deadline and were given up."""
        self.cpu_s = self.thread_s = 0.0
        """CPU time inside the window of the process and of this thread."""
        self.gc_collections = 0

    def run(self) -> None:
        """Run to the end of the window and drain; blocks."""
        with no_collections() as collections:
            while (now_s := time.monotonic()) < self._options.start_s and not self._over:
                self._watch(now_s)
                # Nothing is in flight, so this only waits; a transport may use the time to connect.
                self._transport.poll(min(self._options.start_s, self._next_s))
            if self._schedule is None:
                self._closed_loop()
            else:
                self._open_loop(self._schedule)
            self._end_window()
            if self._options.requests is not None and not self.interrupted:
                # The number of requests ended it, so the window was as long as they took.
                tally = self.tally
                if time.monotonic() < tally.close_at_s:
                    tally.close_at_s = max(tally.last_measured_s, tally.open_at_s)
            self._drain()
        self.gc_collections = collections[0]

    # ---- closed loop: the answer to a request lets the next one go

    def _closed_loop(self) -> None:
        options, log, slots = self._options, self._log, self._slots
        stride = options.concurrency or 1
        paused: list[tuple[float, int]] = []
        for token, index in enumerate(range(options.worker, stride, options.workers)):
            slots.append(Slot(index))
            self._send_next(token, stride)
        poll, ended = self._transport.poll, log.ended
        while True:
            now_s = time.monotonic()
            self._stamp(now_s)
            if now_s >= self._next_s:
                self._watch(now_s)
            if self._over or (not log.in_flight and not paused):
                return
            until_s = min(self._next_s, paused[0][0]) if paused else self._next_s
            for completion in poll(until_s):
                token = completion[0]
                slot = slots[token]
                error = ended(completion, slot)
                if error is None:
                    if completion[3] >= self._look_at_s:
                        self._show(completion)
                elif error[0] == UNAVAILABLE:
                    slot.pause_s = min(max(slot.pause_s * 2, FIRST_RETREAT_S), LONGEST_RETREAT_S)
                    heapq.heappush(paused, (time.monotonic() + slot.pause_s, token))
                    continue
                slot.pause_s = 0.0
                self._send_next(token, stride)
            if paused:
                now_s = time.monotonic()
                while paused and paused[0][0] <= now_s:
                    self._send_next(heapq.heappop(paused)[1], stride)

    def _send_next(self, token: int, stride: int) -> None:
        """Queue the next request of a place, unless that would measure more than was asked for."""
        wanted = self.tally.requests
        log = self._log
        if (
            wanted is not None
            and time.monotonic() >= self.tally.open_at_s
            and (log.measured + log.in_flight + len(self._fresh) >= wanted)
        ):
            return
        slot = self._slots[token]
        slot.entry = entry = slot.next_entry % self._pool_size
        slot.next_entry += stride
        self._transport.send(token, entry, self._options.timeout_s)
        self._fresh.append(slot)

    def _stamp(self, now_s: float) -> None:
        """What was queued goes out now, with the next poll: so that is when it was sent, and in a closed loop due."""
        fresh = self._fresh
        if fresh:
            for slot in fresh:
                slot.due_s = slot.ready_s = slot.sent_s = now_s
            self._log.began(len(fresh), len(fresh) if now_s < self.tally.open_at_s else 0)
            fresh.clear()

    # ---- open loop: the clock lets requests go

    def _open_loop(self, schedule: Schedule) -> None:
        options, log, tally, slots = self._options, self._log, self.tally, self._slots
        free: list[int] = []
        full_until_s = options.start_s
        dues = self._dues(schedule)
        due = next(dues, None)
        poll, ended, send = self._transport.poll, log.ended, self._transport.send
        bound, open_at_s = options.max_in_flight, tally.open_at_s
        while True:
            now_s = time.monotonic()
            if now_s >= self._next_s:
                self._watch(now_s)
            if self._over or now_s > tally.close_at_s + BACKLOG_GRACE_S:
                self._count_unsent(schedule, due, dues)
                return
            fresh = self._fresh
            in_warmup = 0
            while due is not None and due[0] <= now_s and len(fresh) < BACKLOG_SENDS:
                if due[0] >= tally.close_at_s:
                    due = None
                    break
                if log.in_flight + len(fresh) >= bound:
                    break
                if not free:
                    free.append(len(slots))
                    slots.append(Slot())
                token = free.pop()
                slot = slots[token]
                slot.due_s, slot.entry = due
                # What was due while all places were taken could not go before one was free, whoever got that one.
                slot.ready_s = max(slot.due_s, full_until_s)
                in_warmup += slot.due_s < open_at_s
                tally.limit_hits += slot.due_s >= open_at_s and full_until_s > slot.due_s
                send(token, slot.entry, options.timeout_s)
                fresh.append(slot)
                due = next(dues, None)
            if fresh:
                sent_s = time.monotonic()
                for slot in fresh:
                    slot.sent_s = sent_s
                log.began(len(fresh), in_warmup)
                fresh.clear()
            until_s = self._next_s
            if due is None:
                if not log.in_flight and (options.requests is not None or now_s >= tally.close_at_s):
                    return
            elif log.in_flight < bound:
                until_s = min(until_s, due[0])
            for completion in poll(until_s):
                token, done_s = completion[0], completion[3]
                if log.in_flight >= bound and due is not None and due[0] <= done_s:
                    full_until_s = done_s
                if ended(completion, slots[token]) is None and done_s >= self._look_at_s:
                    self._show(completion)
                free.append(token)

    def _dues(self, schedule: Schedule) -> Iterator[tuple[float, int]]:
        """This worker's arrivals: the moment and the entry of the pool. Ends with the number of requests asked for,
        counted over all workers from the opening of the window."""
        options = self._options
        counted = 0
        for dues in schedule.chunks(options.seed):
            if options.requests is not None:
                place = counted + np.cumsum(dues.offset_s >= options.warmup_s)
                counted = int(place[-1])
                if counted > options.requests:
                    dues = _first(dues, int(np.searchsorted(place, options.requests, side="right")))
            own = dues if options.workers == 1 else dues.every(options.workers, options.worker)
            moments_s = (own.offset_s + options.start_s).tolist()
            yield from zip(moments_s, own.entries(self._pool_size).tolist(), strict=True)
            if options.requests is not None and counted >= options.requests:
                return

    def _count_unsent(
        self, schedule: Schedule, due: tuple[float, int] | None, dues: Iterator[tuple[float, int]]
    ) -> None:
        """Nothing more is sent, so what is left is only counted: one by one, or, where that would take long, as the
        schedule says."""
        options, tally = self._options, self.tally
        while due is not None and due[0] < tally.close_at_s:
            if due[0] >= tally.open_at_s:
                until_s = min(tally.close_at_s - options.start_s, 1e12)
                rest = schedule.remaining(due[0] - options.start_s, until_s) / options.workers
                if COUNTED_ONE_BY_ONE < rest < _NEVER_S and options.requests is None:
                    tally.unsent += round(rest)
                    return
                tally.unsent += 1
            due = next(dues, None)

    # ---- both

    def _watch(self, now_s: float) -> None:
        """What is to be done now and then; sets `_next_s`, when the next time is."""
        tally, log = self.tally, self._log
        if self._cpu_from is None and now_s >= tally.open_at_s:
            self._cpu_from = time.process_time(), time.thread_time()
        log.fold()
        log.tell_until(now_s)
        collect_where_needed()
        if now_s >= tally.close_at_s:
            self._end_window()
            self._over = self._over or not tally.by_schedule
        elif tally.requests is not None and log.measured >= tally.requests:
            self._over = True
        if not self._over and self._asked_to_stop():
            self.interrupted = self._over = True
            tally.close_at_s = min(tally.close_at_s, time.monotonic())
        tick_s = tally.open_at_s + (math.floor((now_s - tally.open_at_s) / TICK_S) + 1) * TICK_S
        moments_s = (now_s + LISTEN_S, tick_s, *(at_s for at_s in (tally.open_at_s, tally.close_at_s) if at_s > now_s))
        self._next_s = min(moments_s)

    def _end_window(self) -> None:
        """The window is over, by time, by the number of requests or because of a stop."""
        if self._cpu_from is not None and not self.cpu_s:
            self.cpu_s = time.process_time() - self._cpu_from[0]
            self.thread_s = time.thread_time() - self._cpu_from[1]
        self._log.fold()

    def _drain(self) -> None:
        """Await what is in flight, and give up what outlives its own deadline."""
        log = self._log
        limit_s = time.monotonic() + self._options.drain_s
        while log.in_flight and (now_s := time.monotonic()) < limit_s:
            if now_s >= self._next_s:
                self._watch(now_s)
            for completion in self._transport.poll(min(self._next_s, limit_s)):
                log.ended(completion, self._slots[completion.token])
        self.abandoned = log.in_flight
        log.fold()
        log.tell_until(time.monotonic() + TICK_S)

    def _show(self, completion: Completion) -> None:
        self._look_at_s = completion.done_s + LOOK_S
        self._look(completion)


def _first(dues: Dues, count: int) -> Dues:
    return Dues(dues.offset_s[:count], dues.number[:count], None if dues.entry is None else dues.entry[:count])
