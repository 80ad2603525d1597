"""The fused kernel in OpenAI Triton: its tables, its entry, and the kernel itself in the interpreter or on a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "openai_triton_preprocess"
MODEL = EXAMPLE / "model_repository" / "fused_preprocess"
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None and os.environ.get("TRITONSTACK_REQUIRE_OPENAI_TRITON") != "1",
    reason="OpenAI Triton (PyPI triton) is not installed; TRITONSTACK_REQUIRE_OPENAI_TRITON=1 makes this a failure",
)


@pytest.fixture(scope="module")
def resampling() -> ModuleType:
    spec = importlib.util.spec_from_file_location("resampling_of_example", MODEL / "1" / "resampling.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_entry_is_sound() -> None:
    from tritonstack_export.check import check_repository

    report = check_repository(MODEL.parent)
    assert report.ok and not report.warnings, report.findings
    assert [model.name for model in report.models] == ["fused_preprocess"]


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("source", "resized"), [(50, 20), (20, 50), (7, 7), (1, 9), (300, 7), (13, 1), (1080, 256)])
def test_tables_are_those_of_torch(resampling: ModuleType, mode: str, source: int, resized: int) -> None:
    taps = resampling.make_taps(mode, source, resized, 0, resized)
    row = np.random.default_rng(source).uniform(0, 255, source).astype(np.float32)
    found = [
        float(row[first : first + len(weights)] @ weights[: source - first])
        for first, weights in zip(taps.first, taps.weights, strict=True)
    ]
    picture = torch.from_numpy(row).reshape(1, 1, 1, source)
    wanted = F.interpolate(picture, size=(1, resized), mode=mode, antialias=True).flatten()
    np.testing.assert_allclose(found, wanted, atol=2e-3)


def test_a_part_of_the_table_is_that_of_the_whole(resampling: ModuleType) -> None:
    whole = resampling.make_taps("bilinear", 100, 40, 0, 40)
    part = resampling.make_taps("bilinear", 100, 40, 8, 16)
    assert np.array_equal(part.first, whole.first[8:24])
    assert np.array_equal(part.weights, whole.weights[8:24, : part.weights.shape[1]])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"resize": "letterbox"}, "expected one of exact, shorter"),
        ({"interpolation": "nearest"}, "expected one of bilinear, bicubic"),
        ({"center_crop": "16"}, "expected HxW"),
        ({"center_crop": ""}, "leaves sizes that differ"),
        ({"mean": "1,2"}, "three numbers"),
        ({"std": "1,0,1"}, "must not be 0"),
    ],
)
def test_wrong_parameters_are_refused(resampling: ModuleType, change: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        resampling.read_settings({"resize": "shorter", "height": "20", "center_crop": "16x16", **change})


def test_a_crop_that_does_not_fit_is_refused(resampling: ModuleType) -> None:
    settings = resampling.read_settings({"resize": "exact", "height": "8", "width": "8", "center_crop": "9x8"})
    with pytest.raises(ValueError, match="smaller than the crop"):
        settings.plan(30, 30)


def verify(**environment: str) -> dict[str, Any]:
    result = subprocess.run(
        [sys.executable, EXAMPLE / "verify.py"],
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, **environment},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    assert all(row["passed"] for row in document["comparisons"])
    return document


@needs_triton
@pytest.mark.slow
def test_the_kernel_in_the_interpreter() -> None:
    assert len(verify(TRITON_INTERPRET="1")["comparisons"]) == 4


@pytest.mark.gpu
def test_the_kernel_on_the_gpu() -> None:
    assert len(verify()["comparisons"]) == 8


@needs_triton
@pytest.mark.slow
def test_through_the_real_server(tmp_path: Path, resampling: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model as it stands, in the interpreter: two sizes, and a request that fails alone."""
    from tritonstack import Client
    from tritonstack.errors import ServerError
    from tritonstack_deploy.embedded import EmbeddedServer

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    entry = tmp_path / "models" / "fused_preprocess"
    shutil.copytree(MODEL, entry, ignore=shutil.ignore_patterns("__pycache__"))
    config = (entry / "config.pbtxt").read_text()
    for old, new in {'"256"': '"20"', "224x224": "16x16", "224, 224": "16, 16", "375x500 1080x1920": ""}.items():
        assert old in config
        config = config.replace(old, new)
    (entry / "config.pbtxt").write_text(config)
    settings = resampling.read_settings(
        {"resize": "shorter", "height": "20", "center_crop": "16x16", "scale": str(1 / 255),
         "mean": "0.485,0.456,0.406", "std": "0.229,0.224,0.225"}
    )  # fmt: skip
    random = np.random.default_rng(1)
    with EmbeddedServer(tmp_path / "models") as server, Client(server.grpc_url) as client:
        for height, width in ((37, 50), (60, 24)):
            pixels = random.integers(0, 256, (1, height, width, 3), dtype=np.uint8)
            found = client.infer("fused_preprocess", {"image": pixels})["preprocessed"]
            plan = settings.plan(height, width)
            levels = F.interpolate(
                torch.from_numpy(pixels).permute(0, 3, 1, 2).float(), size=plan.resized, mode="bilinear", antialias=True
            )[:, :, plan.top : plan.top + 16, plan.left : plan.left + 16]
            mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (settings.mean, settings.std))
            wanted = (levels / 255 - mean) / std
            np.testing.assert_allclose(found.astype(np.float32), wanted, atol=3e-3)
        with pytest.raises(ServerError, match=r"no pixels|expected"):
            client.infer("fused_preprocess", {"image": np.zeros((1, 0, 5, 3), np.uint8)})
