"""One model to a checked ONNX file: reference, export, check, parity, each a timed step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tritonstack.errors import GateError, UsageError
from tritonstack_export import gates, onnx_graph, onnx_tensors, operator_watch, output_tree
from tritonstack_export.adoption import adopt
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
from tritonstack_export.module_state import AttributeWatch, evaluation_mode, require_no_hidden_state
from tritonstack_export.onnx_session import OnnxSession
from tritonstack_export.parity import ParityRow, Tolerance, tolerance_for
from tritonstack_export.reference import Reference, to_numpy
from tritonstack_export.samples import Array, random_inputs
from tritonstack_export.signature import Signature, read_signature
from tritonstack_export.size_plan import SizePlan, example_sizes, plan_sizes
from tritonstack_export.spec import BATCH, ModelSpec
from tritonstack_export.step_record import Record

DEFAULT_OPSET = 20
LOG_FILE = "exporter.log"


def convert(
    model: LoadedModel, spec: ModelSpec, flags: NameFlags, *, folder: Path, work: Path, record: Record
) -> Converted:
    """Export and gate `model`; its files are written into `folder`, intermediate ones into `work`."""
    if model.built is None:
        return adopt(model, spec, flags, folder=folder, record=record)
    module = model.built.module
    with evaluation_mode(module) as was_training:
        if was_training:
            record.note("the model was in training mode: exported in eval mode")
        with record.step("reference"):
            signature = read_signature(
                module, model.built.examples, spec, input_names=flags.input_names, dynamic=flags.dynamic
            )
            reference = Reference(module, signature)
            truth = _run_reference(reference, spec, flags, record)
        if signature.batched and signature.dimensions[BATCH].min > 1:
            low = signature.dimensions[BATCH].min
            record.note(f"batches below batch.min {low} were not checked, and Triton lets them through")
        with record.step("export"):
            asked = spec.opset or DEFAULT_OPSET
            raw = _export(reference, truth.plan, spec, asked, model, work)
        with record.step("check"):
            files, tensors = _finish(raw, signature, list(reference.outputs), folder, asked, spec, record)
        with record.step("parity"):
            _require_independent(reference, truth, spec)
            rows = _compare(truth, files[0], signature, spec)
    return Converted(
        files, signature, tensors, asked, tuple(rows), truth.tolerances, "PyTorch in eval mode", truth.plan.runs
    )


@dataclass(frozen=True)
class _Truth:
    """What the PyTorch model answers: `first` at the example's sizes, `outputs` at every size of the plan.

    `scalars`: the outputs of rank 0.
    """

    plan: SizePlan
    first: dict[str, Array]
    outputs: tuple[dict[str, Array], ...]
    tolerances: dict[str, Tolerance]
    scalars: frozenset[str]


def _run_reference(reference: Reference, spec: ModelSpec, flags: NameFlags, record: Record) -> _Truth:
    """Run the gates on the module itself, and keep its answers for the comparison."""
    signature = reference.signature
    example = example_sizes(signature)
    inputs = random_inputs(signature, example, seed=spec.parity.seed)
    strangers = random_inputs(signature, example, seed=spec.parity.seed + 1)
    require_no_hidden_state(
        AttributeWatch(reference.module), lambda: reference.tree(inputs), lambda: reference.tree(strangers)
    )
    tree = reference.tree(inputs)
    for path in tree.dropped:
        record.note(f"the output {output_tree.path_name(path)!r} is None and was left out")
    asked = tuple(spec.outputs) if spec.outputs is not None else None
    reference.outputs = output_tree.name_outputs(tree, asked, said_by=flags.outputs_said_by)
    both = next((tensor.name for tensor in signature.inputs if tensor.name in reference.outputs), None)
    if both is not None:
        raise UsageError(
            f"{both!r} is the name of both an input and an output", next_step="rename one in the spec, or by flag"
        )
    left = [output_tree.path_name(p) for p in tree.tensors if p not in reference.outputs.values()]
    if left:
        record.note(f"outputs not asked for and left out: {', '.join(left)}")
    first = {name: to_numpy(name, tree.tensors[path]) for name, path in reference.outputs.items()}
    tolerances = {name: tolerance_for(str(value.dtype), spec.parity) for name, value in first.items()}
    start = time.monotonic()
    second = reference.run(inputs)
    seconds = time.monotonic() - start
    gates.require_finite(first, example)
    gates.require_deterministic(
        first,
        second,
        tolerances,
        runner="PyTorch",
        culprits=lambda: operator_watch.random_operators(reference, inputs),
    )
    items = max(1, int(np.prod(list(example.values()) or [1])))
    size = sum(value.nbytes for value in (*inputs.values(), *first.values()))
    plan = plan_sizes(
        signature,
        batches=spec.parity.batches,
        bytes_per_item=size / items,
        seconds_per_item=seconds / items,
    )
    for note in plan.notes:
        record.note(note)
    ranks = {name: value.ndim for name, value in first.items()}
    answers = []
    for sizes in plan.runs:
        values = random_inputs(signature, sizes, seed=spec.parity.seed)
        now = reference.tree(values)
        if list(now.tensors) != list(tree.tensors):
            raise GateError(
                f"the model returns other outputs at {gates.sizes_text(sizes)} than at {gates.sizes_text(example)}",
                expected="the same outputs at every size",
            )
        outputs = {name: to_numpy(name, now.tensors[path]) for name, path in reference.outputs.items()}
        gates.require_finite(outputs, sizes)
        if signature.batched:
            gates.require_batch_first(
                outputs,
                sizes,
                ranks,
                squeezes=lambda v=values: operator_watch.squeezes(reference, v),  # type: ignore[misc]
            )
        answers.append(outputs)
    if signature.batched:
        gates.require_batch_first(first, example, ranks, squeezes=lambda: operator_watch.squeezes(reference, inputs))
    scalars = frozenset(name for name, value in first.items() if value.ndim == 0)
    return _Truth(plan, first, tuple(answers), tolerances, scalars)


def _export(reference: Reference, plan: SizePlan, spec: ModelSpec, opset: int, model: LoadedModel, work: Path) -> Path:
    from tritonstack_export.torch_export import export_program, write_onnx

    example = reference.tensors(random_inputs(reference.signature, plan.example, seed=spec.parity.seed))
    program = export_program(reference, example, log=work / LOG_FILE)
    raw = work / "exported.onnx"
    size = sum(value.nbytes for value in reference.module.state_dict().values())
    write_onnx(
        program,
        raw,
        opset=opset,
        external_data=size > onnx_tensors.SINGLE_FILE_LIMIT // 2,
        log=work / LOG_FILE,
    )
    return raw


def _finish(
    raw: Path,
    signature: Signature,
    outputs: Sequence[str],
    folder: Path,
    opset: int,
    spec: ModelSpec,
    record: Record,
) -> tuple[tuple[Path, ...], EntryTensors]:
    """Names, dimensions and metadata of the exported graph, then the file in its final place, checked there."""
    proto = onnx_tensors.read_proto(raw)
    if onnx_graph.opset(proto) != opset:
        raise GateError(
            f"the exporter wrote opset {onnx_graph.opset(proto)}",
            expected=f"opset {opset}, as asked for",
            next_step=f"ask for --opset {onnx_graph.opset(proto)} or newer",
        )
    onnx_graph.strip_metadata(proto)
    proto.graph.name = spec.name
    onnx_graph.name_ends(proto, [tensor.name for tensor in signature.inputs], outputs)
    onnx_graph.name_dimensions(proto, signature)
    note_graph(proto, record)
    files = tuple(onnx_tensors.write_model(proto, raw.parent, folder / MODEL_FILE))
    checked = check_file(files[0])
    return files, EntryTensors(onnx_graph.graph_inputs(checked), onnx_graph.graph_outputs(checked))


def _require_independent(reference: Reference, truth: _Truth, spec: ModelSpec) -> None:
    """Only after the capture, which names the line of a branch on values: such a branch mixes samples as well."""
    if reference.signature.batched:
        inputs = random_inputs(reference.signature, truth.plan.example, seed=spec.parity.seed)
        strangers = random_inputs(reference.signature, truth.plan.example, seed=spec.parity.seed + 1)
        gates.require_independent(
            reference.run, inputs, truth.first, strangers, reference.signature, truth.tolerances, runner="PyTorch"
        )


def _compare(truth: _Truth, path: Path, signature: Signature, spec: ModelSpec) -> list[ParityRow]:
    names = list(truth.tolerances)
    session = OnnxSession(path, names)
    rows: list[ParityRow] = []
    for sizes, expected in zip(truth.plan.runs, truth.outputs, strict=True):
        inputs = random_inputs(signature, sizes, seed=spec.parity.seed)
        found = session.run(inputs)
        expected = {n: v.reshape(1) if n in truth.scalars else v for n, v in expected.items()}
        rows += gates.compare_with_reference(expected, found, sizes, truth.plan.example, truth.tolerances)
    require_sound_session(session, truth.plan.example, signature, truth.tolerances, seed=spec.parity.seed)
    return rows
