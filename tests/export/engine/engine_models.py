"""Tiny ONNX models, good and bad ones, and repository entries around them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS = 4


def weight(name: str, shape: Sequence[int], dtype: str = "float32") -> TensorProto:
    values = np.random.default_rng(len(name)).standard_normal(shape) * 0.1
    return numpy_helper.from_array(values.astype(dtype), name)


def info(name: str, shape: Sequence[int | str], dtype: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: list[Any]) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    domains = [helper.make_opsetid("", 19), helper.make_opsetid("custom", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=9)


def conv(*, batch: int | str = "batch", dtype: str = "float32", size: int = 8) -> onnx.ModelProto:
    """y = Conv(x), x[batch,3,size,size] -> y[batch,4,size,size]."""
    kind = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}[dtype]
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1, 1, 1, 1])
    return model(
        [node],
        [info("x", [batch, 3, size, size], kind)],
        [info("y", [batch, CHANNELS, size, size], kind)],
        [weight("w", [CHANNELS, 3, 3, 3], dtype)],
    )


def conv_fp16() -> onnx.ModelProto:
    """The same with FP32 ends: Cast, Conv in FP16, Cast."""
    nodes = [
        helper.make_node("Cast", ["x"], ["xh"], to=TensorProto.FLOAT16),
        helper.make_node("Conv", ["xh", "w"], ["yh"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Cast", ["yh"], ["y"], to=TensorProto.FLOAT),
    ]
    ends = [info("x", ["batch", 3, 8, 8])], [info("y", ["batch", CHANNELS, 8, 8])]
    return model(nodes, *ends, [weight("w", [CHANNELS, 3, 3, 3], "float16")])


def conv_int8(
    *, zero_point: int = 0, scale: float = 0.05, bias: bool = False, zero_dtype: str = "int8"
) -> onnx.ModelProto:
    """Conv with Quantize/Dequantize on its input and its weight; `bias`: an INT32 bias with a Dequantize of its own."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"], name="x_quantize"),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"], name="x_dequantize"),
        helper.make_node("QuantizeLinear", ["w", "ws", "wz"], ["wq"], name="w_quantize", axis=0),
        helper.make_node("DequantizeLinear", ["wq", "ws", "wz"], ["wd"], name="w_dequantize", axis=0),
    ]
    weights = [
        weight("w", [CHANNELS, 3, 3, 3]),
        numpy_helper.from_array(np.array(scale, np.float32), "xs"),
        numpy_helper.from_array(np.array(zero_point, zero_dtype), "xz"),
        numpy_helper.from_array(np.full(CHANNELS, 0.01, np.float32), "ws"),
        numpy_helper.from_array(np.zeros(CHANNELS, np.int8), "wz"),
    ]
    inputs = ["xd", "wd"]
    if bias:
        nodes.append(helper.make_node("DequantizeLinear", ["b", "bs"], ["bd"], name="b_dequantize"))
        weights.append(numpy_helper.from_array(np.ones(CHANNELS, np.int32), "b"))
        weights.append(numpy_helper.from_array(np.array(0.001, np.float32), "bs"))
        inputs.append("bd")
    nodes.append(helper.make_node("Conv", inputs, ["y"], name="conv", pads=[1, 1, 1, 1]))
    return model(nodes, [info("x", ["batch", 3, 8, 8])], [info("y", ["batch", CHANNELS, 8, 8])], weights)


def one_node(
    operator: str,
    *,
    domain: str = "",
    dtype: int = TensorProto.FLOAT,
    out: int | None = None,
    second: TensorProto | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """x[batch,3] -> y[batch,3] through one node called `it`."""
    inputs = ["x"] + ([second.name] if second is not None else [])
    node = helper.make_node(operator, inputs, ["y"], name="it", domain=domain, **attributes)
    weights = [second] if second is not None else []
    return model([node], [info("x", ["batch", 3], dtype)], [info("y", ["batch", 3], out or dtype)], weights)


def save(proto: onnx.ModelProto, path: Path, *, external: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if external:
        onnx.save(proto, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=0)
    else:
        onnx.save(proto, path)
    return path


CONFIG = """# served by ONNX Runtime
name: "NAME"
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3, 8, 8 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4, 8, 8 ] label_filename: "labels.txt" } ]
instance_group [ { count: 2 kind: KIND_AUTO } ]
dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 100 }
optimization {
  graph { level: 1 }
  execution_accelerators { gpu_execution_accelerator [ { name: "cuda" } ] }
}
model_warmup [ {
  name: "one" batch_size: 1
  inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 3, 8, 8 ] zero_data: true } }
} ]
parameters { key: "intra_op_thread_count" value { string_value: "2" } }
parameters { key: "session.disable_quant_qdq" value { string_value: "1" } }
parameters { key: "tritonstack.classification" value { string_value: "{\\"output\\": \\"y\\", \\"activation\\": \\"none\\"}" } }
version_policy { latest { num_versions: 1 } }
"""  # noqa: E501


def add_entry(
    repository: Path,
    name: str = "net",
    proto: onnx.ModelProto | None = None,
    *,
    version: int = 1,
    config: str = CONFIG,
    engine: Mapping[str, Any] | None = None,
    precision: str = "fp32",
    with_manifest: bool = True,
) -> Path:
    """An entry as `tritonstack export` leaves it: config, labels, ONNX file, manifest. Returns its folder."""
    from tritonstack_export.repository import manifest

    folder = repository / name
    save(proto or conv(), folder / str(version) / "model.onnx")
    (folder / "config.pbtxt").write_text(config.replace("NAME", name))
    (folder / "labels.txt").write_text("".join(f"class {number}\n" for number in range(256)))
    if with_manifest:
        fields: dict[str, Any] = {
            "name": name,
            "precision": precision,
            "inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", 3, 8, 8]}],
            "outputs": [{"name": "y", "dtype": "float32", "shape": ["batch", 4, 8, 8]}],
            "dimensions": {"batch": {"min": 1, "opt": 4, "max": 8}},
            "spec": {"name": name, **({"engine": dict(engine)} if engine else {})},
        }
        files = manifest.digest_version(folder / str(version), also=[folder / "config.pbtxt", folder / "labels.txt"])
        manifest.write(folder / str(version), manifest.Manifest(files=files, fields=fields))
    return folder


def plan_bytes(seed: bytes = b"engine", *, version: tuple[int, int, int, int] = (10, 14, 1, 48)) -> bytes:
    """Bytes with the header of a TensorRT engine; nothing could run them."""
    head = b"ftrt" + bytes(20) + bytes(version) + bytes(4)
    return head + hashlib.sha256(seed).digest() * 64


def listing(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())
