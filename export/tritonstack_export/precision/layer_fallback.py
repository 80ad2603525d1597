"""Give sensitive layers back to float until the gates pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from tritonstack.errors import GateError
from tritonstack.terminal import Progress
from tritonstack_export.precision.layer_sensitivity import LayerSensitivity
from tritonstack_export.spec_precision import Fallback

if TYPE_CHECKING:
    from tritonstack_export.precision.task_accuracy import AccuracyDrop
    from tritonstack_export.precision.variant_gates import VariantRow

_STEP_DB = 2.0
"""The noise that each candidate takes away from the one before it, in dB by prediction."""


@dataclass(frozen=True)
class Verdict:
    """What the gates say about a file. `reason`: why it does not pass, empty where it does. `rows`, `accuracy`: what
    was measured, as far as it was before the first failure."""

    passed: bool
    reason: str = ""
    rows: tuple[VariantRow, ...] = ()
    accuracy: AccuracyDrop | None = None


Gate = Callable[[Path], Verdict]


@dataclass(frozen=True)
class Choice:
    """`given_back`: how many of the most sensitive layers stay in float. `checks`: how often the gates were asked."""

    given_back: int
    checks: int
    verdicts: tuple[tuple[int, Verdict], ...]


def candidates(order: Sequence[LayerSensitivity], most: int) -> list[int]:
    """Counts of layers to give back, rising, each with about 2 dB less noise than the one before.

    The noise of single layers adds up where it is small and independent, so the sum over the layers that stay
    quantized predicts what a count would bring.
    """
    noise = [10 ** (-entry.snr_db / 10) for entry in order]
    left = sum(noise)
    counts, wanted = [], left * 10 ** (-_STEP_DB / 10)
    for count in range(1, most + 1):
        left -= noise[count - 1]
        if left <= wanted:
            counts.append(count)
            wanted = max(left, 0.0) * 10 ** (-_STEP_DB / 10)
    if most and (not counts or counts[-1] != most):
        counts.append(most)
    return counts


def predicted_gains(order: Sequence[LayerSensitivity]) -> list[float]:
    """For each layer in turn, the rise of the SNR in dB when it follows those before it into float, by the same sum."""
    noise = [10 ** (-entry.snr_db / 10) for entry in order]
    # The smallest noise keeps the last gain finite: what the last layer takes away is all there is left.
    left = [math.fsum(noise[index:]) for index in range(len(noise))] + [min(noise, default=0.0)]
    return [10 * math.log10(before / after) for before, after in pairwise(left)]


def choose(
    order: Sequence[LayerSensitivity],
    check: Callable[[int], Verdict],
    settings: Fallback,
    progress: Progress,
    *,
    first: Verdict,
) -> Choice:
    """The fewest layers found that have to be given back. `check(n)`: the gates with the `n` most sensitive ones in
    float; `first`: those of n = 0, which did not pass.

    Candidates rise until one passes, then the gap below it is bisected. Raises GateError, naming the worst layers and
    what was reached, when `max_share` of the layers is not enough.
    """
    most = int(settings.max_share * len(order))
    verdicts = {0: first}
    low, high = 0, None
    for count in candidates(order, most):
        progress.update(f"  … fallback: {count} of {len(order)} layers in float")
        verdicts[count] = check(count)
        if verdicts[count].passed:
            high = count
            break
        low = count
    if high is None:
        raise refusal(order, most, verdicts[max(verdicts)], settings)
    while high - low > 1:
        middle = (low + high) // 2
        progress.update(f"  … fallback: {middle} of {len(order)} layers in float")
        verdicts[middle] = check(middle)
        low, high = (low, middle) if verdicts[middle].passed else (middle, high)
    return Choice(high, len(verdicts), tuple(sorted(verdicts.items())))


def refusal(order: Sequence[LayerSensitivity], most: int, last: Verdict, settings: Fallback) -> GateError:
    """What is said when the allowed share of layers does not suffice."""
    named = ", ".join(f"{entry.layer.name} ({entry.snr_db:.1f} dB)" for entry in order[:5])
    return GateError(
        f"int8 misses its gates even with the {most} most sensitive of {len(order)} layers kept in float: "
        f"{last.reason}",
        given=f"most sensitive, each alone: {named}",
        expected=f"gates passed with at most {settings.max_share:.0%} of the layers given back "
        "(`precision.int8.fallback.max_share`)",
        next_step="try another `precision.int8.method`, calibration samples nearer to the real inputs, or leave int8 "
        "out of `precision.variants`",
    )
