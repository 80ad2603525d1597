"""FP16 and INT8 graphs on a GPU through the real server: as `export` writes them, FP32 at the ends or FP16."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tiny_models import TinyModel, onnx_config, save_graph, value

from tritonstack import Client
from tritonstack_deploy.embedded import EmbeddedServer

pytestmark = pytest.mark.gpu
GPU = "instance_group { count: 1 kind: KIND_GPU }\n"
WEIGHTS = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32) / 8
IMAGES = np.random.default_rng(1).uniform(-1, 1, (4, 3, 16, 16)).astype(np.float32)


def plain() -> TinyModel:
    """float32 [N, 3, 16, 16] to [N, 8, 16, 16]."""

    def write(folder: Path) -> None:
        save_graph(
            folder / "model.onnx",
            [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
            [value("x", "FLOAT", ["N", 3, 16, 16])],
            [value("y", "FLOAT", ["N", 8, 16, 16])],
            [numpy_helper.from_array(WEIGHTS, "w")],
        )

    ends = ([("x", "TYPE_FP32", "[ 3, 16, 16 ]")], [("y", "TYPE_FP32", "[ 8, 16, 16 ]")])
    return TinyModel("plain", onnx_config(*ends, extra=GPU), write)


def half(name: str, *, ends: str) -> TinyModel:
    """The same in FP16, with inputs and outputs in FP32 behind Casts, or in FP16."""

    def write(folder: Path) -> None:
        nodes = [helper.make_node("Conv", ["h", "w"], ["g"], pads=[1, 1, 1, 1])]
        if ends == "FLOAT":
            nodes.insert(0, helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16))
            nodes.append(helper.make_node("Cast", ["g"], ["y"], to=TensorProto.FLOAT))
        else:
            nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])]
        save_graph(
            folder / "model.onnx",
            nodes,
            [value("x", ends, ["N", 3, 16, 16])],
            [value("y", ends, ["N", 8, 16, 16])],
            [numpy_helper.from_array(WEIGHTS.astype(np.float16), "w")],
        )

    kind = "TYPE_FP32" if ends == "FLOAT" else "TYPE_FP16"
    tensors = ([("x", kind, "[ 3, 16, 16 ]")], [("y", kind, "[ 8, 16, 16 ]")])
    return TinyModel(name, onnx_config(*tensors, extra=GPU), write)


def quantized() -> TinyModel:
    """The same with Q/DQ before the input and INT8 weights, one scale per channel."""
    scales = np.abs(WEIGHTS).max(axis=(1, 2, 3)) / 127
    codes = np.rint(WEIGHTS / scales[:, None, None, None]).astype(np.int8)

    def write(folder: Path) -> None:
        save_graph(
            folder / "model.onnx",
            [
                helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
                helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
                helper.make_node("DequantizeLinear", ["codes", "ws", "wz"], ["w"], axis=0),
                helper.make_node("Conv", ["d", "w"], ["y"], pads=[1, 1, 1, 1]),
            ],
            [value("x", "FLOAT", ["N", 3, 16, 16])],
            [value("y", "FLOAT", ["N", 8, 16, 16])],
            [
                numpy_helper.from_array(np.float32(1 / 127).reshape(()), "s"),
                numpy_helper.from_array(np.int8(0).reshape(()), "z"),
                numpy_helper.from_array(codes, "codes"),
                numpy_helper.from_array(scales.astype(np.float32), "ws"),
                numpy_helper.from_array(np.zeros(8, np.int8), "wz"),
            ],
        )

    option = 'parameters { key: "session.disable_quant_qdq" value { string_value: "1" } }\n'
    ends = ([("x", "TYPE_FP32", "[ 3, 16, 16 ]")], [("y", "TYPE_FP32", "[ 8, 16, 16 ]")])
    return TinyModel("quantized", onnx_config(*ends, extra=GPU + option), write)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    root = tmp_path_factory.mktemp("models")
    for model in (plain(), half("half", ends="FLOAT"), half("half_ends", ends="FLOAT16"), quantized()):
        model.add_to(root)
    with EmbeddedServer(root, load_timeout_s=180) as running:
        yield running


@pytest.mark.parametrize(("name", "allowed"), [("half", 0.005), ("half_ends", 0.005), ("quantized", 0.05)])
def test_answers_are_near_those_of_fp32(server: EmbeddedServer, name: str, allowed: float) -> None:
    """`allowed`: largest difference, as a share of half the spread."""
    assert server.providers[name].providers[0] == "CUDAExecutionProvider"
    with Client(server.grpc_url) as client:
        expected = client.infer("plain", {"x": IMAGES})["y"]
        images = IMAGES.astype(np.float16) if name == "half_ends" else IMAGES
        found = client.infer(name, {"x": images})["y"]
    assert found.dtype == (np.float16 if name == "half_ends" else np.float32)
    difference = np.abs(found.astype(np.float32) - expected).max()
    assert 0 < difference < allowed * float(np.ptp(expected)) / 2
