"""A small repository of python-backend models for the client's tests."""

from __future__ import annotations

import json
from pathlib import Path

DATATYPES = (
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "BF16", "BYTES"),
)

_HEAD = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils
"""

# BF16 has no numpy dtype in the backend, so tensors pass through as DLPack there; as they are everywhere else.
_IDENTITY = (
    _HEAD
    + """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            outputs = []
            for tensor in request.inputs():
                name = tensor.name().replace("x", "y", 1)
                if name == "y_BF16":
                    outputs.append(pb_utils.Tensor.from_dlpack(name, tensor.to_dlpack()))
                else:
                    outputs.append(pb_utils.Tensor(name, tensor.as_numpy()))
            answers.append(pb_utils.InferenceResponse(outputs))
        return answers
"""
)

_ADDONE = (
    _HEAD
    + """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("y", pb_utils.get_input_tensor_by_name(r, "x").as_numpy() + np.float32(1))]
            )
            for r in requests
        ]
"""
)

_SLOW = (
    _HEAD
    + """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for r in requests:
            x = pb_utils.get_input_tensor_by_name(r, "x").as_numpy()
            time.sleep(float(x[0, 0]))
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
        return answers
"""
)

IMAGE = '{"resize": {"mode": "exact", "height": 4, "width": 4}, "std": [255, 255, 255]}'
CLASSES = '{"output": "scores", "activation": "softmax"}'

# The mean of each channel: a picture's colour is its class.
_MEANS = (
    _HEAD
    + """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for r in requests:
            x = pb_utils.get_input_tensor_by_name(r, "image").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("scores", x.mean((2, 3)) * np.float32(5))]))
        return answers
"""
)

_FAILING = (
    _HEAD
    + """
class TritonPythonModel:
    def execute(self, requests):
        error = pb_utils.TritonError("the model says no: größe")
        return [pb_utils.InferenceResponse(error=error) for _ in requests]
"""
)

_OPTIONAL = (
    _HEAD
    + """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for r in requests:
            y = pb_utils.get_input_tensor_by_name(r, "x").as_numpy()
            bias = pb_utils.get_input_tensor_by_name(r, "bias")
            y = y if bias is None else y + bias.as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
        return answers
"""
)


def _io(kind: str, tensors: list[tuple[str, str, list[int], str]]) -> str:
    entries = [
        f'{{ name: "{name}" data_type: TYPE_{"STRING" if dtype == "BYTES" else dtype} '
        f"dims: [{', '.join(map(str, dims))}] {extra} }}"
        for name, dtype, dims, extra in tensors
    ]
    return f"{kind} [{', '.join(entries)}]\n"


def write_model(
    repository: Path,
    name: str,
    code: str,
    *,
    inputs: list[tuple[str, str, list[int], str]],
    outputs: list[tuple[str, str, list[int], str]],
    max_batch_size: int = 0,
    extra: str = "",
    versions: tuple[int, ...] = (1,),
) -> None:
    """One python-backend entry."""
    for version in versions:
        folder = repository / name / str(version)
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(code)
    (repository / name / "config.pbtxt").write_text(
        f'backend: "python"\nmax_batch_size: {max_batch_size}\n'
        + _io("input", inputs)
        + _io("output", outputs)
        + "instance_group [{ kind: KIND_CPU count: 1 }]\n"
        + extra
    )


def write_add_one(repository: Path, name: str) -> None:
    """An unbatched `addone` of another name."""
    write_model(repository, name, _ADDONE, inputs=[("x", "FP32", [3], "")], outputs=[("y", "FP32", [3], "")])


def write_repository(repository: Path) -> None:
    """Every model the tests of the client call."""
    x3, y3 = [("x", "FP32", [3], "")], [("y", "FP32", [3], "")]
    # One model for all data types keeps the number of stub processes small.
    kinds = DATATYPES
    write_model(
        repository,
        "identity",
        _IDENTITY,
        inputs=[(f"x_{kind}", kind, [-1, -1], "optional: true") for kind in kinds],
        outputs=[(f"y_{kind}", kind, [-1, -1], "") for kind in kinds],
    )
    write_model(
        repository,
        "addone",
        _ADDONE,
        inputs=x3,
        outputs=y3,
        max_batch_size=8,
        versions=(1, 3),
        extra="version_policy: { all {} }\ndynamic_batching { max_queue_delay_microseconds: 100 }\n"
        'parameters: { key: "colour" value: { string_value: "blue" } }\n',
    )
    write_model(
        repository,
        "slow",
        _SLOW,
        inputs=x3,
        outputs=y3,
        max_batch_size=1,
        extra="dynamic_batching { default_queue_policy { timeout_action: REJECT allow_timeout_override: true "
        "default_timeout_microseconds: 60000000 } }\n",
    )
    write_model(
        repository,
        "pictures",
        _MEANS,
        inputs=[("image", "FP32", [3, 4, 4], "")],
        outputs=[("scores", "FP32", [3], 'label_filename: "labels.txt"')],
        max_batch_size=2,
        extra=f'parameters {{ key: "tritonstack.image" value {{ string_value: {json.dumps(IMAGE)} }} }}\n'
        f'parameters {{ key: "tritonstack.classification" value {{ string_value: {json.dumps(CLASSES)} }} }}\n',
    )
    (repository / "pictures" / "labels.txt").write_text("red: of an apple\ngreen\nblau (größer)\n")
    write_model(repository, "failing", _FAILING, inputs=x3, outputs=y3)
    write_model(
        repository,
        "optional",
        _OPTIONAL,
        inputs=[*x3, ("bias", "FP32", [3], "optional: true")],
        outputs=y3,
    )
    write_model(
        repository,
        "classify",
        _ADDONE,
        inputs=x3,
        outputs=[("y", "FP32", [3], 'label_filename: "labels.txt"')],
        max_batch_size=4,
    )
    (repository / "classify" / "labels.txt").write_text("tabby: a cat\ntiger\ngröße\n")
