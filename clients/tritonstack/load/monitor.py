"""Looks at the server once a second from a thread of its own while a load test runs.

A reading costs about a millisecond a second; it runs beside the generator's workers, never inside them.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tritonstack.client.endpoint import Endpoint
from tritonstack.load.server_metrics import (
    FETCH_TIMEOUT_S,
    MetricsAddress,
    MetricsPage,
    MetricsReading,
    MetricsSummary,
    reading_of,
    summarise,
)
from tritonstack.load.server_process import ProcessReading, ProcessUse, ServerProcess

PERIOD_S = 1.0


@dataclass(frozen=True)
class ServerUse:
    """What the server used over one window. `process` is None where it runs elsewhere or may not be seen."""

    metrics: MetricsSummary | None
    process: ProcessUse | None


class Monitor:
    """Use as a context manager around the runs; `between` then tells about any window of them."""

    def __init__(self, address: MetricsAddress | None, *, endpoint: Endpoint, models: Sequence[str]) -> None:
        self._page = None if address is None else MetricsPage(address)
        self._models = tuple(models)
        self._endpoint = endpoint
        self._process: ServerProcess | None = None
        self._metrics: list[MetricsReading] = []
        self._processes: list[tuple[int, ProcessReading]] = []
        self._failures: list[tuple[float, str]] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop looking; what was seen stays."""
        self._ended.set()
        self._thread.join(2 * FETCH_TIMEOUT_S + 1)
        if self._page is not None and not self._thread.is_alive():
            self._page.close()

    @property
    def pending(self) -> float | None:
        """Requests pending at the server at the last look, for the live view; None while unknown."""
        with self._lock:
            fresh = self._metrics and time.monotonic() - self._metrics[-1].at_s < 3 * PERIOD_S
            return self._metrics[-1].pending if fresh else None

    def between(self, start_s: float, end_s: float) -> ServerUse:
        """What was seen from `start_s` to `end_s` of `time.monotonic`, with the readings around it for counters."""
        with self._lock:
            metrics = [r for r in self._metrics if start_s - PERIOD_S <= r.at_s <= end_s + PERIOD_S]
            processes = [r for r in self._processes if start_s - PERIOD_S / 2 <= r[1].at_s <= end_s + PERIOD_S / 2]
            problems = [text for at_s, text in self._failures if start_s <= at_s <= end_s + PERIOD_S]
            ever = [text for _, text in self._failures]
        summary = None
        if self._page is not None:
            # Levels and gauges belong to the window, only counters need what was there before it.
            problem = problems[-1] if problems else ever[-1] if ever and not metrics else None
            summary = summarise(str(self._page.address), metrics, problem)
        return ServerUse(summary, _process_use(processes))

    def _run(self) -> None:
        self._process = ServerProcess.listening_on(self._endpoint.host, self._endpoint.port)
        due_s = time.monotonic()
        while not self._ended.is_set():
            self._look(time.monotonic())
            due_s = max(due_s + PERIOD_S, time.monotonic())
            self._ended.wait(due_s - time.monotonic())
        self._look(time.monotonic())

    def _look(self, now_s: float) -> None:
        if self._process is None or (reading := self._process.read(now_s)) is None:
            # Not there yet, or restarted as another process.
            again = self._processes or self._process is not None
            self._process = ServerProcess.listening_on(self._endpoint.host, self._endpoint.port) if again else None
        else:
            with self._lock:
                self._processes.append((self._process.pid, reading))
        if self._page is None:
            return
        try:
            text = self._page.fetch()
        except (OSError, http.client.HTTPException) as error:
            with self._lock:
                self._failures.append((now_s, _words(error)))
            return
        found = reading_of(text, self._models, now_s)
        with self._lock:
            if not found.serves:
                # A guessed address may belong to another server.
                self._failures.append((now_s, f"what answers there knows nothing of {', '.join(self._models)}"))
            else:
                self._metrics.append(found)


def _words(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).partition("\n")[0]


def _process_use(readings: Sequence[tuple[int, ProcessReading]]) -> ProcessUse | None:
    if not readings:
        return None
    pid = readings[-1][0]
    same = [reading for owner, reading in readings if owner == pid]
    first, last = same[0], same[-1]
    span_s = last.at_s - first.at_s
    # Children that ended in between took their CPU time along, which could make it look negative.
    cores = max(last.cpu_s - first.cpu_s, 0.0) / span_s if span_s > 0.2 else None
    return ProcessUse(pid, cores, max(reading.rss_bytes for reading in same))
