"""FP16 and INT8 of the other two examples, from their specs: accuracy, pre-flight, and what the real server answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tritonstack import Client
from tritonstack_deploy.embedded import EmbeddedServer

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def tritonstack(*arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "tritonstack", *arguments], capture_output=True, text=True, timeout=500
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def export(model: str, repository: Path) -> dict[str, Any]:
    spec = str(ROOT / "examples" / model / "spec.yaml")
    report = json.loads(tritonstack("export", spec, "--repository", str(repository), "--preflight", "--json"))
    variants = {variant["precision"]: variant for variant in report["variants"]}
    assert list(variants) == ["fp32", "fp16", "int8"]
    assert all(variant["preflight"]["passed"] for variant in variants.values())
    # One of the 244 pictures is worth 0.41 points: none may be lost on most machines, one on some.
    assert variants["fp16"]["accuracy"]["drop_points"] <= (0.42 if model == "mobilenet_v2" else 0.1)
    assert variants["int8"]["accuracy"]["drop_points"] <= 1.0
    assert variants["int8"]["conversion"]["layers"]["int8"] >= 0.5 * variants["int8"]["conversion"]["layers"]["total"]
    return variants


@pytest.mark.photos
def test_mobilenet_v2(tmp_path: Path) -> None:
    """Ten of its layers cost whole points in INT8: some have to fall back, and each says why."""
    variants = export("mobilenet_v2", tmp_path / "models")
    assert variants["fp32"]["accuracy"]["samples"] == 244
    excluded = variants["int8"]["conversion"]["excluded"]
    assert excluded and all(layer["sensitivity_db"] is not None for layer in excluded)
    # Pre-flight of the repository is from cache now: every variant was built a moment ago.
    again = json.loads(tritonstack("preflight", str(tmp_path / "models"), "--json"))
    assert [result["cached"] for result in again["results"]] == [True] * 3
    images = np.random.default_rng(3).uniform(-1, 1, (2, 3, 224, 224)).astype(np.float32)
    with EmbeddedServer(tmp_path / "models") as server, Client(server.grpc_url) as client:
        answers = [client.infer(v["name"], {"image": images})["logits"] for v in variants.values()]
    spread = float(np.ptp(answers[0])) / 2
    assert np.abs(answers[1] - answers[0]).max() < 0.05 * spread
    assert np.abs(answers[2] - answers[0]).max() < 0.5 * spread


def test_sentence_embedding(tmp_path: Path) -> None:
    """Two dynamic dimensions, a callable as metric, norms that FP16 would overflow."""
    variants = export("sentence_embedding", tmp_path / "models")
    assert variants["fp32"]["accuracy"]["value"] > 0.65
    reasons = " ".join(island["reason"] for island in variants["fp16"]["conversion"]["fp32_islands"])
    assert "norm" in reasons
