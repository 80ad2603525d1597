"""The replica count that Kubernetes' horizontal pod autoscaler asks for, from an external metric with AverageValue.

Formulas: `kubernetes/pkg/controller/podautoscaler` (replica_calculator.go `GetExternalPerPodMetricReplicas`,
horizontal.go `stabilizeRecommendationWithBehaviors`, `convertDesiredReplicasWithBehaviorRate`). KEDA hands its triggers
to an HPA as external metrics, so from 1 to N its law is this one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

SYNC_PERIOD_S = 15.0
"""How often the controller looks (`--horizontal-pod-autoscaler-sync-period`)."""

TOLERANCE = 0.1
"""Ratios nearer to 1 than this change nothing (`--horizontal-pod-autoscaler-tolerance`)."""


@dataclass(frozen=True)
class Policy:
    """At most `value` pods or per cent of the replicas may be added or taken away in `period_s` seconds."""

    kind: Literal["Pods", "Percent"]
    value: int
    period_s: int

    def __post_init__(self) -> None:
        if self.value <= 0 or not 0 < self.period_s <= 1800:
            raise ValueError(f"a policy needs a value above 0 and a period of 1 to 1800 s; given {self}")


@dataclass(frozen=True)
class Rules:
    """One direction of `behavior`. No policies: the direction is bounded by the replica limits alone."""

    stabilization_s: int
    policies: tuple[Policy, ...] = ()
    select: Literal["Max", "Min", "Disabled"] = "Max"

    @classmethod
    def from_kubernetes(cls, document: Mapping[str, Any], default: Rules) -> Rules:
        """`spec.behavior.scaleUp` or `.scaleDown`; what it leaves out comes from `default`."""
        policies = tuple(
            Policy(entry["type"], int(entry["value"]), int(entry["periodSeconds"]))
            for entry in document.get("policies") or ()
        )
        return cls(
            stabilization_s=int(document.get("stabilizationWindowSeconds", default.stabilization_s)),
            policies=policies or default.policies,
            select=document.get("selectPolicy", default.select),
        )


# What Kubernetes uses where `behavior` is silent.
UP = Rules(0, (Policy("Percent", 100, 15), Policy("Pods", 4, 15)))
DOWN = Rules(300, (Policy("Percent", 100, 15),))


@dataclass(frozen=True)
class Hpa:
    """One autoscaler. `targets` holds, per external metric, the AverageValue: how much of it one pod should carry."""

    targets: tuple[float, ...]
    minimum: int
    maximum: int
    up: Rules = UP
    down: Rules = DOWN
    tolerance: float = TOLERANCE

    def __post_init__(self) -> None:
        if not self.targets or any(target <= 0 for target in self.targets):
            raise ValueError(f"targets are above 0, and there is one at least; given {self.targets}")
        if not 1 <= self.minimum <= self.maximum:
            raise ValueError(f"1 ≤ minimum ≤ maximum; given {self.minimum} and {self.maximum}")


@dataclass
class Controller:
    """The memory of an `Hpa`: recommendations and changes of the last minutes."""

    hpa: Hpa
    replicas: int
    _recommended: list[tuple[float, int]] = field(default_factory=list)
    _changes: list[tuple[float, int]] = field(default_factory=list)

    def sync(self, now_s: float, values: Sequence[float | None]) -> int:
        """Look at the metrics' totals and return the replica count asked for from now on.

        `values` has one entry per target; None is a metric that could not be read. With any of them missing the
        controller never scales down, and with all of them missing it does nothing (horizontal.go
        `computeReplicasForMetrics`).
        """
        known = [
            self._one(value, target)
            for value, target in zip(values, self.hpa.targets, strict=True)
            if value is not None
        ]
        if not known:
            return self.replicas
        desired = max(known)
        if len(known) < len(values) and desired < self.replicas:
            return self.replicas
        desired = self._stabilised(now_s, desired)
        desired = self._at_the_allowed_rate(now_s, desired)
        desired = min(max(desired, self.hpa.minimum), self.hpa.maximum)
        if desired != self.replicas:
            self._changes.append((now_s, desired - self.replicas))
            self.replicas = desired
        return self.replicas

    def _one(self, total: float, target: float) -> int:
        if not math.isfinite(total):
            # A NaN becomes the smallest integer on its way through the metrics API; see kedacore/keda#7475.
            return self.hpa.minimum
        ratio = total / (target * self.replicas)
        if abs(1.0 - ratio) <= self.hpa.tolerance:
            return self.replicas
        return math.ceil(total / target)

    def _stabilised(self, now_s: float, desired: int) -> int:
        """Up: the smallest recommendation of its window; down: the largest of its own."""
        longest = max(self.hpa.up.stabilization_s, self.hpa.down.stabilization_s)
        up, down = desired, desired
        for moment_s, recommended in self._recommended:
            if moment_s > now_s - self.hpa.up.stabilization_s:
                up = min(up, recommended)
            if moment_s > now_s - self.hpa.down.stabilization_s:
                down = max(down, recommended)
        self._recommended = [entry for entry in self._recommended if entry[0] > now_s - longest]
        self._recommended.append((now_s, desired))
        return max(self.replicas, up) if self.replicas < up else min(self.replicas, down)

    def _at_the_allowed_rate(self, now_s: float, desired: int) -> int:
        rules = self.hpa.up if desired > self.replicas else self.hpa.down
        if desired == self.replicas or not rules.policies:
            return desired
        if rules.select == "Disabled":
            return self.replicas
        rising = desired > self.replicas
        limits = []
        for policy in rules.policies:
            changed = sum(
                delta
                for moment_s, delta in self._changes
                if moment_s > now_s - policy.period_s and (delta > 0) == rising
            )
            # The period begins with the replicas there were before the changes inside of it.
            start = self.replicas - changed
            if policy.kind == "Pods":
                limits.append(start + policy.value if rising else start - policy.value)
            else:
                factor = policy.value / 100
                limits.append(math.ceil(start * (1 + factor)) if rising else int(start * (1 - factor)))
        if rising:
            return min(desired, max(limits) if rules.select == "Max" else min(limits))
        return max(desired, min(limits) if rules.select == "Max" else max(limits))
