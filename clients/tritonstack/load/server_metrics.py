"""Triton's own `/metrics` while a run goes: GPUs, requests pending in its queues, failures by reason.

The text is Prometheus' exposition format. Whatever is missing, not a number or unreadable is left out and said, never
taken for zero.
"""

from __future__ import annotations

import http.client
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from urllib.parse import urlsplit

from tritonstack.client.endpoint import Endpoint
from tritonstack.errors import UsageError

FETCH_TIMEOUT_S = 2.0
MOST_BYTES = 32 << 20
"""Of one answer; more is no metrics page."""

_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?[0-9]+)?\s*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One line of the page."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one moment; None where the server did not tell."""

    uuid: str
    utilization: float | None
    memory_used_bytes: float | None
    memory_total_bytes: float | None
    power_w: float | None


@dataclass(frozen=True, slots=True)
class MetricsReading:
    """One look at the page at `at_s` (`time.monotonic`). `pending` are requests in the queues of the watched models,
    `failures` their failed requests since the server started by reason, `successes` the answered ones of all models.
    `serves`: the page knows at least one of the watched models."""

    at_s: float
    gpus: tuple[GpuReading, ...]
    pending: float | None
    failures: Mapping[str, float]
    successes: float | None
    serves: bool


@dataclass(frozen=True)
class GpuUse:
    """One GPU over a window: utilisation as a share, power in watts, memory in bytes (the most that was used)."""

    uuid: str
    utilization_mean: float | None
    utilization_max: float | None
    memory_used_bytes: float | None
    memory_total_bytes: float | None
    power_w_mean: float | None
    power_w_max: float | None


@dataclass(frozen=True)
class MetricsSummary:
    """What the page told over a window. `problem` says why some or all of it is missing; `restarted` that the
    server's counters went back."""

    url: str
    readings: int
    problem: str | None = None
    restarted: bool = False
    gpus: tuple[GpuUse, ...] = ()
    pending_mean: float | None = None
    pending_max: float | None = None
    failures: Mapping[str, float] = field(default_factory=dict)


def parse_metrics(text: str) -> Iterator[MetricSample]:
    """The samples of a metrics page, in order. Lines that are none are skipped: a page cut short keeps its start."""
    for line in text.splitlines():
        if not line or line[0] == "#":
            continue
        found = _LINE.fullmatch(line.strip())
        if found is None:
            continue
        name, labels, value = found.groups()
        try:
            number = float(value)
        except ValueError:
            continue
        pairs = _LABEL.findall(labels) if labels else ()
        yield MetricSample(
            name, {key: re.sub(r"\\.", lambda m: _ESCAPES.get(m[0], m[0]), raw) for key, raw in pairs}, number
        )


def reading_of(text: str, models: Sequence[str], at_s: float) -> MetricsReading:
    """What the page says about the GPUs and `models` (all versions of each)."""
    gpus: dict[str, dict[str, float]] = {}
    pending: float | None = None
    failures: dict[str, float] = {}
    successes: float | None = None
    serves = False
    for sample in parse_metrics(text):
        serves = serves or sample.labels.get("model") in models
        if not math.isfinite(sample.value):
            continue
        if sample.name.startswith("nv_gpu_"):
            gpus.setdefault(sample.labels.get("gpu_uuid", ""), {})[sample.name] = sample.value
        elif sample.name == "nv_inference_request_success":
            successes = (successes or 0.0) + sample.value
        elif sample.labels.get("model") not in models:
            continue
        elif sample.name == "nv_inference_pending_request_count":
            pending = (pending or 0.0) + sample.value
        elif sample.name == "nv_inference_request_failure":
            reason = sample.labels.get("reason", "unknown").lower()
            failures[reason] = failures.get(reason, 0.0) + sample.value
    return MetricsReading(
        at_s,
        tuple(
            GpuReading(
                uuid,
                found.get("nv_gpu_utilization"),
                found.get("nv_gpu_memory_used_bytes"),
                found.get("nv_gpu_memory_total_bytes"),
                found.get("nv_gpu_power_usage"),
            )
            for uuid, found in sorted(gpus.items())
        ),
        pending,
        failures,
        successes,
        serves,
    )


def summarise(url: str, readings: Sequence[MetricsReading], problem: str | None) -> MetricsSummary:
    """Readings of one window, ascending in time, as one summary. `problem` is the last failure to read the page."""
    if not readings:
        return MetricsSummary(url, 0, problem or "it was not read within the window")
    restarted = any(
        after.successes is not None and before.successes is not None and after.successes < before.successes
        for before, after in pairwise(readings)
    )
    pending = [reading.pending for reading in readings if reading.pending is not None]
    return MetricsSummary(
        url=url,
        readings=len(readings),
        problem=problem,
        restarted=restarted,
        gpus=tuple(_gpu_uses(readings)),
        pending_mean=_mean(pending),
        pending_max=max(pending, default=None),
        failures=_growth(readings),
    )


def _gpu_uses(readings: Sequence[MetricsReading]) -> Iterator[GpuUse]:
    by_gpu: dict[str, list[GpuReading]] = {}
    for reading in readings:
        for gpu in reading.gpus:
            by_gpu.setdefault(gpu.uuid, []).append(gpu)
    for uuid, seen in by_gpu.items():
        used, power = _known(g.utilization for g in seen), _known(g.power_w for g in seen)
        yield GpuUse(
            uuid,
            _mean(used),
            max(used, default=None),
            max(_known(g.memory_used_bytes for g in seen), default=None),
            max(_known(g.memory_total_bytes for g in seen), default=None),
            _mean(power),
            max(power, default=None),
        )


def _growth(readings: Sequence[MetricsReading]) -> dict[str, float]:
    """Failures by reason from the first to the last reading; after a restart counting goes on from zero."""
    grown: dict[str, float] = {}
    for before, after in pairwise(readings):
        for reason, count in after.failures.items():
            earlier = before.failures.get(reason, 0.0)
            grown[reason] = grown.get(reason, 0.0) + (count - earlier if count >= earlier else count)
    return {reason: count for reason, count in grown.items() if count}


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


@dataclass(frozen=True)
class MetricsAddress:
    """Where the page is."""

    host: str
    port: int
    path: str
    secure: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.secure else ''}://{host}:{self.port}{self.path}"


def metrics_address(url: str | None, endpoint: Endpoint) -> MetricsAddress:
    """The address that `url` names, or else the one that goes with `endpoint`: Triton's metrics port follows its HTTP
    and gRPC ports (8000, 8001, 8002). Raises UsageError for a bad `url`."""
    if url is None:
        offset = 2 if endpoint.protocol == "http" else 1
        return MetricsAddress(endpoint.host, min(endpoint.port + offset, 65535), "/metrics", False)
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host:
        raise UsageError(f"argument --metrics-url: given {url!r}", expected="such as http://127.0.0.1:8002/metrics")
    secure = parts.scheme == "https"
    path = parts.path if parts.path not in ("", "/") else "/metrics"
    return MetricsAddress(host, port or (443 if secure else 8002), path, secure)


class MetricsPage:
    """Fetches the page over one kept connection. Not safe for several threads."""

    def __init__(self, address: MetricsAddress) -> None:
        self.address = address
        self._connection: http.client.HTTPConnection | None = None

    def fetch(self) -> str:
        """The page now. Raises OSError or http.client.HTTPException where there is none."""
        for attempt in (1, 2):
            fresh = self._connection is None
            try:
                return self._fetch()
            except (OSError, http.client.HTTPException):
                self.close()
                # A kept connection may have been closed by the other side; a fresh one tells the truth.
                if fresh or attempt == 2:
                    raise
        raise AssertionError("unreachable")

    def _fetch(self) -> str:
        if self._connection is None:
            kind = http.client.HTTPSConnection if self.address.secure else http.client.HTTPConnection
            self._connection = kind(self.address.host, self.address.port, timeout=FETCH_TIMEOUT_S)
        self._connection.request("GET", self.address.path, headers={"Accept": "text/plain"})
        answer = self._connection.getresponse()
        body = answer.read(MOST_BYTES)
        if answer.status != 200:
            raise OSError(f"HTTP {answer.status}")
        if answer.will_close or not answer.isclosed():
            self.close()
        return body.decode("utf-8", "replace")

    def close(self) -> None:
        """Close the connection; `fetch` opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
