"""How sure a figure is: intervals for shares and percentiles from counts alone.

Percentiles get the distribution-free interval of order statistics: the rank of the q-quantile among n independent
requests is binomial, so the values at two ranks enclose it with the stated confidence (Conover, Practical
Nonparametric Statistics, 3.2). Requests that queue behind each other are not independent; `design_effect` measures
how much that costs from the seconds of a run, and n shrinks by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

CONFIDENCE = 0.95
"""Of every interval that is reported without another word."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Distribution:
    """Recorded latencies in µs, ascending, with how often each was seen."""

    values_us: Array
    counts: Array

    @classmethod
    def decoded(cls, encoded: str) -> Distribution:
        """From HdrHistogram's V2 text form. Values are the upper end of their bucket, as percentiles are."""
        from hdrh.histogram import HdrHistogram

        hdr = HdrHistogram.decode(encoded)
        return cls.of(hdr)

    @classmethod
    def of(cls, hdr: Any) -> Distribution:
        """From an HdrHistogram object."""
        counts = np.array(np.ctypeslib.as_array(hdr.counts), dtype=np.int64)
        used = np.flatnonzero(counts)
        values = [hdr.get_highest_equivalent_value(hdr.get_value_from_index(int(index))) for index in used]
        return cls(np.array(values, dtype=np.float64), counts[used])

    @cached_property
    def cumulated(self) -> Array:
        return np.cumsum(self.counts)

    @property
    def count(self) -> int:
        return int(self.cumulated[-1]) if len(self.counts) else 0

    def at_rank(self, rank: int) -> float:
        """The `rank`-th smallest value, counted from 1."""
        return float(self.values_us[int(np.searchsorted(self.cumulated, rank))])

    def percentile_us(self, percent: float) -> float | None:
        """Nearest-rank percentile; None where nothing was recorded."""
        if not self.count:
            return None
        return self.at_rank(min(max(math.ceil(percent * self.count / 100 - 1e-9), 1), self.count))

    def within(self, limit_us: float) -> int:
        """How many records do not exceed `limit_us`."""
        # The bucket that holds the limit itself counts as within: its width is 0.1 %.
        return int(self.counts[self.values_us <= limit_us * 1.001].sum())

    def percentile_interval(
        self, percent: float, *, confidence: float = CONFIDENCE, effect: float = 1.0
    ) -> tuple[float, float] | None:
        """An interval that holds the percentile with `confidence`; None where there are too few records for it."""
        n = int(self.count / effect)
        ranks = rank_interval(n, percent / 100, confidence)
        if ranks is None:
            return None
        scale = self.count / n
        low, high = (min(max(round(rank * scale), 1), self.count) for rank in ranks)
        return self.at_rank(low), self.at_rank(high)


def rank_interval(n: int, q: float, confidence: float = CONFIDENCE) -> tuple[int, int] | None:
    """Ranks (from 1) of the order statistics of n records that enclose the q-quantile; None where n is too small."""
    tail = (1 - confidence) / 2
    if n < 1 or q**n > tail or (1 - q) ** n > tail:
        return None
    # The largest l with P(Bin(n, q) < l) <= tail, the smallest u with P(Bin(n, q) >= u) <= tail.
    low = _bisect(0, n, lambda k: binomial_cdf(k - 1, n, q) <= tail)
    high = n - _bisect(0, n, lambda k: 1 - binomial_cdf(n - k - 1, n, q) <= tail)
    return (low, min(high, n)) if low >= 1 else None


def _bisect(low: int, high: int, holds: Any) -> int:
    """The largest number in [low, high] for which `holds`, which is true up to it and false beyond."""
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def binomial_cdf(k: float, n: float, p: float) -> float:
    """P(X <= k) for X of n trials with probability p, continued to broken numbers."""
    if k < 0:
        return 0.0
    if k >= n:
        return 1.0
    return incomplete_beta(n - k, k + 1, 1 - p)


def share_interval(k: float, n: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Clopper and Pearson's interval for a share of which k of n were seen; n may be an effective, broken number."""
    tail = (1 - confidence) / 2
    low = 0.0 if k <= 0 else _root(lambda p: 1 - binomial_cdf(k - 1, n, p) - tail)
    high = 1.0 if k >= n else _root(lambda p: tail - binomial_cdf(k, n, p))
    return low, high


def _root(rising: Any) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if rising(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by Lentz' continued fraction (DLMF 8.17.22)."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    ) / a  # fmt: skip
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    result = d
    # The number of terms grows with the root of the larger parameter.
    for m in range(1, 200 + int(8 * math.sqrt(max(a, b)))):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + numerator * d
            d = 1 / (d if abs(d) > tiny else tiny)
            c = 1 + numerator / c
            c = c if abs(c) > tiny else tiny
            result *= c * d
        if abs(c * d - 1) < 1e-13:
            break
    return min(max(front * result, 0.0), 1.0)


def design_effect(distribution: Distribution, seconds: Sequence[tuple[int, float]], percent: float = 50.0) -> float:
    """By how much a percentile varies more from second to second than independent requests would make it; at least 1.

    `seconds` are (requests, that percentile of them in µs). The number of requests divided by the effect is what they
    are worth.
    """
    q = percent / 100
    usable = [(count, value) for count, value in seconds if count * min(q, 1 - q) >= 1]
    if len(usable) < 4 or not distribution.count:
        return 1.0
    typical = float(np.median([count for count, _ in usable]))
    # A sample quantile lies between these two quantiles two times out of three.
    spread = math.sqrt(q * (1 - q) / typical)
    low = distribution.percentile_us(100 * max(q - spread, 0.0)) or 0.0
    high = distribution.percentile_us(100 * min(q + spread, 1.0)) or 0.0
    # The histogram itself is no finer than 0.1 %.
    expected = max((high - low) / 2, 0.001 * high, 1.0)
    seen = float(np.std([value for _, value in usable], ddof=1))
    # Few seconds tell their spread badly: its square as Student's t has it, ν / (ν - 2) with ν = seconds - 1.
    few = (len(usable) - 1) / (len(usable) - 3)
    return max(1.0, few * (seen / expected) ** 2)


def mean_interval(
    values: Sequence[float], *, confidence: float = CONFIDENCE, seed: int = 0, draws: int = 2000
) -> tuple[float, float] | None:
    """An interval for the mean of a series by the circular block bootstrap (Politis and Romano 1992): neighbouring
    seconds stay together, in blocks of the cube root of their number. None for fewer than four values."""
    means = block_means(values, seed=seed, draws=draws)
    if means is None:
        return None
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(means, [tail, 100 - tail])
    return float(low), float(high)


def block_means(values: Sequence[float], *, seed: int = 0, draws: int = 2000) -> Array | None:
    """Means of `draws` resampled series; None for fewer than four values."""
    series = np.asarray(values, dtype=np.float64)
    n = len(series)
    if n < 4:
        return None
    length = max(1, round(n ** (1 / 3)))
    blocks = -(-n // length)
    generator = np.random.Generator(np.random.PCG64(seed))
    starts = generator.integers(0, n, (draws, blocks))
    index = (starts[:, :, None] + np.arange(length)) % n
    drawn: Array = series[index.reshape(draws, -1)[:, :n]].mean(axis=1)
    return drawn
