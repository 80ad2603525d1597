"""Builds small model repositories, sound or broken, from real ONNX models and config texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import TensorProto, helper

ONNX = 'backend: "onnxruntime"\n'
PYTHON = 'backend: "python"\n'

IDENTITY_PY = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
        return answers
"""


def identity_model(
    *,
    batch: int | str | None = "N",
    dims: Sequence[int | str] = (3,),
    dtype: str = "FLOAT",
    scalar: bool = False,
    output_batch: int | str | None = None,
    opset: int = 17,
    ir_version: int = 8,
) -> onnx.ModelProto:
    """y = x, float32 unless said otherwise; `batch=None` leaves the batch dim out; `scalar` sums y to rank 0."""
    element = getattr(TensorProto, dtype)
    shape = ([] if batch is None else [batch]) + list(dims)
    if scalar:
        nodes = [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)]
        y = helper.make_tensor_value_info("y", element, [])
    else:
        nodes = [helper.make_node("Identity", ["x"], ["y"])]
        y = helper.make_tensor_value_info("y", element, [output_batch or shape[0], *shape[1:]] if shape else [])
    x = helper.make_tensor_value_info("x", element, shape)
    graph = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def io(x: str = "[ 3 ]", y: str = "[ 3 ]", *, dtype: str = "TYPE_FP32", more_x: str = "", more_y: str = "") -> str:
    """The input `x` and the output `y` of a config, two lines."""
    return (
        f'input [ {{ name: "x" data_type: {dtype} dims: {x} {more_x}}} ]\n'
        f'output [ {{ name: "y" data_type: {dtype} dims: {y} {more_y}}} ]\n'
    )


def batching(extra: str = "", *, size: int = 8, head: str = ONNX) -> str:
    """A config that fits `identity_model()`, with `extra` behind it from line 5 on."""
    return f"{head}max_batch_size: {size}\n{io()}{extra}"


def add_model(
    root: Path,
    name: str,
    config: str | bytes | None,
    model: onnx.ModelProto | bytes | str | None = None,
    *,
    version: str | None = "1",
    file: str = "model.onnx",
) -> Path:
    """Write one entry and return its folder. The model defaults to `identity_model()`; a str is a python model."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    if version is not None:
        (folder / version).mkdir(exist_ok=True)
        content = identity_model() if model is None else model
        if isinstance(content, str):
            (folder / version / "model.py").write_text(content)
        else:
            data = content if isinstance(content, bytes) else content.SerializeToString()
            (folder / version / file).write_bytes(data)
    if config is not None:
        (folder / "config.pbtxt").write_bytes(config.encode() if isinstance(config, str) else config)
    return folder


def step(model: str, reads: str, writes: str, *, version: int = -1, key_in: str = "x", key_out: str = "y") -> str:
    """One ensemble step on one line."""
    return (
        f'step {{ model_name: "{model}" model_version: {version} input_map {{ key: "{key_in}" value: "{reads}" }} '
        f'output_map {{ key: "{key_out}" value: "{writes}" }} }}\n'
    )


def ensemble(
    *steps: str, size: int = 8, dtype: str = "TYPE_FP32", raw: str = "[ 3 ]", out: str = "[ 3 ]", extra: str = ""
) -> str:
    """An ensemble config from `raw` to `out`; its first step stands on line 6."""
    return (
        f'platform: "ensemble"\nmax_batch_size: {size}\n'
        f'input [ {{ name: "raw" data_type: TYPE_FP32 dims: {raw} }} ]\n'
        f'output [ {{ name: "out" data_type: {dtype} dims: {out} }} ]\n'
        f"ensemble_scheduling {{\n{''.join(steps)}}}\n{extra}"
    )


def add_ensemble(root: Path, name: str, config: str, *, version: bool = True) -> Path:
    folder = root / name
    (folder / "1" if version else folder).mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    return folder
