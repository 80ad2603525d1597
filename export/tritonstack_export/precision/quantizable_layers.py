"""The layers of a graph that can run in INT8: an activation times constant weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

import numpy as np

from tritonstack.errors import InputError, UsageError
from tritonstack_export.onnx_graph import opset
from tritonstack_export.precision.float_graph import FloatGraph
from tritonstack_export.samples import Array

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

_QUANTIZED = frozenset({
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger",
    "MatMulInteger", "QGemm", "QAttention", "QLinearAdd", "MatMulNBits", "DynamicQuantizeMatMul",
})  # fmt: skip
_FOLDED = ("Identity", "Transpose")


@dataclass(frozen=True)
class Layer:
    """One quantizable node. `data`, `weight`: positions of its activation and weight inputs. `axis`: of the weight,
    along which output channels lie (None: one scale for all). `element_type`: ONNX's, of weight and activation."""

    name: str
    op_type: str
    data: int
    weight: int
    axis: int | None
    activation: str
    weight_name: str
    output: str
    weight_shape: tuple[int, ...]
    element_type: int = 1

    @property
    def elements(self) -> int:
        return int(np.prod(self.weight_shape))

    def macs(self, data_shape: Sequence[int], output_shape: Sequence[int]) -> int:
        """Multiply-accumulates at these shapes of activation and output."""
        shape = self.weight_shape
        if self.op_type == "Conv":
            return int(np.prod(output_shape) * np.prod(shape[1:]))
        if self.op_type == "ConvTranspose":
            return int(np.prod(data_shape) * np.prod(shape[1:]))
        if len(shape) == 1:
            return int(np.prod(output_shape) * shape[0])
        reduced = shape[-2] if self.op_type == "MatMul" and self.weight == 1 else shape[-1]
        if self.op_type == "Gemm":
            reduced = self.elements // shape[self.axis or 0]
        return int(np.prod(output_shape) * reduced)


def name_nodes(model: ModelProto) -> None:
    """Give nodes without a name, or with one that an earlier node has, a name of their own: Conv_0, Conv_1, …"""
    taken = {node.name for node in model.graph.node if node.name}
    seen: set[str] = set()
    for index, node in enumerate(model.graph.node):
        if node.name and node.name not in seen:
            seen.add(node.name)
            continue
        stem = node.name or node.op_type
        number = index
        while f"{stem}_{number}" in taken:
            number += 1
        node.name = f"{stem}_{number}"
        taken.add(node.name)
        seen.add(node.name)


def require_quantizable(model: ModelProto, *, half: bool) -> None:
    """Raises InputError for a graph that is quantized already, or whose opset lacks what Q/DQ needs.

    `half`: the rest is FP16, so scales are FP16 too.
    """
    found = [node for node in model.graph.node if node.op_type in _QUANTIZED]
    if found:
        raise InputError(
            f"the model is quantized already: {len(found)} nodes such as {found[0].name!r} ({found[0].op_type})",
            expected="a float model",
            next_step="start from the model before quantization, or leave int8 out of `precision.variants`",
        )
    least = 19 if half else 13
    if opset(model) < least:
        raise InputError(
            f"INT8 {'with FP16 around it ' if half else 'per channel '}needs opset {least} or later",
            given=f"opset {opset(model)}",
            next_step="export the model at a later opset"
            + (", or set `precision.int8.rest: fp32`" if half and opset(model) >= 13 else ""),
        )


def find_layers(graph: FloatGraph, op_types: Sequence[str]) -> list[Layer]:
    """The layers of `op_types` in the graph's order. Constants and transposes of constants that feed their weights are
    turned into initializers first. Layers inside If, Loop and Scan are not among them."""
    _fold_weights(graph, op_types)
    weights = {tensor.name: tensor for tensor in graph.skeleton.graph.initializer}
    layers = []
    for node in graph.skeleton.graph.node:
        if node.op_type not in op_types or node.domain not in ("", "ai.onnx") or len(node.input) < 2:
            continue
        constant = [position for position in (0, 1) if node.input[position] in weights]
        if len(constant) != 1 or (constant == [0] and node.op_type != "MatMul"):
            continue
        weight = weights[node.input[constant[0]]]
        shape = tuple(weight.dims)
        if weight.data_type not in (1, 10) or not shape or 0 in shape:
            continue
        layers.append(
            Layer(
                name=node.name,
                op_type=node.op_type,
                data=1 - constant[0],
                weight=constant[0],
                axis=_channel_axis(node, constant[0], len(shape)),
                activation=node.input[1 - constant[0]],
                weight_name=weight.name,
                output=node.output[0],
                weight_shape=shape,
                element_type=weight.data_type,
            )
        )
    return layers


def _channel_axis(node: NodeProto, position: int, rank: int) -> int | None:
    """The axis of the weight that is not summed over: TensorRT and ONNX Runtime scale per output channel."""
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1
    if node.op_type == "Gemm":
        transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
        return 0 if transposed else 1
    if rank < 2:
        return None
    return rank - 1 if position == 1 else rank - 2


def _fold_weights(graph: FloatGraph, op_types: Sequence[str]) -> None:
    from onnx import numpy_helper

    nodes = graph.skeleton.graph.node
    names = {tensor.name for tensor in graph.skeleton.graph.initializer}
    producers = {name: node for node in nodes for name in node.output}
    folded: dict[str, str] = {}

    def value(name: str) -> Array | None:
        if name in names:
            return graph.weight(name)
        node = producers.get(name)
        if node is None:
            return None
        if node.op_type == "Constant":
            tensor = next((a.t for a in node.attribute if a.name == "value" and a.HasField("t")), None)
            return np.asarray(numpy_helper.to_array(tensor)) if tensor is not None else None
        if node.op_type not in _FOLDED:
            return None
        inner = value(node.input[0])
        if inner is None or node.op_type == "Identity":
            return inner
        order = next((list(a.ints) for a in node.attribute if a.name == "perm"), None)
        return np.ascontiguousarray(np.transpose(inner, order))

    for node in nodes:
        if node.op_type not in op_types:
            continue
        for position in range(min(2, len(node.input))):
            name = node.input[position]
            if name in names:
                continue
            if name not in folded:
                array = value(name)
                if array is None:
                    continue
                folded[name] = _free_name(f"{name}_weight", names | set(producers))
                graph.add(numpy_helper.from_array(array, folded[name]))
                names.add(folded[name])
            node.input[position] = folded[name]
    if folded:
        drop_unused(graph.skeleton)


def _free_name(stem: str, taken: set[str]) -> str:
    name, number = stem, 0
    while name in taken:
        number += 1
        name = f"{stem}_{number}"
    return name


def drop_unused(model: ModelProto) -> None:
    """Remove nodes and initializers whose results nobody reads."""
    graph = model.graph
    kept_outputs = {value.name for value in graph.output}
    while True:
        read = kept_outputs | {name for node in graph.node for name in _reads(node)}
        dead = [node for node in graph.node if not any(name in read for name in node.output)]
        if not dead:
            break
        for node in dead:
            graph.node.remove(node)
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in read]:
        graph.initializer.remove(tensor)
        for value in [value for value in graph.input if value.name == tensor.name]:
            graph.input.remove(value)


def _reads(node: NodeProto) -> set[str]:
    names = set(node.input)
    for attribute in node.attribute:
        for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
            names |= {value.name for value in inner.output}
            for child in inner.node:
                names |= _reads(child)
    return names


def without(layers: Sequence[Layer], excluded: Sequence[str]) -> list[Layer]:
    """The layers that `precision.int8.exclude` leaves. Raises UsageError for a name that is no layer."""
    known = [layer.name for layer in layers]
    for name in excluded:
        if name not in known:
            close = get_close_matches(name, known, n=3) or known[:3]
            raise UsageError(
                f"precision.int8.exclude: the model has no quantizable layer {name!r}",
                expected=f"one of its {len(known)} layers, such as {', '.join(close)}" if known else "no layers at all",
            )
    return [layer for layer in layers if layer.name not in excluded]
