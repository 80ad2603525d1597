"""Checks that arrays fit what a model wants, and turns them into row-major little-endian wire bytes.

Nothing is converted silently: a value of another data type is refused unless the caller asked for a cast, and a cast
that would change an integer, wrap around or overflow to infinity is refused too (rounding a float64 to a float32 is
what a cast is for).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np

from tritonstack.errors import TensorError
from tritonstack.tensor.bytes_tensor import bytes_array, encode_bytes_tensor
from tritonstack.tensor.datatype import bfloat16_bits, datatype, datatype_name_of, float32_from_bfloat16_bits
from tritonstack.tensor.tensor_spec import TensorSpec

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class WireTensor:
    """One input as it goes on the wire: `data` are row-major little-endian bytes and may alias the caller's array."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: memoryview | bytes


def nearest(name: str, known: Sequence[str]) -> str:
    """``did you mean 'x'?`` or the list of known names."""
    return closest(name, known) or f"the names are {', '.join(map(repr, known)) or '(none)'}"


def closest(name: str, known: Sequence[str]) -> str | None:
    """``did you mean 'x'?``, for messages that list the known names themselves; None where nothing is close."""
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else None


def check_names(given: Mapping[str, object], specs: Sequence[TensorSpec], *, model: str) -> None:
    """TensorError unless `given` has every required input of `specs` and nothing else."""
    known = [spec.name for spec in specs]
    for name in given:
        if name not in known:
            raise TensorError(
                f"model {model!r} has no input {name!r}",
                expected=f"inputs {', '.join(map(repr, known))}",
                next_step=closest(name, known),
            )
    missing = [spec.name for spec in specs if spec.name not in given and not spec.optional]
    if missing:
        raise TensorError(
            f"model {model!r} wants input{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}",
            given=f"inputs {', '.join(map(repr, given)) or '(none)'}",
        )


def check_shape(spec: TensorSpec, shape: tuple[int, ...], found: str, *, max_batch_size: int) -> None:
    """TensorError unless `shape` fits `spec`; `found` describes the given dtype for the message."""
    wanted = spec.describe(max_batch_size)
    given = f"shape {list(shape)} {found}"
    if len(shape) != len(spec.shape):
        hint = None
        if max_batch_size > 0 and len(shape) == len(spec.shape) - 1:
            hint = f"add a leading batch dimension: {spec.name if spec.name.isidentifier() else 'x'}[None]"
        raise TensorError(
            f"input {spec.name!r} has {len(shape)} dimension{'s' if len(shape) != 1 else ''} "
            f"where the model wants {len(spec.shape)}",
            given=given,
            expected=wanted,
            next_step=hint,
        )
    for axis, (got, want) in enumerate(zip(shape, spec.shape, strict=True)):
        if want >= 0 and got != want:
            raise TensorError(
                f"input {spec.name!r}: dimension {axis} is {got} where the model wants {want}",
                given=given,
                expected=wanted,
            )
    if max_batch_size > 0:
        if shape[0] == 0:
            raise TensorError(
                f"input {spec.name!r} is a batch of 0 samples, which Triton cannot run",
                given=given,
                expected=wanted,
                next_step="skip the call when there is nothing to infer",
            )
        if shape[0] > max_batch_size:
            raise TensorError(
                f"input {spec.name!r} is a batch of {shape[0]}, but the model's max_batch_size is {max_batch_size}",
                given=given,
                expected=wanted,
                next_step=f"send at most {max_batch_size} samples per request",
            )


def conform(spec: TensorSpec, value: object, *, max_batch_size: int, cast: bool) -> WireTensor:
    """`value` (array, nested list, scalar or CPU torch tensor) as the wire tensor that `spec` describes.

    Raises TensorError naming the input, what was given and what the model wants.
    """
    if spec.datatype == "BYTES":
        text = bytes_array(value, name=spec.name)
        check_shape(spec, text.shape, "of str/bytes", max_batch_size=max_batch_size)
        return WireTensor(spec.name, "BYTES", text.shape, encode_bytes_tensor(text, name=spec.name))
    array, found = _array(spec, value)
    check_shape(spec, array.shape, found, max_batch_size=max_batch_size)
    if found == spec.datatype:
        wire = _little_endian(array)
    elif cast:
        wire = _cast(spec, array, found)
    else:
        raise TensorError(
            f"input {spec.name!r} has the wrong data type",
            given=f"shape {list(array.shape)} {array.dtype} ({found})",
            expected=spec.describe(max_batch_size),
            next_step=f"convert it ({_conversion(spec.datatype)}) or pass cast=True",
        )
    return WireTensor(spec.name, spec.datatype, array.shape, wire.reshape(-1).view(np.uint8).data)


def check_batch(shapes: Sequence[tuple[str, tuple[int, ...]]], *, model: str) -> None:
    """TensorError unless the inputs (name and shape) of a batching model agree on their batch dimension."""
    if len({shape[0] for _, shape in shapes}) > 1:
        sizes = ", ".join(f"{name!r} {shape[0]}" for name, shape in shapes)
        raise TensorError(f"the inputs of model {model!r} differ in batch size", given=sizes)


def _conversion(name: str) -> str:
    dtype = datatype(name).numpy_dtype
    return "x.astype(ml_dtypes.bfloat16)" if dtype is None else f"x.astype(np.{dtype.name})"


def _array(spec: TensorSpec, value: object) -> tuple[Array, str]:
    """The value as a numeric array, and its Triton data type name. BF16 comes as bit patterns (uint16)."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        tensor = value.detach().cpu()
        if tensor.dtype == torch.bfloat16:
            return np.asarray(tensor.contiguous().view(torch.int16).numpy()).view(np.uint16), "BF16"
        value = tensor.numpy()
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise TensorError(f"input {spec.name!r}: not an array", given=str(error)) from None
    found = datatype_name_of(array.dtype)
    if found is None or found == "BYTES":
        raise TensorError(
            f"input {spec.name!r} cannot be sent as {spec.datatype}",
            given=f"shape {list(array.shape)} {array.dtype}",
            expected=spec.describe(),
        )
    if found == "BF16":
        return np.asarray(array, order="C").view(np.uint16), found
    return array, found


def _little_endian(array: Array) -> Array:
    """Row-major, little-endian; the array itself where it already is both."""
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")


def _cast(spec: TensorSpec, array: Array, found: str) -> Array:
    """`array` converted to the data type of `spec`; TensorError names the first value that would not survive."""
    source = float32_from_bfloat16_bits(array) if found == "BF16" else array
    target = datatype(spec.datatype).numpy_dtype
    with np.errstate(all="ignore"):
        if target is None:
            wide = source.astype("<f4")
            wire: Array = bfloat16_bits(wide)
            landed: Array = float32_from_bfloat16_bits(wire)
        else:
            wire = np.asarray(source, dtype=target, order="C")
            landed = wire
        if source.dtype.kind == "f" and landed.dtype.kind == "f":
            survives = np.isfinite(landed) | ~np.isfinite(source)
        else:
            # Comparing as long double is exact for every 64-bit integer (64 mantissa bits on x86, 113 on Arm).
            survives = landed.astype(np.longdouble) == source.astype(np.longdouble)
    if not survives.all():
        index = [int(i) for i in np.argwhere(~survives)[0]]
        raise TensorError(
            f"input {spec.name!r}: element {index} does not survive the cast from {found} to {spec.datatype}",
            given=repr(source[tuple(index)].item()),
            expected=f"values that {spec.datatype} can hold",
        )
    return wire
