"""Two reports against each other: ratios of throughput and percentiles, each with an interval and a verdict.

Throughput: means of circular block bootstraps over the seconds of both windows, so that seconds that hang together
stay together. Percentiles: the rank of a percentile among n independent requests is beta distributed; values are
drawn from the histograms at such ranks, with n divided by the run's design effect (interval.py). The verdict is
"no difference shown" where the 95 % interval of the ratio holds 1. Both speak of these two runs on these machines at
that time: what changed between them besides the code is not in the interval.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tritonstack.errors import InputError
from tritonstack.load.gate import BrokenGate, broken_gates, value_text
from tritonstack.load.interval import CONFIDENCE, block_means
from tritonstack.load.objective import Condition
from tritonstack.load.saved_report import SavedLevel, SavedReport

DRAWS = 4000
DEFAULT_METRICS = ("throughput", "p50", "p99")
HIGHER_IS_BETTER = frozenset({"throughput", "goodput"})


@dataclass(frozen=True, slots=True)
class MetricComparison:
    """One metric of one level: values before and after, their ratio and its 95 % interval (None: not enough data)."""

    metric: str
    before: float
    after: float
    ratio: float
    interval: tuple[float, float] | None

    @property
    def shown(self) -> bool:
        """Whether a difference is shown."""
        return self.interval is not None and not self.interval[0] <= 1 <= self.interval[1]

    @property
    def verdict(self) -> str:
        if self.interval is None:
            return "too little data"
        if not self.shown:
            return "no difference shown"
        return "better" if (self.ratio > 1) == (self.metric in HIGHER_IS_BETTER) else "worse"

    def to_json(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "before": self.before,
            "after": self.after,
            "ratio": self.ratio,
            "interval": None if self.interval is None else list(self.interval),
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class LevelComparison:
    """One level that both reports have."""

    label: str
    metrics: tuple[MetricComparison, ...]


@dataclass(frozen=True)
class Comparison:
    """Two reports: levels, what differs between the runs besides the result, and what could not be compared."""

    before: str
    after: str
    levels: tuple[LevelComparison, ...]
    unlike: tuple[str, ...]
    notes: tuple[str, ...]
    broken: tuple[BrokenGate, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON values; ratios are after / before, latencies in µs."""
        return {
            "schema_version": 1,
            "kind": "tritonstack.load.compare",
            "before": self.before,
            "after": self.after,
            "confidence": CONFIDENCE,
            "unlike": list(self.unlike),
            "notes": list(self.notes),
            "levels": [
                {"label": level.label, "metrics": [metric.to_json() for metric in level.metrics]}
                for level in self.levels
            ],
            "broken_gates": [str(gate) for gate in self.broken],
        }


def compare(
    before: SavedReport, after: SavedReport, *, gates: Sequence[Condition] = (), force: bool = False
) -> Comparison:
    """Compare the levels that both have, in the order of `after`; absolute `gates` judge `after`.

    Raises InputError where the runs are not alike (another model, batch, input, arrival, …) unless `force`, and where
    they share no level.
    """
    unlike = tuple(differences(before, after))
    pairs = [
        (one, other) for other in after.levels for one in before.levels if one.key == other.key
    ]  # fmt: skip
    if force and not pairs and len(before.levels) == len(after.levels):
        pairs = list(zip(before.levels, after.levels, strict=True))
        unlike += ("arrival",)
    if not pairs:
        raise InputError(
            "the two reports have no level in common",
            given=f"{_labels(before)} and {_labels(after)}",
            next_step="load both with the same levels, or compare them in order with --force",
        )
    if unlike and not force:
        raise InputError(
            "the two runs are not alike",
            given="; ".join(unlike),
            expected="the same model, batch, inputs, protocol and way of sending",
            next_step="--force compares them all the same",
        )
    metrics = list(DEFAULT_METRICS) + [g.metric for g in gates if g.relative and g.metric not in DEFAULT_METRICS]
    levels = tuple(
        LevelComparison(other.label, tuple(_metrics(one, other, dict.fromkeys(metrics)))) for one, other in pairs
    )
    broken = broken_gates(after, gates) + list(_broken_relative(levels, gates))
    return Comparison(before.origin, after.origin, levels, unlike, tuple(_notes(before, after, pairs)), tuple(broken))


def differences(before: SavedReport, after: SavedReport) -> Iterator[str]:
    """What was asked for differently, besides the levels."""
    for key in ("model", "batch", "protocol", "request_bytes", "input_origin", "distinct_requests"):
        one, other = before.body.get(key), after.body.get(key)
        if one != other:
            yield f"{key} {one} and {other}"
    shapes = [[(i["name"], i["datatype"], list(i["shape"])) for i in r.body["inputs"]] for r in (before, after)]
    if shapes[0] != shapes[1]:
        yield f"inputs {shapes[0]} and {shapes[1]}"
    # Version 1 knew neither; its runs had none of them.
    for key, default in (("transport", None), ("shared_memory", "none"), ("streaming", False), ("sequences", None)):
        one, other = ((r.body.get("sending") or {}).get(key, default) for r in (before, after))
        known = all(r.body.get("sending") for r in (before, after))
        if one != other and (known or key != "transport"):
            yield f"{key} {one} and {other}"


def _labels(report: SavedReport) -> str:
    return ", ".join(level.label for level in report.levels) or "none"


def _metrics(one: SavedLevel, other: SavedLevel, names: dict[str, None]) -> Iterator[MetricComparison]:
    for name in names:
        before, after = one.metric(name), other.metric(name)
        if not before or after is None:
            continue
        yield MetricComparison(name, before, after, after / before, _interval(one, other, name))


def _interval(one: SavedLevel, other: SavedLevel, name: str) -> tuple[float, float] | None:
    if name == "throughput":
        draws = [block_means(level.rates, seed=s) for s, level in ((1, one), (2, other))]
    elif name.startswith("p"):
        draws = [_percentiles(level, float(name[1:]), seed=s) for s, level in ((1, one), (2, other))]
    else:
        return None
    before, after = draws
    if before is None or after is None:
        return None
    ratios = after[: len(before)] / np.maximum(before[: len(after)], 1e-9)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(ratios, [tail, 100 - tail])
    return float(low), float(high)


def _percentiles(level: SavedLevel, percent: float, *, seed: int) -> Any:
    """Values that the percentile might as well have had; None where the sample does not reach beyond it."""
    distribution = level.distribution
    effective = distribution.count / level.effect(percent)
    q = percent / 100
    if effective * min(q, 1 - q) < 3:
        return None
    generator = np.random.Generator(np.random.PCG64(seed))
    shares = generator.beta(q * (effective + 1), (1 - q) * (effective + 1), DRAWS)
    ranks = np.clip(np.ceil(shares * distribution.count), 1, distribution.count)
    # Buckets are 0.1 % wide: within one, every value is as likely.
    values = distribution.values_us[np.searchsorted(distribution.cumulated, ranks)]
    return values * generator.uniform(0.999, 1.0, DRAWS)


def _broken_relative(levels: Sequence[LevelComparison], gates: Sequence[Condition]) -> Iterator[BrokenGate]:
    """A relative gate breaks where the change is beyond its value and a difference is shown at all. Metrics without
    an interval are taken at their word."""
    for gate in gates:
        if not gate.relative:
            continue
        for level in levels:
            found = next((m for m in level.metrics if m.metric == gate.metric), None)
            if found is None:
                yield BrokenGate(gate.text, level.label, "was not measured in both runs")
            elif gate.holds(found.ratio - 1) and (found.shown or found.interval is None):
                change = f"{100 * (found.ratio - 1):+.1f} %"
                yield BrokenGate(gate.text, level.label, f"{change} ({_both(found)})")


def _both(found: MetricComparison) -> str:
    return f"{value_text(found.metric, found.before)} to {value_text(found.metric, found.after)}"


def _notes(before: SavedReport, after: SavedReport, pairs: Sequence[tuple[SavedLevel, SavedLevel]]) -> Iterator[str]:
    for report, mine in ((before, [one for one, _ in pairs]), (after, [other for _, other in pairs])):
        if left := [level.label for level in report.levels if level not in mine]:
            yield f"only in {report.origin}: {', '.join(left)}"
        for level in mine:
            if level.body.get("problems"):
                yield f"{report.origin}: {level.label} was invalid: {level.body['problems'][0]}"
        if report.body.get("schema_version") == 1:
            yield f"{report.origin} is of schema version 1: without seconds there is no interval for its throughput"
    hosts = [r.body.get("environment", {}).get(k) for r in (before, after) for k in ("machine", "cpus")]
    if hosts[:2] != hosts[2:]:
        yield f"the generators differ: {hosts[0]} with {hosts[1]} CPUs and {hosts[2]} with {hosts[3]}"
