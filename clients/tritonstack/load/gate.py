"""Judging a report by gates (see objective.py for their grammar): each says what must not happen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tritonstack.errors import UsageError
from tritonstack.load.objective import Condition
from tritonstack.load.saved_report import SavedLevel, SavedReport
from tritonstack.terminal import human_seconds


@dataclass(frozen=True, slots=True)
class BrokenGate:
    """A gate that a level broke, with what was measured, in words."""

    gate: str
    level: str
    measured: str

    def __str__(self) -> str:
        return f"{self.level}: {self.gate}: {self.measured}"


def require_no_baseline(gates: Sequence[Condition]) -> None:
    """Refuse gates that compare with a baseline where there is none. Raises UsageError."""
    for gate in gates:
        if gate.relative:
            raise UsageError(
                f"argument --fail-if: {gate.text!r} compares with a baseline",
                next_step="name one with --baseline FILE.json, or use `tritonstack load compare`",
            )


def broken_gates(report: SavedReport, gates: Sequence[Condition]) -> list[BrokenGate]:
    """The absolute ones of `gates` that levels of `report` broke. What was not measured breaks its gate too."""
    return [
        broken
        for level in report.levels
        for gate in gates
        if not gate.relative and (broken := _broken(level, gate)) is not None
    ]


def _broken(level: SavedLevel, gate: Condition) -> BrokenGate | None:
    measured = level.metric(gate.metric)
    if measured is None:
        if gate.metric in ("lag", "goodput"):
            # A closed loop has no lag and a run without objectives no goodput.
            return BrokenGate(gate.text, level.label, f"{gate.metric} was not measured in this run")
        return BrokenGate(gate.text, level.label, "no request succeeded")
    return BrokenGate(gate.text, level.label, value_text(gate.metric, measured)) if gate.holds(measured) else None


def value_text(metric: str, value: float) -> str:
    """``52.1 ms``, ``0.3 %``, ``912.0/s``."""
    if metric == "errors":
        return f"{100 * value:.3g} %"
    if metric in ("throughput", "goodput"):
        return f"{value:.1f}/s"
    return human_seconds(value / 1e6)
