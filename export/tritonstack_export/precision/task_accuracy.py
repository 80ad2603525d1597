"""Accuracy on labelled samples: top-1, top-5, or what a Python callable counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tritonstack.errors import GateError, InputError, UsageError
from tritonstack_export import factory, source_location
from tritonstack_export.precision.dataset import Dataset, batches
from tritonstack_export.samples import Array
from tritonstack_export.signature import Signature
from tritonstack_export.spec import ModelSpec

Run = Callable[[Mapping[str, Array]], dict[str, Array]]

BATCH_SIZE = 8
"""Samples run at once."""


@dataclass(frozen=True)
class Accuracy:
    """What one variant reaches. `value`: a share, 0.75 is 75 points. `output`: the output it is computed on, None for
    a callable. `correct` and `top`: per sample whether it counts, and its best class; empty for a callable."""

    metric: str
    value: float
    count: int
    output: str | None = None
    correct: tuple[bool, ...] = ()
    top: tuple[int, ...] = ()


@dataclass(frozen=True)
class AccuracyDrop:
    """A variant against FP32 on the same samples. `drop`, `max_drop` and `error` in points (100 is everything).

    `agreement`: share of samples with the same best class as FP32, None for a callable. `error`: standard error of
    the drop from the samples on which the two differ, sqrt(lost + won) / count, None for a callable. `sample_points`:
    what one sample is worth.
    """

    precision: str
    metric: str
    count: int
    reference: float
    value: float
    drop: float
    max_drop: float
    agreement: float | None
    error: float | None
    lost: int
    won: int

    @property
    def sample_points(self) -> float:
        return 100 / self.count

    @property
    def passed(self) -> bool:
        # The tolerance is far below one sample's worth: it only absorbs the rounding of 100 · (a − b).
        return self.drop <= self.max_drop + 1e-9

    def text(self) -> str:
        """``top1 83.6 % against 84.0 % in FP32 (drop 0.41 ± 0.58 points, same class in 98.0 %)``."""
        error = f" ± {self.error:.2f}" if self.error is not None else ""
        same = f", same class in {100 * self.agreement:.1f} %" if self.agreement is not None else ""
        return (
            f"{self.metric} {100 * self.value:.2f} % against {100 * self.reference:.2f} % in FP32 "
            f"(drop {self.drop:.2f}{error} points on {self.count} samples{same})"
        )


def measure(run: Run, data: Dataset, spec: ModelSpec, signature: Signature, *, folder: Path) -> Accuracy:
    """Run the evaluation set and count. `run`: inputs -> all outputs; `folder`: where callables are looked up.

    Raises UsageError for a metric that does not fit the model, InputError for labels that do not fit the outputs or
    a callable that fails.
    """
    evaluation = spec.evaluation
    if evaluation is None:
        raise UsageError("accuracy needs `evaluation` in the spec", expected="labelled samples and a metric")
    metric = evaluation.metric
    function = None
    if metric not in ("top1", "top5"):
        function = factory.import_attribute(metric, folder=folder, key="evaluation.metric")
        if not callable(function):
            raise UsageError(f"evaluation.metric: {metric!r} cannot be called")
    outputs = _run_all(run, data, signature)
    if function is not None:
        return Accuracy(metric, _call(function, metric, outputs, data), len(data))
    name = _scores_output(outputs, spec)
    return _top_k(outputs[name], data, name, metric, 1 if metric == "top1" else 5, batched=signature.batched)


def _run_all(run: Run, data: Dataset, signature: Signature) -> dict[str, list[Array]]:
    """Each output of each sample in order, with the batch axis where the model is batched."""
    found: dict[str, list[Array]] = {}
    for indices, inputs in batches(data.samples, signature, size=BATCH_SIZE):
        for name, value in run(inputs).items():
            slots = found.setdefault(name, [np.empty(0)] * len(data))
            for position, index in enumerate(indices):
                # Copied, so that a sample does not keep its whole batch alive.
                slots[index] = value[position : position + 1].copy() if signature.batched else value
    return found


def _call(function: Any, metric: str, outputs: Mapping[str, list[Array]], data: Dataset) -> float:
    """The callable takes {output: array [sample, …], or a list of arrays where their shapes differ} and the labels."""
    joined: dict[str, Any] = {}
    for name, values in outputs.items():
        same = len({value.shape for value in values}) == 1
        joined[name] = np.concatenate(values) if same and values[0].ndim and values[0].shape[0] == 1 else values
    try:
        returned = function(joined, list(data.labels))
    except Exception as error:
        at = source_location.from_traceback(error.__traceback__)
        raise InputError(
            f"evaluation.metric: {metric!r} failed{f' at {at}' if at else ''}: "
            f"{type(error).__name__}: {source_location.first_line(error)}"
        ) from error
    try:
        value = float(returned)
    except (TypeError, ValueError) as error:
        kind = type(returned).__name__
        raise InputError(
            f"evaluation.metric: {metric!r} returned no number", given=f"{kind} {str(returned)[:40]!r}",
            expected="a finite number, higher is better",
        ) from error  # fmt: skip
    if not math.isfinite(value):
        raise InputError(f"evaluation.metric: {metric!r} returned {value}", expected="a finite number")
    return value


def _scores_output(outputs: Mapping[str, list[Array]], spec: ModelSpec) -> str:
    name = spec.evaluation.output if spec.evaluation is not None else None
    if name is None and spec.classification is not None:
        name = spec.classification.output
    if name is None and len(outputs) == 1:
        name = next(iter(outputs))
    if name is None or name not in outputs:
        raise UsageError(
            "`evaluation.output`: which output holds the class scores?" if name is None else
            f"`evaluation.output`: the model has no output {name!r}",
            expected=f"one of {', '.join(outputs)}",
        )  # fmt: skip
    return name


def _top_k(values: Sequence[Array], data: Dataset, output: str, metric: str, k: int, *, batched: bool) -> Accuracy:
    correct, top = [], []
    for entry, value in zip(data.entries, values, strict=True):
        scores = value[0] if batched else value
        if scores.ndim != 1 or scores.dtype.kind != "f":
            raise UsageError(
                f"`evaluation.metric` {metric} needs class scores, one row per sample",
                given=f"output {output!r} {scores.dtype} {list(scores.shape)} per sample",
                expected="a float vector, or a callable as metric",
            )
        accepted = _accepted(entry.label, scores.shape[0], entry.name)
        if np.isnan(scores).any():
            # No order among NaN: the sample is wrong, and its class is none.
            correct.append(False)
            top.append(-1)
            continue
        best = np.argsort(-scores, kind="stable")[:k]
        correct.append(bool(accepted & set(best.tolist())))
        top.append(int(best[0]))
    return Accuracy(metric, sum(correct) / len(correct), len(correct), output, tuple(correct), tuple(top))


def _accepted(label: Any, classes: int, where: str) -> set[int]:
    """Class indices that count as right; negative ones are padding."""
    values = [label] if isinstance(label, int | np.integer) and not isinstance(label, bool) else label
    if isinstance(values, np.ndarray):
        values = values.reshape(-1).tolist()
    accepted = set()
    if isinstance(values, list | tuple | set | frozenset):
        accepted = {int(v) for v in values if isinstance(v, int | np.integer) and not isinstance(v, bool) and v >= 0}
    if not accepted or max(accepted) >= classes:
        raise InputError(
            f"evaluation: the label of {where} does not fit the model",
            given=repr(label)[:80],
            expected=f"a class index from 0 to {classes - 1}, or a list of accepted ones",
        )
    return accepted


def compare_accuracy(precision: str, reference: Accuracy, variant: Accuracy, max_drop: float) -> AccuracyDrop:
    """The drop of a variant against FP32, both measured on the same samples."""
    agreement = error = None
    lost = won = 0
    if reference.top:
        same = sum(a == b for a, b in zip(reference.top, variant.top, strict=True))
        agreement = same / reference.count
        pairs = list(zip(reference.correct, variant.correct, strict=True))
        lost, won = sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)
        error = 100 * math.sqrt(lost + won) / reference.count
    return AccuracyDrop(
        precision=precision,
        metric=reference.metric,
        count=reference.count,
        reference=reference.value,
        value=variant.value,
        drop=100 * (reference.value - variant.value),
        max_drop=max_drop,
        agreement=agreement,
        error=error,
        lost=lost,
        won=won,
    )


def resolution_note(drop: AccuracyDrop) -> str | None:
    """What to know where the set is too small to see `max_drop`: one sample is worth more. None otherwise."""
    if drop.agreement is None or drop.sample_points <= drop.max_drop:
        return None
    return (
        f"one of {drop.count} evaluation samples is worth {drop.sample_points:.2f} points, more than the "
        f"{drop.max_drop:g} that {drop.precision} may lose: in effect none may be lost"
    )


def require_accuracy(drop: AccuracyDrop) -> None:
    """Raises GateError naming precision, metric, both numbers, the drop and its limit."""
    if drop.passed:
        return
    allow = math.ceil(drop.drop * 100 - 1e-6) / 100
    remedy = {
        "int8": "give more layers back (`precision.int8.fallback.max_share`, `exclude`), calibrate on samples nearer "
        "to the evaluation's",
    }.get(drop.precision, f"keep sensitive nodes in FP32 (`precision.{drop.precision}.keep_fp32`)")
    raise GateError(
        f"{drop.precision} loses too much accuracy: {drop.text()}",
        expected=f"a drop of at most {drop.max_drop:g} points (`evaluation.max_drop.{drop.precision}`)",
        next_step=f"{remedy}, or accept it with --allow-drop {drop.precision}={allow:g}",
    )
