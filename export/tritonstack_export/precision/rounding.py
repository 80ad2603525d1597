"""Rewrite an FP16 or BF16 graph so that ONNX Runtime's CPU provider computes what low precision would give.

The CPU provider has few FP16 kernels and no BF16 ones: it puts Casts around FP16 nodes, removes them again and computes
the whole chain in FP32. A sum of squares that is `inf` in FP16 then looks fine, and BF16 graphs do not load. Here every
FP16 or BF16 value is an FP32 tensor that was rounded: after each node that can leave the grid of the type stands a pair
of Casts, FP32 → low → FP32, which ONNX Runtime keeps at every optimisation level. Values beyond the range become
infinite, those below half of the smallest subnormal become 0. Sums inside one node (Conv, MatMul, ReduceMean) are kept
in FP32, as tensor cores keep them; operators that TensorRT writes out as several (ReduceL2 as square, sum and root) are
written out here too. TensorRT fuses pointwise chains and may then round less often: this is the cautious side.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tritonstack_export.onnx_graph import opset
from tritonstack_export.precision.graph_types import FLOAT, LOW, Scope, infer, scope_of, subgraphs

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

_MOVES_VALUES = frozenset(
    {
        "Abs", "Ceil", "Clip", "Compress", "Concat", "ConcatFromSequence", "Constant", "ConstantOfShape",
        "DepthToSpace", "Expand", "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "GlobalMaxPool",
        "Identity", "If", "Loop", "Max", "MaxPool", "Min", "Neg", "Optional", "OptionalGetElement", "Pad",
        "ReduceMax", "ReduceMin", "Relu", "Reshape", "ReverseSequence", "Round", "Scan", "Scatter", "SequenceAt",
        "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "Shape", "Sign", "Slice",
        "SpaceToDepth", "Split", "SplitToSequence", "Squeeze", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze",
        "Where",
    }
)  # fmt: skip
"""Operators whose results lie on the grid of the type when their inputs do, so no rounding follows."""


def emulate(model: ModelProto) -> ModelProto:
    """A copy of `model` without FP16 and BF16 arithmetic that computes the same numbers. Weights keep their type.

    Inputs and outputs that were FP16 or BF16 are FP32. Raises GateError when the types of the graph do not fit.
    """
    typed = infer(model)
    _Rewrite(_value_names(typed.graph), opset(typed)).graph(typed.graph, None)
    return typed


def is_low(model: ModelProto) -> bool:
    """Whether any value of the graph is FP16 or BF16."""
    return _holds_low(infer(model).graph, None)


def _holds_low(graph: GraphProto, outer: Scope | None) -> bool:
    scope = scope_of(graph, outer)
    return any(kind in LOW for kind in scope.types.values()) or any(
        _holds_low(inner, scope) for node in graph.node for inner in subgraphs(node)
    )


def _value_names(graph: GraphProto) -> set[str]:
    names = {tensor.name for tensor in graph.initializer} | {value.name for value in (*graph.input, *graph.output)}
    for node in graph.node:
        names.update(node.input)
        names.update(node.output)
        for inner in subgraphs(node):
            names |= _value_names(inner)
    return names


@dataclass
class _Rewrite:
    """The rewriting of one model. `names`: every value name in use, so that new ones are free in all scopes."""

    names: set[str]
    opset: int
    _count: int = field(default=0)

    def fresh(self, base: str) -> str:
        while True:
            self._count += 1
            name = f"{base}__rounding_{self._count}"
            if name not in self.names:
                self.names.add(name)
                return name

    def graph(self, graph: GraphProto, outer: Scope | None) -> None:
        """Rewrite one graph in place; `outer`: the scope around it, with the types from before the rewriting."""
        scope = scope_of(graph, outer)
        nodes: list[NodeProto] = []
        self._weights(graph, nodes)
        for node in graph.node:
            self._node(node, scope, nodes)
        del graph.node[:]
        graph.node.extend(nodes)
        for value in (*graph.input, *graph.output):
            _widen_type(value.type)
        # Types of inner values are left to ONNX Runtime, which infers them anew.
        del graph.value_info[:]

    def _weights(self, graph: GraphProto, nodes: list[NodeProto]) -> None:
        """Rename low-precision weights and cast them to FP32 under their old names."""
        listed = {value.name for value in graph.input}
        for tensor in graph.initializer:
            if tensor.data_type in LOW:
                stored = self.fresh(tensor.name)
                nodes.append(_cast(stored, tensor.name, FLOAT))
                if tensor.name in listed:  # old files list their weights among the inputs
                    graph.input.remove(next(value for value in graph.input if value.name == tensor.name))
                tensor.name = stored

    def _node(self, node: NodeProto, scope: Scope, nodes: list[NodeProto]) -> None:
        if node.op_type == "Cast":
            self._cast_node(node, scope, nodes)
            return
        outputs = [scope.get(name) for name in node.output]
        for inner in subgraphs(node):
            self.graph(inner, scope)
        for attribute in node.attribute:
            _widen_attribute(attribute)
        after: list[NodeProto] = []
        if node.op_type not in _MOVES_VALUES or node.domain not in ("", "ai.onnx"):
            for index, kind in enumerate(outputs):
                name = node.output[index]
                if name and kind in LOW:
                    wide = self.fresh(name)
                    node.output[index] = wide
                    after.extend(self._round(wide, name, kind))
        expand = _EXPANDED.get(node.op_type)
        if expand is not None and outputs and outputs[0] in LOW:
            nodes.extend(self._expanded(node, outputs[0], expand))
        else:
            nodes.append(node)
        nodes.extend(after)

    def _cast_node(self, node: NodeProto, scope: Scope, nodes: list[NodeProto]) -> None:
        source, target = node.input[0], node.output[0]
        to = next(int(attribute.i) for attribute in node.attribute if attribute.name == "to")
        if to in LOW:
            if scope.get(source) == to:
                nodes.append(_identity(source, target))
            else:
                nodes.extend(self._round(source, target, to))
        elif to == FLOAT and scope.get(source) in LOW:
            nodes.append(_identity(source, target))
        else:
            nodes.append(node)

    def _round(self, source: str, target: str, kind: int) -> list[NodeProto]:
        low = self.fresh(target)
        return [_cast(source, low, kind), _cast(low, target, FLOAT)]

    def _expanded(self, node: NodeProto, kind: int, steps: tuple[str, ...]) -> list[NodeProto]:
        """The operators that TensorRT's parser makes of a compound reduction, rounded in between."""
        from onnx import helper

        made: list[NodeProto] = []
        value = node.input[0]
        for number, step in enumerate(steps, start=1):
            last = number == len(steps)
            result = node.output[0] if last else self.fresh(node.output[0])
            if step == "ReduceSum":
                made.extend(self._sum(node, value, result))
            else:
                made.append(helper.make_node(step, [value, value] if step == "Mul" else [value], [result]))
            if not last:
                value = self.fresh(node.output[0])
                made.extend(self._round(result, value, kind))
        return made

    def _sum(self, node: NodeProto, value: str, result: str) -> list[NodeProto]:
        """ReduceSum over the axes of `node`: its axes became an input with opset 13, those of the others with 18."""
        from onnx import helper

        made = helper.make_node("ReduceSum", [value, *node.input[1:]], [result])
        axes = next((list(attribute.ints) for attribute in node.attribute if attribute.name == "axes"), None)
        made.attribute.extend(a for a in node.attribute if a.name != "axes" or self.opset < 13)
        if axes is None or self.opset < 13:
            return [made]
        name = self.fresh(result)
        made.input.append(name)
        return [helper.make_node("Constant", [], [name], value_ints=axes), made]


_EXPANDED: dict[str, tuple[str, ...]] = {
    "ReduceL1": ("Abs", "ReduceSum"),
    "ReduceL2": ("Mul", "ReduceSum", "Sqrt"),
    "ReduceSumSquare": ("Mul", "ReduceSum"),
    "ReduceLogSum": ("ReduceSum", "Log"),
    "ReduceLogSumExp": ("Exp", "ReduceSum", "Log"),
}


def _cast(source: str, target: str, to: int) -> NodeProto:
    from onnx import helper

    return helper.make_node("Cast", [source], [target], to=to)


def _identity(source: str, target: str) -> NodeProto:
    from onnx import helper

    return helper.make_node("Identity", [source], [target])


def _widen_type(kind: TypeProto) -> None:
    which = kind.WhichOneof("value")
    if which == "tensor_type" and kind.tensor_type.elem_type in LOW:
        kind.tensor_type.elem_type = FLOAT
    elif which == "sequence_type":
        _widen_type(kind.sequence_type.elem_type)
    elif which == "optional_type":
        _widen_type(kind.optional_type.elem_type)


_TYPE_ATTRIBUTES = frozenset({"dtype", "output_dtype", "precision", "softmax_precision"})


def _widen_attribute(attribute: AttributeProto) -> None:
    """Constants and types said in attributes: FP32 instead of FP16 or BF16, with the same values."""
    if attribute.name in _TYPE_ATTRIBUTES and attribute.i in LOW:
        attribute.i = FLOAT
    if attribute.HasField("t"):
        _widen_tensor(attribute.t)
    for tensor in attribute.tensors:
        _widen_tensor(tensor)
    if attribute.HasField("tp"):
        _widen_type(attribute.tp)


def _widen_tensor(tensor: TensorProto) -> None:
    import numpy as np
    from onnx import numpy_helper

    if tensor.data_type in LOW:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
