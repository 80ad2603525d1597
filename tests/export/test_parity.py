"""The yardstick itself: distances, tolerances, and the sizes that are run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tritonstack_export.parity import Tolerance, distance, tolerance_for
from tritonstack_export.samples import random_inputs
from tritonstack_export.signature import Dimension, ModelInput, Signature
from tritonstack_export.size_plan import example_sizes, plan_sizes
from tritonstack_export.spec import Parity

LOOSE = Tolerance(1e-5, 1e-4, 0.9999)
EXACT = tolerance_for("int64", Parity())


def floats(*values: float) -> Any:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("expected", "found", "passes"),
    [
        (floats(1, 2, 1000), floats(1, 2, 1000.05), True),
        (floats(1, 2, 1000), floats(1, 2, 1001), False),
        (floats(0, 0), floats(0, 0), True),
        (floats(0, 0), floats(0, 1e-3), False),
        (floats(1, np.nan), floats(1, np.nan), False),
        (floats(1, np.inf), floats(1, np.inf), True),
        (floats(1, np.inf), floats(1, -np.inf), False),
        (floats(1, np.inf), floats(1, 1), False),
        (floats(np.inf), floats(np.inf), True),
        (floats(1, 2), floats(1, 2).reshape(1, 2), False),
        (floats(1), floats(1).astype(np.float64), False),
        (np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32), True),
    ],
)
def test_floats(expected: Any, found: Any, passes: bool) -> None:
    assert (distance(expected, found, LOOSE).problem is None) is passes


def test_integers_are_exact() -> None:
    ids = np.array([2**53, 3], np.int64)
    assert distance(ids, ids.copy(), EXACT).problem is None
    # As floats the two would be equal.
    result = distance(ids, ids + np.array([1, 0]), EXACT)
    assert result.problem == "1 of 2 whole numbers differ" and result.max_abs == 1
    assert distance(ids, ids.astype(np.int32), EXACT).problem is not None


def test_a_wrong_direction_is_seen_within_the_tolerance_of_each_element() -> None:
    tolerance = Tolerance(0.0, 1.0, 0.99)
    assert "cosine" in str(distance(floats(1, 0, 1, 0), floats(0.2, 0.9, 0.2, 0.9), tolerance).problem)


def test_the_spec_overrides_tolerances_of_floats_only() -> None:
    asked = Parity(atol=0.5, rtol=0.25, cosine=0.5)
    assert tolerance_for("float32", asked) == Tolerance(0.5, 0.25, 0.5)
    assert tolerance_for("int64", asked) == Tolerance(0, 0, 1)


def signature(low: int, best: int, high: int, *fixed: int) -> Signature:
    return Signature(
        (ModelInput("x", "float32", ("batch", *fixed)),), {"batch": Dimension("batch", low, best, high)}, True
    )


@pytest.mark.parametrize("fixed", [(3, 224, 224), (5, 7), (2,), ()])
def test_the_exporter_sees_a_size_unlike_all_others(fixed: tuple[int, ...]) -> None:
    batch = example_sizes(signature(1, 8, 32, *fixed))["batch"]
    assert 2 <= batch <= 32 and batch not in fixed


@pytest.mark.parametrize("bounds", [(1, 1, 1), (1, 2, 2), (1, 8, 32), (4, 8, 16), (1, 64, 4096)])
def test_bounds_optimum_and_an_unseen_size_are_run(bounds: tuple[int, int, int]) -> None:
    low, best, high = bounds
    made = plan_sizes(signature(low, best, high, 8), batches=None, bytes_per_item=1, seconds_per_item=0)
    batches = [sizes["batch"] for sizes in made.runs]
    assert {low, best, high} <= set(batches) and batches == sorted(batches)
    if high > 4:
        assert any(n > 4 and n % 2 and n != made.example["batch"] for n in batches)


def test_runs_too_large_are_made_smaller_and_noted() -> None:
    made = plan_sizes(signature(1, 8, 4096, 8), batches=None, bytes_per_item=2**20, seconds_per_item=0)
    assert max(sizes["batch"] for sizes in made.runs) == 256
    assert "batch 4096" in made.notes[0] and "batch 256 was compared instead" in made.notes[0]
    slow = plan_sizes(signature(1, 8, 4096, 8), batches=None, bytes_per_item=1, seconds_per_item=1)
    assert max(sizes["batch"] for sizes in slow.runs) <= 15


def test_inputs_differ_from_each_other_and_repeat_with_the_seed() -> None:
    both = Signature(
        (
            ModelInput("a", "float32", ("batch", 4)),
            ModelInput("b", "float32", ("batch", 4)),
            ModelInput("ids", "int64", ("batch", 400), 7, 9),
            ModelInput("pixels", "uint8", ("batch", 400)),
            ModelInput("flag", "bool", ("batch", 400)),
            ModelInput("unit", "float16", ("batch", 400), -1, 1),
            ModelInput("wide", "uint64", ("batch", 4), 0, 2**63),
        ),
        {"batch": Dimension("batch", 1, 2, 4)},
        True,
    )
    first, again, other = (random_inputs(both, {"batch": 3}, seed=seed) for seed in (0, 0, 1))
    assert not np.array_equal(first["a"], first["b"])
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["a"], other["a"])
    assert set(np.unique(first["ids"])) == {7, 8, 9}
    assert first["pixels"].max() > 200
    assert set(np.unique(first["flag"])) == {False, True}
    assert -1 <= first["unit"].min() < -0.9 and first["unit"].dtype == np.float16
    assert [value.dtype.name for value in first.values()] == [tensor.dtype for tensor in both.inputs]
