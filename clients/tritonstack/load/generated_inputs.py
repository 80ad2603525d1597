"""Random and zero tensors shaped by a model's metadata."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import overload

import numpy as np

from tritonstack.client.model import ModelConfigView, ModelMetadata
from tritonstack.errors import InputError, UsageError
from tritonstack.load.input_pool import REQUEST_BYTES, Array
from tritonstack.tensor.conform import nearest
from tritonstack.tensor.datatype import datatype
from tritonstack.tensor.tensor_spec import TensorSpec
from tritonstack.terminal import human_bytes

RANGES_PARAMETER = "tritonstack.ranges"
"""A parameter of a model's config: JSON ``{"input": [low, high]}``, the values that its inputs may take."""
TEXT_LENGTH = 16
"""Characters in each random BYTES element."""

Sizes = Mapping[TensorSpec, tuple[int, ...]]
Ranges = Mapping[str, tuple[float, float]]


def sample_dims(spec: TensorSpec, metadata: ModelMetadata) -> tuple[int, ...]:
    """The shape without the batch."""
    return spec.shape[1:] if metadata.max_batch_size else spec.shape


def check_shapes(shapes: Mapping[str, Sequence[int]], metadata: ModelMetadata) -> None:
    """UsageError unless `shapes` (dims without the batch, by input) fits the model."""
    specs = {spec.name: spec for spec in metadata.inputs}
    for name, dims in shapes.items():
        given = f"--shape {name}:{'x'.join(map(str, dims))}"
        if name not in specs:
            raise UsageError(
                f"model {metadata.name!r} has no input {name!r}", given=given, expected=f"one of {', '.join(specs)}"
            )
        wanted = sample_dims(specs[name], metadata)
        fits = len(wanted) == len(dims) and all(w in (-1, d) for w, d in zip(wanted, dims, strict=True))
        if not fits or any(dim < 0 for dim in dims):
            text = "x".join("D" if dim < 0 else str(dim) for dim in wanted)
            batching = " (the batch is left out: it comes from --batch)" if metadata.max_batch_size else ""
            raise UsageError(f"the shape does not fit input {name!r}", given=given, expected=f"{text}{batching}")


def generated_shapes(metadata: ModelMetadata, batch: int, shapes: Mapping[str, Sequence[int]]) -> Sizes:
    """The whole shape of each input to generate; optional inputs are left out unless `shapes` names them."""
    sizes: dict[TensorSpec, tuple[int, ...]] = {}
    open_dims = []
    for spec in metadata.inputs:
        if spec.optional and spec.name not in shapes:
            continue
        dims = tuple(shapes.get(spec.name, sample_dims(spec, metadata)))
        if any(dim < 0 for dim in dims):
            open_dims.append(f"--shape {spec.name}:{'x'.join('D' if dim < 0 else str(dim) for dim in dims)}")
        sizes[spec] = (batch, *dims) if metadata.max_batch_size else dims
    if open_dims:
        raise UsageError(
            f"model {metadata.name!r} leaves dimensions open, so their size has to be given",
            next_step=f"add {' '.join(open_dims)} with numbers for D",
        )
    size = request_bytes(sizes)
    if size > REQUEST_BYTES:
        raise UsageError(
            "one request would be too large to send", given=human_bytes(size), expected="at most 2 GiB per request"
        )
    return sizes


def request_bytes(sizes: Sizes) -> int:
    """Bytes of the tensors of one request."""
    return sum(prod(shape) * (datatype(spec.datatype).byte_size or TEXT_LENGTH + 4) for spec, shape in sizes.items())


def value_ranges(config: ModelConfigView, metadata: ModelMetadata, given: Ranges) -> Ranges:
    """The range of values of each input that has one: what the model's config says, overruled by `given`.

    Raises UsageError where a given range does not fit the model, InputError where the config makes no sense.
    """
    specs = {spec.name: spec for spec in metadata.inputs}
    ranges: dict[str, tuple[float, float]] = {}
    text = config.parameters.get(RANGES_PARAMETER)
    if text is not None:
        try:
            for name, (low, high) in json.loads(text).items():
                ranges[name] = (float(low), float(high))
                _check_range(specs[name], ranges[name])
        except (ValueError, TypeError, AttributeError, KeyError, UsageError):
            raise InputError(
                f"the parameter {RANGES_PARAMETER!r} of model {config.name!r} makes no sense",
                given=text,
                expected='{"<input>": [low, high]}',
            ) from None
    for name, pair in given.items():
        if name not in specs:
            raise UsageError(f"model {metadata.name!r} has no input {name!r}", next_step=nearest(name, list(specs)))
        _check_range(specs[name], pair)
        ranges[name] = pair
    return ranges


def _check_range(spec: TensorSpec, pair: tuple[float, float]) -> None:
    low, high = pair
    given = f"{low:g} to {high:g}"
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise UsageError(f"not a range of values of input {spec.name!r}", given=given, expected="low ≤ high")
    kind = datatype(spec.datatype)
    if kind.name in ("BYTES", "BOOL"):
        raise UsageError(f"input {spec.name!r} is {kind.name}, which has no range of values", given=given)
    dtype = kind.numpy_dtype
    if dtype is not None and dtype.kind in "iu":
        info = np.iinfo(dtype)
        if low != int(low) or high != int(high) or int(low) < info.min or int(high) > info.max:
            raise UsageError(
                f"the range does not fit input {spec.name!r}", given=given, expected=f"whole numbers of {kind.name}"
            )
    elif max(abs(low), abs(high)) > (float(np.finfo(dtype).max) if dtype is not None else 3.38e38):
        raise UsageError(f"the range does not fit input {spec.name!r}", given=given, expected=f"values of {kind.name}")


class RandomRequests(Sequence[Mapping[str, Array]]):
    """`count` seeded requests, each made when it is asked for and the same every time: a pool of any size costs no
    memory before it is encoded."""

    def __init__(self, sizes: Sizes, *, seed: int, count: int, ranges: Ranges) -> None:
        self._sizes = sizes
        self._seed = seed
        self._count = count
        self._ranges = ranges

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Array]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Mapping[str, Array]]: ...
    def __getitem__(self, index: int | slice) -> Mapping[str, Array] | Sequence[Mapping[str, Array]]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(index)
        generator = np.random.Generator(np.random.PCG64([self._seed, index % self._count]))
        return {
            spec.name: _random(spec, shape, generator, self._ranges.get(spec.name))
            for spec, shape in self._sizes.items()
        }

    def __iter__(self) -> Iterator[Mapping[str, Array]]:
        return (self[index] for index in range(self._count))


def _random(
    spec: TensorSpec, shape: tuple[int, ...], generator: np.random.Generator, limits: tuple[float, float] | None
) -> Array:
    kind = datatype(spec.datatype)
    if kind.name == "BYTES":
        letters = generator.integers(97, 123, (prod(shape), TEXT_LENGTH), dtype=np.uint8)
        texts = np.empty(prod(shape), dtype=object)
        texts[:] = [row.tobytes() for row in letters]
        return texts.reshape(shape)
    if kind.numpy_dtype is None or kind.numpy_dtype.kind == "f":
        # float32 unless more is wanted: BF16 and FP16 are rounded from it.
        wide = np.float64 if kind.name == "FP64" else np.float32
        values: Array = generator.random(shape, dtype=wide)
        if limits is not None:
            low, high = limits
            # Both ends weighted: the width of a range may be more than the data type holds.
            values = np.clip(wide(low) * (1 - values) + wide(high) * values, wide(low), wide(high))
        return values if kind.numpy_dtype is None else np.asarray(values, dtype=kind.numpy_dtype)
    if limits is not None:
        return generator.integers(int(limits[0]), int(limits[1]), shape, dtype=kind.numpy_dtype, endpoint=True)
    if kind.name in ("INT8", "UINT8"):
        info = np.iinfo(kind.numpy_dtype)
        return generator.integers(info.min, info.max, shape, dtype=kind.numpy_dtype, endpoint=True)
    return np.asarray(generator.integers(0, 2, shape, dtype=np.uint8)).astype(kind.numpy_dtype)


def zeros(spec: TensorSpec, shape: tuple[int, ...]) -> Array:
    """Zeros, False or empty BYTES elements."""
    kind = datatype(spec.datatype)
    if kind.name == "BYTES":
        return np.full(shape, b"", dtype=object)
    return np.zeros(shape, dtype=np.float32 if kind.numpy_dtype is None else kind.numpy_dtype)
