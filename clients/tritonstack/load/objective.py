"""Objectives and gates: ``p99<50ms``, ``errors>0.1%``, ``throughput<-5%``.

    gates  = gate *("," gate)
    gate   = metric op value
    metric = "mean" / "max" / "p" NUMBER / "errors" / "throughput" / "goodput" / "lag"
    op     = "<" / "<=" / ">" / ">=" / "="              ("=" only in an objective, where it means "<=")
    value  = NUMBER unit
    unit   = "us" / "µs" / "ms" / "s"                   for latencies and the lag (its 99th percentile)
           / "%"                                        for errors: of the measured requests
           / "/s"                                       for throughput and goodput
           / "%" after a signed number                  relative to the baseline, for anything but errors and lag

An objective says what must hold, a gate what must not happen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tritonstack.errors import UsageError

Operator = Literal["<", "<=", ">", ">="]
METRICS = "mean, max, p50, p99.9 and other percentiles, errors, throughput, goodput, lag"
_PATTERN = re.compile(r"\s*([a-z]+[0-9.]*)\s*(<=|>=|<|>|=)\s*([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(\S*)\s*")
_TIME_US = {"us": 1.0, "µs": 1.0, "μs": 1.0, "ms": 1e3, "s": 1e6}
_HOLDS = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of one metric. `value` is in µs for latencies, a fraction for errors and relative values
    (-0.05 is five percent less than the baseline), per second for rates."""

    text: str
    metric: str
    operator: Operator
    value: float
    relative: bool = False

    @property
    def percent(self) -> float | None:
        """The percentile that is asked about, None for other metrics."""
        return float(self.metric[1:]) if self.metric[0] == "p" else None

    @property
    def is_latency(self) -> bool:
        return self.percent is not None or self.metric in ("mean", "max")

    def holds(self, measured: float) -> bool:
        """Whether `measured`, in the unit of `value`, fulfils the comparison."""
        return bool(_HOLDS[self.operator](measured, self.value))


def parse_gates(text: str) -> tuple[Condition, ...]:
    """The gates of ``--fail-if``. Raises UsageError."""
    return tuple(_parse(part, "--fail-if", objective=False) for part in _parts(text, "--fail-if"))


def parse_objectives(text: str) -> tuple[Condition, ...]:
    """The objectives of ``--slo``: upper limits of latencies and errors. Raises UsageError."""
    found = tuple(_parse(part, "--slo", objective=True) for part in _parts(text, "--slo"))
    for one in found:
        if one.relative or one.operator not in ("<", "<=") or not (one.is_latency or one.metric == "errors"):
            raise UsageError(
                f"argument --slo: an objective is an upper limit of a latency or of errors; given {one.text!r}",
                expected="such as p99<50ms or errors<0.1%",
            )
    return found


def _parts(text: str, flag: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise UsageError(f"argument {flag}: an empty condition in {text!r}", expected="such as p99>50ms,errors>0.1%")
    return parts


def _parse(text: str, flag: str, *, objective: bool) -> Condition:
    found = _PATTERN.fullmatch(text)
    if found is None:
        example = "p99<50ms" if objective else "p99>50ms, errors>0.1% or throughput<-5%"
        raise UsageError(f"argument {flag}: given {text!r}", expected=f"METRIC OP VALUE such as {example}")
    metric, mark, sign, digits, unit = found.groups()
    if mark == "=" and not objective:
        raise UsageError(f"argument {flag}: given {text!r}", expected="one of <, <=, > and >=")
    operator: Operator = "<=" if mark == "=" else mark  # type: ignore[assignment]  # the pattern has no others
    _check_metric(metric, text, flag)
    value = float(f"{sign}{digits}")
    is_rate = metric in ("throughput", "goodput")
    if unit == "%" and metric == "errors":
        if sign or value > 100:
            raise UsageError(f"argument {flag}: given {text!r}", expected="errors as 0% to 100% of the requests")
        return Condition(text, metric, operator, value / 100)
    if unit == "%" and metric != "lag" and not objective:
        if not sign:
            raise UsageError(
                f"argument {flag}: given {text!r}", expected=f"a signed share of the baseline, such as {metric}>+5%"
            )
        return Condition(text, metric, operator, value / 100, relative=True)
    if not sign and is_rate and unit in ("/s", ""):
        return Condition(text, metric, operator, value)
    if not sign and not is_rate and metric != "errors" and unit in _TIME_US:
        return Condition(text, metric, operator, value * _TIME_US[unit])
    units = "% of the requests" if metric == "errors" else "/s" if is_rate else "us, ms or s"
    raise UsageError(f"argument {flag}: given {text!r}", expected=f"{metric} in {units}")


def _check_metric(metric: str, text: str, flag: str) -> None:
    known = metric in ("mean", "max", "errors", "throughput", "goodput", "lag")
    if not known and re.fullmatch(r"p[0-9]+(\.[0-9]+)?", metric):
        known = 0 < float(metric[1:]) < 100
    if not known:
        raise UsageError(f"argument {flag}: no metric {metric!r} in {text!r}", expected=METRICS)
