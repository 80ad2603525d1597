from __future__ import annotations

import numpy as np
import pytest

from tritonstack.load.histogram import HIGHEST_US, LatencyHistogram


def nearest_rank(values: np.ndarray, per_mille: int) -> float:
    """In whole numbers, since numpy's own ``inverted_cdf`` takes rank 1000 of 1000 for 99.9 %."""
    return float(np.sort(values)[-(-per_mille * len(values) // 1000) - 1])


def filled(values_us: np.ndarray) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for value in values_us.tolist():
        histogram.record_s(value / 1e6)
    return histogram


@pytest.mark.parametrize("count", [1, 2, 3, 7, 10, 16, 99, 100, 101, 999, 1000, 1001, 20_000])
@pytest.mark.parametrize("shape", ["lognormal", "bimodal", "constant"])
def test_percentiles_are_those_of_nearest_rank(count: int, shape: str) -> None:
    generator = np.random.default_rng(count)
    values = {
        "lognormal": generator.lognormal(8, 1.5, count),
        "bimodal": np.where(generator.random(count) < 0.9, 1_000.0, 900_000.0) * (1 + generator.random(count) / 10),
        "constant": np.full(count, 1234.0),
    }[shape].clip(50)
    summary = filled(values).summary()
    for per_mille, got in [
        (500, summary.p50_us),
        (900, summary.p90_us),
        (950, summary.p95_us),
        (990, summary.p99_us),
        (999, summary.p999_us),
    ]:
        assert got == pytest.approx(nearest_rank(values, per_mille), rel=1e-3, abs=1), per_mille
    assert summary.mean_us == pytest.approx(values.mean())
    assert summary.max_us == pytest.approx(values.max())
    assert summary.min_us == pytest.approx(values.min())
    assert summary.count == count


def test_three_digits_hold_from_a_microsecond_to_a_day() -> None:
    for exponent in range(11):
        value = 7.777 * 10**exponent
        if value > HIGHEST_US:
            break
        percentile = filled(np.array([value, value, HIGHEST_US])).percentile_us(50)
        assert percentile == pytest.approx(value, rel=1e-3, abs=1)


def test_values_out_of_range_are_kept_at_the_ends() -> None:
    histogram = filled(np.array([0.0, 0.2, 2.0 * HIGHEST_US]))
    summary = histogram.summary()
    assert summary.count == 3
    assert summary.max_us == pytest.approx(2.0 * HIGHEST_US)
    assert summary.min_us == 0
    histogram.record_s(-1.0)
    assert histogram.summary().min_us == 0


def test_nothing_recorded_has_no_percentiles() -> None:
    summary = LatencyHistogram().summary()
    assert summary.count == 0
    assert summary.p99_us is None and summary.mean_us is None and summary.max_us is None


def test_the_encoded_form_is_read_by_the_library_itself() -> None:
    from hdrh.histogram import HdrHistogram

    values = np.random.default_rng(1).lognormal(8, 1, 5000)
    histogram = filled(values)
    decoded = HdrHistogram.decode(histogram.encoded())
    assert decoded.get_total_count() == 5000
    assert decoded.get_value_at_percentile(99) == pytest.approx(np.percentile(values, 99), rel=0.02)
