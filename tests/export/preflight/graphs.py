"""Small ONNX graphs: good ones in several shapes, and one for each thing that TensorRT refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Make = Callable[[], onnx.ModelProto]


def _value(name: str, shape: Sequence[int | str | None], kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def _weight(name: str, value: Any, dtype: Any) -> TensorProto:
    return numpy_helper.from_array(np.asarray(value, dtype), name)


def graph(
    nodes: Sequence[Any],
    *,
    shape: Sequence[int | str | None] = ("batch", 4),
    kind: int = TensorProto.FLOAT,
    out: int | None = None,
    weights: Sequence[TensorProto] = (),
    domains: Sequence[tuple[str, int]] = (("", 20),),
) -> onnx.ModelProto:
    """x -> y through `nodes`, both of `shape`."""
    made = helper.make_graph(nodes, "g", [_value("x", shape, kind)], [_value("y", shape, out or kind)], weights)
    return helper.make_model(made, opset_imports=[helper.make_opsetid(*d) for d in domains], ir_version=10)


def save(model: onnx.ModelProto, path: Path, *, external: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if external:
        onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=0)
    else:
        onnx.save(model, path)
    return path


def relu(shape: Sequence[int | str | None] = ("batch", 4), kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    return graph([helper.make_node("Relu", ["x"], ["y"], name="relu")], shape=shape, kind=kind)


def dense(*, seed: int = 0, size: int = 64) -> onnx.ModelProto:
    """y = x · w, w of `size` × `size`: large enough to be kept outside of the file."""
    weight = np.random.default_rng(seed).standard_normal((size, size))
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="dense")
    return graph([node], shape=("batch", size), weights=[_weight("w", weight, np.float32)])


def two_inputs() -> onnx.ModelProto:
    """y = a + b, both [batch, length]."""
    shape = ("batch", "length")
    node = helper.make_node("Add", ["a", "b"], ["y"])
    made = helper.make_graph([node], "g", [_value("a", shape), _value("b", shape)], [_value("y", shape)])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def conv_net(channels: int = 8) -> onnx.ModelProto:
    """Conv, Relu, Conv with biases on x[batch,3,8,8]; initializers as an exporter writes them."""
    random = np.random.default_rng(0)
    weights = [
        _weight("w1", 0.2 * random.standard_normal((channels, 3, 3, 3)), np.float32),
        _weight("b1", 0.1 * random.standard_normal(channels), np.float32),
        _weight("w2", 0.2 * random.standard_normal((3, channels, 3, 3)), np.float32),
        _weight("b2", 0.1 * random.standard_normal(3), np.float32),
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["h"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["h"], ["r"], name="relu1"),
        helper.make_node("Conv", ["r", "w2", "b2"], ["y"], name="conv2", pads=[1, 1, 1, 1]),
    ]
    return graph(nodes, shape=("batch", 3, 8, 8), weights=weights)


def _quantized(scale: float, zero: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="quantize"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], name="dequantize"),
    ]
    return graph(nodes, weights=[_weight("s", scale, np.float32), _weight("z", zero, np.int8)])


def custom_operator() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("MyOp", ["a"], ["b"], name="custom0", domain="my"),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    return graph(nodes, domains=[("", 20), ("my", 1)])


def dynamic_quantization() -> onnx.ModelProto:
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], name="dynamic"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], name="dequantize"),
    ]
    return graph(nodes)


def mixed_types() -> onnx.ModelProto:
    return graph(
        [helper.make_node("Add", ["x", "w"], ["y"], name="add")], weights=[_weight("w", np.ones(4), np.float16)]
    )


def int32_bias() -> onnx.ModelProto:
    nodes = [
        helper.make_node("DequantizeLinear", ["b", "s"], ["c"], name="bias"),
        helper.make_node("Add", ["x", "c"], ["y"], name="add"),
    ]
    return graph(nodes, weights=[_weight("b", np.ones(4), np.int32), _weight("s", 0.1, np.float32)])


# What TensorRT refuses -> (graph, node, operator, a part of the summary or remedy).
REFUSED: dict[str, tuple[Make, str | None, str | None, str]] = {
    "custom operator": (custom_operator, "custom0", "MyOp", "neither ONNX nor a plugin"),
    "dynamic quantization": (dynamic_quantization, "dynamic", "DynamicQuantizeLinear", "replace the operator"),
    "mixed types": (mixed_types, "add", "Add", "put a Cast before it"),
    "int32 bias": (int32_bias, "bias", "DequantizeLinear", "QuantizeBias: False"),
    "zero point": (lambda: _quantized(0.1, 3), "quantize", "QuantizeLinear", "symmetric"),
    "zero scale": (lambda: _quantized(0.0, 0), "quantize", "QuantizeLinear", "scale is zero or negative"),
    "bit shift": (
        lambda: graph(
            [helper.make_node("BitShift", ["x", "x"], ["y"], name="shift", direction="LEFT")], kind=TensorProto.UINT8
        ),
        "shift",
        "BitShift",
        "no such operator",
    ),
    "string input": (
        lambda: graph([helper.make_node("Identity", ["x"], ["y"])], kind=TensorProto.STRING), None, None, "string",
    ),
    "uint32 input": (
        lambda: graph([helper.make_node("Identity", ["x"], ["y"])], kind=TensorProto.UINT32), None, None, "uint32",
    ),
}  # fmt: skip
