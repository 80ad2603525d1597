"""Small ONNX graphs to quantize, and what the tests ask of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from tritonstack_export.precision.dataset import Dataset, collect
from tritonstack_export.signature import Dimension, ModelInput, Signature

Array = np.ndarray[Any, Any]


def model(
    nodes: Sequence[onnx.NodeProto],
    weights: dict[str, Array],
    inputs: dict[str, Sequence[int | str]],
    outputs: dict[str, Sequence[int | str | None]],
    *,
    opset: int = 20,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "small",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s)) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s)) for n, s in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * scale).astype(np.float32)


def image_net(*, outlier: float = 1.0, opset: int = 20) -> onnx.ModelProto:
    """Three convolutions and a Gemm. `outlier`: how much larger one of 16 channels of the second one's output is; the
    next layer takes it back, so in float it changes nothing, and INT8 has no room for the other 15."""
    scale = np.ones(16, np.float32)
    scale[3] = outlier
    weights = {
        "w1": random(16, 3, 3, 3, seed=1, scale=0.3),
        "w2": random(16, 1, 3, 3, seed=2, scale=0.5) * scale[:, None, None, None],
        "b2": random(16, seed=3, scale=0.1) * scale,
        "w3": random(8, 16, 1, 1, seed=4, scale=0.3) / scale[None, :, None, None],
        "w4": random(10, 8, seed=5, scale=0.5),
        "b4": random(10, seed=6),
    }
    nodes = [
        helper.make_node("Conv", ["image", "w1"], ["c1"], name="stem", strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], name="relu"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], name="depthwise", group=16, pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["c2", "w3"], ["c3"], name="project"),
        helper.make_node("Relu", ["c3"], ["r3"], name="relu_3"),
        helper.make_node("GlobalAveragePool", ["r3"], ["g"], name="pool"),
        helper.make_node("Flatten", ["g"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "w4", "b4"], ["logits"], name="head", transB=1),
    ]
    return model(nodes, weights, {"image": ["batch", 3, 16, 16]}, {"logits": ["batch", 10]}, opset=opset)


_BATCH = {"batch": Dimension("batch", 1, 4, 8)}
IMAGES = Signature((ModelInput("image", "float32", ("batch", 3, 16, 16)),), _BATCH, True)


def vectors(width: int) -> Signature:
    return Signature((ModelInput("x", "float32", ("batch", width)),), _BATCH, True)


def samples(signature: Signature, count: int = 32, *, seed: int = 0, key: str = "calibration") -> Dataset:
    """Normal inputs, each named sample_N."""
    random_state = np.random.default_rng(seed)
    made = []
    for number in range(count):
        inputs = {}
        for tensor in signature.inputs:
            shape = tuple(1 if i == 0 else int(a) for i, a in enumerate(tensor.shape))
            inputs[tensor.name] = random_state.standard_normal(shape).astype(np.float32)
        made.append((f"sample_{number}", inputs, None))
    return collect(key, "random numbers", made, signature, keep_repeats=False)


def save(proto: onnx.ModelProto, folder: Path, name: str = "fp32.onnx") -> Path:
    path = folder / name
    onnx.save(proto, path)
    return path


def run(path: Path, inputs: dict[str, Array], *, plain: bool = False) -> dict[str, Array]:
    """Outputs by name. `plain`: without any optimisation, node by node as the graph says."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    if plain:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def counts(path: Path) -> dict[str, int]:
    """How many nodes of each operator."""
    found: dict[str, int] = {}
    for node in onnx.load(path).graph.node:
        found[node.op_type] = found.get(node.op_type, 0) + 1
    return found
