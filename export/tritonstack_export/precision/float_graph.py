"""An ONNX graph with its weights apart, so that many edited copies of it can run without copying the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tritonstack.errors import GateError
from tritonstack_export import onnx_tensors
from tritonstack_export.samples import Array
from tritonstack_export.source_location import first_line

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

_INLINE_LIMIT = 1024
"""Bytes up to which a weight stays in the graph: shapes, axes and scalars are read by ONNX Runtime's inference."""
_PLACEHOLDER = "weights kept apart"


@dataclass
class FloatGraph:
    """`skeleton`: the graph whose larger initializers hold no data. `arrays`: their values. `originals`: as they were
    in the file in `folder`, from which the model can be written again."""

    skeleton: ModelProto
    arrays: dict[str, Array]
    originals: dict[str, TensorProto]
    folder: Path
    _values: dict[str, Any] = field(default_factory=dict)

    def weight(self, name: str) -> Array:
        """The value of an initializer."""
        from onnx import numpy_helper

        if name in self.arrays:
            return self.arrays[name]
        tensor = next(tensor for tensor in self.skeleton.graph.initializer if tensor.name == name)
        return np.asarray(numpy_helper.to_array(tensor))

    def add(self, tensor: TensorProto) -> None:
        """Add an initializer with its data inside."""
        self.skeleton.graph.initializer.append(_apart(tensor, self.arrays, self.originals, self.folder))

    def copy(self) -> ModelProto:
        """The skeleton, to be edited."""
        import onnx

        model = onnx.ModelProto()
        model.CopyFrom(self.skeleton)
        return model

    def session(
        self, model: ModelProto, outputs: Sequence[str], extra: Mapping[str, Array] | None = None
    ) -> GraphSession:
        """Run an edited copy. `extra`: values of the large initializers that it has besides this graph's."""
        import onnxruntime as ort

        values = dict(self._values)
        used = {tensor.name for tensor in model.graph.initializer if _is_apart(tensor)}
        for name in used - set(values):
            array = extra[name] if extra is not None and name in extra else self.arrays[name]
            values[name] = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
            if name in self.arrays:
                self._values[name] = values[name]
        return GraphSession(model, outputs, {name: values[name] for name in sorted(used)})

    def write(self, model: ModelProto, extra: Mapping[str, Array], target: Path) -> list[Path]:
        """Write an edited copy with all its weights; see `onnx_tensors.write_model`. `model` is changed."""
        from onnx import numpy_helper

        for tensor in model.graph.initializer:
            if not _is_apart(tensor):
                continue
            name = tensor.name
            if name in extra:
                tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(extra[name]), name))
            else:
                tensor.CopyFrom(self.originals[name])
        return onnx_tensors.write_model(model, self.folder, target)


class GraphSession:
    """An ONNX Runtime session on the CPU that computes what the graph says: Q/DQ in float, without QDQ fusions."""

    def __init__(self, model: ModelProto, outputs: Sequence[str], weights: Mapping[str, Any]) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.enable_mem_pattern = False
        options.enable_cpu_mem_arena = False
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if weights:
            options.add_external_initializers(list(weights), list(weights.values()))
        self._outputs = list(outputs)
        # ONNX Runtime refers to these buffers for as long as the session lives.
        self._weights = weights
        try:
            self._session: Any = ort.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise GateError(f"ONNX Runtime cannot load the graph: {first_line(error)}") from error
        self._wanted = {value.name for value in self._session.get_inputs()}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Raises GateError naming the shapes when the model fails on them."""
        try:
            feeds = {name: value for name, value in inputs.items() if name in self._wanted}
            return dict(zip(self._outputs, self._session.run(self._outputs, feeds), strict=True))
        except Exception as error:
            shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in inputs.items())
            raise GateError(f"the model fails on these inputs: {first_line(error)}", given=shapes) from error


def load_graph(path: Path) -> FloatGraph:
    """The graph of a file. External data are mapped, not read. Raises InputError for what is no ONNX model."""
    import onnx

    model = onnx_tensors.read_proto(path)
    skeleton = onnx.ModelProto()
    arrays: dict[str, Array] = {}
    originals: dict[str, TensorProto] = {}
    weights = [_apart(tensor, arrays, originals, path.parent) for tensor in model.graph.initializer]
    del model.graph.initializer[:]
    skeleton.CopyFrom(model)
    skeleton.graph.initializer.extend(weights)
    return FloatGraph(skeleton, arrays, originals, path.parent)


def placeholder(name: str, array: Array) -> TensorProto:
    """An initializer without data, for an array given at `session` and `write`."""
    from onnx import TensorProto, helper

    tensor = TensorProto()
    tensor.name = name
    tensor.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor.dims.extend(array.shape)
    _mark(tensor)
    return tensor


def _apart(
    tensor: TensorProto, arrays: dict[str, Array], originals: dict[str, TensorProto], folder: Path
) -> TensorProto:
    from onnx import TensorProto, helper, numpy_helper

    array: Array
    if tensor.data_location == TensorProto.EXTERNAL:
        file, offset, _ = onnx_tensors.external_span(tensor, folder)
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        array = np.memmap(file, dtype=dtype, mode="r", offset=offset, shape=tuple(tensor.dims))
    elif tensor.ByteSize() <= _INLINE_LIMIT or tensor.data_type == TensorProto.STRING:
        return tensor
    else:
        array = numpy_helper.to_array(tensor)
    arrays[tensor.name], originals[tensor.name] = array, tensor
    return placeholder(tensor.name, array)


def _mark(tensor: TensorProto) -> None:
    from onnx import TensorProto

    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", _PLACEHOLDER


def _is_apart(tensor: TensorProto) -> bool:
    return bool(tensor.external_data) and tensor.external_data[0].value == _PLACEHOLDER
