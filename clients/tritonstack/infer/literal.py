"""Input values from the command line: ``NAME=JSON``, ``NAME=@file.npy`` and ``NAME=@file.npz``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tritonstack.errors import InputError, UsageError
from tritonstack.tensor.conform import nearest
from tritonstack.tensor.datatype import datatype
from tritonstack.tensor.tensor_spec import TensorSpec


def split_assignment(text: str, *, flag: str) -> tuple[str, str]:
    """``NAME=VALUE`` at its first equals sign."""
    name, separator, value = text.partition("=")
    if not separator or not name or not value:
        raise UsageError(f"bad {flag}", given=repr(text), expected="NAME=VALUE")
    return name, value


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """``NAME=1,3,224,224`` per item."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, value = split_assignment(text, flag="--shape")
        dims = value.strip("[]").split(",")
        if not all(dim.strip().isascii() and dim.strip().isdigit() for dim in dims):
            raise UsageError("bad --shape", given=repr(text), expected="NAME=DIM,DIM,… with whole numbers")
        shapes[name] = tuple(int(dim) for dim in dims)
    return shapes


def read_inputs(
    texts: Sequence[str], shapes: Mapping[str, tuple[int, ...]], specs: Sequence[TensorSpec]
) -> dict[str, object]:
    """The inputs that the --input flags give, each reshaped where --shape says so.

    JSON numbers take the data type of the model's input if every value survives it; arrays from files keep their own.
    """
    known = {spec.name: spec for spec in specs}
    inputs: dict[str, object] = {}
    for text in texts:
        name, value = split_assignment(text, flag="--input")
        if name not in known:
            raise UsageError(f"--input: the model has no input {name!r}", next_step=nearest(name, [*known]))
        if name in inputs:
            raise UsageError(f"--input: {name!r} is given twice")
        if value == "@":
            raise UsageError("bad --input", given=repr(text), expected="NAME=@FILE.npy")
        array = _from_file(name, Path(value[1:])) if value.startswith("@") else _from_json(known[name], value)
        if name in shapes:
            array = _reshaped(name, array, shapes[name])
        inputs[name] = array
    for name in shapes:
        if name not in inputs:
            raise UsageError(f"--shape names {name!r}, for which there is no --input")
    return inputs


def _from_json(spec: TensorSpec, text: str) -> Any:
    import numpy as np

    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"--input: the value of {spec.name!r} is not JSON ({error})",
            given=text if len(text) <= 40 else f"{text[:40]}…",
            expected="""JSON such as 1.5, [[1, 2]] or ["text"], or @file.npy""",
        ) from None
    if spec.datatype == "BYTES":
        return np.array(value, dtype=object)
    kind = datatype(spec.datatype).numpy_dtype
    try:
        array = np.array(value)
        if array.size == 0:
            array = array.astype(kind or np.float32)
        elif array.dtype.kind == "O" and kind is not None and all(type(v) is int for v in array.ravel()):
            array = array.astype(kind)  # integers beyond 64 bits
    except OverflowError:
        raise UsageError(f"--input: a value of {spec.name!r} is larger than any {spec.datatype}") from None
    except (ValueError, TypeError):
        raise UsageError(
            f"--input: the value of {spec.name!r} is not an array of numbers", expected="lists of equal length"
        ) from None
    if array.dtype.kind not in "biuf":
        raise UsageError(
            f"--input: the value of {spec.name!r} is not an array of numbers", expected=f"{spec.datatype} values"
        )
    return array


def _from_file(name: str, path: Path) -> Any:
    """The array of a .npy file, or of a .npz file: its entry called `name`, or its only one."""
    from tritonstack.tensor.array_file import read_array_file

    loaded = read_array_file(path)
    if not isinstance(loaded, dict):
        return loaded
    if name not in loaded and len(loaded) != 1:
        raise InputError(
            f"--input: {str(path)!r} has no array {name!r}", expected=f"one of {', '.join(loaded) or '(none)'}"
        )
    return loaded[name] if name in loaded else next(iter(loaded.values()))


def _reshaped(name: str, array: Any, shape: tuple[int, ...]) -> Any:
    import numpy as np

    values = np.asarray(array)
    try:
        return values.reshape(shape)
    except ValueError:
        raise UsageError(
            f"--shape: the value of {name!r} has {values.size} elements", expected=f"a shape of as many, not {shape}"
        ) from None
