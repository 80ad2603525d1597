"""Checks and conversions of arrays before they are sent."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from tritonstack.errors import TensorError
from tritonstack.tensor.conform import check_batch, check_names, conform
from tritonstack.tensor.datatype import DATATYPES, bfloat16_bits, float32_from_bfloat16_bits
from tritonstack.tensor.tensor_spec import TensorSpec

X = TensorSpec("x", "FP32", (-1, 3))


def wire(value: object, spec: TensorSpec = X, *, max_batch_size: int = 8, cast: bool = False) -> list[float]:
    tensor = conform(spec, value, max_batch_size=max_batch_size, cast=cast)
    return np.frombuffer(tensor.data, DATATYPES[spec.datatype].numpy_dtype).tolist()


def refusal(value: object, spec: TensorSpec = X, *, max_batch_size: int = 8, cast: bool = False) -> str:
    with pytest.raises(TensorError) as caught:
        conform(spec, value, max_batch_size=max_batch_size, cast=cast)
    return str(caught.value)


def test_a_missing_batch_dimension_is_explained() -> None:
    text = refusal(np.zeros((3,), np.float32))
    assert "input 'x'" in text
    assert "given shape [3] FP32" in text
    assert "expected FP32 [batch ≤ 8, 3]" in text
    assert "add a leading batch dimension: x[None]" in text


def test_the_hint_is_left_out_where_it_would_be_wrong() -> None:
    assert "x[None]" not in refusal(np.zeros((1, 1, 1, 3), np.float32))
    assert "x[None]" not in refusal(np.zeros((3,), np.float32), max_batch_size=0)


def test_wrong_features_name_the_dimension() -> None:
    text = refusal(np.zeros((2, 4), np.float32))
    assert "dimension 1 is 4 where the model wants 3" in text
    assert "[2, 4]" in text


def test_the_batch_limit_is_named() -> None:
    assert "max_batch_size is 8" in refusal(np.zeros((9, 3), np.float32))
    assert len(wire(np.zeros((8, 3), np.float32))) == 24


def test_an_empty_batch_is_refused() -> None:
    assert "batch of 0" in refusal(np.zeros((0, 3), np.float32))


def test_zero_elements_are_fine_without_batching() -> None:
    assert wire(np.zeros((0, 3), np.float32), max_batch_size=0) == []


@pytest.mark.parametrize("value", [np.zeros((2, 3)), np.array([[1, 2, 3]]), [[1.0, 2.0, 3.0]], np.ones((1, 3), bool)])
def test_other_data_types_need_an_explicit_cast(value: object) -> None:
    text = refusal(value)
    assert "wrong data type" in text
    assert "x.astype(np.float32)" in text
    assert "cast=True" in text
    assert len(wire(value, cast=True)) == np.asarray(value).size


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)), [0, 1, 2, 3, 4, 5], id="fortran"),
        pytest.param(np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2], [0, 2, 4, 6, 8, 10], id="strided"),
        pytest.param(np.arange(3, dtype=">f4").reshape(1, 3), [0, 1, 2], id="big-endian"),
        pytest.param(np.broadcast_to(np.float32(1), (2, 3)), [1] * 6, id="read-only"),
        pytest.param(np.arange(3, dtype=np.float32)[None, ::-1], [2, 1, 0], id="reversed"),
        pytest.param(torch.arange(6.0).reshape(3, 2).T, [0, 2, 4, 1, 3, 5], id="torch-transposed"),
        pytest.param(torch.ones(1, 3, requires_grad=True), [1, 1, 1], id="torch-with-grad"),
    ],
)
def test_memory_layout_does_not_matter(value: object, expected: list[float]) -> None:
    assert wire(value) == expected


def test_a_contiguous_array_is_not_copied() -> None:
    array = np.zeros((2, 3), np.float32)
    data = conform(X, array, max_batch_size=8, cast=False).data
    array[0, 0] = 7
    assert np.frombuffer(data, np.float32)[0] == 7


@pytest.mark.parametrize(
    ("value", "datatype", "index"),
    [
        ([[0.0, 1e39]], "FP32", "[0, 1]"),
        ([[1.0, 70000.0]], "FP16", "[0, 1]"),
        ([[3.4e38, 1.0], [1.0, 3.4e38]], "BF16", "[0, 0]"),
        ([[0, 256]], "UINT8", "[0, 1]"),
        ([[-1, 0]], "UINT16", "[0, 0]"),
        ([[0.5, 1.0]], "INT32", "[0, 0]"),
        ([[1.0, float("nan")]], "INT64", "[0, 1]"),
        ([[1.0, float("inf")]], "INT8", "[0, 1]"),
        ([[1, 2**24 + 1]], "FP32", "[0, 1]"),
        ([[1, 2**63 - 1]], "FP64", "[0, 1]"),
        ([[1, 2]], "BOOL", "[0, 1]"),
        (np.array([[2**63, 0]], np.uint64), "INT64", "[0, 0]"),
    ],
)
def test_a_cast_never_loses_silently(value: object, datatype: str, index: str) -> None:
    text = refusal(value, TensorSpec("x", datatype, (-1, -1)), cast=True)
    assert f"element {index} does not survive" in text


@pytest.mark.parametrize(
    ("value", "datatype", "expected"),
    [
        ([[0.1]], "FP32", [float(np.float32(0.1))]),
        ([[float("nan"), float("-inf")]], "FP16", [float("nan"), float("-inf")]),
        ([[255.0, 0.0]], "UINT8", [255, 0]),
        ([[True, False]], "INT64", [1, 0]),
        ([[1, 0]], "BOOL", [True, False]),
        (np.array([[2**64 - 1]], np.uint64), "UINT64", [2**64 - 1]),
        ([[-(2**63)]], "FP64", [-(2.0**63)]),
    ],
)
def test_a_cast_keeps_what_fits(value: object, datatype: str, expected: list[float]) -> None:
    assert wire(value, TensorSpec("x", datatype, (-1, -1)), cast=True) == pytest.approx(expected, nan_ok=True, rel=0)


def test_bfloat16_rounds_as_ml_dtypes_does() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint64).astype(np.uint32)
    special = np.array([0, 0x80000000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x00000001, 0x3F808000, 0x3F818000])
    values = np.concatenate([bits, special.astype(np.uint32)]).view(np.float32)
    numbers = values[~np.isnan(values)]
    with np.errstate(all="ignore"):
        expected = numbers.astype(ml_dtypes.bfloat16).view(np.uint16)
    assert np.array_equal(bfloat16_bits(numbers), expected)
    nans = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(float32_from_bfloat16_bits(bfloat16_bits(nans))).all()


@pytest.mark.parametrize(
    "value", [np.array([[1.5, -2]], ml_dtypes.bfloat16), torch.tensor([[1.5, -2]], dtype=torch.bfloat16)]
)
def test_bfloat16_arrays_go_as_they_are(value: object) -> None:
    tensor = conform(TensorSpec("x", "BF16", (-1, 2)), value, max_batch_size=4, cast=False)
    assert bytes(tensor.data).hex() == "c03f00c0"


def test_bfloat16_from_float32_only_by_cast() -> None:
    spec = TensorSpec("x", "BF16", (-1, 1))
    assert "bfloat16" in refusal(np.ones((1, 1), np.float32), spec)
    assert bytes(conform(spec, np.ones((1, 1), np.float32), max_batch_size=4, cast=True).data).hex() == "803f"


@pytest.mark.parametrize("value", ["text", [["a", "b", "c"]], np.zeros((1, 3), complex), None, [[1.0], [1.0, 2.0]]])
def test_what_is_no_number_is_refused(value: object) -> None:
    assert "input 'x'" in refusal(value, cast=True)


def test_unknown_and_missing_inputs_are_named() -> None:
    specs = [TensorSpec("image", "FP32", (-1,)), TensorSpec("mask", "BOOL", (-1,), optional=True)]
    with pytest.raises(TensorError, match="did you mean 'image'"):
        check_names({"imgae": 0}, specs, model="m")
    with pytest.raises(TensorError, match="wants input 'image'"):
        check_names({"mask": 0}, specs, model="m")
    check_names({"image": 0}, specs, model="m")


def test_inputs_of_one_batch_agree() -> None:
    with pytest.raises(TensorError, match="differ in batch size"):
        check_batch([("a", (2, 3)), ("b", (3, 3))], model="m")
    check_batch([("a", (2, 3)), ("b", (2,))], model="m")
