"""The channels of an output one by one: a detector's scores beside its boxes.

Boxes span 640 pixels, scores 1. When a variant loses every score, the signal-to-noise ratio of the whole output may
still be 60 dB. So the ratio is also taken for each slice along each axis, with the sample means of the whole output:

    channel_db = min over slices of 10 log10(mean over the slice of (R - m)² / mean over the slice of (R - V)²)

Slices on which nothing can be said are left out: those whose spread is below 1e-4 of the output's (the probabilities
of classes that no sample shows), and those whose signal comes from fewer than 8 values. With d = R - m that number is
taken as (sum of d²)² / sum of d⁴, which is the count of the values where all are alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]

_LEAST_SPREAD = 1e-4
_LEAST_VALUES = 8.0
_ROUNDING = 1e-6
"""What varies by less than this part of its size varies by rounding."""


@dataclass(frozen=True)
class ChannelSignals:
    """The slices along `axis` (negative: from the end) of a sample. `power` [slice]: mean of (R - m)². `counted`
    [slice]: whether it is judged."""

    axis: int
    power: Floats
    counted: NDArray[np.bool_]


def channel_signals(arrays: Sequence[Floats], *, half_range: float) -> tuple[ChannelSignals, ...]:
    """For each axis with at least two slices of which one can be judged. `arrays`: one per sample; where their shapes
    differ only the last axis has channels. `half_range`: of all values."""
    if len(arrays) > 1 and len({value.shape for value in arrays}) == 1:
        rows, axes = list(arrays), range(-arrays[0].ndim, 0)
    elif arrays[0].ndim and len({value.shape[-1:] for value in arrays}) == 1:
        rows = [row for value in arrays for row in value.reshape(-1, value.shape[-1])]
        axes = range(-1, 0)
    else:
        return ()
    if len(rows) < 2:
        return ()
    finite = [np.isfinite(row) for row in rows]
    count = np.maximum(sum(mask.astype(np.float64) for mask in finite), 1)
    mean = sum(np.where(mask, row, 0.0) for mask, row in zip(finite, rows, strict=True)) / count
    found = []
    for axis in axes:
        if rows[0].shape[axis] < 2:
            continue
        signals = _along(axis, rows, finite, np.asarray(mean), half_range)
        if signals.counted.any():
            found.append(signals)
    return tuple(found)


def _along(
    axis: int, rows: Sequence[Floats], finite: Sequence[NDArray[np.bool_]], mean: Floats, half_range: float
) -> ChannelSignals:
    size = rows[0].shape[axis]
    second, fourth, values = np.zeros(size), np.zeros(size), np.zeros(size)
    low, high = np.full(size, np.inf), np.full(size, -np.inf)
    for row, mask in zip(rows, finite, strict=True):
        square = _by_slice(np.square(np.where(mask, row - mean, 0.0)), axis)
        second += square.sum(axis=1)
        fourth += np.square(square).sum(axis=1)
        values += _by_slice(mask, axis).sum(axis=1)
        low = np.minimum(low, _by_slice(np.where(mask, row, np.inf), axis).min(axis=1))
        high = np.maximum(high, _by_slice(np.where(mask, row, -np.inf), axis).max(axis=1))
    with np.errstate(all="ignore"):
        power = second / np.maximum(values, 1)
        alike = np.where(fourth > 0, np.square(second) / fourth, 0.0)
        spread = np.where(values > 0, (high - low) / 2, 0.0)
        largest = np.where(values > 0, np.maximum(np.abs(low), np.abs(high)), 0.0)
        varies = np.sqrt(power) > _ROUNDING * largest
    counted = (spread >= _LEAST_SPREAD * half_range) & (alike >= _LEAST_VALUES) & varies
    return ChannelSignals(axis, power, np.asarray(counted))


def _by_slice(values: Array, axis: int) -> Array:
    """[slice, everything else]."""
    return np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)


class ChannelNoise:
    """Adds up the noise of the slices along one axis, sample by sample."""

    def __init__(self, signals: ChannelSignals) -> None:
        self._signals = signals
        self._noise: Floats = np.zeros(len(signals.power))
        self._values: Floats = np.zeros(len(signals.power))

    def add(self, reference: Array, variant: Array) -> None:
        """One sample of both; infinities, which are in the same places, are left out."""
        finite = np.isfinite(reference)
        with np.errstate(invalid="ignore"):
            difference = np.where(finite, reference.astype(np.float64) - variant.astype(np.float64), 0.0)
        self._noise += _by_slice(np.square(difference), self._signals.axis).sum(axis=1)
        self._values += _by_slice(finite, self._signals.axis).sum(axis=1)

    def worst(self) -> tuple[float, str] | None:
        """The smallest ratio in dB, and which slice has it; None where there is no noise at all."""
        judged = self._signals.counted & (self._noise > 0)
        if not judged.any():
            return None
        with np.errstate(all="ignore"):
            ratio = np.where(judged, self._signals.power * self._values / self._noise, math.inf)
        index = int(ratio.argmin())
        name = "the last axis" if self._signals.axis == -1 else f"axis {self._signals.axis}"
        return 10 * math.log10(float(ratio[index])), f"channel {index} of {name}"
