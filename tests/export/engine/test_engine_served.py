"""What a switch leaves for the real tritonserver: ONNX Runtime still serves the entry, in both ways that it should.

The embedded server has no tensorrt backend, so that it answers at all shows that no engine was touched.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_models import add_entry
from test_engine_entries import H200, bake, no_machine, one, run

from tritonstack_export.engine.build_engines import build_engines
from tritonstack_export.engine.cache import EngineCache

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("pytriton") is None, reason="the embedded tritonserver (nvidia-pytriton) is not installed"
)


def answer(server: Any) -> Any:
    from tritonstack import Client

    with Client(server.http_url) as client:
        return client.infer("net", {"x": np.ones((2, 3, 8, 8), np.float32)})["y"]


def onnx_answer(folder: Path) -> Any:
    import onnxruntime as ort

    session = ort.InferenceSession(str(folder / "1" / "model.onnx"))
    return session.run(None, {"x": np.ones((2, 3, 8, 8), np.float32)})[0]


def switched(tmp_path: Path) -> tuple[Path, EngineCache]:
    repository, cache = tmp_path / "repository", EngineCache(tmp_path / "cache")
    add_entry(repository)
    bake(cache, repository)
    assert one(run(repository, cache, machine=H200)).status == "engine"
    return repository, cache


def test_the_config_that_is_kept_serves_by_its_name(tmp_path: Path, start_server: Callable[..., Any]) -> None:
    repository, _ = switched(tmp_path)
    server = start_server(repository, extra_arguments=["--model-config-name=onnxruntime"])
    np.testing.assert_allclose(answer(server), onnx_answer(repository / "net"), rtol=1e-4, atol=1e-5)


def test_an_entry_that_fell_back_serves_with_the_engine_beside_it(
    tmp_path: Path, start_server: Callable[..., Any]
) -> None:
    repository, cache = switched(tmp_path)
    assert one(build_engines(repository, find_machine=no_machine, cache=cache)).status == "onnx"
    assert (repository / "net" / "1" / "model.plan").is_file()
    np.testing.assert_allclose(answer(start_server(repository)), onnx_answer(repository / "net"), rtol=1e-4, atol=1e-5)
