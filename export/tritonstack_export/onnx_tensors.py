"""Every tensor of an ONNX model wherever it hides, and the file its bytes lie in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from tritonstack.errors import InputError, SetupError

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

PROTOBUF_LIMIT = 2**31 - 1
"""Largest serialised protobuf message, in bytes."""
SINGLE_FILE_LIMIT = PROTOBUF_LIMIT - (64 << 20)
"""Weights below this many bytes are kept inside the .onnx file; the rest of the limit is left for the graph."""
_ALIGNMENT = 4096
"""External tensors start at multiples of this, so that ONNX Runtime can map them without a copy."""
_CHUNK = 8 << 20


def read_proto(path: Path) -> ModelProto:
    """The model without its external data. Raises InputError for a file that holds no ONNX model."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        size = path.stat().st_size
    except OSError as error:
        raise InputError(f"cannot read {path.name}: {error.strerror}") from error
    if size == 0:
        raise InputError(f"{path.name} is empty", expected="an ONNX model")
    if size > PROTOBUF_LIMIT:
        raise InputError(
            f"{path.name} is larger than a protobuf message can be (2 GiB)",
            given=f"{size} bytes",
            next_step="save it with external data",
        )
    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError as error:
        raise InputError(f"{path.name} is not an ONNX model, or it was cut short", given=f"{size} bytes") from error
    except OSError as error:
        raise InputError(f"cannot read {path.name}: {error.strerror}", next_step="check its permissions") from error
    if not model.HasField("graph") or not model.graph.node:
        raise InputError(f"{path.name} holds no ONNX graph", given=f"{size} bytes", expected="an ONNX model")
    return model


def tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Initializers, constants in node attributes, subgraphs and functions."""
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        for node in function.node:
            yield from _node_tensors(node)


def _graph_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        yield from _node_tensors(node)


def _node_tensors(node: NodeProto) -> Iterator[TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("sparse_tensor"):
            yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)
        for sparse in attribute.sparse_tensors:
            yield from (sparse.values, sparse.indices)
        if attribute.HasField("g"):
            yield from _graph_tensors(attribute.g)
        for graph in attribute.graphs:
            yield from _graph_tensors(graph)


def external_tensors(model: ModelProto) -> list[TensorProto]:
    """The tensors whose bytes lie in another file."""
    from onnx import TensorProto

    return [tensor for tensor in tensors(model) if tensor.data_location == TensorProto.EXTERNAL]


def external_span(tensor: TensorProto, folder: Path) -> tuple[Path, int, int]:
    """(file, offset, length in bytes) of an external tensor. Raises InputError for a location that is absolute or
    leaves `folder`, a missing file, or one that is too short."""
    import math

    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    pure = PurePosixPath(location.replace("\\", "/"))
    if not location or pure.is_absolute() or ".." in pure.parts or "\0" in location:
        raise InputError(
            f"the weights of {tensor.name!r} point outside of the model's folder",
            given=f"location {location!r}",
            expected="a file name beside the .onnx file",
        )
    path = folder / pure
    if not path.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"the weights of {tensor.name!r} leave the model's folder through a link: {location!r}")
    if not path.is_file():
        raise InputError(
            f"the weights file {location!r} of the ONNX model is missing",
            expected=f"{location} beside the .onnx file",
            next_step="copy it there: a model with external data is two files",
        )
    try:
        offset = int(entries.get("offset") or 0)
        bits = bits_of(tensor.data_type)
        length = int(entries.get("length") or math.ceil(math.prod(tensor.dims) * bits / 8))
    except ValueError:
        raise InputError(f"the weights of {tensor.name!r} have a broken offset or length", given=str(entries)) from None
    if offset < 0 or length < 0:
        raise InputError(f"the weights of {tensor.name!r} have a broken offset or length", given=str(entries))
    if offset + length > path.stat().st_size:
        raise InputError(
            f"the weights file {location!r} is too short for {tensor.name!r}",
            given=f"{path.stat().st_size} bytes",
            expected=f"at least {offset + length}",
            next_step="copy it again",
        )
    return path, offset, length


def bits_of(data_type: int) -> int:
    """Bits of one element of an ONNX data type. Raises ValueError or KeyError for one without a fixed width."""
    import onnx

    name = onnx.TensorProto.DataType.Name(data_type)
    if name.endswith("INT4") or name.startswith("FLOAT4"):
        return 4
    return int(onnx.helper.tensor_dtype_to_np_dtype(data_type).itemsize) * 8


def write_model(model: ModelProto, source_folder: Path, target: Path) -> list[Path]:
    """Write `model` to `target` with its weights inside, or with one file `target`.data beside it above 2 GB.

    External bytes come from `source_folder` and are copied in pieces (holes stay holes), so memory stays at the size
    of the graph, or of one file below 2 GB. Returns the files written. `model` is changed.
    """
    from onnx import TensorProto

    outside = [(tensor, *external_span(tensor, source_folder)) for tensor in external_tensors(model)]
    total = model.ByteSize() + sum(length for *_, length in outside)
    files = [target]
    if total <= SINGLE_FILE_LIMIT:
        for tensor, path, offset, length in outside:
            with path.open("rb") as file:
                file.seek(offset)
                tensor.raw_data = file.read(length)
            tensor.data_location = TensorProto.DEFAULT
            tensor.ClearField("external_data")
    else:
        data = target.with_name(target.name + ".data")
        _require_space(data.parent, outside)
        _write_external(outside, data)
        files.append(data)
    with target.open("wb") as out:
        out.write(model.SerializeToString(deterministic=True))
        out.flush()
        os.fsync(out.fileno())
    return files


def _require_space(folder: Path, outside: list[tuple[TensorProto, Path, int, int]]) -> None:
    """Refuse before gigabytes are copied. Counts the blocks in use, so holes of sparse files cost nothing."""
    import shutil

    needed = sum(path.stat().st_blocks * 512 for path in {path for _, path, _, _ in outside})
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise SetupError(
            "the disk of the repository is too full for the weights",
            given=f"{free} bytes free",
            expected=f"{needed}",
            next_step="free some space, or choose another --repository",
        )


def _write_external(outside: list[tuple[TensorProto, Path, int, int]], data: Path) -> None:
    with data.open("wb") as out:
        position = 0
        for tensor, path, offset, length in outside:
            position = -(-position // _ALIGNMENT) * _ALIGNMENT
            with path.open("rb") as file:
                _copy_span(file.fileno(), offset, length, out.fileno(), position)
            tensor.ClearField("external_data")
            for key, value in (("location", data.name), ("offset", position), ("length", length)):
                entry = tensor.external_data.add()
                entry.key, entry.value = key, str(value)
            position += length
        os.ftruncate(out.fileno(), position)
        os.fsync(out.fileno())


def _copy_span(source: int, offset: int, length: int, target: int, position: int) -> None:
    """Copy bytes between files; holes of a sparse source are left as holes."""
    end = offset + length
    at = offset
    while at < end:
        try:
            start = os.lseek(source, at, os.SEEK_DATA)
            stop = min(os.lseek(source, start, os.SEEK_HOLE), end)
        except OSError:
            return  # ENXIO: nothing but a hole up to the end
        at = start
        while at < stop:
            piece = os.pread(source, min(_CHUNK, stop - at), at)
            if not piece:
                return
            os.pwrite(target, piece, position + at - offset)
            at += len(piece)
