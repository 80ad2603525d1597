"""One model from its source to a checked ONNX file: load, export, check, parity, each a timed step."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tritonstack.errors import GateError, InputError, InternalError, UsageError
from tritonstack.terminal import Progress
from tritonstack_export import gates, onnx_graph, onnx_tensors, operator_watch, output_tree
from tritonstack_export.checkpoint import load_checkpoint, resolve_resource
from tritonstack_export.digest import file_sha256, json_sha256, weights_sha256
from tritonstack_export.entry_config import EntryTensors
from tritonstack_export.factory import BuiltModel, build_model
from tritonstack_export.module_state import evaluation_mode
from tritonstack_export.onnx_graph import GraphTensor
from tritonstack_export.onnx_session import OnnxSession
from tritonstack_export.parity import ParityRow, Tolerance, tolerance_for
from tritonstack_export.reference import Reference, to_numpy
from tritonstack_export.samples import Array, random_inputs
from tritonstack_export.signature import AxisFlag, Signature, make_signature, read_signature
from tritonstack_export.size_plan import SizePlan, example_sizes, plan_sizes
from tritonstack_export.spec import BATCH, ModelSpec, SizeRange

if TYPE_CHECKING:
    from onnx import ModelProto

DEFAULT_OPSET = 20
MODEL_FILE = "model.onnx"
_FREE = SizeRange(min=1, opt=8, max=32)
"""What a dimension of a ready ONNX file is run at where the spec says nothing."""


@dataclass(frozen=True)
class NameFlags:
    """What the command line says about names and axes."""

    input_names: tuple[str, ...] | None = None
    outputs_said_by: str = "outputs"
    dynamic: tuple[AxisFlag, ...] = ()


@dataclass
class Record:
    """What happened: seconds per step, and notes for the user. Filled as the steps run."""

    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _shown: int = 0

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time and show one step; notes made so far are printed below it."""
        start = time.monotonic()
        try:
            with self.progress.step(name):
                yield
        finally:
            self.seconds[name] = round(time.monotonic() - start, 3)
            for note in self.notes[self._shown :]:
                self.progress.note(note)
            self._shown = len(self.notes)

    def note(self, text: str) -> None:
        """Remember a remark once."""
        if text not in self.notes:
            self.notes.append(text)


@dataclass(frozen=True)
class LoadedModel:
    """A model before export: either a module or a ready ONNX file, and what identifies it."""

    built: BuiltModel | None
    onnx: Path | None
    weights_sha256: str
    source_sha256: str
    parameters: int


@dataclass(frozen=True)
class Converted:
    """A checked ONNX file in the folder it was written to."""

    files: tuple[Path, ...]
    signature: Signature
    tensors: EntryTensors
    opset: int
    parity: tuple[ParityRow, ...]
    tolerances: Mapping[str, Tolerance]
    compared_with: str
    sizes: tuple[Mapping[str, int], ...]


def load(spec: ModelSpec, folder: Path, *, trust: bool) -> LoadedModel:
    """Build the module and fill in its weights, or find the ONNX file."""
    if spec.model.onnx is not None:
        path = resolve_resource(spec.model.onnx, folder=folder, key="model.onnx")
        proto = onnx_tensors.read_proto(path)
        spans = [onnx_tensors.external_span(t, path.parent) for t in onnx_tensors.external_tensors(proto)]
        digests = {"graph": file_sha256(path)}
        for file in sorted({span[0] for span in spans}):
            digests[file.name] = file_sha256(file)
        count = sum(int(np.prod(t.dims, dtype=np.int64)) for t in proto.graph.initializer)
        return LoadedModel(None, path, json_sha256(digests), digests["graph"], count)
    from tritonstack_export.captured_output import captured_output

    with captured_output():
        built = build_model(spec.model.factory or "", spec.model.arguments, folder=folder, seed=spec.parity.seed)
        if spec.model.checkpoint is not None:
            load_checkpoint(built.module, spec.model.checkpoint, folder=folder, trust=trust)
    state = built.module.state_dict()
    source = file_sha256(built.source) if built.source is not None and built.source.is_file() else ""
    count = sum(parameter.numel() for parameter in built.module.parameters())
    return LoadedModel(built, None, weights_sha256(state), source, count)


def convert(
    model: LoadedModel, spec: ModelSpec, flags: NameFlags, *, folder: Path, work: Path, record: Record
) -> Converted:
    """Export and gate `model`; its files are written into `folder`, intermediate ones into `work`."""
    if model.built is None:
        return _adopt(model, spec, flags, folder=folder, record=record)
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
    program = export_program(reference, example)
    raw = work / "exported.onnx"
    size = sum(value.nbytes for value in reference.module.state_dict().values())
    write_onnx(program, raw, opset=opset, external_data=size > onnx_tensors.SINGLE_FILE_LIMIT // 2)
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
    _note_graph(proto, record)
    files = tuple(onnx_tensors.write_model(proto, raw.parent, folder / MODEL_FILE))
    checked = check_file(files[0])
    return files, EntryTensors(onnx_graph.graph_inputs(checked), onnx_graph.graph_outputs(checked))


def _note_graph(proto: ModelProto, record: Record) -> None:
    for name in onnx_graph.unused_inputs(proto):
        record.note(f"the input {name!r} is not used by the model; clients have to send it all the same")
    for name in onnx_graph.widen_scalars(proto):
        record.note(f"the output {name!r} is a scalar, which Triton cannot describe: published with shape [1]")


def check_file(path: Path) -> ModelProto:
    """onnx.checker with strict shape inference, through the path (so above 2 GB too). Returns the bare proto.

    Raises GateError with the checker's first line.
    """
    import onnx

    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
        from tritonstack_export.source_location import first_line

        raise GateError(f"onnx.checker refuses the model: {first_line(error)}") from error
    return onnx_tensors.read_proto(path)


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
    _session_gates(session, truth.plan.example, signature, truth.tolerances, seed=spec.parity.seed)
    return rows


def _session_gates(
    session: OnnxSession,
    sizes: Mapping[str, int],
    signature: Signature,
    tolerances: Mapping[str, Tolerance],
    *,
    seed: int,
) -> None:
    inputs = random_inputs(signature, sizes, seed=seed)
    first = session.run(inputs)
    gates.require_deterministic(first, session.run(inputs), tolerances, runner="ONNX Runtime", culprits=list)
    if signature.batched:
        strangers = random_inputs(signature, sizes, seed=seed + 1)
        gates.require_independent(session.run, inputs, first, strangers, signature, tolerances, runner="ONNX Runtime")


def _adopt(model: LoadedModel, spec: ModelSpec, flags: NameFlags, *, folder: Path, record: Record) -> Converted:
    """A ready ONNX file: no PyTorch to compare with, so the gates are the checker and runs at several sizes."""
    if model.onnx is None:
        raise InternalError("neither a module nor an ONNX file was loaded")
    with record.step("check"):
        proto = onnx_tensors.read_proto(model.onnx)
        onnx_graph.strip_metadata(proto)
        signature = _adopted_signature(proto, spec, flags, record)
        _note_graph(proto, record)
        files = tuple(onnx_tensors.write_model(proto, model.onnx.parent, folder / MODEL_FILE))
        checked = check_file(files[0])
    with record.step("runs"):
        record.note("a ready ONNX file has no PyTorch model to compare with: parity was not checked")
        outputs, tolerances, ran = _run_adopted(files[0], checked, signature, spec, record)
    tensors = EntryTensors(onnx_graph.graph_inputs(checked), outputs)
    return Converted(files, signature, tensors, onnx_graph.opset(checked), (), tolerances, "nothing", ran)


def _adopted_signature(proto: ModelProto, spec: ModelSpec, flags: NameFlags, record: Record) -> Signature:
    if flags.input_names is not None or flags.dynamic or spec.outputs is not None:
        raise InputError(
            "a ready ONNX file keeps its names and dimensions",
            given="--input-names, --output-names, --dynamic or `outputs`",
            next_step="leave them away",
        )
    batched = spec.batch is not False
    tensors = onnx_graph.model_inputs(proto, batch_name=BATCH if batched else None)
    declared = {entry.name: entry for entry in spec.inputs or []}
    unknown = sorted(set(declared) - {tensor.name for tensor in tensors})
    if unknown:
        raise InputError(
            f"inputs: the graph has no input {unknown[0]!r}", expected=f"one of {', '.join(t.name for t in tensors)}"
        )
    if batched:
        for tensor in tensors:
            if tensor.shape and isinstance(tensor.shape[0], int):
                raise GateError(
                    f"the graph fixes axis 0 of input {tensor.name!r} at {tensor.shape[0]}, so it cannot be batched",
                    next_step="export it with a dynamic axis 0, or set `batch: false` (--no-batch)",
                )
    from dataclasses import replace

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
    _session_gates(session, example, signature, tolerances, seed=spec.parity.seed)
    # A graph may leave the shape of an output open: then all that is known is the rank.
    outputs_found = tuple(
        tensor
        if len(tensor.shape) == first[tensor.name].ndim
        else GraphTensor(tensor.name, tensor.dtype, (None,) * first[tensor.name].ndim)
        for tensor in declared
    )
    return outputs_found, tolerances, plan.runs


def keep_work(work: Path, target: Path | None) -> None:
    """Copy the intermediate files where the user wants to have them."""
    if target is not None:
        shutil.copytree(work, target, dirs_exist_ok=True)


def describe_rows(rows: Sequence[ParityRow]) -> list[dict[str, Any]]:
    """The parity table as JSON-ready values."""
    return [
        {
            "output": row.output,
            "sizes": dict(row.sizes),
            "max_abs": row.distance.max_abs,
            "max_rel": row.distance.max_rel,
            "cosine": row.distance.cosine,
        }
        for row in rows
    ]
