"""The element type of every value of an ONNX graph, subgraphs included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tritonstack.errors import GateError
from tritonstack_export.source_location import first_line

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TypeProto

FLOAT, FLOAT16, BFLOAT16 = 1, 10, 16
"""ONNX element types by number, so that asking for one needs no import of onnx."""
LOW = frozenset({FLOAT16, BFLOAT16})


@dataclass(frozen=True)
class Scope:
    """Element types of the values that a graph sees: its own, and those of the graphs around it."""

    types: Mapping[str, int]
    outer: Scope | None = None

    def get(self, name: str) -> int:
        """The ONNX element type; 0 where nothing says it (optional inputs, unknown operators)."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.types:
                return scope.types[name]
            scope = scope.outer
        return 0


def infer(model: ModelProto) -> ModelProto:
    """`model` with local functions written out and the types of all values filled in; external weights stay outside.

    Raises GateError when the operators contradict each other.
    """
    import onnx
    from onnx import inliner

    if model.functions:
        model = inliner.inline_local_functions(model)
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        raise GateError(f"the types of the ONNX graph do not fit together: {first_line(error)}") from error


def scope_of(graph: GraphProto, outer: Scope | None = None) -> Scope:
    """The scope of a graph whose types were inferred. Outputs of operators that ONNX does not know (such as those of
    `com.microsoft`) take the type of their first input."""
    types: dict[str, int] = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for value in (*graph.input, *graph.output, *graph.value_info):
        element = element_type(value.type)
        if element:
            types[value.name] = element
    scope = Scope(types, outer)
    for node in graph.node:
        for name in node.output:
            if name and name not in types:
                guess = scope.get(node.input[0]) if node.input else 0
                if guess:
                    types[name] = guess
    return scope


def element_type(kind: TypeProto) -> int:
    """The element type of a tensor, or of the tensors of a sequence or optional; 0: not known."""
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        return int(kind.tensor_type.elem_type)
    if which == "sequence_type":
        return element_type(kind.sequence_type.elem_type)
    if which == "optional_type":
        return element_type(kind.optional_type.elem_type)
    return 0


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The bodies of If, Loop and Scan."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
