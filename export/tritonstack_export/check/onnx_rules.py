"""A config held against its ONNX graph: names, types, ranks, dims, the batch dimension."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tritonstack_export.check.finding import FindingList, printable
from tritonstack_export.check.model_entry import ModelEntry
from tritonstack_export.check.nearest import did_you_mean
from tritonstack_export.check.onnx_signature import TRITON_TYPE_OF_ONNX, GraphSignature, GraphTensor
from tritonstack_export.check.tensor_rules import full_shape, shape_text
from tritonstack_export.repository.config_text import ModelConfig


def check_against_graph(entry: ModelEntry, config: ModelConfig, graph: GraphSignature, *, model_file: Path) -> None:
    """Compare every declared tensor with the graph in `model_file`, and the graph's needs with the config."""
    findings = entry.findings
    for kind, tensors in (("input", graph.inputs), ("output", graph.outputs)):
        known = {tensor.name: tensor for tensor in tensors}
        for index, declared in enumerate(getattr(config, kind)):
            if not declared.name:
                continue
            found = known.get(declared.name)
            at = (kind, index)
            if found is None:
                findings.error(
                    "tensor-name",
                    f"the model has no {kind} {printable(declared.name)!r}",
                    fix=did_you_mean(declared.name, known) or f"its {kind}s are {', '.join(map(repr, known))}",
                    at=(*at, "name"),
                )
            else:
                _check_tensor(declared, found, kind, at, config, findings)
    declared_inputs = {tensor.name: tensor for tensor in config.input}
    supplied = _supplied_by_triton(config)
    for tensor in graph.inputs:
        if tensor.name not in declared_inputs and tensor.name not in supplied and not tensor.optional:
            findings.error(
                "missing-input",
                f"the model needs the input {printable(tensor.name)!r} ({tensor.onnx_type} "
                f"{_shape_of(tensor)}), which the config does not declare",
                fix="declare it, or export the model without it",
                path=entry.config_path,
            )
        elif tensor.name in declared_inputs and declared_inputs[tensor.name].optional and not tensor.optional:
            findings.error(
                "optional-input",
                f"input {printable(tensor.name)!r} is optional in the config, the model needs it in every request",
                fix="remove optional: true",
                at=("input", [item.name for item in config.input].index(tensor.name), "optional"),
            )
    _check_symbols(config, graph, findings, model_file)


def _supplied_by_triton(config: ModelConfig) -> set[str]:
    """Inputs that no request carries: controls and states of sequences, batch inputs."""
    sequences = config.sequence_batching
    names = {control.name for control in sequences.control_input}
    names |= {state.input_name for state in sequences.state}
    return names | {name for batch_input in config.batch_input for name in batch_input.target_name}


def _check_tensor(
    declared: Any, found: GraphTensor, kind: str, at: tuple[str | int, ...], config: ModelConfig, findings: FindingList
) -> None:
    name = printable(declared.name)
    words = {value.number: value.name for value in declared.DESCRIPTOR.fields_by_name["data_type"].enum_type.values}
    wanted = TRITON_TYPE_OF_ONNX.get(found.onnx_type)
    if wanted is None:
        findings.error(
            "data-type",
            f"{kind} {name!r} is {found.onnx_type} in the model, which Triton cannot pass",
            fix="export the model with plain tensors of a type Triton has",
            at=at,
        )
    elif declared.data_type and words.get(declared.data_type) != wanted:
        findings.error(
            "data-type",
            f"{kind} {name!r} is {found.onnx_type} in the model ({wanted}), "
            f"{words.get(declared.data_type, declared.data_type)} in the config",
            fix=f"write data_type: {wanted}",
            at=(*at, "data_type"),
        )
    if found.shape is None:
        return
    if not found.shape:
        findings.error(
            "scalar",
            f"{kind} {name!r} is a scalar in the model (rank 0), which Triton cannot express",
            fix="export the model with an Unsqueeze so that the tensor is [1]",
            at=(*at, "dims"),
        )
        return
    _check_shape(declared, found, kind, at, config, findings)


def _check_shape(
    declared: Any, found: GraphTensor, kind: str, at: tuple[str | int, ...], config: ModelConfig, findings: FindingList
) -> None:
    shape = found.shape or ()
    name = printable(declared.name)
    batching = config.max_batch_size > 0
    stated = full_shape(declared, config.max_batch_size)
    if batching and found.rows_from is not None:
        findings.error(
            "batch-dims",
            f"{kind} {name!r} has no batch dimension: {found.rows_from} decides its first dim from the data, so "
            "requests that were joined in a batch would get each other's rows",
            fix="set max_batch_size: 0 and write full shapes for all tensors",
            at=("max_batch_size",),
        )
        return
    if len(stated) != len(shape):
        _report_rank(declared, found, kind, at, config, findings)
        return
    if batching and isinstance(shape[0], int):
        findings.error(
            "batch-dims",
            f"{kind} {name!r}: the model fixes batch at {shape[0]} (its shape is {_shape_of(found)}), "
            f"config allows {config.max_batch_size}",
            fix="export the model with a dynamic batch, or set max_batch_size: 0 and write full shapes",
            at=("max_batch_size",),
        )
    first = 1 if batching else 0
    for place in range(first, len(stated)):
        if isinstance(shape[place], int) and stated[place] != shape[place]:
            shown = shape_text(["batch", *stated[1:]] if batching else stated)
            dim_at = (*at, "reshape" if declared.HasField("reshape") else "dims")
            findings.error(
                "dims",
                f"{kind} {name!r} is {_shape_of(found)} in the model, {shown} in the config",
                fix=f"write dims: {shape_text(_as_dims(shape[first:]))}",
                at=dim_at if declared.HasField("reshape") else (*dim_at, place - first),
            )
            break


def _report_rank(
    declared: Any, found: GraphTensor, kind: str, at: tuple[str | int, ...], config: ModelConfig, findings: FindingList
) -> None:
    shape = found.shape or ()
    batching = config.max_batch_size > 0
    stated = full_shape(declared, config.max_batch_size)
    shown = shape_text(["batch", *stated[1:]] if batching else stated)
    without_batch = _as_dims(shape[1:])
    if batching and len(stated) == len(shape) + 1 and not isinstance(shape[0], int):
        fix = (
            f"max_batch_size {config.max_batch_size} already adds the batch: write dims: {shape_text(without_batch)}"
            if without_batch
            else "write dims: [ 1 ] reshape { shape: [ ] }: one value per item"
        )
    elif not batching and len(stated) == len(shape) - 1:
        fix = f"write dims: {shape_text(_as_dims(shape))}, or set max_batch_size above 0 if the first dim is the batch"
    else:
        fix = f"write dims: {shape_text(without_batch if batching else _as_dims(shape))}"
    findings.error(
        "batch-dims" if batching else "dims",
        f"{kind} {printable(declared.name)!r} has {len(shape)} dims in the model, {_shape_of(found)}, but "
        f"{len(stated)} in the config, {shown}",
        fix=fix,
        at=(*at, "dims"),
    )


def _check_symbols(config: ModelConfig, graph: GraphSignature, findings: FindingList, model_file: Path) -> None:
    """With batching, an output whose first dim has another name than every input's is suspicious."""
    if config.max_batch_size <= 0:
        return
    declared = {tensor.name for tensor in config.output}
    batches = {tensor.shape[0] for tensor in graph.inputs if tensor.shape and not tensor.optional}
    named = {name for name in batches if isinstance(name, str)}
    inner = {dim for tensor in graph.inputs for dim in (tensor.shape or ())[1:] if isinstance(dim, str)}
    for tensor in graph.outputs:
        if tensor.name not in declared or not tensor.shape or tensor.rows_from is not None or not named:
            continue
        first = tensor.shape[0]
        if isinstance(first, str) and first not in named:
            sure = first in inner
            message = (
                f"output {printable(tensor.name)!r} is {_shape_of(tensor)}: its first dim is {first!r}, the batch of "
                f"the inputs is {', '.join(sorted(named))!r}"
            )
            fix = "if it does not follow the batch, set max_batch_size: 0 and write full shapes"
            if sure:
                findings.error("batch-dims", message, fix=fix, at=("max_batch_size",))
            else:
                findings.warning("batch-dims", message, fix=fix, path=model_file)


def _as_dims(shape: tuple[int | str | None, ...]) -> list[int]:
    return [dim if isinstance(dim, int) else -1 for dim in shape]


def _shape_of(tensor: GraphTensor) -> str:
    if tensor.shape is None:
        return "of unknown rank"
    return shape_text(["?" if dim is None else dim for dim in tensor.shape])
