"""What a build needs to know of an ONNX file: its inputs, and the precision that its graph carries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tritonstack.errors import InputError
from tritonstack_export.engine.profile import InputShape
from tritonstack_export.engine.settings import Precision

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

_QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True)
class OnnxFacts:
    """`inputs`: those a client sends; axes without a size or a name are called ``<input>_<axis>``, as in specs.
    `carried`: the precisions below FP32 that weights, casts or Q/DQ nodes bring."""

    inputs: tuple[InputShape, ...]
    carried: frozenset[Precision]

    @property
    def precision(self) -> Precision:
        """The precision that the graph is in: its lowest."""
        order: tuple[Precision, ...] = ("int8", "fp16", "bf16")
        return next((name for name in order if name in self.carried), "fp32")


def read_facts(path: Path) -> OnnxFacts:
    """Read a file, its external weights left on the disk. Raises InputError without model, input or output."""
    from tritonstack_export.onnx_graph import model_inputs
    from tritonstack_export.onnx_tensors import read_proto

    model = read_proto(path)
    inputs = model_inputs(model, batch_name=None)
    if not inputs or not model.graph.output:
        missing = "input" if not inputs else "output"
        raise InputError(f"{path.name} holds no {missing}", expected="an ONNX model with inputs and outputs")
    return OnnxFacts(tuple(InputShape(tensor.name, tensor.shape) for tensor in inputs), carried_precisions(model))


def carried_precisions(model: ModelProto) -> frozenset[Precision]:
    """FP16 and BF16 by weights and casts, INT8 by Quantize and Dequantize nodes."""
    from onnx import TensorProto

    from tritonstack_export.onnx_tensors import tensors

    words: dict[int, Precision] = {TensorProto.FLOAT16: "fp16", TensorProto.BFLOAT16: "bf16"}
    found = {words[tensor.data_type] for tensor in tensors(model) if tensor.data_type in words}
    for node in _nodes(model.graph):
        if node.op_type == "Cast":
            found |= {
                words[attribute.i] for attribute in node.attribute if attribute.name == "to" and attribute.i in words
            }
        elif node.op_type in _QUANTIZERS:
            found.add("int8")
    return frozenset(found)


def _nodes(graph: GraphProto) -> list[NodeProto]:
    nodes = list(graph.node)
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.HasField("g") else list(attribute.graphs):
                nodes += _nodes(inner)
    return nodes
