"""The result of a conversion, and the gates that every ONNX file goes through whatever it was made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tritonstack.errors import GateError
from tritonstack_export import gates, onnx_graph, onnx_tensors
from tritonstack_export.entry_config import EntryTensors
from tritonstack_export.onnx_session import OnnxSession
from tritonstack_export.parity import ParityRow, Tolerance
from tritonstack_export.samples import random_inputs
from tritonstack_export.signature import AxisFlag, Signature
from tritonstack_export.source_location import first_line
from tritonstack_export.step_record import Record

if TYPE_CHECKING:
    from onnx import ModelProto

MODEL_FILE = "model.onnx"


@dataclass(frozen=True)
class NameFlags:
    """What the command line says about names and axes."""

    input_names: tuple[str, ...] | None = None
    outputs_said_by: str = "outputs"
    dynamic: tuple[AxisFlag, ...] = ()


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


def note_graph(proto: ModelProto, record: Record) -> None:
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
        raise GateError(f"onnx.checker refuses the model: {first_line(error)}") from error
    return onnx_tensors.read_proto(path)


def require_sound_session(
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
