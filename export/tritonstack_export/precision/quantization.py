"""Put Q/DQ nodes around layers: symmetric INT8, one scale per weight channel, one per activation.

Every layer gets `x → QuantizeLinear → DequantizeLinear` before its activation input, and its weight becomes an INT8
initializer behind a DequantizeLinear. Biases and outputs stay in float: this is the form that TensorRT 10 and 11 read
as INT8 (no INT32 bias, no zero point other than 0, no scale that is not positive, no QLinear or dynamic operator).

ONNX Runtime's own quantizer gives the same weights and scales (a test compares them). It is not used, because the
fallback needs a graph for each of dozens of sets of layers, of which it makes one in seconds and through files; and
because it puts one Q/DQ pair before all readers of a value, so a layer that is to stay in float beside an INT8 one
would still read rounded values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tritonstack_export.precision.activation_range import LEVELS
from tritonstack_export.precision.float_graph import FloatGraph, placeholder
from tritonstack_export.precision.quantizable_layers import Layer, drop_unused
from tritonstack_export.samples import Array

if TYPE_CHECKING:
    from onnx import ModelProto

_SMALLEST_SCALE = {"float32": 2.0**-126, "float16": 2.0**-14}
"""The smallest normal numbers: below them a scale loses digits, and a GPU may flush it to zero."""


@dataclass(frozen=True)
class WeightCodes:
    """A quantized weight: INT8 codes in the weight's shape, and scales [channel] or [] in the weight's dtype."""

    codes: NDArray[np.int8]
    scale: Array


def quantize_weight(weight: Array, axis: int | None) -> WeightCodes:
    """Symmetric codes, the largest magnitude of each channel being 127. A channel of zeros gets the scale 1."""
    values = weight.astype(np.float32)
    others = tuple(a for a in range(values.ndim) if a != axis) if axis is not None else None
    peak = np.abs(values).max(axis=others)
    scale = np.where(peak > 0, peak / LEVELS, 1.0)
    scale = np.maximum(scale, _SMALLEST_SCALE[str(weight.dtype)]).astype(weight.dtype)
    shape = [-1 if a == axis else 1 for a in range(values.ndim)] if axis is not None else []
    # The codes belong to the scale as it is stored, rounded to FP16 where the weight is.
    codes = np.rint(values / scale.astype(np.float32).reshape(shape))
    return WeightCodes(np.clip(codes, -LEVELS, LEVELS).astype(np.int8), np.asarray(scale))


@dataclass
class Quantizer:
    """Makes INT8 copies of one graph. Weights are quantized once and shared by all copies.

    `scales`: layer -> scale of its activation.
    """

    graph: FloatGraph
    scales: Mapping[str, float]

    def __post_init__(self) -> None:
        self._codes: dict[tuple[str, int | None], WeightCodes] = {}

    def quantize(self, layers: Sequence[Layer]) -> tuple[ModelProto, dict[str, Array]]:
        """A copy of the graph with these layers in INT8, and the values of its new large initializers."""
        model = self.graph.copy()
        names = _Names(model)
        nodes = {node.name: node for node in model.graph.node}
        arrays: dict[str, Array] = {}
        activations: dict[tuple[str, float, str], str] = {}
        weights: dict[tuple[str, int | None], str] = {}
        before: dict[str, list[Any]] = {}
        for layer in layers:
            node = nodes[layer.name]
            dtype = str(self.graph.weight(layer.weight_name).dtype)
            source = node.input[layer.data]
            scale = max(self.scales[layer.name], _SMALLEST_SCALE[dtype])
            key = (source, scale, dtype)
            if key not in activations:
                activations[key] = self._activation(model, names, key, before.setdefault(layer.name, []))
            code_key = (layer.weight_name, layer.axis)
            if code_key not in weights:
                weights[code_key] = self._weight(model, names, code_key, arrays, before.setdefault(layer.name, []))
            node.input[layer.data], node.input[layer.weight] = activations[key], weights[code_key]
        ordered = [new for node in model.graph.node for new in (*before.get(node.name, ()), node)]
        copies = [type(node).FromString(node.SerializeToString()) for node in ordered]
        del model.graph.node[:]
        model.graph.node.extend(copies)
        drop_unused(model)
        kept = {tensor.name for tensor in model.graph.initializer}
        return model, {name: value for name, value in arrays.items() if name in kept}

    def _activation(self, model: ModelProto, names: _Names, key: tuple[str, float, str], nodes: list[Any]) -> str:
        from onnx import helper

        source, scale, dtype = key
        stem = names.free(f"{source}_int8", ("_scale", "_zero", "", "_float"))
        self._constants(model, stem, np.asarray(scale, dtype), np.zeros((), np.int8))
        parameters = [f"{stem}_scale", f"{stem}_zero"]
        nodes.append(helper.make_node("QuantizeLinear", [source, *parameters], [stem], name=f"{stem}_quantize"))
        nodes.append(
            helper.make_node("DequantizeLinear", [stem, *parameters], [f"{stem}_float"], name=f"{stem}_dequantize")
        )
        return f"{stem}_float"

    def _weight(
        self,
        model: ModelProto,
        names: _Names,
        key: tuple[str, int | None],
        arrays: dict[str, Array],
        nodes: list[Any],
    ) -> str:
        from onnx import helper

        name, axis = key
        if key not in self._codes:
            self._codes[key] = quantize_weight(self.graph.weight(name), axis)
        made = self._codes[key]
        stem = names.free(f"{name}_int8", ("_scale", "_zero", "", "_float"))
        self._constants(model, stem, made.scale, np.zeros(made.scale.shape, np.int8))
        model.graph.initializer.append(placeholder(stem, made.codes))
        arrays[stem] = made.codes
        attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
        nodes.append(
            helper.make_node(
                "DequantizeLinear",
                [stem, f"{stem}_scale", f"{stem}_zero"],
                [f"{stem}_float"],
                name=f"{stem}_dequantize",
                **attributes,
            )
        )
        return f"{stem}_float"

    @staticmethod
    def _constants(model: ModelProto, stem: str, scale: Array, zero: Array) -> None:
        from onnx import numpy_helper

        model.graph.initializer.append(numpy_helper.from_array(scale, f"{stem}_scale"))
        model.graph.initializer.append(numpy_helper.from_array(zero, f"{stem}_zero"))


class _Names:
    """Names of values and nodes that a graph has not used."""

    def __init__(self, model: ModelProto) -> None:
        graph = model.graph
        self._taken = {tensor.name for tensor in graph.initializer} | {value.name for value in graph.input}
        for node in graph.node:
            self._taken |= {node.name, *node.input, *node.output}

    def free(self, stem: str, suffixes: Sequence[str]) -> str:
        """`stem`, or with a number behind it: none of its names with the suffixes is taken, and they are now."""
        name, number = stem, 0
        wanted = {name + suffix for suffix in (*suffixes, "_quantize", "_dequantize")}
        while wanted & self._taken:
            number += 1
            name = f"{stem}_{number}"
            wanted = {name + suffix for suffix in (*suffixes, "_quantize", "_dequantize")}
        self._taken |= wanted
        return name
