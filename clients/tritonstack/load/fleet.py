"""The worker processes of a load test: started once, one level at a time, merged into one measurement.

A worker that dies takes its counts along, so the level is invalid and says whose they were; the others end in order.
The session's own process only listens meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from tritonstack.errors import InternalError, TritonstackError
from tritonstack.load.arrival import Arrival, ClosedLoop, OpenLoop
from tritonstack.load.control import Message, packed, read_message
from tritonstack.load.failure import error_from
from tritonstack.load.measurement import LostWorker, Measurement, WorkerResult, merged
from tritonstack.load.progress import Progress
from tritonstack.load.request_pool import RequestPool
from tritonstack.load.tally import Tally
from tritonstack.load.transport import TransportOptions

MOST_WORKERS = 4
"""Workers that are started where no number was asked for; each drives tens of thousands of requests a second."""
CONCURRENCY_PER_WORKER = 16
"""In a closed loop. Fewer in flight on a connection cost more system calls a request than a second process gains."""
RATE_PER_WORKER = 5000.0
LEAD_S = 0.03
"""Between telling the workers and the start, so that all of them have read it by then."""
START_S = 60.0
"""How long a worker may take to import its modules, on a machine that is busy with something else."""
SILENCE_S = 60.0
"""A worker that tells nothing for so long hangs; it tells twice a second."""


@dataclass(frozen=True, kw_only=True)
class LevelRequest:
    """One level for the fleet. `max_in_flight` bounds an open loop over all workers; `trace` names the memory file of
    `Fleet.traces` with the arrivals of a trace."""

    arrival: Arrival
    warmup_s: float
    duration_s: float | None
    requests: int | None
    max_in_flight: int
    timeout_s: float
    drain_s: float
    seed: int
    validate: bool
    trace: int | None = None


def default_workers(arrival: Arrival) -> int:
    """How many workers a level needs: one where the machine has no core to spare or the load none to share."""
    spare = min((len(os.sched_getaffinity(0)) - 1) or 1, MOST_WORKERS)
    if isinstance(arrival, ClosedLoop):
        return max(1, min(spare, arrival.concurrency // CONCURRENCY_PER_WORKER))
    return max(1, min(spare, math.ceil(arrival.rate / RATE_PER_WORKER)))


class _Process:
    """One worker process and the session's end of its socket."""

    def __init__(self, pool: RequestPool, traces: Sequence[int]) -> None:
        here, there = socket.socketpair()
        # Where it ends by a traceback, that is the reason; otherwise nothing is written.
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        shared = (there.fileno(), pool.to_memory_file(), *traces)
        command = [sys.executable, "-P", "-m", "tritonstack.load.worker"]
        command += ["--control", str(shared[0]), "--pool", str(shared[1])]
        try:
            # A session of its own: a Ctrl-C in the terminal is the parent's, which stops its workers in order.
            self.process = subprocess.Popen(
                command, pass_fds=shared, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._stderr,
                start_new_session=True, env=_environment(),
            )  # fmt: skip
        except BaseException:
            here.close()
            raise
        finally:
            there.close()
        self.pid = self.process.pid
        self.host = socket.gethostname()
        self._end = here
        self.reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def connect(self) -> None:
        self.reader, self._writer = await asyncio.open_connection(sock=self._end)

    def tell(self, message: Message) -> None:
        if self._writer is not None:
            with suppress(OSError):
                self._writer.write(packed(message))

    async def read(self, limit_s: float) -> Message | None:
        """The next message, None where the worker is gone or tells nothing for `limit_s`. Raises what it died of."""
        if self.reader is None:
            return None
        try:
            message = await asyncio.wait_for(read_message(self.reader), limit_s)
        except TimeoutError:
            return None
        if message is not None and message["say"] == "error":
            raise error_from(message)
        return message

    async def ended(self) -> str:
        """Make sure that it is over; returns how it ended."""
        for _ in range(20):
            if self.process.poll() is not None:
                break
            await asyncio.sleep(0.01)
        hung = self.process.poll() is None
        if hung:
            self.process.kill()
        code = await asyncio.to_thread(self.process.wait)
        self._stderr.seek(0)
        lines = self._stderr.read().decode("utf-8", "replace").strip().splitlines()
        self.close()
        if hung:
            return "it told nothing any more"
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return lines[-1][:200] if lines else f"exit code {code}"

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._stderr.close()


def _environment() -> dict[str, str]:
    """The worker imports the same package as the session, wherever that came from."""
    import tritonstack

    root = str(Path(tritonstack.__file__).resolve().parent.parent)
    known = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{known}" if known else root}


class Fleet:
    """Up to `workers` processes that send the requests of `pool`. Use as an async context manager.

    `traces` are the arrivals of traces as `TraceSchedule.columns` gives them.
    """

    def __init__(
        self, pool: RequestPool, transport: TransportOptions, *, workers: int, traces: Sequence[bytes] = ()
    ) -> None:
        self._pool = pool
        self._transport = transport
        self.workers = workers
        self._traces = [_memory_file(columns) for columns in traces]
        self._processes: list[_Process] = []

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers."""
        for worker in self._processes:
            worker.close()
        for worker in self._processes:
            try:
                worker.process.wait(1.0)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        self._processes.clear()
        for fd in self._traces:
            os.close(fd)
        self._traces.clear()

    def level(self, request: LevelRequest, *, on_open: Callable[[], Awaitable[None]] | None = None) -> LevelRun:
        """One run of the fleet. `on_open` is awaited when the window opens; before the start where that is the same."""
        return LevelRun(self, request, on_open)

    async def prepared(self, count: int, *, validate: bool) -> list[_Process]:
        """`count` workers that wait for a level; those that were lost are started anew."""
        while len(self._processes) < count:
            worker = _Process(self._pool, self._traces)
            self._processes.append(worker)
            await worker.connect()
        chosen = self._processes[:count]
        for worker in chosen:
            worker.tell({"do": "prepare", "transport": self._transport.to_json(), "validate": validate})
        for worker in chosen:
            while True:
                message = await worker.read(START_S)
                if message is None:
                    self._processes.remove(worker)
                    raise InternalError(f"worker {worker.pid} did not start", given=await worker.ended())
                if message["say"] == "prepared":
                    break
        return chosen

    def forget(self, worker: _Process) -> None:
        """A worker was lost."""
        if worker in self._processes:
            self._processes.remove(worker)

    def trace_fd(self, number: int) -> int:
        """The descriptor of a trace's arrivals, the same in the workers."""
        return self._traces[number]


class LevelRun:
    """One level, driven by the workers of a fleet. `run` once; `stop` ends it early from the same event loop."""

    def __init__(self, fleet: Fleet, request: LevelRequest, on_open: Callable[[], Awaitable[None]] | None) -> None:
        self._fleet = fleet
        self._request = request
        self._on_open = on_open
        self._workers: list[_Process] = []
        self._stopped = self._interrupted = False
        self.tally = Progress()

    @property
    def in_warmup(self) -> bool:
        """Whether the window has not opened yet."""
        return time.monotonic() < self.tally.open_at_s

    def stop(self) -> None:
        """Stop sending; what is in flight is awaited and `run` returns what was measured so far."""
        self._interrupted = True
        self._stop_workers()

    def _stop_workers(self) -> None:
        self._stopped = True
        self.tally.close_at_s = min(self.tally.close_at_s, time.monotonic())
        for worker in self._workers:
            worker.tell({"do": "stop"})

    async def run(self) -> Measurement:
        """Run to the end of the window and drain. Raises what a worker could not do, such as read a certificate."""
        request, progress = self._request, self.tally
        self._workers = await self._fleet.prepared(self._count(), validate=request.validate)
        if self._on_open is not None and request.warmup_s <= 0:
            await self._on_open()
        start_s = time.monotonic() + LEAD_S
        progress.begin(start_s + request.warmup_s, request.duration_s, len(self._workers))
        for number, worker in enumerate(self._workers):
            worker.tell(self._share(number, start_s))
        if self._stopped:
            self._stop_workers()
        opening = None
        if self._on_open is not None and request.warmup_s > 0:
            opening = asyncio.create_task(self._at_open(self._on_open, progress.open_at_s))
        try:
            outcomes = await asyncio.gather(*(self._listen(worker) for worker in self._workers))
        finally:
            if opening is not None and not opening.done() and self.in_warmup:
                opening.cancel()
        if opening is not None:
            with suppress(asyncio.CancelledError):
                await opening
        results = [outcome for outcome in outcomes if isinstance(outcome, WorkerResult)]
        lost = [outcome for outcome in outcomes if isinstance(outcome, LostWorker)]
        whole = merged(results, lost=lost) if results else _nothing(progress, lost)
        schedule = request.arrival.schedule if isinstance(request.arrival, OpenLoop) else None
        seconds = progress.seconds(whole.tally.close_at_s, schedule, request.seed, request.warmup_s)
        return replace(whole, interrupted=self._interrupted, series=seconds)

    def _count(self) -> int:
        """How many workers have something to do."""
        request = self._request
        places = request.arrival.concurrency if isinstance(request.arrival, ClosedLoop) else request.max_in_flight
        return max(1, min(self._fleet.workers, places, request.requests or places))

    def _share(self, number: int, start_s: float) -> Message:
        request, count = self._request, len(self._workers)
        closed = request.arrival if isinstance(request.arrival, ClosedLoop) else None
        requests = request.requests
        if closed is not None and requests is not None:
            requests = _part(requests, number, count)
        loop = {
            "worker": number,
            "workers": count,
            "start_s": start_s,
            "warmup_s": request.warmup_s,
            "duration_s": request.duration_s,
            "requests": requests,
            "concurrency": None if closed is None else closed.concurrency,
            "max_in_flight": _part(request.max_in_flight, number, count),
            "timeout_s": request.timeout_s,
            "drain_s": request.drain_s,
            "seed": request.seed,
        }
        schedule: dict[str, Any] | None = None
        if isinstance(request.arrival, OpenLoop):
            schedule = request.arrival.schedule.to_json()
            if request.trace is not None:
                schedule["fd"] = self._fleet.trace_fd(request.trace)
        return {"do": "run", "loop": loop, "schedule": schedule, "validate": request.validate}

    async def _listen(self, worker: _Process) -> WorkerResult | LostWorker:
        """Take what one worker tells until its result is there."""
        try:
            while (message := await worker.read(SILENCE_S)) is not None:
                if message["say"] == "tick":
                    latencies_us = np.frombuffer(base64.b64decode(message["latencies_us"]), "<f4")
                    self.tally.took(message, latencies_us)
                elif message["say"] == "result":
                    return WorkerResult.from_json(message["result"])
        except TritonstackError:
            self._fleet.forget(worker)
            worker.close()
            self._stop_workers()
            raise
        self._fleet.forget(worker)
        self._stop_workers()
        return LostWorker(worker.host, worker.pid, await worker.ended())

    async def _at_open(self, on_open: Callable[[], Awaitable[None]], open_at_s: float) -> None:
        await asyncio.sleep(max(open_at_s - time.monotonic(), 0.0))
        await on_open()


def _part(whole: int, number: int, count: int) -> int:
    return whole // count + (number < whole % count)


def _nothing(progress: Progress, lost: Sequence[LostWorker]) -> Measurement:
    """What is left where every worker was lost."""
    close_s = max(min(progress.close_at_s, time.monotonic()), progress.open_at_s)
    tally = Tally(by_schedule=False, open_at_s=progress.open_at_s, close_at_s=close_s)
    return Measurement(tally, close_s - progress.open_at_s, 0.0, 0.0, False, 0, 0, lost=tuple(lost))


def _memory_file(content: bytes) -> int:
    fd = os.memfd_create("tritonstack-trace", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(content)
    return fd
