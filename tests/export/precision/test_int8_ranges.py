"""Thresholds of activations: gathered in one pass, the same whatever the order and the batches."""

from __future__ import annotations

import numpy as np
import pytest
from int8_graphs import IMAGES, image_net, random, samples, save

from tritonstack.terminal import Progress
from tritonstack_export.precision import calibration
from tritonstack_export.precision.activation_range import MagnitudeHistogram
from tritonstack_export.precision.float_graph import load_graph
from tritonstack_export.precision.quantizable_layers import find_layers, name_nodes
from tritonstack_export.spec_precision import Int8Settings

MAX, PERCENTILE, ENTROPY = (Int8Settings(method=m) for m in ("max", "percentile", "entropy"))


def observed(*arrays: np.ndarray) -> MagnitudeHistogram:
    histogram = MagnitudeHistogram()
    for array in arrays:
        histogram.observe(array)
    return histogram


def test_max_is_the_largest_magnitude_on_either_side() -> None:
    assert observed(np.float32([-3, 1, 2])).threshold(MAX) == 3
    assert observed(np.float32([-1, 1, 2])).threshold(MAX) == 2


@pytest.mark.parametrize("percent", [90.0, 99.0, 99.9, 99.99])
@pytest.mark.parametrize("spread", [1e-6, 1.0, 1e6])
def test_percentile_is_that_of_numpy_within_a_bin(percent: float, spread: float) -> None:
    values = random(200_000, scale=spread)
    histogram = observed(*np.array_split(values, 7))
    exact = np.percentile(np.abs(values), percent)
    assert abs(histogram.threshold(Int8Settings(percentile=percent)) - exact) <= 1.5 * histogram.width
    assert histogram.width <= np.abs(values).max() / 2000


def test_the_range_grows_without_losing_counts() -> None:
    small, large = random(1000, scale=0.01), random(1000, seed=1, scale=100)
    growing, shrinking = observed(small, large), observed(large, small)
    assert growing.counts.sum() == shrinking.counts.sum() == growing.count == 2000
    assert growing.threshold(MAX) == shrinking.threshold(MAX)
    assert growing.threshold(PERCENTILE) == pytest.approx(shrinking.threshold(PERCENTILE), rel=2e-3)


def test_entropy_cuts_a_lonely_outlier_and_keeps_a_uniform_range() -> None:
    values = random(100_000)
    outlier = np.concatenate([values, np.float32([60])])
    assert 3 < observed(outlier).threshold(ENTROPY) < 20
    uniform = np.random.default_rng(0).uniform(-1, 1, 100_000).astype(np.float32)
    assert observed(uniform).threshold(ENTROPY) > 0.9


@pytest.mark.parametrize("method", [MAX, PERCENTILE, ENTROPY])
def test_edges(method: Int8Settings) -> None:
    assert observed(np.zeros(100, np.float32)).threshold(method) == 0
    assert observed(np.empty(0, np.float32)).threshold(method) == 0
    assert observed(np.full(10, 7, np.float32)).threshold(method) == pytest.approx(7, rel=1e-3)
    assert observed(np.full(10, 1e-38, np.float32)).threshold(method) > 0
    assert observed(np.float32([1, np.inf, np.nan, -2])).threshold(method) == pytest.approx(2, rel=0.5)
    assert np.isfinite(observed(np.full(10, 3e38, np.float32)).threshold(method))
    assert observed(np.float16([1, -2, 3])).threshold(MAX) == 3


def test_zeros_of_a_relu_count_for_the_percentile() -> None:
    values = np.concatenate([np.zeros(900, np.float32), np.linspace(1, 100, 100, dtype=np.float32)])
    assert observed(values).threshold(Int8Settings(percentile=95)) == pytest.approx(51, abs=1.5)


def test_small_passes_give_the_same_scales(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:  # type: ignore[no-untyped-def]
    graph = load_graph(save(image_net(), tmp_path))
    name_nodes(graph.skeleton)
    layers = find_layers(graph, ["Conv", "Gemm"])
    data = samples(IMAGES).samples
    once = calibration.observe(graph, layers, data, IMAGES, Progress(quiet=True))
    monkeypatch.setattr(calibration, "_CHUNK_BYTES", 1)
    split = calibration.observe(graph, layers, data, IMAGES, Progress(quiet=True))
    assert once.scales(layers, PERCENTILE) == split.scales(layers, PERCENTILE)
    # Multiply-accumulates by hand: output elements times what each sums over.
    assert once.macs == {"stem": 16 * 64 * 27, "depthwise": 16 * 64 * 9, "project": 8 * 64 * 16, "head": 80}


def test_all_methods_come_from_one_observation(tmp_path) -> None:  # type: ignore[no-untyped-def]
    graph = load_graph(save(image_net(outlier=100), tmp_path))
    layers = find_layers(graph, ["Conv", "Gemm"])
    seen = calibration.observe(graph, layers, samples(IMAGES).samples, IMAGES, Progress(quiet=True))
    largest, cut = seen.scales(layers, MAX), seen.scales(layers, Int8Settings(percentile=99))
    assert all(cut[name] <= largest[name] for name in largest)
    assert cut["project"] < largest["project"]


def test_large_arrays_are_thinned_out_but_the_peak_is_of_all() -> None:
    """Three million values: the percentile is that of all within two bins, and one spike anywhere is the peak."""
    random = np.random.default_rng(11)
    values = random.standard_normal(3_000_000).astype(np.float32)
    values[1_234_567] = 37.5
    histogram = MagnitudeHistogram()
    histogram.observe(values)
    assert histogram.peak == 37.5
    assert histogram.count < values.size
    found = histogram.threshold(Int8Settings(method="percentile", percentile=99.0))
    assert found == pytest.approx(float(np.percentile(np.abs(values), 99.0)), abs=3 * histogram.width)
