"""The measures of an output, and the gates of a variant at every batch size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tritonstack.errors import GateError, InputError
from tritonstack_export.precision.output_distance import output_distance, spread_of
from tritonstack_export.precision.variant_gates import (
    DEFAULT_LIMITS,
    MADE_UP_DB,
    VariantComparison,
    compare_variant,
    judge,
    limits_for,
    require_gates,
    worst_rows,
)
from tritonstack_export.signature import Dimension, ModelInput, Signature
from tritonstack_export.spec_precision import Gates, VariantGates

Array = np.ndarray[Any, Any]


def rows_of(count: int, *shape: int, scale: float = 1.0, seed: int = 0) -> list[Array]:
    random = np.random.default_rng(seed)
    return [(random.standard_normal(shape) * scale).astype(np.float32) for _ in range(count)]


def test_the_formulas() -> None:
    reference = [np.array([[1.0, 10.0]], np.float32), np.array([[3.0, 14.0]], np.float32)]
    variant = [np.array([[1.5, 10.0]], np.float32), np.array([[3.0, 13.0]], np.float32)]
    found = output_distance(reference, variant)
    # Means by feature: 2 and 12; deviations ±1 and ±2; differences 0.5 and 1.
    assert found.snr_db == pytest.approx(10 * math.log10(((1 + 1 + 4 + 4) / 4) / ((0.25 + 1) / 4)))
    assert found.max_abs == 1.0
    assert found.max_rel == pytest.approx(1.0 / ((14 - 1) / 2))
    first = (1.5 + 100) / math.hypot(1, 10) / math.hypot(1.5, 10)
    second = (9 + 14 * 13) / math.hypot(3, 14) / math.hypot(3, 13)
    assert found.cosine == pytest.approx(min(first, second))


def test_a_constant_output_is_caught_although_it_is_near() -> None:
    """Each output is a large constant with a little signal: without the signal 99.9 % of every value is right."""
    bias = rows_of(1, 1, 16, scale=10)[0]
    reference = [bias + row for row in rows_of(8, 1, 16, scale=0.1)]
    found = output_distance(reference, [bias] * 8)
    assert found.cosine is not None and found.cosine > 0.999
    assert found.snr_db is not None and found.snr_db < 1


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_equal_outputs(dtype: Any) -> None:
    rows = [row.astype(dtype) for row in rows_of(4, 1, 8)]
    found = output_distance(rows, rows)
    assert (found.snr_db, found.max_abs, found.max_rel, found.problem) == (math.inf, 0, 0, None)
    assert found.cosine == pytest.approx(1)


def test_dtypes_of_floats_may_differ() -> None:
    rows = rows_of(4, 1, 8)
    found = output_distance(rows, [row.astype(ml_dtypes.bfloat16) for row in rows])
    assert found.problem is None and found.snr_db is not None and 40 < found.snr_db < 60


def test_one_sample_is_measured_against_its_own_spread() -> None:
    row = rows_of(1, 1, 100, scale=3)[0] + 50
    found = output_distance([row], [row + np.float32(0.3)])
    assert found.snr_db == pytest.approx(20, abs=1)


def test_samples_of_different_shapes_use_the_last_axis() -> None:
    reference = [np.concatenate([row, row + 100], axis=-1) for row in (*rows_of(3, 1, 4, 1), *rows_of(3, 1, 7, 1))]
    found = output_distance(reference, [row + np.float32(0.1) for row in reference])
    assert found.snr_db == pytest.approx(20, abs=4)
    mixed = [np.zeros((1, 2), np.float32), np.ones((3, 5), np.float32)]
    assert output_distance(mixed, mixed).snr_db == math.inf


def test_outputs_without_spread() -> None:
    constant = [np.full((1, 3), 5, np.float32)] * 4
    assert spread_of(constant).power == pytest.approx(25)
    found = output_distance(constant, [row * np.float32(1.1) for row in constant])
    assert found.snr_db == pytest.approx(20, abs=0.1)
    assert found.max_rel == pytest.approx(0.1, rel=1e-4)
    zeros = [np.zeros((1, 3), np.float32)] * 4
    assert output_distance(zeros, zeros).snr_db == math.inf
    found = output_distance(zeros, [row + 1 for row in zeros])
    assert (found.snr_db, found.max_rel, found.cosine) == (-math.inf, math.inf, 0.0)


def test_single_values_have_no_cosine() -> None:
    found = output_distance(rows_of(8, 1, 1), rows_of(8, 1, 1, seed=1))
    assert found.cosine is None and found.snr_db is not None


@pytest.mark.parametrize(
    ("expected", "found", "said"),
    [
        ([1.0, 2.0], [1.0, np.nan], "1 of 2 values are NaN"),
        ([1.0, 2.0], [np.inf, 2.0], "1 of 2 values are infinite in one of the two only"),
        ([1.0, -np.inf], [1.0, np.inf], "infinite"),
        ([1.0, np.inf], [1.0, 3.0], "infinite"),
        ([np.nan, 2.0], [np.nan, 2.0], "the FP32 reference holds NaN"),
        ([1.0, -np.inf], [1.0, -np.inf], None),
    ],
)
def test_what_is_no_number(expected: list[float], found: list[float], said: str | None) -> None:
    problem = output_distance([np.array(expected)], [np.array(found)]).problem
    assert (problem is None) if said is None else (said in str(problem))


def test_shapes_and_dtypes_have_to_fit() -> None:
    assert "shape is [2]" in str(output_distance([np.zeros(3)], [np.zeros(2)]).problem)
    assert "dtype is int64" in str(output_distance([np.zeros(3)], [np.zeros(3, np.int64)]).problem)
    assert "dtype is float64" in str(output_distance([np.zeros(3, bool)], [np.zeros(3)]).problem)


def test_whole_numbers_and_booleans_count_what_is_equal() -> None:
    found = output_distance([np.array([1, 2, 3, 4])], [np.array([1, 2, 3, 5])])
    assert (found.equal, found.snr_db, found.max_abs) == (0.75, None, None)
    assert output_distance([np.array([True, False])], [np.array([True, True])]).equal == 0.5
    assert output_distance([np.array([], np.int64)], [np.array([], np.int64)]).equal == 1.0


def detections(count: int = 12) -> list[Array]:
    """[1, 7, 64]: four channels of boxes up to 640, three of scores up to 1."""
    random = np.random.default_rng(3)
    return [
        np.concatenate([random.uniform(0, 640, (1, 4, 64)), random.uniform(0, 1, (1, 3, 64))], axis=1).astype(
            np.float32
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
def test_scores_lost_beside_boxes_are_caught(precision: Any) -> None:
    reference = detections()
    constant = [row.copy() for row in reference]
    shuffled = [row.copy() for row in reference]
    for index, row in enumerate(constant):
        row[:, 5] = 0.5
        shuffled[index][:, 5] = reference[index - 1][:, 5]
    limits = limits_for("y", VariantGates(), precision)
    for variant in (constant, shuffled):
        found = output_distance(reference, variant)
        assert found.snr_db is not None and found.snr_db > 50 and found.cosine is not None and found.cosine > 0.9999
        assert found.channel_db is not None and found.channel_db < 0.5
    assert "channel 5 of axis -2 is spoilt" in (judge(output_distance(reference, shuffled), limits) or "")
    lenient = limits_for("y", VariantGates(channel_db=-20), precision)
    assert judge(output_distance(reference, shuffled), lenient) is None
    sound = [row.astype(np.float16) for row in reference]
    assert judge(output_distance(reference, sound), limits) is None


def test_channels_on_which_nothing_can_be_said_are_left_out() -> None:
    """Probabilities of classes that hardly ever occur are lost by rounding, or change by a factor, and mean nothing."""
    random = np.random.default_rng(4)
    scores = [random.dirichlet(np.ones(6), (1,)).astype(np.float32) for _ in range(32)]
    unseen = [np.concatenate([row, random.uniform(0, 1e-6, (1, 1))], axis=1).astype(np.float32) for row in scores]
    zero = [np.concatenate([row, np.zeros((1, 1))], axis=1).astype(np.float32) for row in scores]
    assert judge(output_distance(unseen, zero), DEFAULT_LIMITS["fp16"]) is None
    once = [row.copy() for row in zero]
    once[7][0, 6] = 0.02
    found = output_distance(once, zero)
    assert found.channel_db is None or found.channel_db > 15
    # An output whose channels never vary, and one with a single value, have no such measure.
    assert output_distance([np.ones((1, 3))] * 4, [np.ones((1, 3)) + 1e-4] * 4).channel_db is None
    assert output_distance(rows_of(9, 1, 1), rows_of(9, 1, 1, seed=1)).channel_db is None


def test_channels_of_outputs_of_different_lengths_are_those_of_the_last_axis() -> None:
    reference = [
        np.concatenate([100 * row, row], axis=-1) for row in (*rows_of(5, 1, 4, 1), *rows_of(5, 1, 7, 1, seed=1))
    ]
    variant = [row * np.array([1, 0], np.float32) for row in reference]
    found = output_distance(reference, variant)
    assert found.snr_db is not None and found.snr_db > 35
    assert found.channel == "channel 1 of the last axis" and found.channel_db == pytest.approx(0, abs=0.5)


def test_a_mask_that_lost_what_is_no_background() -> None:
    mask = [np.arange(1000).reshape(1, -1) % 200 == index for index in range(8)]
    background = [np.zeros_like(row) for row in mask]
    found = output_distance(mask, background)
    assert found.equal == pytest.approx(0.995) and found.rare_equal == 0
    for precision in ("fp16", "bf16", "int8"):
        problem = judge(found, DEFAULT_LIMITS[precision])  # type: ignore[index]
        assert problem is not None and "other than the most frequent one only 0.0% are equal" in problem
    assert judge(output_distance(mask, mask), DEFAULT_LIMITS["fp16"]) is None
    # Too few to judge.
    assert output_distance(mask[:1], background[:1]).rare_equal is None


def test_empty_floats() -> None:
    empty = [np.zeros((0, 4), np.float32)]
    assert output_distance(empty, empty).problem is None


class Model:
    """A function of batches that counts the sizes it is run at."""

    def __init__(self, function: Callable[[Mapping[str, Array]], dict[str, Array]]) -> None:
        self.function = function
        self.sizes: list[int] = []

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self.sizes.append(next(iter(inputs.values())).shape[0])
        return self.function(inputs)


def signature(least: int = 1, opt: int = 4, most: int = 8, *, batched: bool = True) -> Signature:
    if not batched:
        return Signature((ModelInput("x", "float32", ("n", 4)),), {"n": Dimension("n", 1, 4, 8)}, False)
    return Signature((ModelInput("x", "float32", ("batch", 4)),), {"batch": Dimension("batch", least, opt, most)}, True)


def two_outputs(noise: float = 0.0) -> Model:
    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        x = inputs["x"]
        return {"large": x * 1000, "small": x * np.float32(0.001) + np.float32(noise) * np.sin(x * 1e4)}

    return Model(run)


def samples(count: int = 6, *shape: int) -> list[dict[str, Array]]:
    return [{"x": row} for row in rows_of(count, *(shape or (1, 4)))]


def test_outputs_are_judged_by_themselves() -> None:
    """Pooled, the noise of the small output would drown in the large one."""
    rows = compare_variant(two_outputs(), two_outputs(1e-3), samples(), signature(), VariantGates(), "fp16")
    assert {row.output for row in rows if row.problem} == {"small"}
    assert worst_rows(rows)["large"].problem is None
    with pytest.raises(GateError) as error:
        require_gates(rows, "fp16")
    text = str(error.value)
    assert "fp16: output 'small' is too far from FP32 at batch 1: SNR is" in text
    assert "where at least 35 dB is needed" in text and "precision.fp16.keep_fp32" in text


def test_batches_one_two_opt_and_max() -> None:
    variant = two_outputs()
    rows = compare_variant(two_outputs(), variant, samples(), signature(1, 4, 8), VariantGates(), "fp16")
    assert sorted({row.batch for row in rows}) == [1, 2, 4, 8]
    assert set(variant.sizes) == {1, 2, 4, 8}
    assert not [row for row in rows if row.problem]
    # Six samples fill a batch of eight by coming twice; each is counted once.
    assert {row.distance.samples for row in rows if row.batch == 8} == {6}
    require_gates(rows, "fp16")


def test_batches_that_start_above_one() -> None:
    variant = two_outputs()
    rows = compare_variant(two_outputs(), variant, samples(), signature(3, 4, 4), VariantGates(), "fp16")
    assert sorted({row.batch for row in rows}) == [3, 4]
    assert set(variant.sizes) == {3, 4}


def test_samples_of_several_rows_and_shapes() -> None:
    plan = Signature(
        (ModelInput("x", "float32", ("batch", "length")),),
        {"batch": Dimension("batch", 1, 2, 4), "length": Dimension("length", 1, 4, 8)},
        True,
    )
    mixed = [*samples(3, 2, 4), *samples(2, 1, 7)]
    model = Model(lambda inputs: {"y": inputs["x"].sum(axis=1, keepdims=True)})
    rows = compare_variant(model, model, mixed, plan, VariantGates(), "fp16")
    assert {row.distance.samples for row in rows if row.batch == 1} == {8}
    assert not [row for row in rows if row.problem]


def test_a_sample_that_depends_on_its_companions() -> None:
    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        x = inputs["x"]
        step = np.abs(x).max() / 7  # one scale for the whole batch, as dynamic quantization has
        return {"y": np.round(x / step) * step}

    exact = Model(lambda inputs: {"y": inputs["x"]})
    gates = VariantGates(snr_db=5, cosine=0.5, max_rel=1, outputs={"y": Gates(snr_db=12)})
    mixed = [{"x": row * factor} for row, factor in zip(rows_of(6, 1, 4), (1, 1, 1, 20, 1, 1), strict=True)]
    rows = compare_variant(exact, Model(run), mixed, signature(), gates, "int8")
    assert any(row.against == "alone" and row.distance.snr_db != math.inf for row in rows)


def test_a_batch_that_is_mixed_up() -> None:
    wrong = Model(lambda inputs: {"y": np.roll(inputs["x"], 1, axis=0)})
    right = Model(lambda inputs: {"y": inputs["x"]})
    rows = compare_variant(right, wrong, samples(), signature(), VariantGates(), "int8")
    assert not [row for row in rows if row.batch == 1 and row.problem]
    assert [row for row in rows if row.batch == 2 and row.against == "alone" and row.problem]
    with pytest.raises(GateError, match="at batch 2"):
        require_gates(rows, "int8")


def test_an_output_without_the_batch() -> None:
    model = Model(lambda inputs: {"y": inputs["x"].sum(axis=0)})
    with pytest.raises(GateError, match="'y' does not follow the batch dimension"):
        compare_variant(model, model, samples(), signature(), VariantGates(), "fp16")


def test_models_without_a_batch_run_each_sample() -> None:
    variant = two_outputs()
    unbatched = [{"x": row} for row in (*rows_of(2, 3, 4), *rows_of(2, 5, 4))]
    rows = compare_variant(two_outputs(), variant, unbatched, signature(batched=False), VariantGates(), "fp16")
    assert {row.batch for row in rows} == {0} and variant.sizes == [3, 3, 5, 5]


def test_whole_numbers_have_their_own_limit() -> None:
    exact = Model(lambda inputs: {"best": inputs["x"].argmax(axis=1)})
    other = Model(lambda inputs: {"best": (inputs["x"].argmax(axis=1) + (inputs["x"][:, 0] > 0.5)) % 4})
    rows = compare_variant(exact, other, samples(20), signature(), VariantGates(), "fp16")
    with pytest.raises(GateError, match="the share of equal values is 0"):
        require_gates(rows, "fp16")
    loose = VariantGates(outputs={"best": Gates(equal=0.1)})
    require_gates(compare_variant(exact, other, samples(20), signature(), loose, "fp16"), "fp16")


def test_limits_of_an_output_win_over_those_of_all() -> None:
    gates = VariantGates(snr_db=50, max_abs=2, outputs={"y": Gates(snr_db=10, cosine=0.5)})
    assert limits_for("y", gates, "fp16").snr_db == 10
    assert limits_for("y", gates, "fp16").cosine == 0.5
    assert limits_for("y", gates, "fp16").max_abs == 2
    assert limits_for("z", gates, "fp16").snr_db == 50
    assert limits_for("z", gates, "fp16").max_rel == DEFAULT_LIMITS["fp16"].max_rel


def test_random_inputs_are_asked_less_unless_the_spec_says() -> None:
    assert limits_for("y", VariantGates(), "fp16", made_up=True).snr_db == 35 - MADE_UP_DB
    assert limits_for("y", VariantGates(snr_db=40), "fp16", made_up=True).snr_db == 40


def test_gates_of_outputs_that_are_not_there() -> None:
    gates = VariantGates(outputs={"logit": Gates(snr_db=10)})
    with pytest.raises(InputError, match=r"gates\.outputs: the model has no output 'logit'"):
        compare_variant(two_outputs(), two_outputs(), samples(), signature(), gates, "fp16")


def test_no_samples() -> None:
    with pytest.raises(InputError, match="no samples"):
        compare_variant(two_outputs(), two_outputs(), [], signature(), VariantGates(), "fp16")


def test_a_hint_replaces_the_general_next_step() -> None:
    rows = compare_variant(two_outputs(), two_outputs(1e-3), samples(), signature(), VariantGates(), "fp16")
    with pytest.raises(GateError, match="next: keep node 7"):
        require_gates(rows, "fp16", hint="keep node 7")


def test_many_lengths_do_not_fill_a_large_batch_each() -> None:
    """Texts of 40 lengths at batch 32: two batches, not 40, and the shortest and the longest are among them."""
    runs: list[tuple[int, int]] = []

    class Counted:
        def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
            runs.append(inputs["x"].shape)
            return {"y": inputs["x"].sum(axis=1, keepdims=True)}

    signature = Signature(
        (ModelInput("x", "float32", ("batch", "length")),),
        {"batch": Dimension("batch", 1, 8, 32), "length": Dimension("length", 1, 8, 64)},
        batched=True,
    )
    samples = [{"x": np.arange(1, n + 1, dtype=np.float32)[None] / n} for n in range(1, 41)]
    comparison = VariantComparison(Counted(), samples, signature)
    runs.clear()
    rows = comparison.rows(Counted(), VariantGates(), "fp16")
    assert {row.batch for row in rows} == {1, 2, 8, 32} and all(row.problem is None for row in rows)
    lengths = {size: sorted(shape[1] for shape in runs if shape[0] == size) for size in (1, 2, 8, 32)}
    assert lengths[1] == list(range(1, 41))
    assert lengths[32] == [1, 40]
    assert len(lengths[8]) <= 8 and len(lengths[2]) <= 40
