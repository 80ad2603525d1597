"""A ready ONNX file as the source: no PyTorch to compare with, so it is checked and run at several sizes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tritonstack.errors import GateError, InternalError, UsageError
from tritonstack_export import gates, onnx_graph, onnx_tensors
from tritonstack_export.converted_model import (
    MODEL_FILE,
    Converted,
    NameFlags,
    check_file,
    note_graph,
    require_sound_session,
)
from tritonstack_export.entry_config import EntryTensors
from tritonstack_export.loaded_model import LoadedModel
from tritonstack_export.onnx_graph import GraphTensor
from tritonstack_export.onnx_session import OnnxSession
from tritonstack_export.parity import Tolerance, tolerance_for
from tritonstack_export.samples import random_inputs
from tritonstack_export.signature import Signature, make_signature
from tritonstack_export.size_plan import example_sizes, plan_sizes
from tritonstack_export.spec import BATCH, ModelSpec, SizeRange
from tritonstack_export.step_record import Record

if TYPE_CHECKING:
    from onnx import ModelProto

_FREE = SizeRange(min=1, opt=8, max=32)
"""What a dimension of a ready ONNX file is run at where the spec says nothing."""


def adopt(model: LoadedModel, spec: ModelSpec, flags: NameFlags, *, folder: Path, record: Record) -> Converted:
    """A ready ONNX file: no PyTorch to compare with, so the gates are the checker and runs at several sizes."""
    if model.onnx is None:
        raise InternalError("neither a module nor an ONNX file was loaded")
    with record.step("check"):
        proto = onnx_tensors.read_proto(model.onnx)
        onnx_graph.strip_metadata(proto)
        signature = _adopted_signature(proto, spec, flags, record)
        note_graph(proto, record)
        files = tuple(onnx_tensors.write_model(proto, model.onnx.parent, folder / MODEL_FILE))
        checked = check_file(files[0])
    with record.step("runs"):
        record.note("a ready ONNX file has no PyTorch model to compare with: parity was not checked")
        outputs, tolerances, ran = _run_adopted(files[0], checked, signature, spec, record)
    tensors = EntryTensors(onnx_graph.graph_inputs(checked), outputs)
    return Converted(files, signature, tensors, onnx_graph.opset(checked), (), tolerances, "nothing", ran)


def _adopted_signature(proto: ModelProto, spec: ModelSpec, flags: NameFlags, record: Record) -> Signature:
    if flags.input_names is not None or flags.dynamic or spec.outputs is not None:
        raise UsageError(
            "a ready ONNX file keeps its names and dimensions",
            given="--input-names, --output-names, --dynamic or `outputs`",
            next_step="leave them away",
        )
    batched = spec.batch is not False
    tensors = onnx_graph.model_inputs(proto, batch_name=BATCH if batched else None)
    declared = {entry.name: entry for entry in spec.inputs or []}
    unknown = sorted(set(declared) - {tensor.name for tensor in tensors})
    if unknown:
        raise UsageError(
            f"inputs: the graph has no input {unknown[0]!r}", expected=f"one of {', '.join(t.name for t in tensors)}"
        )
    if batched:
        for tensor in tensors:
            if tensor.shape and isinstance(tensor.shape[0], int):
                raise GateError(
                    f"the graph fixes axis 0 of input {tensor.name!r} at {tensor.shape[0]}, so it cannot be batched",
                    next_step="export it with a dynamic axis 0, or set `batch: false` (--no-batch)",
                )
    tensors = [
        replace(t, low=declared[t.name].range[0], high=declared[t.name].range[1])  # type: ignore[index]
        if t.name in declared and declared[t.name].range
        else t
        for t in tensors
    ]
    free = {axis for t in tensors for axis in t.shape if isinstance(axis, str)} - {BATCH} - set(spec.dimensions)
    if free:
        # The bounds of a ready graph's dimensions only say what the gates run; the config leaves them open.
        record.note(f"dimensions without bounds in the spec were run at up to {_FREE.max}: {', '.join(sorted(free))}")
        spec = spec.model_copy(update={"dimensions": {**spec.dimensions, **dict.fromkeys(free, _FREE)}})
    return make_signature(tensors, spec)


def _run_adopted(
    path: Path, proto: ModelProto, signature: Signature, spec: ModelSpec, record: Record
) -> tuple[tuple[GraphTensor, ...], dict[str, Tolerance], tuple[Mapping[str, int], ...]]:
    declared = onnx_graph.graph_outputs(proto)
    session = OnnxSession(path, [tensor.name for tensor in declared])
    example = example_sizes(signature)
    inputs = random_inputs(signature, example, seed=spec.parity.seed)
    start = time.monotonic()
    first = session.run(inputs)
    seconds = time.monotonic() - start
    tolerances = {name: tolerance_for(str(value.dtype), spec.parity) for name, value in first.items()}
    items = max(1, int(np.prod(list(example.values()) or [1])))
    size = sum(value.nbytes for value in (*inputs.values(), *first.values()))
    plan = plan_sizes(
        signature, batches=spec.parity.batches, bytes_per_item=size / items, seconds_per_item=seconds / items
    )
    for note in plan.notes:
        record.note(note)
    ranks = {name: value.ndim for name, value in first.items()}
    for sizes in plan.runs:
        outputs = session.run(random_inputs(signature, sizes, seed=spec.parity.seed))
        gates.require_finite(outputs, sizes)
        if signature.batched:
            gates.require_batch_first(outputs, sizes, ranks, squeezes=list)
    require_sound_session(session, example, signature, tolerances, seed=spec.parity.seed)
    # A graph may leave the shape of an output open: then all that is known is the rank.
    outputs_found = tuple(
        tensor
        if len(tensor.shape) == first[tensor.name].ndim
        else GraphTensor(tensor.name, tensor.dtype, (None,) * first[tensor.name].ndim)
        for tensor in declared
    )
    return outputs_found, tolerances, plan.runs
