"""Intervals, the three-window rule, and windows put together."""

from __future__ import annotations

import math

import numpy as np
import pytest
from load_report_samples import level

from tritonstack.load.arrival import ClosedLoop
from tritonstack.load.interval import (
    Distribution,
    binomial_cdf,
    block_means,
    design_effect,
    incomplete_beta,
    mean_interval,
    rank_interval,
    share_interval,
)
from tritonstack.load.merged_level import merged_level
from tritonstack.load.stability import StabilityRule, WindowFigures, is_stable


def exact_cdf(k: int, n: int, p: float) -> float:
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))


@pytest.mark.parametrize(("n", "p"), [(1, 0.5), (10, 0.01), (37, 0.3), (200, 0.99), (500, 0.5)])
def test_the_binomial_distribution_is_exact(n: int, p: float) -> None:
    for k in range(0, n, max(1, n // 17)):
        assert binomial_cdf(k, n, p) == pytest.approx(exact_cdf(k, n, p), abs=1e-10)


def test_the_incomplete_beta_function_holds_for_large_parameters() -> None:
    assert incomplete_beta(5e5, 5e5, 0.5) == pytest.approx(0.5, abs=1e-9)
    # Close to the normal distribution: one deviation above the mean.
    n, p = 1_000_000, 0.01
    k = n * p + math.sqrt(n * p * (1 - p))
    assert binomial_cdf(round(k), n, p) == pytest.approx(0.8413, abs=0.003)


def test_no_error_in_n_bounds_the_share_as_the_rule_of_three_says() -> None:
    low, high = share_interval(0, 1000)
    assert low == 0 and high == pytest.approx(1 - 0.025 ** (1 / 1000), rel=1e-9)
    assert share_interval(1000, 1000)[1] == 1
    low, high = share_interval(10, 100)
    assert (low, high) == (pytest.approx(0.0490, abs=2e-4), pytest.approx(0.1762, abs=2e-4))  # Clopper and Pearson 1934


@pytest.mark.parametrize(
    ("n", "q", "supported"), [(5, 0.5, False), (6, 0.5, True), (300, 0.99, False), (400, 0.99, True)]
)
def test_small_samples_support_no_interval(n: int, q: float, supported: bool) -> None:
    assert (rank_interval(n, q) is not None) is supported


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
def test_intervals_hold_the_true_percentile_as_often_as_they_say(q: float) -> None:
    generator = np.random.Generator(np.random.PCG64(1))
    n, runs, hits = 2000, 400, 0
    ranks = rank_interval(n, q)
    assert ranks is not None
    for _ in range(runs):
        values = np.sort(generator.random(n))
        hits += values[ranks[0] - 1] <= q <= values[ranks[1] - 1]
    assert 0.93 <= hits / runs <= 0.99


def test_seconds_that_hang_together_are_worth_less() -> None:
    def effect(wobble: float) -> float:
        one = level(wobble=wobble, seconds=30)
        seconds = [(s.completed, s.p50_us or 0.0) for s in one.series]
        return design_effect(Distribution.decoded(one.latency_histogram), seconds)

    assert effect(0.0) < 2.5
    assert effect(0.2) > 20


def test_a_mean_gets_an_interval_from_four_seconds_on() -> None:
    assert mean_interval([1, 2, 3]) is None
    assert mean_interval([5.0] * 10) == (5, 5)
    generator = np.random.Generator(np.random.PCG64(2))
    hits = 0
    for seed in range(200):
        found = mean_interval(generator.normal(100, 10, 30).tolist(), seed=seed, draws=500)
        assert found is not None
        hits += found[0] <= 100 <= found[1]
    assert 0.86 <= hits / 200 <= 0.99
    assert np.array_equal(block_means([1, 2, 3, 4], seed=3), block_means([1, 2, 3, 4], seed=3))  # type: ignore[arg-type]


def test_three_windows_in_a_row_have_to_agree() -> None:
    rule = StabilityRule(0.1)

    def stable(*pairs: tuple[float, float | None]) -> bool:
        return is_stable(rule, [WindowFigures(*pair) for pair in pairs])

    assert not stable((100, 5.0), (100, 5.0))
    assert stable((100, 5.0), (109, 5.4), (105, 5.2))
    assert not stable((100, 5.0), (111, 5.0), (100, 5.0)), "throughput"
    assert not stable((100, 5.0), (100, 5.6), (100, 5.0)), "latency"
    assert stable((50, 9.0), (100, 5.0), (100, 5.0), (100, 5.0)), "only the last three count"
    assert not stable((100, 5.0), (100, None), (100, 5.0)), "a window without an answer"
    assert not stable((0, 5.0), (0, 5.0), (0, 5.0))


def test_windows_put_together_are_what_one_window_would_have_been() -> None:
    parts = [level(ClosedLoop(2), seed=seed, seconds=5, errors=seed, median_ms=4 + seed) for seed in (0, 1, 2)]
    whole = merged_level(parts)
    assert whole.window_s == 15
    assert whole.latency.count == sum(part.latency.count for part in parts) == whole.counts.measured - 3
    assert whole.latency.max_us == max(part.latency.max_us or 0 for part in parts)
    assert whole.latency.mean_us == pytest.approx(
        sum((part.latency.mean_us or 0) * part.latency.count for part in parts) / whole.latency.count
    )
    assert whole.latency.p50_us is not None and (parts[0].latency.p50_us or 0) < whole.latency.p50_us
    assert whole.requests_per_s == pytest.approx(whole.latency.count / 15)
    (delta,) = whole.server.models
    assert delta.requests == whole.latency.count and delta.queue_us == pytest.approx(1000)
    assert [error.count for error in whole.errors] == [3]
    assert [second.offset_s for second in whole.series] == [float(i) for i in range(15)]
    assert whole.counts.peak_in_flight == 4 and whole.failures == ("too many errors",)
    assert merged_level(parts[:1]) is parts[0]
