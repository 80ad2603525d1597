"""Whether ONNX Runtime on a CPU would serve a variant rightly, and the session options that make it so.

Q/DQ graphs for TensorRT are signed on both sides. ONNX Runtime fuses them into integer kernels by default, and on x64
CPUs without VNNI those saturate: EfficientNet-Lite0 then agrees with FP32 in 4 % of the pictures. The option
`session.disable_quant_qdq` leaves them in float, which is right on every CPU. It is set for every Q/DQ graph, also
where this CPU would be right without it, since the entry may be served by another; it costs little (see
docs/precision.md), and a spec that names the option itself wins. What is set is tried here, in the options of the
`onnxruntime` backend.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonstack_export import onnx_tensors
from tritonstack_export.precision.graph_types import FLOAT16, subgraphs
from tritonstack_export.precision.output_distance import is_float, output_distance
from tritonstack_export.precision.reference_runner import NO_QDQ_FUSION, reference_session
from tritonstack_export.samples import Array
from tritonstack_export.source_location import first_line

if TYPE_CHECKING:
    from onnx import GraphProto

NO_OPTIMIZATION = 2
"""`optimization { graph { level } }` of the official backend that turns graph optimisation off."""
_SAME_DB = 30.0
"""Two ways of computing an FP32 or FP16 graph agree at least this well (seen: 54 dB and more)."""
_QUANTIZED_DB = (8.0, 15.0)
_SLACK_DB = 10.0
"""Two right ways of computing a Q/DQ graph differ more: a value near the edge of two steps of INT8 falls to either
side, and later layers amplify it. How much is measured on the graph at hand, by two runs in float that only sum in
another order (27 dB on EfficientNet-Lite0, whose INT8 kernels on a CPU with VNNI reach 24, and -10 dB where they
saturate). A served run may be 10 dB worse than that, and has to reach 15 dB where the graph is no worse than 25."""


@dataclass(frozen=True)
class ServedPath:
    """How a graph has to be served on CPUs.

    `usable`: false when ONNX Runtime cannot run it on a CPU at all, or not rightly whatever the options; `reason` says
    why. `parameters`: for the config's `parameters`. `graph_level`: for `optimization { graph { level } }`, None: the
    default. `default_db`, `served_db`: SNR against the reference runner with ONNX Runtime's defaults and as set
    (worst output; None: not measured). `default_agreement`: share of samples whose largest entry is the same with
    defaults. `remarks`: sentences for the user.
    """

    usable: bool = True
    parameters: Mapping[str, str] = field(default_factory=dict)
    graph_level: int | None = None
    default_db: float | None = None
    served_db: float | None = None
    default_agreement: float | None = None
    remarks: tuple[str, ...] = ()
    reason: str | None = None


@dataclass(frozen=True)
class _Trial:
    snr_db: float
    agreement: float | None
    error: str | None = None


def served_path(path: Path, outputs: Sequence[str], samples: Sequence[Mapping[str, Array]]) -> ServedPath:
    """Try the graph at `path` as the served backend runs it on this CPU, on `samples` (inputs by name; without any,
    it is only loaded). Raises GateError when the reference runner itself cannot run it."""
    model = onnx_tensors.read_proto(path)
    quantized = _has_qdq(model.graph)
    inputs = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    expected: list[dict[str, Array]] = []
    if samples:
        reference = reference_session(path, outputs)
        expected = [reference.run(sample) for sample in samples]
    feeds = [_typed(sample, inputs) for sample in samples]

    def trial(parameters: Mapping[str, str], level: int | None = None) -> _Trial:
        return _try(path, outputs, feeds, expected, parameters, level)

    default = trial({})
    if default.error is not None:
        return ServedPath(
            usable=False,
            reason=default.error,
            remarks=(
                f"ONNX Runtime cannot run it on a CPU, and its CUDA provider not every operator of it: serve it as a "
                f"TensorRT engine (`tritonstack build-engines`): {default.error}",
            ),
        )
    unoptimised = trial({NO_QDQ_FUSION: "1"}, NO_OPTIMIZATION) if quantized else None
    limit = _SAME_DB
    if unoptimised is not None:
        limit = min(max(unoptimised.snr_db - _SLACK_DB, _QUANTIZED_DB[0]), _QUANTIZED_DB[1])
    for parameters, level in _ways(quantized):
        found = default if not parameters and level is None else trial(parameters, level)
        if found.snr_db >= limit:
            return ServedPath(
                parameters=parameters,
                graph_level=level,
                default_db=default.snr_db if expected else None,
                served_db=found.snr_db if expected else None,
                default_agreement=default.agreement,
                remarks=_remarks(model.graph, quantized, parameters, level, default, limit, measured=bool(expected)),
            )
    reason = f"its results on this CPU are at {default.snr_db:.1f} dB SNR where {limit:.0f} dB are needed"
    return ServedPath(
        usable=False,
        default_db=default.snr_db,
        default_agreement=default.agreement,
        reason=reason,
        remarks=(f"no session option makes ONNX Runtime right on this CPU: {reason}",),
    )


def _ways(quantized: bool) -> list[tuple[dict[str, str], int | None]]:
    if quantized:
        return [({NO_QDQ_FUSION: "1"}, None), ({NO_QDQ_FUSION: "1"}, NO_OPTIMIZATION)]
    return [({}, None), ({}, NO_OPTIMIZATION)]


def _remarks(
    graph: GraphProto,
    quantized: bool,
    parameters: Mapping[str, str],
    level: int | None,
    default: _Trial,
    limit: float,
    *,
    measured: bool,
) -> tuple[str, ...]:
    options = [f"{name}={value}" for name, value in parameters.items()]
    if level is not None:
        options.append(f"optimization.graph.level={level}")
    remarks = []
    if measured and default.snr_db < limit:
        agreement = ""
        if default.agreement is not None:
            agreement = f" and the largest entry the same in {default.agreement:.1%} of the samples"
        remarks.append(
            f"with ONNX Runtime's defaults this CPU would be wrong ({default.snr_db:.1f} dB SNR{agreement}); "
            f"the config sets {', '.join(options)}"
        )
    elif quantized:
        right = "is right here with its defaults but" if measured else "is"
        remarks.append(
            f"the config sets {', '.join(options)}: ONNX Runtime {right} wrong on CPUs without VNNI, where its INT8 "
            "kernels saturate"
        )
    if any(tensor.data_type == FLOAT16 for tensor in graph.initializer):
        remarks.append("on a CPU ONNX Runtime computes FP16 in FP32: right, but no faster than FP32")
    return tuple(remarks)


def _has_qdq(graph: GraphProto) -> bool:
    return any(
        node.op_type in ("QuantizeLinear", "DequantizeLinear") or any(_has_qdq(inner) for inner in subgraphs(node))
        for node in graph.node
    )


def _typed(sample: Mapping[str, Array], inputs: Mapping[str, int]) -> dict[str, Array]:
    import numpy as np

    with np.errstate(over="ignore"):
        return {
            name: value.astype(np.float16) if inputs.get(name) == FLOAT16 else value
            for name, value in sample.items()
            if name in inputs
        }


def _try(
    path: Path,
    outputs: Sequence[str],
    feeds: Sequence[Mapping[str, Array]],
    expected: Sequence[Mapping[str, Array]],
    parameters: Mapping[str, str],
    level: int | None,
) -> _Trial:
    try:
        session = _open(path, parameters, level)
        found = [dict(zip(outputs, session.run(list(outputs), dict(feed)), strict=True)) for feed in feeds]
    except Exception as error:
        return _Trial(-math.inf, None, first_line(error))
    if not expected:
        return _Trial(math.inf, None)
    worst = math.inf
    agreement: float | None = None
    for name in outputs:
        pairs = [(a[name], b[name]) for a, b in zip(expected, found, strict=True)]
        distance = output_distance([a for a, _ in pairs], [b for _, b in pairs])
        if distance.problem is not None:
            worst = -math.inf
        elif distance.snr_db is not None:
            worst = min(worst, distance.snr_db)
        if agreement is None and all(_is_scores(a) and a.shape == b.shape for a, b in pairs):
            agreement = _same_largest(pairs)
    return _Trial(worst, agreement)


def _is_scores(value: Array) -> bool:
    return is_float(value) and value.ndim == 2 and value.shape[1] > 1 and value.shape[0] > 0


def _same_largest(pairs: Sequence[tuple[Array, Array]]) -> float:
    import numpy as np

    same = [a.argmax(axis=1) == b.argmax(axis=1) for a, b in pairs]
    return float(np.mean(np.concatenate(same)))


def _open(path: Path, parameters: Mapping[str, str], level: int | None) -> Any:
    """A session with the options that `backends/onnxruntime` sets for such a config."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_DISABLE_ALL if level == NO_OPTIMIZATION else levels.ORT_ENABLE_ALL
    for name, value in parameters.items():
        options.add_session_config_entry(name, value)
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"], enable_fallback=0)
