"""Take Loop and Scan out of a graph while AutoCast works on it: it drops the types of their bodies and then fails.

What a loop reads becomes an output of the graph and what it gives an input, both in FP32. Afterwards the loop is put
back between them, so it runs in FP32 with Casts around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tritonstack.errors import GateError
from tritonstack_export.precision.graph_types import infer, subgraphs

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

LOOPS = ("Loop", "Scan")


@dataclass(frozen=True)
class LoopFree:
    """`model` without its loops; `ends`: the names that became inputs or outputs of the graph for them."""

    model: ModelProto
    ends: frozenset[str]


def without_loops(model: ModelProto) -> LoopFree:
    """A copy without the Loop and Scan nodes of the outermost graph. Raises GateError for loops over sequences."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    loops = [node for node in graph.node if node.op_type in LOOPS]
    rest = [node for node in graph.node if node.op_type not in LOOPS]
    typed = infer(model).graph
    types = {value.name: value for value in (*typed.value_info, *typed.input, *typed.output)}
    read = {name for node in loops for name in read_by(node)}
    made = {name for node in loops for name in node.output if name}
    published = [value.name for value in graph.output]
    given = made & {name for node in rest for name in read_by(node)}
    taken = (read & {name for node in rest for name in node.output}) - set(published)
    for name in sorted(given | taken):
        if name not in types or not types[name].type.HasField("tensor_type"):
            raise GateError(f"the value {name!r} of a loop is no tensor of a known type, so the graph stays FP32")
    del graph.node[:]
    graph.node.extend(rest)
    graph.input.extend(types[name] for name in sorted(given))
    outputs = [value for value in typed.output if value.name not in made]
    del graph.output[:]
    graph.output.extend([*outputs, *(types[name] for name in sorted(taken))])
    return LoopFree(copy, frozenset(given | taken))


def put_back_loops(converted: ModelProto, original: ModelProto, ends: frozenset[str]) -> None:
    """Insert the loops of `original` into `converted`, made of its loop-free copy with the types of its ends kept."""
    graph = converted.graph
    for group in (graph.input, graph.output):
        for value in [value for value in group if value.name in ends]:
            group.remove(value)
    loops = [node for node in original.graph.node if node.op_type in LOOPS]
    weights = {tensor.name: tensor for tensor in original.graph.initializer}
    names = {f"{name}__of_loop": name for node in loops for name in read_by(node) if name in weights}
    for new, old in sorted(names.items()):
        graph.initializer.add().CopyFrom(weights[old])
        graph.initializer[-1].name = new
    renamed = {old: new for new, old in names.items()}
    for node in loops:
        graph.node.add().CopyFrom(node)
        _rename(graph.node[-1], renamed)
    found = {value.name: value for value in graph.output}
    outputs = [found.get(value.name, value) for value in original.graph.output]
    del graph.output[:]
    graph.output.extend(outputs)
    _sort(graph)


def read_by(node: NodeProto) -> set[str]:
    """What a node reads, its bodies included."""
    names = {name for name in node.input if name}
    for graph in subgraphs(node):
        own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
        own.update(name for inner in graph.node for name in inner.output)
        inside = {value.name for value in graph.output}
        inside.update(name for inner in graph.node for name in read_by(inner))
        names |= inside - own
    return names


def _rename(node: NodeProto, renamed: Mapping[str, str]) -> None:
    for index, name in enumerate(node.input):
        node.input[index] = renamed.get(name, name)
    for graph in subgraphs(node):
        for inner in graph.node:
            _rename(inner, renamed)
        for value in graph.output:
            value.name = renamed.get(value.name, value.name)


def _sort(graph: GraphProto) -> None:
    """Nodes in an order in which values exist before they are read, otherwise as they were."""
    import onnx

    waiting = []
    for node in graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        waiting.append(copy)
    missing = {name for node in waiting for name in node.output}
    reads = [read_by(node) for node in waiting]
    ordered: list[NodeProto] = []
    left = list(range(len(waiting)))
    while left:
        later = []
        for index in left:
            if reads[index] & missing:
                later.append(index)
            else:
                ordered.append(waiting[index])
                missing -= set(waiting[index].output)
        if len(later) == len(left):
            raise GateError("the graph with its loops put back has a cycle")
        left = later
    del graph.node[:]
    graph.node.extend(ordered)
