"""What an ONNX file declares, read without its weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonstack.errors import missing_package
from tritonstack_export.onnx_tensors import bits_of, tensors

# ONNX element type (TensorProto.DataType) -> Triton's word. Types that are missing cannot be served.
TRITON_TYPE_OF_ONNX = {
    "FLOAT": "TYPE_FP32",
    "FLOAT16": "TYPE_FP16",
    "BFLOAT16": "TYPE_BF16",
    "DOUBLE": "TYPE_FP64",
    "BOOL": "TYPE_BOOL",
    "UINT8": "TYPE_UINT8",
    "UINT16": "TYPE_UINT16",
    "UINT32": "TYPE_UINT32",
    "UINT64": "TYPE_UINT64",
    "INT8": "TYPE_INT8",
    "INT16": "TYPE_INT16",
    "INT32": "TYPE_INT32",
    "INT64": "TYPE_INT64",
    "STRING": "TYPE_STRING",
}

# Operators whose number of result rows depends on the data, and operators that pass rows on unchanged.
_ROWS_FROM_DATA = {"NonMaxSuppression", "NonZero", "Unique", "Compress"}
_KEEPS_ROWS = {"Identity", "Cast", "Relu", "Sigmoid", "Neg", "Abs", "Clip", "Softmax"}


class UnreadableModel(Exception):
    """The file is no ONNX model; the text says why."""


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """An input or output of the graph.

    `onnx_type` is the element type's ONNX name, or the kind of value (``sequence``, ``optional``, ``map``) when it is
    no tensor. `shape` holds an int for a fixed dim, a str for a named one, None for an unnamed one; the whole is None
    when the graph leaves the rank open. `optional` inputs have a default in the graph.
    `rows_from` names the operator that decides the first dim of an output when it depends on the data.
    """

    name: str
    onnx_type: str
    shape: tuple[int | str | None, ...] | None
    optional: bool = False
    rows_from: str | None = None


@dataclass(frozen=True, slots=True)
class ExternalTensor:
    """A weight kept in another file: where, how many bytes of it (None: unknown), and what is wrong with them."""

    tensor: str
    location: str
    offset: int
    length: int | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class GraphSignature:
    inputs: tuple[GraphTensor, ...]
    outputs: tuple[GraphTensor, ...]
    external: tuple[ExternalTensor, ...]
    opset: int | None
    ir_version: int


def read_signature(path: Path) -> GraphSignature:
    """Read `path` with external weights left on disk.

    Raises UnreadableModel when the bytes are no ONNX model (truncated, empty, another format), OSError when the file
    cannot be read and SetupError without the package onnx.
    """
    try:
        import onnx
    except ModuleNotFoundError:
        raise missing_package(
            "onnx", needed_for="checking an ONNX model", install="pip install 'tritonstack[export]'"
        ) from None
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(str(path), load_external_data=False)
    except DecodeError:
        raise UnreadableModel("it is truncated or no ONNX file") from None
    if not model.HasField("graph") or not (model.graph.input or model.graph.output or model.graph.node):
        raise UnreadableModel("it holds no graph: truncated, or no ONNX file")
    graph = model.graph
    defaults = {tensor.name for tensor in graph.initializer}
    defaults |= {tensor.values.name for tensor in graph.sparse_initializer}
    opsets = {item.domain or "ai.onnx": item.version for item in model.opset_import}
    return GraphSignature(
        inputs=tuple(_tensor(value, optional=value.name in defaults) for value in graph.input),
        outputs=tuple(_tensor(value, rows_from=_rows_from(graph, value.name)) for value in graph.output),
        external=tuple(_external(tensor) for tensor in tensors(model) if _is_external(tensor)),
        opset=opsets.get("ai.onnx"),
        ir_version=model.ir_version,
    )


def _text(value: str | bytes) -> str:
    """A string field; protobuf hands out raw bytes where the file breaks UTF-8."""
    if isinstance(value, bytes):
        raise UnreadableModel("it holds names that are not UTF-8, so its bytes were damaged")
    return value


def _is_external(tensor: Any) -> bool:
    import onnx

    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def _external(tensor: Any) -> ExternalTensor:
    entries = {_text(entry.key): _text(entry.value) for entry in tensor.external_data}

    size = _byte_count(tensor)
    problem = None
    for key in ("offset", "length"):
        text = entries.get(key, "0")
        if not (text.isascii() and text.isdigit()):
            problem = f"{key} {text!r}"
    offset, length = (0, size) if problem else (int(entries.get("offset", "0")), int(entries.get("length", size or 0)))
    if not problem and size is not None and length != size:
        problem = f"length {length} for {size} bytes of values"
    return ExternalTensor(
        tensor=_text(tensor.name),
        location=entries.get("location", ""),
        offset=offset,
        length=length,
        problem=problem,
    )


def _byte_count(tensor: Any) -> int | None:
    try:
        return -(-bits_of(tensor.data_type) * math.prod(int(dim) for dim in tensor.dims) // 8)
    except (KeyError, TypeError, ValueError):
        return None


def _tensor(value: Any, *, optional: bool = False, rows_from: str | None = None) -> GraphTensor:
    import onnx

    label = _text(value.name)
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        name = (kind or "unknown").removesuffix("_type").replace("_", " ")
        return GraphTensor(label, name, None, optional)
    tensor_type = value.type.tensor_type
    names = {number: name for name, number in onnx.TensorProto.DataType.items()}
    shape = None
    if tensor_type.HasField("shape"):
        shape = tuple(_dim(dim) for dim in tensor_type.shape.dim)
    return GraphTensor(label, names.get(tensor_type.elem_type, "UNDEFINED"), shape, optional, rows_from)


def _dim(dim: Any) -> int | str | None:
    which = dim.WhichOneof("value")
    if which == "dim_value":
        # Some converters write 0 or -1 where they mean "any size".
        return int(dim.dim_value) if dim.dim_value > 0 else None
    return _text(dim.dim_param) if which == "dim_param" and dim.dim_param else None


def _rows_from(graph: Any, name: str) -> str | None:
    """The operator that makes the first dim of the value `name` depend on the data, if one does."""
    producers = {output: node for node in graph.node for output in node.output}
    for _ in range(len(graph.node)):
        node = producers.get(name)
        if node is None:
            return None
        if node.op_type in _ROWS_FROM_DATA:
            return str(node.op_type)
        if node.op_type not in _KEEPS_ROWS or not node.input:
            return None
        name = node.input[0]
    return None
