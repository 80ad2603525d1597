"""Rules on the inputs and outputs a config declares, before they are held against a model file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tritonstack_export.check.finding import FindingList, printable
from tritonstack_export.check.model_entry import ModelEntry
from tritonstack_export.repository.config_text import ModelConfig

TYPE_INVALID = 0
_FIXED_TENSORS = {"onnxruntime", "tensorrt", "pytorch", "ensemble"}


def check_tensors(entry: ModelEntry, config: ModelConfig) -> None:
    """Names, data types, dims and reshapes of every input and output; batch inputs and outputs."""
    findings = entry.findings
    if config.max_batch_size < 0:
        findings.error(
            "max-batch-size",
            f"max_batch_size is {config.max_batch_size}",
            fix="0 for a model without batch dimension, else the largest batch",
            at=("max_batch_size",),
        )
    for kind in ("input", "output"):
        tensors = list(getattr(config, kind))
        if not tensors:
            # Backends of one's own may well take no input; an ONNX or TensorRT model has both.
            report = findings.error if entry.backend in _FIXED_TENSORS else findings.warning
            report(
                "no-tensors",
                f"the config declares no {kind}s",
                fix=f"declare every {kind} with name, data_type and dims",
                at=("max_batch_size",),
            )
        for index, tensor in enumerate(tensors):
            _check_tensor(tensor, kind, index, config, findings)
        _report_duplicates([tensor.name for tensor in tensors], kind, findings)
    _check_batch_io(config, findings)


def full_shape(tensor: Any, max_batch_size: int) -> list[int]:
    """What a model file sees of a config tensor: reshape (else dims), with -1 in front when the model batches."""
    shape = list(tensor.reshape.shape) if tensor.HasField("reshape") else list(tensor.dims)
    return [-1, *shape] if max_batch_size > 0 else shape


def shape_text(shape: Sequence[object]) -> str:
    """``[batch, 3, -1]`` style text of a shape."""
    return f"[{', '.join(map(str, shape))}]"


def _check_tensor(tensor: Any, kind: str, index: int, config: ModelConfig, findings: FindingList) -> None:
    at = (kind, index)
    name = printable(tensor.name)
    if not tensor.name:
        findings.error("tensor-name", f"{kind} {index + 1} has no name", fix="name it as the model does", at=at)
        name = f"#{index + 1}"
    known = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    if tensor.data_type == TYPE_INVALID or tensor.data_type not in known:
        findings.error(
            "data-type",
            f"{kind} {name!r} has no valid data_type",
            fix="add data_type: TYPE_FP32 (or what the model has)",
            at=(*at, "data_type"),
        )
    if not tensor.dims:
        findings.error(
            "dims",
            f"{kind} {name!r} has no dims; Triton has no scalars",
            fix="give its dims without the batch; for one value per item write dims: [ 1 ] reshape { shape: [ ] } "
            "with max_batch_size above 0",
            at=(*at, "dims"),
        )
    for place, size in enumerate(tensor.dims):
        if size == 0 or size < -1:
            findings.error(
                "dims",
                f"{kind} {name!r} has the dim {size}",
                fix="a dim is 1 or more, or -1 for a variable size",
                at=(*at, "dims", place),
            )
    if tensor.HasField("reshape"):
        _check_reshape(tensor, kind, name, at, config, findings)
    if kind == "input":
        _check_input_only(tensor, name, at, config, findings)
    if tensor.is_shape_tensor and config.backend != "tensorrt" and config.platform != "tensorrt_plan":
        findings.error(
            "shape-tensor",
            f"{kind} {name!r} is marked is_shape_tensor, which only TensorRT models have",
            fix="remove is_shape_tensor",
            at=(*at, "is_shape_tensor"),
        )


def _check_input_only(
    tensor: Any, name: str, at: tuple[str | int, ...], config: ModelConfig, findings: FindingList
) -> None:
    formats = tensor.DESCRIPTOR.fields_by_name["format"].enum_type.values_by_number
    if tensor.format and len(tensor.dims) != 3:
        findings.error(
            "dims",
            f"input {name!r} is {formats[tensor.format].name if tensor.format in formats else 'formatted'} but has "
            f"{len(tensor.dims)} dims",
            fix="an image format needs 3 dims; remove format for other tensors",
            at=(*at, "format"),
        )
    if tensor.allow_ragged_batch and config.max_batch_size == 0:
        findings.error(
            "ragged",
            f"input {name!r} allows ragged batches but max_batch_size is 0",
            fix="remove allow_ragged_batch or let the model batch",
            at=(*at, "allow_ragged_batch"),
        )


def _check_reshape(
    tensor: Any, kind: str, name: str, at: tuple[str | int, ...], config: ModelConfig, findings: FindingList
) -> None:
    place = (*at, "reshape")
    shape, dims = list(tensor.reshape.shape), list(tensor.dims)
    if not shape and config.max_batch_size == 0:
        findings.error(
            "scalar",
            f"{kind} {name!r} is reshaped to a scalar, which Triton does not support without a batch dimension",
            fix="export the model with an Unsqueeze so that the tensor is [1], and drop the reshape",
            at=place,
        )
        return
    if any(size == 0 or size < -1 for size in shape):
        findings.error(
            "reshape",
            f"{kind} {name!r} is reshaped to {shape}",
            fix="a dim is 1 or more, or -1 for a variable size",
            at=place,
        )
    elif dims and _segments(shape) != _segments(dims):
        findings.error(
            "reshape",
            f"{kind} {name!r}: reshape {shape} does not hold as many elements as dims {dims}",
            fix="the product of the fixed sizes between variable ones must be the same on both sides",
            at=place,
        )


def _segments(shape: Sequence[int]) -> list[int]:
    """Products of the fixed sizes before, between and after the variable ones."""
    parts: list[list[int]] = [[]]
    for size in shape:
        if size == -1:
            parts.append([])
        else:
            parts[-1].append(size)
    return [math.prod(part) for part in parts]


def _report_duplicates(names: list[str], kind: str, findings: FindingList) -> None:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen and name:
            findings.error(
                "duplicate",
                f"{kind} {printable(name)!r} is declared twice; Triton accepts this and serves one of them",
                fix="remove one declaration",
                at=(kind, index),
            )
        seen.add(name)


def _check_batch_io(config: ModelConfig, findings: FindingList) -> None:
    inputs = {tensor.name for tensor in config.input}
    outputs = {tensor.name for tensor in config.output}
    for kind, known_targets in (("batch_input", None), ("batch_output", outputs)):
        for index, item in enumerate(getattr(config, kind)):
            if len(item.source_input) != 1:
                findings.error(
                    "batch-io",
                    f"{kind} {index + 1} names {len(item.source_input)} source inputs, it takes one",
                    fix="name exactly one source_input",
                    at=(kind, index),
                )
            unknown = [name for name in item.source_input if name not in inputs]
            unknown += [name for name in item.target_name if known_targets is not None and name not in known_targets]
            for name in unknown:
                findings.error(
                    "batch-io",
                    f"{kind} {index + 1} names the unknown tensor {printable(name)!r}",
                    fix="name a declared tensor",
                    at=(kind, index),
                )
