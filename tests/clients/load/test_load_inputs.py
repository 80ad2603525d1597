"""Pools of requests from metadata and from the user's arrays."""

from __future__ import annotations

import numpy as np
import pytest

from tritonstack.client.model import ModelConfigView, ModelMetadata
from tritonstack.errors import TensorError, UsageError
from tritonstack.load.input_pool import POOL_BYTES, POOL_REQUESTS, InputPool
from tritonstack.load.inputs import (
    ArrayInputs,
    InputSource,
    RandomInputs,
    ZeroInputs,
    build_pool,
)
from tritonstack.tensor.datatype import DATATYPES
from tritonstack.tensor.tensor_spec import TensorSpec

CONFIG = ModelConfigView("m", "", "python", 8, {}, (), {}, False, (), 0, 1, False, False, ())


def pool(
    source: InputSource,
    *specs: TensorSpec,
    batch: int = 1,
    limit: int = 8,
    shapes: dict[str, tuple[int, ...]] | None = None,
) -> InputPool:
    metadata = ModelMetadata("m", ("1",), "", specs, (), limit)
    return build_pool(source, metadata=metadata, config=CONFIG, batch=batch, shapes=shapes or {})


@pytest.mark.parametrize("datatype", sorted(DATATYPES))
@pytest.mark.parametrize("source", [RandomInputs(1), ZeroInputs()])
def test_every_datatype_can_be_generated_and_sent(datatype: str, source: InputSource) -> None:
    from tritonstack.tensor.conform import conform

    spec = TensorSpec("x", datatype, (-1, 4, 2))
    made = pool(source, spec, batch=3)
    for request in made.requests:
        assert request["x"].shape == (3, 4, 2)
        conform(spec, request["x"], max_batch_size=8, cast=made.cast)


def test_random_values_follow_the_seed_and_differ_between_requests() -> None:
    spec = TensorSpec("x", "FP32", (-1, 5))
    first, again, other = (pool(RandomInputs(seed), spec).requests for seed in (1, 1, 2))
    assert len(first) == POOL_REQUESTS
    assert all(np.array_equal(a["x"], b["x"]) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0]["x"], other[0]["x"])
    assert not np.array_equal(first[0]["x"], first[1]["x"])
    assert all(((r["x"] >= 0) & (r["x"] < 1)).all() for r in first)


def test_wide_integers_are_valid_ids_masks_and_segments() -> None:
    (request, *_) = pool(RandomInputs(), TensorSpec("ids", "INT64", (-1, 100))).requests
    assert set(np.unique(request["ids"])) == {0, 1}


def test_a_pool_of_large_requests_stays_within_its_memory() -> None:
    spec = TensorSpec("x", "UINT8", (-1, 10_000_000))
    assert len(pool(ZeroInputs(), spec).requests) == 1
    made = pool(RandomInputs(), spec).requests
    assert len(made) == POOL_BYTES // 10_000_000
    assert len(pool(RandomInputs(), TensorSpec("x", "UINT8", (-1, POOL_BYTES + 1))).requests) == 1


@pytest.mark.parametrize(("samples", "batch"), [(1, 1), (1, 8), (5, 2), (4, 2), (6, 4), (3, 7)])
def test_samples_are_cut_into_batches_in_turn(samples: int, batch: int) -> None:
    data = np.arange(samples, dtype=np.float32)[:, None]
    made = pool(ArrayInputs({"x": data}), TensorSpec("x", "FP32", (-1, 1)), batch=batch).requests
    sent = np.concatenate([request["x"][:, 0] for request in made])
    assert all(request["x"].shape == (batch, 1) for request in made)
    assert np.array_equal(sent, np.arange(len(sent)) % samples)
    assert np.array_equal(np.bincount(sent.astype(int)), np.full(samples, len(sent) // samples)), "each equally often"


def test_one_sample_without_its_batch_axis_is_taken_as_one() -> None:
    made = pool(ArrayInputs({"x": np.ones(3, np.float32)}), TensorSpec("x", "FP32", (-1, 3)), batch=2).requests
    assert [request["x"].shape for request in made] == [(2, 3)]


def test_without_batching_an_extra_axis_counts_requests() -> None:
    spec = TensorSpec("x", "FP32", (2, 3))
    assert [r["x"].shape for r in pool(ArrayInputs({"x": np.ones((2, 3))}), spec, limit=0).requests] == [(2, 3)]
    made = pool(ArrayInputs({"x": np.arange(30.0).reshape(5, 2, 3)}), spec, limit=0).requests
    assert [request["x"][0, 0] for request in made] == [0, 6, 12, 18, 24]


def test_inputs_with_different_numbers_of_samples_are_refused() -> None:
    specs = (TensorSpec("a", "FP32", (-1, 1)), TensorSpec("b", "FP32", (-1, 1)))
    arrays = {"a": np.ones((2, 1), np.float32), "b": np.ones((3, 1), np.float32)}
    with pytest.raises(TensorError, match="different numbers of samples"):
        pool(ArrayInputs(arrays), *specs)


def test_open_dimensions_are_asked_for_by_the_flag_that_gives_them() -> None:
    specs = (TensorSpec("a", "FP32", (-1, -1, 3)), TensorSpec("b", "FP32", (-1, 4)))
    with pytest.raises(UsageError, match="--shape a:Dx3 "):
        pool(RandomInputs(), *specs)
    made = pool(RandomInputs(), *specs, shapes={"a": (7, 3)}, batch=2)
    assert made.requests[0]["a"].shape == (2, 7, 3)


def test_a_request_that_nothing_can_carry_is_refused_before_it_is_made() -> None:
    with pytest.raises(UsageError, match=r"too large to send.*2 GiB"):
        pool(RandomInputs(), TensorSpec("a", "FP32", (-1, -1, -1)), shapes={"a": (10**8, 10**5)})


def test_a_scalar_model_needs_no_dims() -> None:
    made = pool(RandomInputs(), TensorSpec("x", "FP32", ()), limit=0)
    assert made.requests[0]["x"].shape == ()
