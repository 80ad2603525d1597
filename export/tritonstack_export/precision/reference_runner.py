"""Run a variant on this CPU as a strongly typed TensorRT engine would compute it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tritonstack.errors import GateError
from tritonstack_export import onnx_tensors
from tritonstack_export.precision import rounding
from tritonstack_export.precision.graph_types import BFLOAT16, FLOAT16, element_type
from tritonstack_export.samples import Array
from tritonstack_export.source_location import first_line

NO_QDQ_FUSION = "session.disable_quant_qdq"
"""ONNX Runtime's session option that leaves Q/DQ nodes as they are, so that layers between them run in float."""

_LOOK_THROUGH_CASTS = (
    "AttentionFusion", "BiasGeluFusion", "BiasSoftmaxFusion", "EmbedLayerNormFusion", "FastGeluFusion", "GeluFusionL1",
    "GeluFusionL2", "GroupQueryAttentionFusion", "LayerNormFusionL1", "LayerNormFusionL2", "QuickGeluFusion",
    "SimplifiedLayerNormFusion", "SkipLayerNormFusion",
)  # fmt: skip
"""ONNX Runtime's fusions whose patterns allow for Casts in between, and would take the rounding away with them."""


class Runner(Protocol):
    """What runs a model: a ReferenceSession, an OnnxSession, or a server."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name. Raises GateError when the model fails on these inputs."""
        ...


class ReferenceSession:
    """One ONNX Runtime session on the CPU. Inputs may come in FP32 where the graph takes FP16 or BF16: they are
    rounded first. Outputs have the dtype of the graph (BF16: that of `ml_dtypes`)."""

    def __init__(self, path: Path, outputs: Sequence[str]) -> None:
        """Raises InputError for a file that is no ONNX model, GateError with the reason when it cannot be loaded."""
        import onnxruntime as ort

        model = onnx_tensors.read_proto(path)
        self._outputs = list(outputs)
        self._inputs = {value.name: element_type(value.type) for value in model.graph.input}
        self._types = {value.name: element_type(value.type) for value in model.graph.output}
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.add_session_config_entry(NO_QDQ_FUSION, "1")
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        source: str | bytes = str(path)
        more: dict[str, Any] = {}
        if rounding.is_low(model):
            source = rounding.emulate(model).SerializeToString()
            more["disabled_optimizers"] = list(_LOOK_THROUGH_CASTS)
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
        try:
            self._session: Any = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"], **more)
        except Exception as error:
            raise GateError(f"ONNX Runtime cannot load the model: {first_line(error)}") from error
        self._wanted = {value.name for value in self._session.get_inputs()}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Raises GateError naming the shapes when the model fails on them."""
        import numpy as np

        feeds = {
            name: _rounded(value, self._inputs[name]) if self._inputs.get(name) in _LOW_TYPES else value
            for name, value in inputs.items()
            if name in self._wanted
        }
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                values = self._session.run(self._outputs, feeds)
                return {
                    name: value.astype(low_dtype(self._types[name])) if self._types[name] in _LOW_TYPES else value
                    for name, value in zip(self._outputs, values, strict=True)
                }
        except Exception as error:
            shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in inputs.items())
            raise GateError(f"the model fails on these inputs: {first_line(error)}", given=shapes) from error


def reference_session(path: Path, outputs: Sequence[str]) -> ReferenceSession:
    """A session that computes the named outputs as a strongly typed engine would: FP16 and BF16 values are rounded
    after each node (see `rounding`), Q/DQ runs in float without the fusions that go wrong on CPUs without VNNI, and an
    FP32 graph runs as it is."""
    return ReferenceSession(path, outputs)


_LOW_TYPES = (FLOAT16, BFLOAT16)


def low_dtype(kind: int) -> Any:
    """The numpy dtype of ONNX's FLOAT16 or BFLOAT16."""
    import numpy as np

    if kind == FLOAT16:
        return np.dtype(np.float16)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def _rounded(value: Array, kind: int) -> Array:
    """`value` on the grid of FP16 or BF16, as float32."""
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        return value.astype(low_dtype(kind)).astype(np.float32)
