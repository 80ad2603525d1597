"""The PyTorch op on the backend's core: what it is for torch. What it computes is in test_torch_op_semantics.py."""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from image_op_build import image_op

IMAGENET: dict[str, Any] = {
    "resize": "shorter", "height": 40, "center_crop": [32, 32], "scale": 1 / 255,
    "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225],
}  # fmt: skip


@pytest.fixture(scope="module")
def op() -> ModuleType:
    return image_op()


def pixels(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_it_is_a_registered_operator(op: ModuleType) -> None:
    found = torch.ops.tritonstack.image_preprocess(pixels(60, 80, 3), **IMAGENET)
    assert found.shape == (3, 32, 32) and found.dtype == torch.float32 and found.is_contiguous()
    assert torch.equal(found, op.image_preprocess(pixels(60, 80, 3), **IMAGENET))


@pytest.mark.parametrize(
    "settings",
    [
        IMAGENET,
        {"resize": "exact", "height": 7, "width": 9, "layout": "NHWC", "dtype": torch.float16},
        {"resize": "letterbox", "height": 20, "width": 20, "pad_value": 114, "dtype": torch.bfloat16},
        {"resize": "none", "dtype": torch.uint8},
        {"resize": "shorter", "height": 11, "crop_fraction": 0.875},
        {"resize": "shorter", "height": 11},
    ],
)
@pytest.mark.parametrize("shape", [(24, 31, 3), (2, 33, 24, 3)])
def test_opcheck(op: ModuleType, settings: dict[str, Any], shape: tuple[int, ...]) -> None:
    """torch's own tests of a custom op: its schema, its fake kernel, and tracing with symbolic sizes."""
    names = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.tritonstack.image_preprocess.default, (pixels(*shape),), settings, test_utils=names)


def test_a_batch_is_its_pictures_one_by_one(op: ModuleType) -> None:
    batch = pixels(3, 50, 41, 3)
    together = op.image_preprocess(batch, **IMAGENET)
    assert together.shape == (3, 3, 32, 32)
    for picture, sample in zip(batch, together, strict=True):
        assert torch.equal(op.image_preprocess(picture, **IMAGENET), sample)
    assert op.image_preprocess(batch[:0], **IMAGENET).shape == (0, 3, 32, 32)


def test_strides_do_not_matter(op: ModuleType) -> None:
    large = pixels(80, 100, 3)
    for view in (large[3:63, 10:90], large.flip(0), large.permute(1, 0, 2), large[::2, ::2], large.flip(2)):
        assert torch.equal(op.image_preprocess(view, **IMAGENET), op.image_preprocess(view.clone(), **IMAGENET))


def test_compiled_and_exported(op: ModuleType) -> None:
    class Model(torch.nn.Module):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return torch.ops.tritonstack.image_preprocess(image, **IMAGENET).mean(dim=(-1, -2)) * 2

    model = Model()
    compiled = torch.compile(model, backend="aot_eager", dynamic=True, fullgraph=True)
    for shape in ((60, 80, 3), (90, 45, 3)):
        assert torch.equal(compiled(pixels(*shape)), model(pixels(*shape)))
    sizes = {0: torch.export.Dim("height", min=40, max=4000), 1: torch.export.Dim("width", min=40, max=4000)}
    exported = torch.export.export(model, (pixels(60, 80, 3),), dynamic_shapes={"image": sizes})
    assert "tritonstack.image_preprocess" in str(exported.graph)
    for shape in ((60, 80, 3), (333, 50, 3)):
        assert torch.equal(exported.module()(pixels(*shape)), model(pixels(*shape)))


def test_pixels_have_no_gradient(op: ModuleType) -> None:
    assert not op.image_preprocess(pixels(60, 80, 3), **IMAGENET).requires_grad


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"resize": "squash"}, "bad parameter 'resize'; given 'squash'; expected one of exact, shorter, letterbox"),
        ({"resize": "exact", "height": 8}, "width"),
        ({"resize": "exact", "height": 0, "width": 8}, "bad parameter 'height'; given '0'"),
        ({"interpolation": "lanczos"}, "bad parameter 'interpolation'; given 'lanczos'"),
        ({"std": [1.0, 0.0, 1.0]}, "bad parameter 'std'"),
        ({"mean": [1.0]}, "bad parameter 'mean'"),
        ({"scale": float("nan")}, "bad parameter 'scale'"),
        ({"center_crop": [100, 100]}, "smaller than the crop; given 24 × 31 pixels"),
        ({"dtype": torch.uint8, "scale": 0.5}, "TYPE_UINT8 carries raw pixels"),
        ({"dtype": torch.float64}, "dtype is torch.float64"),
    ],
)
def test_what_makes_no_sense_is_refused(op: ModuleType, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        op.image_preprocess(pixels(24, 31, 3), **settings)


@pytest.mark.parametrize("bad", [torch.zeros(4, 4, 3), torch.zeros(3, 4, 4, dtype=torch.uint8), pixels(4, 3)])
def test_other_tensors_are_refused(op: ModuleType, bad: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"expected uint8 \[y, x, 3\]"):
        op.image_preprocess(bad)


def test_no_pixels_at_all(op: ModuleType) -> None:
    with pytest.raises(ValueError, match="no pixels"):
        op.image_preprocess(pixels(0, 5, 3))


def test_threads_share_a_processor(op: ModuleType) -> None:
    pictures = [pixels(100 + i, 90, 3, seed=i) for i in range(8)]
    alone = [op.image_preprocess(picture, **IMAGENET) for picture in pictures]
    found: dict[int, list[torch.Tensor]] = {}

    def work(thread: int) -> None:
        found[thread] = [op.image_preprocess(picture, **IMAGENET) for picture in pictures]

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for answers in found.values():
        assert all(torch.equal(a, b) for a, b in zip(alone, answers, strict=True))
    assert len(found) == 4


def test_a_missing_library_says_what_builds_it(op: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    op.library.cache_clear()
    op._processor.cache_clear()
    try:
        with monkeypatch.context() as patch:
            patch.setenv("TRITONSTACK_IMAGE_OP", str(tmp_path / "none.so"))
            with pytest.raises(FileNotFoundError, match=r"torch/build\.sh"):
                op.image_preprocess(pixels(4, 4, 3))
    finally:
        op.library.cache_clear()
    assert op.image_preprocess(pixels(4, 4, 3)).shape == (3, 4, 4)


@pytest.mark.gpu
def test_gpu_equals_cpu(op: ModuleType) -> None:
    assert op.library().tsimage_has_gpu(), "name a library built with nvcc in TRITONSTACK_IMAGE_OP"
    for settings in (IMAGENET, {**IMAGENET, "round_u8": False}):
        picture = pixels(480, 640, 3)
        on_gpu = op.image_preprocess(picture.cuda(), **settings).cpu()
        np.testing.assert_allclose(on_gpu, op.image_preprocess(picture, **settings), atol=1 / 255 / 0.224)
