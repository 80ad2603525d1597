"""What follows from a measured level: intervals, goodput, objectives."""

from __future__ import annotations

from collections.abc import Sequence

from tritonstack.load.interval import mean_interval
from tritonstack.load.objective import Condition
from tritonstack.load.report import Findings, LevelReport, Objective, level_json
from tritonstack.load.saved_report import SavedLevel

PERCENTILES = {"p50_us": 50.0, "p90_us": 90.0, "p95_us": 95.0, "p99_us": 99.0, "p999_us": 99.9}


def saved_level(level: LevelReport) -> SavedLevel:
    """The level as a reader of its JSON sees it."""
    return SavedLevel(level_json(level))


def findings_of(level: LevelReport, slo: Sequence[Condition]) -> Findings:
    """Intervals, goodput and objectives of one level."""
    saved = saved_level(level)
    distribution = saved.distribution
    intervals = {
        key: distribution.percentile_interval(percent, effect=saved.effect(percent))
        for key, percent in PERCENTILES.items()
    }
    intervals["requests_per_s"] = mean_interval(saved.rates)
    return Findings(
        intervals=intervals,
        goodput_per_s=_goodput(level, saved, slo),
        objectives=tuple(_objective(saved, condition) for condition in slo),
    )


def _goodput(level: LevelReport, saved: SavedLevel, slo: Sequence[Condition]) -> float | None:
    """Requests answered within every latency objective per second: the strictest limit decides for each request."""
    limits = [condition.value for condition in slo if condition.is_latency]
    if not limits:
        return None
    if not saved.distribution.count:
        return 0.0
    return level.requests_per_s * saved.distribution.within(min(limits)) / saved.distribution.count


def _objective(saved: SavedLevel, condition: Condition) -> Objective:
    measured = saved.metric(condition.metric)
    return Objective(
        condition.text, condition.metric, measured, None if measured is None else condition.holds(measured)
    )
