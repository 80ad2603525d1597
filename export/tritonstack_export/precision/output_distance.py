"""How far the outputs of a variant lie from those of FP32, measured against how much the output varies.

An absolute tolerance passes an output that lost its signal: where logits vary by 0.1, a constant is wrong by 0.1 only.
So differences are set in relation to the spread of the output over the samples, R being the reference, V the variant:

    signal   = mean of (R - m)²     m: the mean over the samples, for each feature
    noise    = mean of (R - V)²
    snr_db   = 10 log10(signal / noise)
    max_rel  = max |R - V| / (half of max R - min R)
    cosine   = smallest over the samples of  R·V / (|R| |V|)

Where the mean over the samples says nothing (one sample, or samples of different shapes) m is the mean of each entry of
the last axis, and with a single row the mean of all values. An output that never varies has R itself as its signal, and
max |R| in place of the spread. `channel_db` is the snr_db of the worst channel (output_channels.py): one that lost its
signal is not seen beside others of a larger scale. Whole numbers and booleans have no such measures: the share of equal
values counts, of all and of those other than the most frequent one (`rare_equal`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tritonstack_export.precision.output_channels import ChannelNoise, ChannelSignals, channel_signals
from tritonstack_export.samples import Array

Floats = NDArray[np.float64]
_NO_DIRECTION = 1e-30
"""Below this product of norms two vectors have no direction worth comparing."""
_LEAST_RARE = 8


@dataclass(frozen=True)
class OutputDistance:
    """The comparison of one output over some samples. Measures that do not apply are None: `equal` is for whole
    numbers, booleans and strings, the others for floats; `cosine` needs more than one value a sample, `channel_db`
    channels that vary enough. `channel`: which one that is. `rare_equal`: as `equal`, of the values that are not the
    most frequent one; None where those are fewer than 8.

    `problem`: what makes the comparison fail whatever the gates are (shapes, dtypes, NaN, infinities), else None.
    """

    samples: int
    max_abs: float | None = None
    max_rel: float | None = None
    cosine: float | None = None
    snr_db: float | None = None
    equal: float | None = None
    problem: str | None = None
    channel_db: float | None = None
    channel: str | None = None
    rare_equal: float | None = None


@dataclass(frozen=True)
class Spread:
    """How much one output of the reference varies. `power`: the signal of the formulas above; `half_range`: half of
    largest minus smallest; `channels`: the signals of the channels along each axis."""

    power: float
    half_range: float
    channels: tuple[ChannelSignals, ...] = ()


def is_float(value: Array) -> bool:
    """Also of `ml_dtypes`' bfloat16, which is no kind of float to numpy."""
    return value.dtype.kind == "f" or value.dtype.name == "bfloat16"


def spread_of(reference: Sequence[Array]) -> Spread:
    """The spread over the samples, one array of one shape or another each. Infinities and NaN are left out."""
    arrays = [value.astype(np.float64) for value in reference if value.size]
    if not arrays:
        return Spread(0.0, 0.0)
    everything = np.concatenate([value.reshape(-1) for value in arrays])
    finite = everything[np.isfinite(everything)]
    if not finite.size:
        return Spread(0.0, 0.0)
    power = float(np.mean(np.square(_deviations(arrays))))
    half = float(finite.max() - finite.min()) / 2
    largest = float(np.abs(finite).max())
    # What remains of equal values after subtracting their mean is rounding.
    if power <= (1e-7 * largest) ** 2:
        power = float(np.mean(np.square(finite)))
    if half <= 1e-7 * largest:
        return Spread(power, largest)
    return Spread(power, half, channel_signals(arrays, half_range=half))


def _deviations(arrays: Sequence[Floats]) -> Floats:
    """All finite values less the mean that fits: over samples, over rows, or over everything."""
    if len(arrays) > 1 and len({value.shape for value in arrays}) == 1:
        return _less_mean(np.stack(arrays))
    if len({value.shape[-1:] for value in arrays}) == 1 and arrays[0].ndim:
        rows = np.concatenate([value.reshape(-1, value.shape[-1]) for value in arrays])
        if len(rows) > 1:
            return _less_mean(rows)
    return _less_mean(np.concatenate([value.reshape(-1) for value in arrays]))


def _less_mean(rows: Floats) -> Floats:
    """The finite values less their mean over axis 0, flattened."""
    finite = np.isfinite(rows)
    mean = np.where(finite, rows, 0.0).sum(axis=0) / np.maximum(finite.sum(axis=0), 1)
    return np.asarray((rows - mean)[finite])


def output_distance(
    reference: Sequence[Array], variant: Sequence[Array], *, spread: Spread | None = None
) -> OutputDistance:
    """Compare one output, given as one array for each sample. `spread`: that of the reference over more samples."""
    count = len(reference)
    for expected, found in zip(reference, variant, strict=True):
        problem = _kind_problem(expected, found)
        if problem is not None:
            return OutputDistance(count, problem=problem)
    if not all(is_float(value) for value in reference):
        return OutputDistance(count, equal=_equal_share(reference, variant), rare_equal=_rare_share(reference, variant))
    return _float_distance(reference, variant, spread or spread_of(reference))


def _kind_problem(expected: Array, found: Array) -> str | None:
    if is_float(expected) != is_float(found) or (not is_float(expected) and expected.dtype.kind != found.dtype.kind):
        return f"the dtype is {found.dtype} instead of {expected.dtype}"
    if expected.shape != found.shape:
        return f"the shape is {list(found.shape)} instead of {list(expected.shape)}"
    return None


def _equal_share(reference: Sequence[Array], variant: Sequence[Array]) -> float:
    total = sum(value.size for value in reference)
    same = sum(int(np.count_nonzero(a == b)) for a, b in zip(reference, variant, strict=True))
    return same / total if total else 1.0


def _rare_share(reference: Sequence[Array], variant: Sequence[Array]) -> float | None:
    values, counts = np.unique(np.concatenate([value.reshape(-1) for value in reference]), return_counts=True)
    if not counts.size or counts.sum() - counts.max() < _LEAST_RARE:
        return None
    rare = [value != values[counts.argmax()] for value in reference]
    same = sum(int(np.count_nonzero((a == b)[m])) for a, b, m in zip(reference, variant, rare, strict=True))
    return same / int(counts.sum() - counts.max())


def _float_distance(reference: Sequence[Array], variant: Sequence[Array], spread: Spread) -> OutputDistance:
    noise = largest = 0.0
    elements = 0
    cosine: float | None = None
    channels = [ChannelNoise(signals) for signals in spread.channels]
    for expected, found in zip(reference, variant, strict=True):
        a, b = expected.astype(np.float64).reshape(-1), found.astype(np.float64).reshape(-1)
        problem = _not_finite(a, b)
        if problem is not None:
            return OutputDistance(len(reference), problem=problem)
        finite = np.isfinite(a)
        a, b = a[finite], b[finite]
        if not a.size:
            continue
        for channel in channels:
            channel.add(expected, found)
        difference = a - b
        noise += float(np.dot(difference, difference))
        largest = max(largest, float(np.abs(difference).max()))
        elements += a.size
        if a.size > 1:
            here = _cosine(a, b)
            cosine = here if cosine is None else min(cosine, here)
    if not elements:
        return OutputDistance(len(reference), 0.0, 0.0, None, math.inf)
    worst = min((ratio for channel in channels if (ratio := channel.worst()) is not None), default=None)
    return OutputDistance(
        len(reference),
        largest,
        _relative(largest, spread.half_range),
        cosine,
        _decibels(spread.power, noise / elements),
        channel_db=worst[0] if worst is not None else None,
        channel=worst[1] if worst is not None else None,
    )


def _not_finite(expected: Floats, found: Floats) -> str | None:
    missing = np.isnan(found) & ~np.isnan(expected)
    if missing.any():
        return f"{int(missing.sum())} of {found.size} values are NaN"
    if np.isnan(expected).any():
        return "the FP32 reference holds NaN"
    infinite = np.isinf(expected) | np.isinf(found)
    wrong = infinite & (expected != found)
    if wrong.any():
        return f"{int(wrong.sum())} of {found.size} values are infinite in one of the two only"
    return None


def _cosine(a: Floats, b: Floats) -> float:
    norms = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    if norms > _NO_DIRECTION:
        return float(np.dot(a, b)) / norms
    return 1.0 if np.allclose(a, b, rtol=0, atol=1e-12) else 0.0


def _relative(difference: float, scale: float) -> float:
    if difference == 0:
        return 0.0
    return difference / scale if scale else math.inf


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf
