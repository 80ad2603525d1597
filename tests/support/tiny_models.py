"""Tiny ONNX and Python models for the real server, each knowing its right answer."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

Arrays = dict[str, np.ndarray]

# ONNX element type: (config.pbtxt word, numpy dtype)
DTYPES = {
    "FLOAT": ("TYPE_FP32", np.float32),
    "FLOAT16": ("TYPE_FP16", np.float16),
    "DOUBLE": ("TYPE_FP64", np.float64),
    "INT8": ("TYPE_INT8", np.int8),
    "INT16": ("TYPE_INT16", np.int16),
    "INT32": ("TYPE_INT32", np.int32),
    "INT64": ("TYPE_INT64", np.int64),
    "UINT8": ("TYPE_UINT8", np.uint8),
    "UINT16": ("TYPE_UINT16", np.uint16),
    "UINT32": ("TYPE_UINT32", np.uint32),
    "UINT64": ("TYPE_UINT64", np.uint64),
    "BOOL": ("TYPE_BOOL", np.bool_),
}


@dataclass(frozen=True)
class TinyModel:
    """A model on disk: `config` is its config.pbtxt, `write` puts the model file into the version folder."""

    name: str
    config: str
    write: Callable[[Path], None]
    answer: Callable[[Arrays], Arrays] | None = None

    def add_to(self, repository: Path, *, versions: Sequence[int] = (1,)) -> Path:
        folder = repository / self.name
        for version in versions:
            (folder / str(version)).mkdir(parents=True)
            self.write(folder / str(version))
        (folder / "config.pbtxt").write_text(self.config)
        return folder


def onnx_config(
    inputs: Sequence[tuple[str, str, str]], outputs: Sequence[tuple[str, str, str]], *, batch: int = 8, extra: str = ""
) -> str:
    """config.pbtxt text for the onnxruntime backend; tensors are (name, TYPE_…, dims with anything behind them)."""

    def tensors(kind: str, rows: Sequence[tuple[str, str, str]]) -> str:
        return "".join(f'{kind} {{ name: "{n}" data_type: {t} dims: {d} }}\n' for n, t, d in rows)

    head = f'backend: "onnxruntime"\nmax_batch_size: {batch}\n'
    return f"{head}{tensors('input', inputs)}{tensors('output', outputs)}{extra}\n"


def save_graph(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
) -> None:
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(initializers))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def value(name: str, dtype: str, shape: Sequence[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, getattr(TensorProto, dtype), list(shape))


def identity(name: str = "identity", dtype: str = "FLOAT", *, dims: str = "[ 3 ]", extra: str = "") -> TinyModel:
    """y = x, batch axis N."""
    word = "TYPE_STRING" if dtype == "STRING" else DTYPES[dtype][0]

    def write(folder: Path) -> None:
        shape = ["N", *([3] if dims == "[ 3 ]" else ["K"])]
        save_graph(
            folder / "model.onnx",
            [helper.make_node("Identity", ["x"], ["y"])],
            [value("x", dtype, shape)],
            [value("y", dtype, shape)],
        )

    return TinyModel(
        name, onnx_config([("x", word, dims)], [("y", word, dims)], extra=extra), write, lambda a: {"y": a["x"]}
    )


def affine(name: str = "affine", *, extra: str = "") -> TinyModel:
    """y = 2 x + 1 and total = sum of x along the features, float32 [N, 3] and [N, 1]."""

    def write(folder: Path) -> None:
        save_graph(
            folder / "model.onnx",
            [
                helper.make_node("Mul", ["x", "two"], ["d"]),
                helper.make_node("Add", ["d", "one"], ["y"]),
                helper.make_node("ReduceSum", ["x", "axes"], ["total"], keepdims=1),
            ],
            [value("x", "FLOAT", ["N", 3])],
            [value("y", "FLOAT", ["N", 3]), value("total", "FLOAT", ["N", 1])],
            [
                helper.make_tensor("two", TensorProto.FLOAT, [1], [2.0]),
                helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0]),
                helper.make_tensor("axes", TensorProto.INT64, [1], [1]),
            ],
        )

    return TinyModel(
        name,
        onnx_config(
            [("x", "TYPE_FP32", "[ 3 ]")],
            [("y", "TYPE_FP32", "[ 3 ]"), ("total", "TYPE_FP32", "[ 1 ]")],
            extra=extra or "dynamic_batching { }\ninstance_group { count: 1 }",
        ),
        write,
        lambda a: {"y": 2 * a["x"] + 1, "total": a["x"].sum(1, keepdims=True)},
    )


def python_model(name: str, execute: str, *, config: str = "", batch: int = 8) -> TinyModel:
    """A python-backend model: `execute` is the body of a loop over `request` that sets `response`."""
    source = (
        "import time, os\nimport numpy as np\nimport triton_python_backend_utils as pb\n\n\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        responses = []\n"
        "        for request in requests:\n"
        "            x = pb.get_input_tensor_by_name(request, 'x').as_numpy()\n"
        f"{textwrap.indent(textwrap.dedent(execute), ' ' * 12)}\n"
        "            responses.append(response)\n"
        "        return responses\n"
    )
    text = config or (
        f'backend: "python"\nmax_batch_size: {batch}\n'
        'input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }\noutput { name: "y" data_type: TYPE_FP32 dims: [ 3 ] }\n'
        "instance_group { count: 1 kind: KIND_CPU }\n"
    )
    return TinyModel(name, text, lambda folder: (folder / "model.py").write_text(source) and None)


def slow(name: str = "slow", delay_s: float = 1.5) -> TinyModel:
    """Answers x after a delay."""
    return python_model(
        name, f"time.sleep({delay_s})\nresponse = pb.InferenceResponse([pb.Tensor('y', np.ascontiguousarray(x))])"
    )
