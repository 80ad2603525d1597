from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from tritonstack.errors import UsageError
from tritonstack.load.arrival import ClosedLoop, OpenLoop


def offsets(rate: float, kind: str, count: int, seed: int = 0) -> np.ndarray:
    return np.array(list(islice(OpenLoop(rate, kind).offsets_s(seed), count)))  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [0.1, 3.0, 300.0, 12345.0])
def test_constant_schedule_is_exact_without_accumulated_rounding(rate: float) -> None:
    times = offsets(rate, "constant", 100_000)
    assert np.array_equal(times, np.arange(100_000) / rate)


def test_poisson_has_exponential_gaps_and_independent_counts() -> None:
    rate, count = 50.0, 200_000
    times = offsets(rate, "poisson", count, seed=7)
    gaps = np.diff(times)
    assert (gaps > 0).all()
    # The mean of n exponential gaps has a standard error of 1/(rate*sqrt(n)); five of them.
    assert gaps.mean() == pytest.approx(1 / rate, rel=5 / np.sqrt(count))
    assert gaps.std() == pytest.approx(1 / rate, rel=0.02)
    # Kolmogorov-Smirnov distance to the exponential distribution, 0.1 % level.
    ordered = np.sort(gaps)
    distance = np.abs((1 - np.exp(-rate * ordered)) - np.arange(1, len(gaps) + 1) / len(gaps)).max()
    assert distance < 1.95 / np.sqrt(len(gaps))
    per_second = np.bincount(times.astype(int))[:-1]
    assert per_second.var() == pytest.approx(per_second.mean(), rel=0.1), "counts of a Poisson process: variance = mean"
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 0.01


def test_poisson_is_the_same_for_the_same_seed_only() -> None:
    assert np.array_equal(offsets(100, "poisson", 10_000, 3), offsets(100, "poisson", 10_000, 3))
    assert not np.array_equal(offsets(100, "poisson", 10_000, 3), offsets(100, "poisson", 10_000, 4))


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_rates_that_mean_nothing_are_refused(rate: float) -> None:
    with pytest.raises(UsageError, match="positive"):
        OpenLoop(rate)


def test_concurrency_zero_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        ClosedLoop(0)
