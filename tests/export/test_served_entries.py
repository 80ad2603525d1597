"""What export publishes, asked through the real tritonserver: the entry loads and answers as the graph does."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("pytriton") is None, reason="the embedded tritonserver (nvidia-pytriton) is not installed"
)

F32 = np.float32

SPECS = {
    "dict_outputs": ("", {"x": np.ones((3, 4), F32)}),
    "int64_ids": ("", {"ids": np.array([[3_000_000_123, 5]])}),
    "uint8_image": ("", {"img": np.full((2, 8, 8, 3), 200, np.uint8)}),
    "per_sample_scalar": ("", {"x": np.ones((2, 3), F32), "length": np.array([[2.0], [3.0]], F32)}),
    "scalar_output": ("batch: false\n", {"x": np.ones((2, 3), F32)}),
    "zero_size": (
        "batch: false\ninputs: [{name: feats, dtype: float32, shape: [2, 3]}, {name: boxes, shape: [k, 4]}]\n"
        "dimensions: {k: {min: 0, opt: 5, max: 16}}\n",
        {"feats": np.ones((2, 3), F32), "boxes": np.ones((3, 4), F32)},
    ),
    "sequence": (
        "inputs:\n  - {name: ids, dtype: int64, shape: [batch, tokens], range: [0, 49]}\n"
        "  - {name: mask, dtype: int64, shape: [batch, tokens], range: [0, 1]}\n"
        "dimensions: {tokens: {min: 1, opt: 12, max: 20}}\n",
        {"ids": np.arange(10).reshape(2, 5), "mask": np.ones((2, 5), np.int64)},
    ),
    "linear": (
        "outputs: [{name: 'a/b \"q\"'}]\nserving: {response_cache: true, warmup: true, instance_group: {count: 2}}\n",
        {"x": np.ones((5, 8), F32)},
    ),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, start_server: Callable[..., Any]) -> tuple[Path, Any]:
    from tritonstack.command import main

    folder = tmp_path_factory.mktemp("served")
    models = Path(__file__).with_name("models.py")
    for name, (more, _) in SPECS.items():
        spec = folder / f"{name}.yaml"
        spec.write_text(f"name: {name}\nmodel: {{factory: '{models}:{name}'}}\n{more}")
        assert main(["export", str(spec), "--repository", str(folder / "repository"), "--quiet"]) == 0
    return folder / "repository", start_server(folder / "repository")


@pytest.mark.parametrize("name", list(SPECS))
def test_the_server_answers_as_the_graph_does(served: tuple[Path, Any], name: str) -> None:
    import onnxruntime as ort

    from tritonstack import Client

    repository, server = served
    inputs = SPECS[name][1]
    with Client(server.grpc_url) as client:
        client.wait_ready([name], timeout_s=60)
        answer = client.infer(name, inputs)
    session = ort.InferenceSession(str(repository / name / "1" / "model.onnx"))
    shapes = {value.name: len(value.shape) for value in session.get_inputs()}
    direct = {key: value.reshape(value.shape[: shapes[key]]) for key, value in inputs.items()}
    expected = dict(zip([o.name for o in session.get_outputs()], session.run(None, direct), strict=True))
    assert set(answer.outputs) == set(expected)
    for key, value in expected.items():
        assert answer[key].dtype == value.dtype
        assert np.allclose(answer[key].reshape(value.shape), value, rtol=1e-5, atol=1e-6)
