"""The ONNX graph of an exported model: what goes in and out, and the edits that make it fit to be served."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tritonstack.errors import GateError, InputError
from tritonstack_export.signature import ModelInput, Signature
from tritonstack_export.spec import DTYPES

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto


@dataclass(frozen=True)
class GraphTensor:
    """An input or output of the graph: numpy dtype name, and per axis a fixed size or a symbol (None: unknown)."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]


def graph_inputs(model: ModelProto) -> tuple[GraphTensor, ...]:
    """The inputs a client has to send: initializers that are listed as inputs too are left out."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return tuple(_tensor(value) for value in model.graph.input if value.name not in weights)


def graph_outputs(model: ModelProto) -> tuple[GraphTensor, ...]:
    """The outputs, in order."""
    return tuple(_tensor(value) for value in model.graph.output)


def _tensor(value: ValueInfoProto) -> GraphTensor:
    from onnx import TensorProto, helper

    if not value.type.HasField("tensor_type"):
        raise InputError(f"{value.name!r} of the ONNX graph is not a tensor", expected="plain tensors")
    kind = value.type.tensor_type
    if kind.elem_type == TensorProto.STRING:
        dtype = "string"
    elif kind.elem_type == TensorProto.BFLOAT16:
        dtype = "bfloat16"
    else:
        dtype = str(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    if dtype not in (*DTYPES, "string", "bfloat16"):
        raise InputError(f"{value.name!r} of the ONNX graph has the dtype {dtype}, which Triton does not know")
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or None) for dim in kind.shape.dim)
    return GraphTensor(value.name, dtype, shape)


def opset(model: ModelProto) -> int:
    """The version of the default operator set, as the file says."""
    return next((int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)


def strip_metadata(model: ModelProto) -> None:
    """Remove stack traces, paths and notes that exporters leave, so the same input gives the same bytes."""
    model.ClearField("metadata_props")
    model.ClearField("doc_string")
    for graph in _graphs(model.graph):
        graph.ClearField("metadata_props")
        graph.ClearField("doc_string")
        for group in (graph.node, graph.initializer, graph.input, graph.output, graph.value_info):
            for item in group:
                item.ClearField("metadata_props")
                item.ClearField("doc_string")
    for function in model.functions:
        function.ClearField("metadata_props")
        function.ClearField("doc_string")
        for node in function.node:
            node.ClearField("metadata_props")
            node.ClearField("doc_string")


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)
            for inner in attribute.graphs:
                yield from _graphs(inner)


def name_ends(model: ModelProto, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Give the graph's inputs and outputs their published names, in order.

    The exporter is not asked to do it: where a published name equals that of an inner value it writes a graph with
    the name defined twice. Here the inner value gives way. An output that is an input, a weight or another output
    itself gets an Identity of its own.
    """
    from onnx import helper

    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    free = [value for value in graph.input if value.name not in weights]
    if len(free) != len(inputs) or len(graph.output) != len(outputs):
        raise GateError(
            f"the exporter wrote {len(free)} inputs and {len(graph.output)} outputs",
            expected=f"{len(inputs)} inputs and {len(outputs)} outputs",
        )
    published = {*inputs, *outputs}
    mapping = {value.name: name for value, name in zip(free, inputs, strict=True)}
    bridges: list[tuple[str, str]] = []
    taken = {*weights, *(value.name for value in free)}
    for value, name in zip(graph.output, outputs, strict=True):
        if value.name in taken:
            bridges.append((value.name, name))
        else:
            taken.add(value.name)
            mapping[value.name] = name
    used = _value_names(graph)
    for name in sorted(used & published):
        if mapping.get(name) is None:
            number = 0
            while f"{name}_inner_{number}" in used | published:
                number += 1
            mapping[name] = f"{name}_inner_{number}"
    old_outputs = [value.name for value in graph.output]
    _rename(graph, mapping)
    for value, old, name in zip(graph.output, old_outputs, outputs, strict=True):
        if (old, name) in bridges:
            graph.node.append(helper.make_node("Identity", [mapping.get(old, old)], [name], name=f"publish_{name}"))
            value.name = name


def _value_names(graph: GraphProto) -> set[str]:
    names: set[str] = set()
    for inner in _graphs(graph):
        names.update(tensor.name for tensor in inner.initializer)
        names.update(value.name for value in (*inner.input, *inner.output, *inner.value_info))
        for node in inner.node:
            names.update(node.input)
            names.update(node.output)
    return names


def _rename(graph: GraphProto, mapping: Mapping[str, str]) -> None:
    for inner in _graphs(graph):
        for weight in inner.initializer:
            weight.name = mapping.get(weight.name, weight.name)
        for value in (*inner.input, *inner.output, *inner.value_info):
            value.name = mapping.get(value.name, value.name)
        for node in inner.node:
            _rename_node(node, mapping)


def _rename_node(node: NodeProto, mapping: Mapping[str, str]) -> None:
    for names in (node.input, node.output):
        for index, name in enumerate(names):
            if name in mapping:
                names[index] = mapping[name]


def name_dimensions(model: ModelProto, signature: Signature) -> None:
    """Write the signature's dimension names in place of the exporter's symbols (``s10``), also within expressions.

    Raises GateError when an axis that has to be dynamic is fixed in the graph: the exporter may decide so in silence.
    """
    symbols: dict[str, str] = {}
    free = graph_inputs(model)
    for tensor, plan in zip(free, signature.inputs, strict=True):
        if len(tensor.shape) != len(plan.shape):
            raise GateError(f"input {plan.name!r} has rank {len(tensor.shape)} in the graph", expected=str(plan.shape))
        for axis, (found, wanted) in enumerate(zip(tensor.shape, plan.shape, strict=True)):
            if isinstance(wanted, str) and isinstance(found, int):
                raise GateError(
                    f"axis {axis} ({wanted}) of input {plan.name!r} is fixed at {found} in the exported graph",
                    expected="a dynamic dimension",
                    next_step="look for a size written as a number in reshape, view or expand",
                )
            if isinstance(wanted, str) and isinstance(found, str):
                symbols.setdefault(found, wanted)
    _each_dimension(model, lambda text: re.sub(r"[A-Za-z_]\w*", lambda m: symbols.get(m[0], m[0]), text))


def _each_dimension(model: ModelProto, change: Callable[[str], str]) -> None:
    for graph in _graphs(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param:
                    dim.dim_param = change(dim.dim_param)


def widen_scalars(model: ModelProto) -> list[str]:
    """Give rank-0 outputs the shape [1], since Triton cannot describe a scalar. Returns their names."""
    import numpy as np
    from onnx import helper, numpy_helper

    widened = []
    for value in model.graph.output:
        kind = value.type.tensor_type
        if not kind.HasField("shape") or kind.shape.dim:
            continue
        name = value.name
        inner = f"{name}_scalar"
        while inner in _value_names(model.graph):
            inner += "_"
        for graph in _graphs(model.graph):
            for node in graph.node:
                _rename_node(node, {name: inner})
        if opset(model) >= 13:
            model.graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), f"{inner}_axes"))
            node = helper.make_node("Unsqueeze", [inner, f"{inner}_axes"], [name], name=f"widen_{name}")
        else:
            node = helper.make_node("Unsqueeze", [inner], [name], name=f"widen_{name}", axes=[0])
        model.graph.node.append(node)
        kind.shape.dim.add().dim_value = 1
        widened.append(name)
    return widened


def unused_inputs(model: ModelProto) -> list[str]:
    """Inputs that no node reads."""
    read = {name for graph in _graphs(model.graph) for node in graph.node for name in node.input}
    read |= {value.name for value in model.graph.output}
    return [tensor.name for tensor in graph_inputs(model) if tensor.name not in read]


def model_inputs(model: ModelProto, *, batch_name: str | None) -> list[ModelInput]:
    """The inputs of a ready ONNX file as the start of a signature. `batch_name`: what to call their dynamic axis 0."""
    tensors = []
    for tensor in graph_inputs(model):
        shape: list[int | str] = []
        for axis, size in enumerate(tensor.shape):
            if axis == 0 and batch_name is not None and not isinstance(size, int):
                shape.append(batch_name)
            elif size is None:
                shape.append(f"{re.sub(r'[^A-Za-z0-9_]', '_', tensor.name)[:40]}_{axis}")
            else:
                shape.append(size)
        tensors.append(ModelInput(tensor.name, tensor.dtype, tuple(shape)))
    return tensors
