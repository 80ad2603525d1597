"""The distribution of a tensor's magnitudes, and the threshold that INT8 covers.

Symmetric INT8 maps [-threshold, threshold] to [-127, 127]; what lies beyond is clipped. A wide threshold rounds
everything coarsely, a narrow one clips the largest values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tritonstack_export.samples import Array
from tritonstack_export.spec_precision import Int8Settings

LEVELS = 127
"""Steps on each side of zero."""
_BINS = 4096
_SEARCH_BINS = 2048
_SEARCH_STRIDE = 8
_COUNTED = 1 << 18
"""Values of one array that are counted into bins; a larger one is thinned out evenly. With 171 pictures the percentile
99.99 of EfficientNet-Lite0's largest map rests on 5.6 million values, 560 of them above it. The peak is of all."""


@dataclass
class MagnitudeHistogram:
    """Counts of |x| in 4096 equal bins from 0, gathered in one pass.

    The range doubles when a larger value comes, pairs of bins being added up, so nothing has to be known beforehand
    and at least half of the bins stay in use. `low`, `high`: smallest and largest x. `count`: finite values counted.
    """

    low: float = np.inf
    high: float = -np.inf
    count: int = 0
    width: float = 0.0
    zeros: int = 0
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(_BINS, np.int64))

    def observe(self, values: Array) -> None:
        """Add the values of one array. Infinities and NaN have no place on a scale and are passed over."""
        # In float16 the index of a bin would be rounded to whole pairs.
        flat = values.reshape(-1).astype(np.float32, copy=False)
        if not flat.size:
            return
        low, high = float(flat.min()), float(flat.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            self.observe(flat[np.isfinite(flat)])
            return
        self.low, self.high = min(self.low, low), max(self.high, high)
        peak = max(-low, high)
        if flat.size > _COUNTED:
            # An odd stride meets all columns of a map in turn.
            flat = flat[:: (flat.size // _COUNTED) | 1]
        self.count += flat.size
        if peak == 0:
            self.zeros += flat.size
            return
        if self.width == 0:
            # A power of two, so that the last digits of the first peak do not move the bins; not so small that its
            # inverse leaves float32.
            self.width = 2.0 ** max(math.ceil(math.log2(peak / (_BINS - 1))), -100)
        while peak >= self.width * _BINS:
            self.counts[: _BINS // 2] = self.counts.reshape(-1, 2).sum(1)
            self.counts[_BINS // 2 :] = 0
            self.width *= 2
        magnitudes = np.abs(flat) if low < 0 else flat
        index = (magnitudes * np.asarray(1 / self.width, magnitudes.dtype)).astype(np.int32)
        np.minimum(index, _BINS - 1, out=index)
        self.counts += np.bincount(index, minlength=_BINS)

    @property
    def peak(self) -> float:
        """The largest magnitude; 0 where nothing but zeros was seen."""
        return max(-self.low, self.high, 0.0)

    def threshold(self, settings: Int8Settings) -> float:
        """The magnitude that 127 stands for, by the method of the settings; never above the peak."""
        if self.peak == 0 or self.width == 0:
            return 0.0
        if settings.method == "max":
            return self.peak
        if settings.method == "percentile":
            return min(self._percentile(settings.percentile), self.peak)
        return min(self._entropy(), self.peak)

    def _percentile(self, percent: float) -> float:
        """The upper edge of the bin below which `percent` of all values lie."""
        if percent >= 100:
            return self.peak
        cumulated = self.zeros + np.cumsum(self.counts)
        # Rounded first: 99.9 % of 200000 is 199800.00000000003 in floating point, which is one value more.
        wanted = math.ceil(round(percent / 100 * self.count, 3))
        return float((int(np.searchsorted(cumulated, wanted)) + 1) * self.width)

    def _entropy(self) -> float:
        """The threshold whose INT8 distribution is nearest to the observed one, by Kullback-Leibler divergence.

        The search of NVIDIA's 8-bit calibration (S. Migacz, GTC 2017): |x| in 2048 bins up to the peak; for each cut,
        P is the histogram with everything beyond the cut added to its last bin, Q is the histogram without it, merged
        to 128 levels and spread over the bins that are not empty. Cuts are tried in steps of 8 bins.
        """
        histogram = self._resampled()
        # The bin at zero holds the zeros of every ReLU, which any scale represents exactly.
        histogram[0] = histogram[1]
        total = float(histogram.sum())
        if total == 0:
            return self.peak
        beyond = total - np.cumsum(histogram)
        best, chosen = np.inf, _SEARCH_BINS
        for cut in range(LEVELS + 1, _SEARCH_BINS + 1, _SEARCH_STRIDE):
            inside = histogram[:cut]
            reference = inside.copy()
            reference[-1] += beyond[cut - 1]
            divergence = _divergence(reference, _merged(inside, LEVELS + 1))
            if divergence < best:
                best, chosen = divergence, cut
        return float(chosen * self.peak / _SEARCH_BINS)

    def _resampled(self) -> NDArray[np.float64]:
        """The counts in 2048 bins from 0 to the peak, a bin that falls on an edge being shared."""
        edges = np.arange(_BINS + 1) * self.width
        cumulated = np.concatenate([[0.0], np.cumsum(self.counts, dtype=np.float64)])
        wanted = np.linspace(0.0, self.peak, _SEARCH_BINS + 1)
        return np.diff(np.interp(wanted, edges, cumulated))


def _merged(histogram: NDArray[np.float64], levels: int) -> NDArray[np.float64]:
    """The histogram merged to `levels` and spread again over its bins that are not empty."""
    group = np.arange(len(histogram)) * levels // len(histogram)
    filled = histogram > 0
    sums = np.bincount(group, histogram, minlength=levels)
    members = np.bincount(group, filled, minlength=levels)
    mean = np.divide(sums, members, out=np.zeros_like(sums), where=members > 0)
    return np.asarray(np.where(filled, mean[group], 0.0))


def _divergence(reference: NDArray[np.float64], candidate: NDArray[np.float64]) -> float:
    """KL(reference || candidate), both smoothed a little so that an empty bin is dear but not infinitely so."""
    p, q = reference / reference.sum(), candidate / max(candidate.sum(), 1e-12)
    p, q = 0.9999 * p + 0.0001 / len(p), 0.9999 * q + 0.0001 / len(q)
    return float(np.sum(p * np.log(p / q)))
