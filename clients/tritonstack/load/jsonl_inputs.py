"""Requests from a JSONL file: one whole request in each line.

    {"inputs": {"x": [[1, 2, 3]]}, "id": "a", "expected": {"y": [[2, 3, 4]]}, "sequence": 7, "parameters": {"k": 1}}

Only the inputs are needed, and where no input is called like one of the other keys they may stand at the top:
``{"x": [[1, 2, 3]]}``. A value is a number, a text, a nested list of them, or ``{"b64": "…"}``: of an input of numbers
the raw little-endian bytes of the whole tensor (``"shape"`` beside it where the model leaves dimensions open), of an
input of BYTES one element. Of a batching model the batch may be left out where it is 1.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tritonstack.client.model import ModelMetadata
from tritonstack.client.request import Parameter
from tritonstack.errors import InputError, TensorError, TritonstackError
from tritonstack.load.input_pool import Array, InputPool, RequestExtras, array_bytes, require_memory
from tritonstack.tensor.conform import check_names, check_shape
from tritonstack.tensor.datatype import datatype, float32_from_bfloat16_bits
from tritonstack.tensor.tensor_spec import TensorSpec

_KEYS = ("inputs", "id", "expected", "sequence", "parameters")


def read_jsonl(path: Path, *, metadata: ModelMetadata, batch: int, most: int | None) -> InputPool:
    """The requests of the file, the first `most` of them where that is given.

    Raises InputError naming the line for what is no request, TensorError also the input, what was given and what the
    model wants; UsageError where they do not fit into memory.
    """
    requests: list[Mapping[str, Array]] = []
    extras: list[RequestExtras] = []
    size = 0
    for line, document in _documents(path):
        if most is not None and len(requests) == most:
            break
        try:
            inputs, extra = _request(document, metadata, batch)
        except TritonstackError as error:
            raise type(error)(
                f"{path.name}, line {line}: {error.summary}",
                given=error.given,
                expected=error.expected,
                next_step=error.next_step,
            ) from None
        size += sum(map(array_bytes, inputs.values()))
        if len(requests) % 1000 == 0:
            require_memory(size, f"the first {len(requests) + 1} lines of {path.name}")
        requests.append(inputs)
        extras.append(extra)
    if not requests:
        raise InputError(f"{str(path)!r} holds no request", expected='lines such as {"inputs": {"x": [1, 2, 3]}}')
    _require_distinct_ids(path, extras)
    return InputPool(requests, f"from {path.name}", cast=True, extras=extras)


def _documents(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            for line, text in enumerate(file, 1):
                if not text.strip():
                    continue
                try:
                    document = json.loads(text)
                except ValueError as error:
                    raise InputError(f"{path.name}, line {line}: not JSON", given=str(error)) from None
                except RecursionError:
                    raise InputError(f"{path.name}, line {line}: lists nested too deeply") from None
                if not isinstance(document, dict):
                    raise InputError(
                        f"{path.name}, line {line}: not a request",
                        given=type(document).__name__,
                        expected='an object such as {"inputs": {"x": [1, 2, 3]}}',
                    )
                yield line, document
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{str(path)!r} is not UTF-8 text: {error.reason}") from None


def _request(document: dict[str, Any], metadata: ModelMetadata, batch: int) -> tuple[dict[str, Array], RequestExtras]:
    inputs = document.get("inputs")
    if inputs is None:
        inputs = {name: value for name, value in document.items() if name not in _KEYS[1:]}
    else:
        unknown = [name for name in document if name not in _KEYS]
        if unknown:
            raise InputError(f"unknown key {unknown[0]!r}", expected=f"one of {', '.join(_KEYS)}")
    if not isinstance(inputs, dict):
        raise InputError("'inputs' is not an object", given=type(inputs).__name__, expected='{"<input>": <values>}')
    check_names(inputs, metadata.inputs, model=metadata.name)
    arrays = {spec.name: _tensor(spec, inputs[spec.name], metadata, batch) for spec in _named(metadata.inputs, inputs)}
    return arrays, RequestExtras(
        request_id=_id(document.get("id", "")),
        expected=_expected(document.get("expected"), metadata),
        sequence=_sequence(document.get("sequence")),
        parameters=_parameters(document.get("parameters", {})),
    )


def _named(specs: Sequence[TensorSpec], names: Mapping[str, object]) -> Iterator[TensorSpec]:
    return (spec for spec in specs if spec.name in names)


def _tensor(spec: TensorSpec, value: object, metadata: ModelMetadata, batch: int) -> Array:
    array = values_of(spec, value)
    if metadata.max_batch_size:
        if array.ndim == len(spec.shape) - 1:
            array = array[None]
        if array.ndim == len(spec.shape) and array.shape[0] != batch:
            raise TensorError(
                f"input {spec.name!r} is a batch of {array.shape[0]} where --batch says {batch}",
                given=f"shape {list(array.shape)}",
                next_step=f"give --batch {array.shape[0]} or lines of that batch",
            )
    found = f"{array.dtype}" if array.dtype != object else "of str/bytes"
    check_shape(spec, array.shape, found, max_batch_size=metadata.max_batch_size)
    return array


def values_of(spec: TensorSpec, value: object) -> Array:
    """A JSON value as an array; the shape is not checked. Raises TensorError where it cannot be one of `spec`."""
    if datatype(spec.datatype).name == "BYTES":
        return _texts(spec, value)
    if isinstance(value, dict):
        return _raw(spec, value)
    try:
        # Numbers beyond 64 bits and ragged lists would become objects.
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise TensorError(f"{spec.name!r} is not an array", given=str(error).splitlines()[0]) from None
    if array.dtype.kind not in "biuf":
        if array.size == 0:
            return array.astype(np.float32)
        raise TensorError(
            f"{spec.name!r} holds no numbers", given=json.dumps(value)[:80], expected=f"values of {spec.datatype}"
        )
    return array


def _texts(spec: TensorSpec, value: object) -> Array:
    """An object array of bytes and str; lists are its axes."""
    shape: list[int] = []
    level = value
    while isinstance(level, list):
        shape.append(len(level))
        level = level[0] if level else None
    flat: list[object] = []
    _flatten(spec, value, shape, flat)
    array = np.empty(len(flat), dtype=object)
    array[:] = flat
    return array.reshape(shape)


def _flatten(spec: TensorSpec, value: object, shape: Sequence[int], into: list[object]) -> None:
    if shape:
        if not isinstance(value, list) or len(value) != shape[0]:
            raise TensorError(f"{spec.name!r} is a list of unlike parts", given=json.dumps(value)[:80])
        for part in value:
            _flatten(spec, part, shape[1:], into)
    elif isinstance(value, dict):
        into.append(_base64(spec, value))
    elif isinstance(value, str):
        into.append(value)
    else:
        raise TensorError(
            f"{spec.name!r} holds something that is no text",
            given=json.dumps(value)[:80],
            expected='a text or {"b64": "…"}',
        )


def _raw(spec: TensorSpec, value: dict[str, Any]) -> Array:
    """Raw little-endian bytes as an array; BF16 widened to float32."""
    data = _base64(spec, value)
    kind = datatype(spec.datatype)
    shape = value.get("shape")
    if shape is None:
        shape = _closed_shape(spec, len(data) // kind.byte_size)
    if not isinstance(shape, list) or not all(type(dim) is int and dim >= 0 for dim in shape):
        raise TensorError(f"{spec.name!r} has no shape", given=json.dumps(shape)[:80], expected='"shape": [2, 3]')
    if prod(shape) * kind.byte_size != len(data):
        raise TensorError(
            f"the raw bytes of {spec.name!r} do not fit its shape",
            given=f"{len(data)} bytes",
            expected=f"{prod(shape) * kind.byte_size} for {spec.datatype} {shape}",
        )
    if kind.numpy_dtype is None:
        return float32_from_bfloat16_bits(np.frombuffer(data, "<u2")).reshape(shape)
    return np.frombuffer(data, kind.numpy_dtype).reshape(shape)


def _closed_shape(spec: TensorSpec, elements: int) -> list[int]:
    """The shape of so many elements where at most one dimension is open (the batch counts)."""
    dims = list(spec.shape)
    known = prod(dim for dim in dims if dim >= 0)
    if dims.count(-1) > 1:
        raise TensorError(
            f"{spec.name!r} leaves several dimensions open", expected='its "shape" beside "b64"', given=spec.describe()
        )
    if -1 in dims and known:
        dims[dims.index(-1)] = elements // known
    return dims


def _base64(spec: TensorSpec, value: dict[str, Any]) -> bytes:
    text = value.get("b64")
    if not isinstance(text, str) or not set(value) <= {"b64", "shape"}:
        raise TensorError(
            f"{spec.name!r} is an object without raw bytes", given=json.dumps(value)[:80], expected='{"b64": "…"}'
        )
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise TensorError(f"the raw bytes of {spec.name!r} are not base64", given=str(error)) from None


def _expected(document: object, metadata: ModelMetadata) -> Mapping[str, object] | None:
    if document is None:
        return None
    if not isinstance(document, dict):
        raise InputError("'expected' is not an object", given=type(document).__name__)
    specs = {spec.name: spec for spec in metadata.outputs}
    answers: dict[str, object] = {}
    for name, value in document.items():
        if name not in specs:
            raise TensorError(f"model {metadata.name!r} has no output {name!r}", expected=f"one of {', '.join(specs)}")
        array = values_of(specs[name], value)
        batchless = metadata.max_batch_size and array.ndim == len(specs[name].shape) - 1
        answers[name] = array[None] if batchless else array
    return answers


def _id(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise InputError("'id' is neither a text nor a number", given=json.dumps(value)[:80])
    return str(value)


def _sequence(value: object) -> str | int | None:
    if value is None or (isinstance(value, str) and value):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63:
        return value
    raise InputError(
        "'sequence' is no correlation id", given=json.dumps(value)[:80], expected="a text or a number above 0"
    )


def _parameters(value: object) -> Mapping[str, Parameter]:
    if not isinstance(value, dict) or not all(isinstance(entry, (bool, int, float, str)) for entry in value.values()):
        raise InputError(
            "'parameters' is no object of simple values",
            given=json.dumps(value)[:80],
            expected='{"key": true, 1, 1.5 or "text"}',
        )
    return value


def _require_distinct_ids(path: Path, extras: Sequence[RequestExtras]) -> None:
    seen: set[str] = set()
    for extra in extras:
        if extra.request_id in seen:
            raise InputError(f"{path.name} has two requests of one id", given=repr(extra.request_id))
        if extra.request_id:
            seen.add(extra.request_id)
