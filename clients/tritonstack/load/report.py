"""The result of a load test as plain frozen values, its JSON form and its table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tritonstack.errors import SetupError
from tritonstack.load.arrival import Arrival, ClosedLoop
from tritonstack.load.environment import Environment, Server
from tritonstack.load.histogram import LatencySummary
from tritonstack.load.knee import Knee
from tritonstack.load.loop_sender import LoopFigures
from tritonstack.load.measurement import LostWorker, WorkerUse
from tritonstack.load.monitor import ServerUse
from tritonstack.load.objective import Condition
from tritonstack.load.series import Second
from tritonstack.load.stability import Stability
from tritonstack.load.statistics_delta import ModelDelta
from tritonstack.load.sweep import Sweep
from tritonstack.load.tally import ErrorCount
from tritonstack.whole_file import taking_place_of

SCHEMA_VERSION = 2


@dataclass(frozen=True)
class RequestCounts:
    """Requests of one run.

    `sent` in all, `warmup` of them before the window; `measured` is successes plus errors that the figures rest on;
    `completed_in_window` successes that ended inside the window (throughput); `drained` ended after it; `unsent` were
    scheduled but never sent and `abandoned` outlived their own deadline. `limit_hits` counts measured requests that
    had to wait for a place among `max_in_flight`.
    """

    sent: int
    warmup: int
    measured: int
    errors: int
    completed_in_window: int
    drained: int
    unsent: int
    abandoned: int
    peak_in_flight: int
    max_in_flight: int | None
    limit_hits: int


@dataclass(frozen=True)
class GeneratorCost:
    """What the workers used inside the window: CPU time per ended request and in cores, all of them together. A worker
    can do no more where `loop_busy`, the fraction of the window that the thread of the busiest one was on a CPU, comes
    near 1. `rss_bytes`: the most memory that they had resident, added up."""

    cpu_us_per_request: float | None
    cpu_cores: float | None
    loop_busy: float | None
    gc_collections: int
    rss_bytes: int | None = None


@dataclass(frozen=True)
class ClientSplit:
    """The client's part of the measured answers: `send` from the send until the whole request was with the system,
    `wait` until the first byte of the answer was there, `receive` until the last."""

    send: LatencySummary
    wait: LatencySummary
    receive: LatencySummary


@dataclass(frozen=True)
class Sending:
    """How requests were sent. `connections` are those of each worker; `sequences` is None and `streaming` False where
    requests are independent and unary."""

    transport: str
    workers: int
    connections: int
    shared_memory: str = "none"
    json_body: bool = False
    validate: str = "off"
    streaming: bool = False
    sequences: str | None = None


@dataclass(frozen=True)
class ServerBreakdown:
    """Triton's own counters from the start of the window to the end of draining, the asked model first. After a warm-up
    they are read while the load runs, so that they may miss or hold a few requests at the start.

    `other_inferences` is at least how many samples of the asked model came from somebody else. `readable` is False,
    and `models` empty, where the server did not hand out its statistics.
    """

    readable: bool
    models: tuple[ModelDelta, ...]
    other_inferences: int


@dataclass(frozen=True)
class Objective:
    """One objective and whether it holds; `measured` in its own unit (µs or a fraction), None where there is none."""

    text: str
    metric: str
    measured: float | None
    met: bool | None


@dataclass(frozen=True)
class Findings:
    """What is computed from a level and from looking at the server beside it.

    `intervals` are 95 % intervals by figure (`p99_us`, `requests_per_s`), None where the sample does not support one;
    `goodput_per_s` counts requests that were answered within every latency objective, None without objectives.
    """

    intervals: Mapping[str, tuple[float, float] | None] = field(default_factory=dict)
    goodput_per_s: float | None = None
    objectives: tuple[Objective, ...] = ()
    server_use: ServerUse | None = None
    stability: Stability | None = None


@dataclass(frozen=True)
class LevelReport:
    """One concurrency or rate.

    `latency` counts from the scheduled moment in an open loop (`service` from the real send, `lag` how late the
    generator was) and from the send in a closed loop, where `service` and `lag` are None. `problems` make the run
    invalid; `failures` are limits that it broke; `notes` are worth knowing. `series` holds the whole seconds of the
    window. `lost_workers` ended before their result was there.
    """

    arrival: Arrival
    warmup_s: float
    window_s: float
    interrupted: bool
    counts: RequestCounts
    requests_per_s: float
    inferences_per_s: float
    latency: LatencySummary
    service: LatencySummary | None
    lag: LatencySummary | None
    latency_histogram: str
    errors: tuple[ErrorCount, ...]
    server: ServerBreakdown
    generator: GeneratorCost
    problems: tuple[str, ...]
    failures: tuple[str, ...]
    notes: tuple[str, ...]
    series: tuple[Second, ...] = ()
    client: ClientSplit | None = None
    conversation: LoopFigures | None = None
    workers: tuple[WorkerUse, ...] = ()
    lost_workers: tuple[LostWorker, ...] = ()
    findings: Findings = Findings()

    @property
    def ok(self) -> bool:
        return not self.problems and not self.failures

    def with_notes(self, *notes: str) -> LevelReport:
        """The same with more notes."""
        return replace(self, notes=(*self.notes, *(note for note in notes if note)))


@dataclass(frozen=True)
class InputDescription:
    """One input as it was sent: Triton's data type and the whole shape including the batch."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class LoadReport:
    """A whole load test. `versions` are the model versions that answered; an `interrupted` one may lack levels.

    `duration_s` and `requests` are what was asked for per level, `max_lag_s` and `max_error_rate` the limits its levels
    were judged by.
    """

    started_at: str
    command: tuple[str, ...]
    environment: Environment
    server: Server
    url: str
    protocol: str
    model: str
    versions: tuple[str, ...]
    batch: int
    input_origin: str
    inputs: tuple[InputDescription, ...]
    distinct_requests: int
    request_bytes: int
    seed: int
    timeout_s: float
    duration_s: float | None
    requests: int | None
    max_lag_s: float
    max_error_rate: float
    interrupted: bool
    levels: tuple[LevelReport, ...]
    sending: Sending | None = None
    slo: tuple[Condition, ...] = ()
    knee: Knee | None = None
    sweep: Sweep | None = None
    gates: tuple[str, ...] = ()
    broken_gates: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every run is valid and kept its limits. A search is judged by its answer: a rate beyond the knee is
        there to break."""
        if self.broken_gates:
            return False
        if self.knee is not None:
            return self.knee.rate is not None
        if self.sweep is not None:
            return any(point.best for point in self.sweep.points)
        return bool(self.levels) and all(level.ok for level in self.levels)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values. Latencies are in microseconds, every other time in seconds."""
        body = asdict(replace(self, levels=(), knee=None, sweep=None))
        body["levels"] = [level_json(level) for level in self.levels]
        body["knee"] = None if self.knee is None else self.knee.to_json()
        body["sweep"] = None if self.sweep is None else self.sweep.to_json()
        return {"schema_version": SCHEMA_VERSION, "kind": "tritonstack.load", "ok": self.ok, **body}


def json_text(body: Mapping[str, Any]) -> str:
    """JSON as it is written to files. NaN and infinity are refused, since JSON has no word for them."""
    return json.dumps(body, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    """Write the JSON form of a report."""
    write_text(path, json_text(report))


def write_text(path: Path, text: str) -> None:
    """Write a file in one step: readers see the old one or the whole new one. Raises SetupError."""
    try:
        with taking_place_of(path) as file:
            file.write(text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise SetupError(f"cannot write the report to {path}", given=error.strerror or str(error)) from None


def level_json(level: LevelReport) -> dict[str, Any]:
    """One level as JSON values; the findings stand beside the measurements."""
    # A timetable may be a trace of millions of rows: it is described, not copied.
    body = asdict(replace(level, arrival=ClosedLoop(1)))
    body |= body.pop("findings")
    body["arrival"] = _arrival_json(level.arrival)
    for model in body["server"]["models"]:
        model["executions_by_batch"] = {str(size): count for size, count in model["executions_by_batch"].items()}
    return {"ok": level.ok, **body}


def _arrival_json(arrival: Arrival) -> dict[str, Any]:
    if isinstance(arrival, ClosedLoop):
        return {"loop": "closed", "concurrency": arrival.concurrency, "label": arrival.label}
    body: dict[str, Any] = {"loop": "open", "rate": arrival.rate, "kind": arrival.kind, "label": arrival.label}
    if arrival.kind == "gamma":
        body["burstiness"] = arrival.burstiness
    if arrival.timetable is not None:
        body["schedule"] = arrival.timetable.to_json()
    return body
