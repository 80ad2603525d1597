"""EfficientNet-Lite0 answers as ever when the backend prepares its pictures: by its CPU path, and by its GPU path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from image_kinds import GPU_TESTS, direct_library, load_module

ROOT = Path(__file__).resolve().parents[2]
PHOTOS = ROOT / ".cache" / "photos"
MODEL_SWITCH = "TRITONSTACK_CLASSIFIER"
# Of the 244 pictures one or two lie so near an edge between classes that a level of one pixel decides.
ON_THE_EDGE = 1

pytestmark = [pytest.mark.photos, pytest.mark.slow]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported model; TRITONSTACK_CLASSIFIER names one that is ready, for machines without what export needs."""
    if ready := os.environ.get(MODEL_SWITCH):
        return Path(ready)
    from tritonstack.command import main

    repository = tmp_path_factory.mktemp("models")
    spec = ROOT / "examples" / "efficientnet_lite0" / "spec.yaml"
    assert main(["export", str(spec), "--repository", str(repository), "--precision", "fp32", "--quiet"]) == 0
    return repository / "efficientnet_lite0" / "1" / "model.onnx"


@pytest.mark.parametrize(
    "device",
    [
        pytest.param(
            -1,
            id="CPU",
            marks=pytest.mark.skipif(
                not direct_library().is_file(), reason="the C entry is built where an nvcc is found (make backend)"
            ),
        ),
        pytest.param(0, id="GPU", marks=pytest.mark.gpu),
    ],
)
def test_top1_is_that_of_pillow(classifier: Path, device: int) -> None:
    top1 = load_module(GPU_TESTS / "top1.py", "image_top1")
    pixels, paths = top1.make_pixels(str(direct_library()), PHOTOS, device=device)
    assert set(paths) <= ({"cpu_jpeg"} if device < 0 else {"gpu_hardware", "gpu_hybrid"}), set(paths)
    found = top1.judge(classifier, PHOTOS, pixels)
    assert found["pictures"] >= 200
    if device < 0:
        assert found["largest_distance"] == 0 and found["changed"] == []
    assert abs(found["right"] - found["right_by_pillow"]) <= ON_THE_EDGE, found
