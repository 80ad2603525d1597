"""Profiles: made from the spec, and every mistake told before TensorRT answers -1 or None."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tritonstack.errors import UsageError
from tritonstack_export.engine.profile import (
    Extent,
    InputShape,
    overlap_notes,
    profiles_for_graph,
    profiles_from_spec,
    validate_profiles,
)
from tritonstack_export.engine.settings import Bounds
from tritonstack_export.spec_precision import EngineSpec

IMAGE = InputShape("x", ("batch", 3, 8, 8))
TOKENS = (InputShape("ids", ("batch", "length")), InputShape("mask", ("batch", "length")), InputShape("bias", (4,)))
BATCH = {"batch": Extent(1, 8, 32)}
TEXT = {**BATCH, "length": Extent(1, 64, 128)}


def engine(*profiles: Mapping[str, tuple[int, int, int]]) -> EngineSpec:
    return EngineSpec.model_validate(
        {
            "profiles": [
                {name: dict(zip(("min", "opt", "max"), b, strict=True)) for name, b in p.items()} for p in profiles
            ]
        }
    )


def test_one_profile_from_the_bounds_of_the_spec() -> None:
    (profile,) = profiles_from_spec(engine(), TOKENS, TEXT)
    bounds = Bounds((1, 1), (8, 64), (32, 128))
    assert profile == {"ids": bounds, "mask": bounds}


def test_several_profiles_keep_the_dimensions_that_they_do_not_name() -> None:
    first, second = profiles_from_spec(engine({"batch": (1, 1, 1)}, {"batch": (2, 16, 32)}), TOKENS, TEXT)
    assert first["ids"] == Bounds((1, 1), (1, 64), (1, 128))
    assert second["mask"] == Bounds((2, 1), (16, 64), (32, 128))
    assert overlap_notes([first, second]) == ()


def test_a_model_of_fixed_shapes_has_no_profile() -> None:
    assert profiles_from_spec(engine(), [InputShape("x", (1, 3))], {}) == ()
    assert profiles_for_graph([InputShape("x", (1, 3))], max_batch_size=0) == ()
    with pytest.raises(UsageError, match="every dimension is fixed"):
        profiles_from_spec(engine({"batch": (1, 1, 1)}), [InputShape("x", (1, 3))], {})


def test_a_bare_onnx_file_takes_the_batch_of_its_config() -> None:
    (profile,) = profiles_for_graph([IMAGE], max_batch_size=16)
    assert profile == {"x": Bounds((1, 3, 8, 8), (8, 3, 8, 8), (16, 3, 8, 8))}
    (small,) = profiles_for_graph([IMAGE], max_batch_size=2)
    assert small["x"].opt == (2, 3, 8, 8)
    with pytest.raises(UsageError, match=r"dimension 'length' of input 'ids' has no bounds.*dimensions: \{length"):
        profiles_for_graph(TOKENS, max_batch_size=8)
    with pytest.raises(UsageError, match="dimension 'batch' of input 'x' has no bounds"):
        profiles_for_graph([IMAGE], max_batch_size=0)
    assert profiles_for_graph(TOKENS, max_batch_size=8, bounds={"length": Extent(1, 2, 4)})


@pytest.mark.parametrize(
    ("profiles", "message"),
    [
        ([{"bacth": (1, 1, 1)}], "profiles.0: the model has no dimension 'bacth'.*did you mean 'batch'"),
        ([{"batch": (1, 1, 64)}], r"profiles\.0\.batch: outside of the bounds.*given 1\.\.64; expected within 1\.\.32"),
        ([{"batch": (2, 8, 32)}], r"no profile takes batch 1; given 2\.\.32; expected profiles that cover 1\.\.32"),
        ([{"batch": (1, 8, 16)}], "no profile takes batch 17"),
        ([{"batch": (1, 1, 4)}, {"batch": (8, 8, 32)}], "no profile takes batch 5"),
        ([{"batch": (1, 8, 32)}, {"batch": (1, 8, 32)}], "profiles 0 and 1 are the same"),
        ([{}, {"batch": (1, 8, 32)}], "profiles 0 and 1 are the same"),
        ([{"length": (1, 4, 100)}], "no profile takes length 101"),
    ],
)
def test_profiles_of_the_spec_that_do_not_fit(profiles: list[Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        profiles_from_spec(engine(*profiles), TOKENS, TEXT)
    assert error.value.exit_code == 2 and "\n" not in str(error.value)


@pytest.mark.parametrize("bounds", [(8, 4, 2), (0, 0, 0), (4, 1, 8), (1, 8, 4), (-1, 1, 1)])
def test_bounds_out_of_order_are_refused_by_the_spec(bounds: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"(min <= opt <= max|greater than or equal)"):
        engine({"batch": bounds})


def x(least: Any, best: Any, most: Any) -> dict[str, Bounds]:
    return {"x": Bounds(least, best, most)}


GOOD = x((1, 3, 8, 8), (4, 3, 8, 8), (8, 3, 8, 8))


@pytest.mark.parametrize(
    ("profiles", "message"),
    [
        ([{"X": GOOD["x"]}], "profile 0: the model has no input 'X'; expected one of x"),
        ([{"xx": GOOD["x"]}], "did you mean 'x'"),
        ([{}], "profile 0: the dynamic input 'x' has no bounds"),
        ([GOOD, {}], "profile 1: the dynamic input 'x' has no bounds"),
        (
            [x((1, 3, 8), (4, 3, 8, 8), (8, 3, 8, 8))],
            r"min of input 'x' has rank 3; given \[1, 3, 8\]; expected rank 4",
        ),
        ([x((1, 3, 8, 8), (4, 3, 8, 8), (8, 3, 8, 8, 1))], "max of input 'x' has rank 5"),
        ([x((1, 3, 9, 8), (4, 3, 9, 8), (8, 3, 9, 8))], "axis 2 of input 'x' is fixed at 8.*given min 9.*expected 8"),
        (
            [x((8, 3, 8, 8), (4, 3, 8, 8), (2, 3, 8, 8))],
            "axis 0 of input 'x' is not bounded in order.*min 8, opt 4, max 2",
        ),
        ([x((1, 3, 8, 8), (9, 3, 8, 8), (8, 3, 8, 8))], "is not bounded in order"),
        ([x((0, 3, 8, 8), (4, 3, 8, 8), (8, 3, 8, 8))], "expected 1 <= min"),
        ([x((-1, 3, 8, 8), (4, 3, 8, 8), (8, 3, 8, 8))], "is not bounded in order"),
        ([GOOD, dict(GOOD)], "profiles 0 and 1 are the same"),
    ],
)
def test_profiles_against_the_graph(profiles: list[Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        validate_profiles(profiles, [IMAGE])


def test_a_dimension_has_one_size_in_all_inputs() -> None:
    profile = {"ids": Bounds((1, 1), (8, 64), (32, 128)), "mask": Bounds((1, 1), (8, 64), (16, 128))}
    with pytest.raises(UsageError, match="'batch' has other bounds in input 'mask' than in 'ids'"):
        validate_profiles([profile], TOKENS)


def test_a_size_of_zero_is_allowed_where_it_is_no_batch() -> None:
    rows = InputShape("rows", ("n", 4))
    validate_profiles([{"rows": Bounds((0, 4), (2, 4), (8, 4))}], [rows])
    with pytest.raises(UsageError, match="max above 0"):
        validate_profiles([{"rows": Bounds((0, 4), (0, 4), (0, 4))}], [rows])


def test_a_profile_within_another_is_remarked() -> None:
    inner = x((2, 3, 8, 8), (4, 3, 8, 8), (6, 3, 8, 8))
    assert overlap_notes([GOOD, inner]) == (
        "profile 1 lies within profile 0 and is best at the same sizes: it adds nothing",
    )
    assert overlap_notes([GOOD, x((2, 3, 8, 8), (5, 3, 8, 8), (6, 3, 8, 8))]) == ()
