"""Reading reports back from their JSON form, schema versions 1 and 2."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tritonstack.errors import InputError
from tritonstack.load.interval import Distribution, design_effect

VERSIONS = (1, 2)
_LEVEL_KEYS = frozenset({"arrival", "counts", "latency", "latency_histogram", "requests_per_s", "window_s"})
_REPORT_KEYS = frozenset({"model", "batch", "protocol", "levels", "inputs"})


@dataclass(frozen=True)
class SavedLevel:
    """One level of a report. `body` is its JSON."""

    body: Mapping[str, Any]

    @property
    def label(self) -> str:
        arrival = self.body["arrival"]
        if "label" in arrival:
            return str(arrival["label"])
        if arrival["loop"] == "closed":
            return f"concurrency {arrival['concurrency']}"
        return f"rate {arrival['rate']:g}/s {arrival['kind']}"

    @property
    def key(self) -> str:
        """What makes two levels the same experiment, as text that can be compared."""
        arrival = {key: value for key, value in self.body["arrival"].items() if key != "label"}
        return json.dumps(arrival, sort_keys=True)

    @cached_property
    def distribution(self) -> Distribution:
        return Distribution.decoded(self.body["latency_histogram"])

    @property
    def series(self) -> list[Mapping[str, Any]]:
        """Whole seconds of the window; empty in version 1."""
        return list(self.body.get("series") or ())

    @property
    def rates(self) -> list[float]:
        """Answered requests per second of each second."""
        return [entry["completed"] / (entry.get("duration_s") or 1.0) for entry in self.series]

    def effect(self, percent: float) -> float:
        """The design effect of a percentile (see interval.py): told by the 99th percentiles of the seconds for the
        tail, by their medians for the rest and where the seconds are too thin; 1 where there are no seconds."""
        tail = percent >= 90 and all(entry["completed"] >= 100 for entry in self.series)
        key, told = ("p99_us", 99.0) if tail else ("p50_us", 50.0)
        seconds = [(int(entry["completed"]), float(entry[key])) for entry in self.series if entry.get(key) is not None]
        return design_effect(self.distribution, seconds, told)

    def metric(self, name: str) -> float | None:
        """The value of a metric of the gates: latencies and lag in µs, errors as a fraction, rates per second."""
        latency, counts = self.body["latency"], self.body["counts"]
        if name == "throughput":
            return float(self.body["requests_per_s"])
        if name == "goodput":
            found = self.body.get("goodput_per_s")
            return None if found is None else float(found)
        if name == "errors":
            return counts["errors"] / counts["measured"] if counts["measured"] else None
        if name == "lag":
            lag = self.body.get("lag")
            return None if not lag else _number(lag["p99_us"])
        if name in ("mean", "max"):
            return _number(latency[f"{name}_us"])
        return self.distribution.percentile_us(float(name[1:]))


@dataclass(frozen=True)
class SavedReport:
    """A report; `origin` says where it came from."""

    origin: str
    body: Mapping[str, Any]

    @cached_property
    def levels(self) -> tuple[SavedLevel, ...]:
        return tuple(SavedLevel(level) for level in self.body["levels"])


def read_report(path: Path) -> SavedReport:
    """Read one report. Raises InputError where the file is none, or of a version from the future."""
    try:
        body = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}", given=error.strerror or str(error)) from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise InputError(f"{path} is no JSON", expected="a report written by `tritonstack load --output`") from None
    return checked_report(str(path), body)


def checked_report(origin: str, body: Any) -> SavedReport:
    """`body` as a report. Raises InputError where it lacks what every report has."""
    expected = "a report written by `tritonstack load --output`"
    if not isinstance(body, dict) or body.get("kind") != "tritonstack.load":
        raise InputError(f"{origin} is no load report", expected=expected)
    if body.get("schema_version") not in VERSIONS:
        raise InputError(
            f"{origin} has schema version {body.get('schema_version')!r}",
            expected=" or ".join(map(str, VERSIONS)),
            next_step="use the tritonstack that wrote it, or a newer one",
        )
    levels = body.get("levels")
    whole = body.keys() >= _REPORT_KEYS and isinstance(levels, list)
    if not whole or not all(isinstance(level, dict) and level.keys() >= _LEVEL_KEYS for level in levels or ()):
        raise InputError(f"{origin} is damaged: it lacks parts that every report has", expected=expected)
    report = SavedReport(origin, body)
    for level in report.levels:
        try:
            _ = level.distribution, level.label
        except Exception as error:
            raise InputError(f"{origin} is damaged: {type(error).__name__} in a level", expected=expected) from None
    return report


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
