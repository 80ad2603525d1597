"""FP32 graph to FP16 or BF16 by ModelOpt's AutoCast, with the FP32 islands that ranges and results demand."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tritonstack.errors import GateError, InputError, UsageError, missing_package
from tritonstack_export import onnx_graph, onnx_tensors
from tritonstack_export.captured_output import captured_output
from tritonstack_export.check.nearest import did_you_mean
from tritonstack_export.precision.attention_masks import keep_infinities, soften_masks
from tritonstack_export.precision.error_source import first_wrong_nodes
from tritonstack_export.precision.fp32_islands import Island, demanded_islands
from tritonstack_export.precision.graph_types import BFLOAT16, FLOAT, FLOAT16, Scope, infer, scope_of, subgraphs
from tritonstack_export.precision.loop_bodies import LOOPS, put_back_loops, without_loops
from tritonstack_export.precision.output_distance import output_distance
from tritonstack_export.precision.reference_runner import reference_session
from tritonstack_export.precision.value_ranges import observe_ranges
from tritonstack_export.precision.variant_gates import judge, limits_for
from tritonstack_export.samples import Array
from tritonstack_export.source_location import first_line

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto

    from tritonstack_export.spec_precision import FloatSettings
    from tritonstack_export.step_record import Record

LowPrecision = Literal["fp16", "bf16"]
RANGE_SAMPLES = 64
"""Ranges are observed on at most this many samples, spread evenly."""
TRIAL_SAMPLES = 8
"""A conversion is tried on this many samples before it is accepted; the gates see all of them."""
_MOST_BYTES = onnx_tensors.SINGLE_FILE_LIMIT
_ROUNDS = 4
_NODES_PER_ROUND = 8
_WORTH_DB = 3.0
_PATIENCE = 2
"""Two rounds of islands that gain less than 3 dB did not find where the error comes from."""


@dataclass(frozen=True)
class FloatConversion:
    """What became of a conversion. `low`, `total`: nodes that compute in low precision, of those that compute with
    floats. `weight_bytes`: of all tensors in the file. `problem`: why the trial on a few samples would not pass the
    gates, None when it does."""

    path: Path
    precision: LowPrecision
    files: tuple[Path, ...]
    islands: tuple[Island, ...]
    low: int
    total: int
    weight_bytes: int
    problem: str | None


def convert_float(
    path: Path,
    precision: LowPrecision,
    settings: FloatSettings,
    samples: Sequence[Mapping[str, Array]],
    out: Path,
    record: Record,
    *,
    made_up: bool = False,
) -> FloatConversion:
    """Write the FP32 graph at `path` to `out` with FP16 or BF16 arithmetic.

    Nodes stay in FP32 where the spec says so, where ranges on `samples` (inputs by name, as the model takes them)
    demand it, and where the outputs of a trial miss the gates: then the first nodes whose result leaves that of FP32.
    `made_up`: samples are random, so less is asked of the trial. The same input gives the same bytes. Raises
    UsageError for `keep_fp32` that fits nothing, InputError without samples, GateError when the graph cannot be
    converted.
    """
    if not samples:
        raise InputError(f"{precision} needs samples: ranges are observed on them", expected="at least one")
    with tempfile.TemporaryDirectory(prefix="tritonstack-", dir=out.parent) as folder:
        prepared = Path(folder) / "fp32.onnx"
        model = onnx_tensors.read_proto(path)
        softened = _prepare(model)
        if precision == "fp16":
            keep_infinities(model)
        onnx_tensors.write_model(model, path.parent, prepared)
        if softened:
            record.note(
                f"{precision}: {len(softened)} attention masks are -10000 instead of {softened[0]} and the like"
            )
        model = onnx_tensors.read_proto(prepared)
        loops = _loops(model, settings, precision)
        islands = {island.node: island for island in _chosen_by_user(model, settings, precision)}
        if precision == "fp16":
            ranges = observe_ranges(prepared, _evenly(samples, RANGE_SAMPLES))
            islands |= {i.node: i for i in demanded_islands(model, ranges) if i.node not in islands}
        return _settle(path, prepared, precision, settings, samples, out, islands | loops, made_up=made_up)


def _loops(model: ModelProto, settings: FloatSettings, precision: LowPrecision) -> dict[str, Island]:
    """Loops are islands."""
    loops = [node for node in model.graph.node if node.op_type in LOOPS]
    if loops and not settings.keep_io_types:
        raise GateError(
            f"a graph with {loops[0].op_type} cannot have {precision} inputs and outputs: loops stay in FP32",
            next_step=f"set precision.{precision}.keep_io_types: true",
        )
    reason = "AutoCast does not convert the bodies of loops"
    return {node.name: Island(node.name, node.op_type, reason) for node in loops}


def _settle(
    path: Path,
    prepared: Path,
    precision: LowPrecision,
    settings: FloatSettings,
    samples: Sequence[Mapping[str, Array]],
    out: Path,
    islands: dict[str, Island],
    *,
    made_up: bool,
) -> FloatConversion:
    """Convert, try, and give FP32 to the first wrong nodes, until the trial passes or more islands do not help."""
    trial = _evenly(samples, TRIAL_SAMPLES)
    names = [tensor.name for tensor in onnx_graph.graph_outputs(onnx_tensors.read_proto(path))]
    reference = reference_session(path, names)
    expected = [reference.run(sample) for sample in trial]
    keep = settings.keep_io_types

    def attempt(nodes: Iterable[str]) -> tuple[ModelProto, list[Path], _Trial]:
        converted = _autocast(prepared, precision, sorted(nodes), keep_io_types=keep)
        files = _write(converted, path, out, keep_io_types=keep)
        return converted, files, _try(out, trial, expected, settings, precision, made_up=made_up)

    demanded = dict(islands)
    converted, files, first = attempt(islands)
    result = best = first
    idle = 0
    for _ in range(_ROUNDS):
        if not result.problems or idle == _PATIENCE:
            break
        wrong = first_wrong_nodes(prepared, out, trial, precision, known=islands, most=_NODES_PER_ROUND)
        if not wrong:
            break
        islands |= {island.node: island for island in wrong}
        converted, files, result = attempt(islands)
        idle = 0 if result.worst_db >= best.worst_db + _WORTH_DB else idle + 1
        best = max(best, result, key=lambda trial: trial.worst_db)
    if result.problems and len(islands) > len(demanded) and result.worst_db < first.worst_db + _WORTH_DB:
        # The error has no single source: islands cost speed and give nothing.
        islands = demanded
        converted, files, result = attempt(islands)
    present = {node.name for node in converted.graph.node}
    low, total = _count_nodes(converted)
    return FloatConversion(
        out,
        precision,
        tuple(files),
        tuple(islands[node.name] for node in _nodes(prepared) if node.name in islands and node.name in present),
        low,
        total,
        sum(_bytes_of(tensor) for tensor in onnx_tensors.tensors(converted)),
        "; ".join(result.problems) or None,
    )


def _evenly(samples: Sequence[Mapping[str, Array]], most: int) -> list[Mapping[str, Array]]:
    count = min(most, len(samples))
    return [samples[index * len(samples) // count] for index in range(count)]


def _nodes(path: Path) -> list[Any]:
    return list(onnx_tensors.read_proto(path).graph.node)


def _prepare(model: ModelProto) -> list[str]:
    """Names for all nodes and no local functions, so that nodes can be spoken about. Returns the softened masks."""
    from onnx import inliner

    if model.functions:
        model.CopyFrom(inliner.inline_local_functions(model))
    taken: set[str] = set()
    for index, node in enumerate(model.graph.node):
        if not node.name or node.name in taken:
            number = index
            while f"{node.op_type}_{number}" in taken:
                number += len(model.graph.node)
            node.name = f"{node.op_type}_{number}"
        taken.add(node.name)
    return soften_masks(model)


def _chosen_by_user(model: ModelProto, settings: FloatSettings, precision: str) -> list[Island]:
    names = {node.name for node in model.graph.node}
    operators = {node.op_type for node in model.graph.node}
    for wanted in settings.keep_fp32:
        if wanted not in names and wanted not in operators:
            raise UsageError(
                f"precision.{precision}.keep_fp32: the graph has no node and no operator {wanted!r}",
                expected=f"the name of a node, or one of {', '.join(sorted(operators))}",
                next_step=did_you_mean(wanted, sorted(names | operators)),
            )
    keep = set(settings.keep_fp32)
    return [
        Island(node.name, node.op_type, f"precision.{precision}.keep_fp32 says so")
        for node in model.graph.node
        if keep & {node.name, node.op_type}
    ]


def _autocast(prepared: Path, precision: LowPrecision, keep: Sequence[str], *, keep_io_types: bool) -> ModelProto:
    original = onnx_tensors.read_proto(prepared)
    ends: frozenset[str] | None = None
    if any(node.op_type in LOOPS for node in original.graph.node):
        free = without_loops(original)
        ends = free.ends
        prepared = prepared.with_name("loop_free.onnx")
        # Weights above 2 GB stay in the data file beside it.
        prepared.write_bytes(free.model.SerializeToString())
    with captured_output() as output:
        try:
            from modelopt.onnx.autocast import convert_to_mixed_precision
        except ImportError as error:
            raise missing_package(
                "nvidia-modelopt", needed_for=precision, install="pip install 'tritonstack[precision]'"
            ) from error
        patterns = [f"{re.escape(name)}$" for name in keep]
        # AutoCast joins the nodes of a LayerNorm into one that it names after the first of them.
        patterns += [f"LayerNorm_{pattern}" for pattern in patterns]
        try:
            converted: ModelProto = convert_to_mixed_precision(
                str(prepared),
                precision,
                nodes_to_exclude=patterns,
                # Ranges were judged here already, per value and on all samples.
                data_max=float("inf"),
                init_max=float("inf"),
                keep_io_types=keep_io_types,
                providers=["cpu"],
            )
        except Exception as error:
            raise GateError(
                f"AutoCast cannot convert the graph to {precision}: {first_line(error)}",
                given=_last_complaint(output.text()),
                next_step=f"keep the operators it stumbles over in FP32: precision.{precision}.keep_fp32",
            ) from error
    if ends is not None:
        put_back_loops(converted, original, ends)
    return converted


def _last_complaint(text: str) -> str | None:
    lines = [line for line in text.splitlines() if "ERROR" in line or "WARNING" in line]
    return lines[-1].strip()[:300] if lines else None


def _write(converted: ModelProto, source: Path, out: Path, *, keep_io_types: bool) -> list[Path]:
    from tritonstack_export.converted_model import check_file

    original = onnx_tensors.read_proto(source)
    onnx_graph.strip_metadata(converted)
    weights = sum(_bytes_of(tensor) for tensor in onnx_tensors.tensors(converted))
    if weights > _MOST_BYTES:
        raise GateError(
            "the weights are too large for one file even in low precision, and AutoCast gives no other form",
            given=f"{weights} bytes",
            expected=f"at most {_MOST_BYTES}",
            next_step="serve the model in FP32, or split it",
        )
    _require_same_ends(original, converted, keep_io_types=keep_io_types)
    files = onnx_tensors.write_model(converted, out.parent, out)
    check_file(out)
    return files


def _require_same_ends(original: ModelProto, converted: ModelProto, *, keep_io_types: bool) -> None:
    for kind, before, after in (
        ("input", onnx_graph.graph_inputs(original), onnx_graph.graph_inputs(converted)),
        ("output", onnx_graph.graph_outputs(original), onnx_graph.graph_outputs(converted)),
    ):
        if [tensor.name for tensor in before] != [tensor.name for tensor in after]:
            raise GateError(
                f"AutoCast changed the {kind}s of the graph",
                given=", ".join(tensor.name for tensor in after) or "none",
                expected=", ".join(tensor.name for tensor in before),
            )
        for old, new in zip(before, after, strict=True):
            if old.dtype != new.dtype and (keep_io_types or old.dtype != "float32"):
                raise GateError(
                    f"AutoCast changed the {kind} {old.name!r} from {old.dtype} to {new.dtype}",
                    next_step=f"give the model {'float32' if old.dtype == 'float64' else old.dtype} there",
                )


@dataclass(frozen=True)
class _Trial:
    """`worst_db`: the smallest SNR of an output or a channel, -inf where one cannot be compared."""

    problems: tuple[str, ...]
    worst_db: float


def _try(
    out: Path,
    trial: Sequence[Mapping[str, Array]],
    expected: Sequence[Mapping[str, Array]],
    settings: FloatSettings,
    precision: LowPrecision,
    *,
    made_up: bool,
) -> _Trial:
    names = list(expected[0])
    session = reference_session(out, names)
    found = [session.run(sample) for sample in trial]
    problems = []
    worst = math.inf
    for name in names:
        distance = output_distance([row[name] for row in expected], [row[name] for row in found])
        problem = judge(distance, limits_for(name, settings.gates, precision, made_up=made_up))
        if problem is not None:
            problems.append(f"{name}: {problem}")
        if distance.problem is not None:
            worst = -math.inf
        elif distance.snr_db is not None:
            worst = min(worst, distance.snr_db, math.inf if distance.channel_db is None else distance.channel_db)
    return _Trial(tuple(problems), worst)


def _count_nodes(model: ModelProto) -> tuple[int, int]:
    """(in low precision, of all that compute with floats); Casts and constants are not counted."""

    def count(graph: GraphProto, outer: Scope | None) -> tuple[int, int]:
        scope = scope_of(graph, outer)
        low = total = 0
        for node in graph.node:
            for inner in subgraphs(node):
                more = count(inner, scope)
                low, total = low + more[0], total + more[1]
            kinds = {scope.get(name) for name in (*node.input, *node.output)}
            if node.op_type in ("Cast", "Constant") or not kinds & {FLOAT, FLOAT16, BFLOAT16}:
                continue
            total += 1
            low += bool(kinds & {FLOAT16, BFLOAT16})
        return low, total

    return count(infer(model).graph, None)


def _bytes_of(tensor: TensorProto) -> int:
    return math.prod(tensor.dims) * onnx_tensors.bits_of(tensor.data_type) // 8
