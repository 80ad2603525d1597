# ruff: noqa: S101 (tests assert; the rule knows only the folder tests)
"""The GPU path against the CPU path of the same core, and both against Pillow.

Needs a GPU and the library of build_library.sh (TRITONSTACK_IMAGE_LIBRARY); nvJPEG by TRITONSTACK_NVJPEG or the loader.
"""

from __future__ import annotations

import io
import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_library import EncodedBatch, ImageLibrary, bfloat16
from photos import jpeg, photo
from PIL import Image

LIBRARY = os.environ.get("TRITONSTACK_IMAGE_LIBRARY", "")
NVJPEG = {"nvjpeg_path": path} if (path := os.environ.get("TRITONSTACK_NVJPEG", "")) else {}
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not Path(LIBRARY).is_file() and os.environ.get("TRITONSTACK_REQUIRE_GPU") != "1",
        reason="TRITONSTACK_IMAGE_LIBRARY names no library (TRITONSTACK_REQUIRE_GPU=1 turns this skip into a failure)",
    ),
]

# Odd sides, one pixel, extreme ratios, rows of every alignment, and sizes about those of the tiles.
SIZES = [(1, 1), (1, 37), (41, 1), (2, 3), (17, 19), (63, 64), (65, 66), (224, 224), (225, 223), (375, 500), (480, 641)]
SIZES += [(333, 1022), (1080, 1920), (7, 3001), (2500, 5)]
IMAGENET = {"scale": 1 / 255, "mean": "0.485,0.456,0.406", "std": "0.229,0.224,0.225"}
CROP = {"resize": "shorter", "height": 64, "center_crop": "56x56"}
GEOMETRIES: list[dict[str, Any]] = [
    {"resize": "exact", "height": 61, "width": 83},
    {"resize": "letterbox", "height": 70, "width": 90, "pad_value": 114},
    {"resize": "exact", "height": 300, "width": 307, "center_crop": "99x101"},
    {"resize": "exact", "height": 33, "width": 31, "crop_fraction": 0.875},
    CROP,
    {"resize": "none"},
]


@pytest.fixture(scope="module")
def library() -> ImageLibrary:
    """The compiled core."""
    return ImageLibrary(LIBRARY)


@pytest.fixture(scope="module")
def pictures() -> list[np.ndarray[Any, Any]]:
    """Noise: every wrong pixel, weight or channel shows."""
    random = np.random.default_rng(7)
    return [random.integers(0, 256, (*size, 3), np.uint8) for size in SIZES]


def both(library: ImageLibrary, element: str, images: list[Any], **settings: Any) -> list[tuple[Any, Any]]:
    """Samples of the GPU and of the CPU for raw pictures, skipping those that the geometry refuses."""
    gpu = library.instance(element, device=0, **settings, **NVJPEG)
    cpu = library.instance(element, device=-1, **settings)
    fitting = []
    for image in images:
        try:
            cpu.shape(*image.shape[:2])
        except ValueError:
            continue
        if settings.get("resize") != "none" or image.shape[0] * image.shape[1] < 200_000:
            fitting.append(image)
    return list(zip(gpu.raw(fitting), cpu.raw(fitting), strict=True))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_rounded_pixels_are_those_of_the_cpu(library, pictures, geometry, interpolation) -> None:
    """Bit for bit, in one launch over all sizes."""
    for found, expected in both(library, "UINT8", pictures, interpolation=interpolation, **geometry):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("element", "layout", "order"),
    list(itertools.product(("FP32", "FP16", "BF16", "UINT8"), ("NCHW", "NHWC"), ("RGB", "BGR"))),
)
def test_rounded_elements_are_those_of_the_cpu(library, pictures, element, layout, order) -> None:
    """All element types, layouts and channel orders, with padding in the picture."""
    normal = {} if element == "UINT8" else IMAGENET
    settings = {"resize": "letterbox", "height": 50, "width": 64, "pad_value": 9, "layout": layout}
    for found, expected in both(library, element, pictures, channel_order=order, **settings, **normal):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_float_pixels_are_near_those_of_the_cpu(library, pictures, geometry, interpolation, antialias) -> None:
    """Both are sums in float in another order."""
    settings = {"interpolation": interpolation, "antialias": antialias, "round_u8": False}
    for found, expected in both(library, "FP32", pictures, **geometry, **settings):
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-3)


def test_float_is_within_one_step_of_pillow(library) -> None:
    """The documented bound: 1/255 of the range, here in pixels."""
    images = [photo(*size, seed) for seed, size in enumerate([(375, 500), (480, 641), (1080, 1920)])]
    gpu = library.instance("FP32", device=0, resize="exact", height=224, width=224, round_u8=False, **NVJPEG)
    for image, found in zip(images, gpu.raw(images), strict=True):
        expected = np.asarray(Image.fromarray(image).resize((224, 224), Image.Resampling.BILINEAR), np.float32)
        assert np.abs(found.transpose(1, 2, 0) - expected).max() <= 1.0


@pytest.mark.parametrize("element", ["FP32", "FP16", "BF16", "UINT8"])
def test_float_elements(library, pictures, element) -> None:
    """Layout, order and rounding to the element type."""
    normal = {} if element == "UINT8" else IMAGENET
    bound = {"FP32": 2e-5, "FP16": 2e-3, "BF16": 2e-2, "UINT8": 1}[element]
    settings = {"resize": "letterbox", "height": 50, "width": 64, "pad_value": 9, "layout": "NHWC"}
    for found, expected in both(library, element, pictures, channel_order="BGR", round_u8=False, **settings, **normal):
        if element == "BF16":
            found, expected = bfloat16(found), bfloat16(expected)
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=0, atol=bound)


def test_very_wide_windows(library) -> None:
    """Ratios beyond any shared memory: thousands of source pixels under one output."""
    random = np.random.default_rng(3)
    images = [random.integers(0, 256, (*size, 3), np.uint8) for size in [(3, 9001), (9001, 3), (2, 16000), (700, 4100)]]
    for found, expected in both(library, "FP32", images, resize="exact", height=2, width=3, round_u8=False):
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-2)
    for found, expected in both(library, "UINT8", images, resize="exact", height=2, width=3):
        np.testing.assert_array_equal(found, expected)


def decoded(library: ImageLibrary, files: list[bytes], size: tuple[int, int], **settings: Any) -> Any:
    """Pixels [y, x, channel] by the GPU and how they were decoded."""
    gpu = library.instance("UINT8", device=0, layout="NHWC", threads=4, **settings, **NVJPEG)
    return gpu.encoded(files, (*size, 3))


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 4}], ids=str)
@pytest.mark.parametrize("hardware", [0, 1])
def test_decoded_pixels_are_near_those_of_libjpeg(library, subsampling, options, hardware) -> None:
    """Within 4 of 255 after the resize to the size models take, over all samplings and both decoders."""
    pixels = [photo(375, 500, seed) for seed in range(5)]
    files = [jpeg(image, subsampling=subsampling, **options) for image in pixels]
    samples, paths = decoded(library, files, (224, 224), resize="exact", height=224, width=224, hardware=hardware)
    assert set(paths) <= {"gpu_hardware", "gpu_hybrid"}
    for sample, file in zip(samples, files, strict=True):
        expected = np.asarray(Image.open(io.BytesIO(file)).resize((224, 224), Image.Resampling.BILINEAR), np.int16)
        assert np.abs(sample.astype(np.int16) - expected).max() <= 4


def test_kinds_of_jpeg(library) -> None:
    """Gray by nvJPEG; CMYK, RGB without transform and other formats by the CPU: all of them near Pillow."""
    image = photo(200, 300, 1)
    picture = Image.fromarray(image)

    def saved(converted: Image.Image, kind: str, **options: Any) -> bytes:
        stream = io.BytesIO()
        converted.save(stream, kind, **options)
        return stream.getvalue()

    files = {
        "gray": saved(picture.convert("L"), "JPEG"),
        "cmyk": saved(picture.convert("CMYK"), "JPEG"),
        "rgb": saved(picture, "JPEG", keep_rgb=True),
        "png": saved(picture, "PNG"),
        "webp": saved(picture, "WEBP"),
    }
    samples, paths = decoded(library, list(files.values()), (100, 150), resize="exact", height=100, width=150)
    assert paths[0] in ("gpu_hardware", "gpu_hybrid")
    assert paths[1:] == ["cpu_jpeg", "cpu_jpeg", "cpu_png", "cpu_webp"]
    for sample, file in zip(samples, files.values(), strict=True):
        expected = Image.open(io.BytesIO(file)).convert("RGB").resize((150, 100), Image.Resampling.BILINEAR)
        assert np.abs(sample.astype(np.int16) - np.asarray(expected, np.int16)).max() <= 4


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(library, orientation) -> None:
    """Pictures are turned as Pillow turns them."""
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    file = jpeg(photo(120, 200, 2), exif=exif.tobytes())
    samples, paths = decoded(library, [file] * 2, (80, 96), resize="exact", height=80, width=96)
    assert "failed" not in paths
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(file))).resize((96, 80), Image.Resampling.BILINEAR)
    for sample in samples:
        assert np.abs(sample.astype(np.int16) - np.asarray(expected, np.int16)).max() <= 4


def test_a_bad_picture_fails_alone(library) -> None:
    """Cut off, damaged and foreign bytes among good ones."""
    good = jpeg(photo(150, 200, 3))
    files = [good, good[: len(good) // 2], good, b"not a picture", good, b"", good[:-2]]
    cpu = library.instance("UINT8", device=-1, layout="NHWC", resize="exact", height=64, width=64)
    _, cpu_paths = cpu.encoded(files, (64, 64, 3))
    samples, paths = decoded(library, files, (64, 64), resize="exact", height=64, width=64)
    assert [path == "failed" for path in paths] == [path == "failed" for path in cpu_paths]
    assert paths[1] == paths[3] == paths[5] == "failed"
    for index in (2, 4):
        np.testing.assert_array_equal(samples[index], samples[0])


def test_mutated_streams_leave_the_gpu_alive(library) -> None:
    """Bytes flipped anywhere, as they come over a wire; the next batch is answered as ever."""
    random = np.random.default_rng(11)
    good = jpeg(photo(150, 200, 3))
    gpu = library.instance("UINT8", device=0, layout="NHWC", threads=4, resize="exact", height=64, width=64, **NVJPEG)
    clean, _ = gpu.encoded([good], (64, 64, 3))
    for _ in range(20):
        files = []
        for _ in range(8):
            data = bytearray(good)
            for position in random.integers(0, len(data), random.integers(1, 20)):
                data[position] = random.integers(0, 256)
            files.append(bytes(data))
        try:
            gpu.encoded([*files, good], (64, 64, 3))
        except RuntimeError as error:
            pytest.fail(f"a batch failed as a whole: {error}")
    again, _ = gpu.encoded([good], (64, 64, 3))
    np.testing.assert_array_equal(again[0], clean[0])


def test_repeated_batches_are_the_same(library) -> None:
    """A result that changes from run to run is a race."""
    files = [jpeg(photo(*size, seed)) for seed, size in enumerate([(375, 500), (120, 90), (600, 700)] * 6)]
    gpu = library.instance("UINT8", device=0, layout="NHWC", threads=4, resize="exact", height=64, width=64, **NVJPEG)
    first, paths = gpu.encoded(files, (64, 64, 3))
    assert "failed" not in paths
    for _ in range(5):
        again, again_paths = gpu.encoded(files, (64, 64, 3))
        for a, b, same in zip(first, again, (p == q for p, q in zip(paths, again_paths, strict=True)), strict=True):
            assert np.abs(a.astype(np.int16) - b).max() <= (0 if same else 4)


def test_batches_of_every_size(library) -> None:
    """Calls of the engine are filled up to a few sizes; a picture is the same in a batch of any size."""
    files = [jpeg(photo(120 + 10 * seed, 200, seed)) for seed in range(4)]
    gpu = library.instance("UINT8", device=0, layout="NHWC", threads=4, resize="exact", height=64, width=64, **NVJPEG)
    alone = [gpu.encoded([file], (64, 64, 3))[0][0] for file in files]
    for count in (*range(2, 24), 63, 70, 71, 150):
        samples, paths = gpu.encoded([files[n % 4] for n in range(count)], (64, 64, 3))
        assert "failed" not in paths, count
        for n, sample in enumerate(samples):
            np.testing.assert_array_equal(sample, alone[n % 4], err_msg=f"{n} of {count}")


@pytest.mark.parametrize("element", ["FP32", "FP16"])
@pytest.mark.parametrize("round_u8", [True, False])
def test_outputs_at_odd_bytes(library, element, round_u8) -> None:
    """Clients choose where a sample lies in CUDA shared memory, to the byte."""
    torch = pytest.importorskip("torch")
    file = jpeg(photo(150, 200, 5))
    gpu = library.instance(element, device=0, resize="exact", height=32, width=32, round_u8=round_u8, **NVJPEG)
    expected = gpu.encoded([file], (3, 32, 32))[0][0]
    room = torch.full((expected.nbytes + 64,), 0xA5, dtype=torch.uint8, device="cuda")
    for offset in (1, 2, 3, 6, 16):
        room.fill_(0xA5)
        torch.cuda.synchronize()
        batch = EncodedBatch([file])
        batch.point([room.data_ptr() + offset])
        assert gpu.run_encoded(batch, 0) == 0
        found = room.cpu().numpy()
        np.testing.assert_array_equal(
            found[offset : offset + expected.nbytes].view(np.uint8), expected.ravel().view(np.uint8)
        )
        assert (found[:offset] == 0xA5).all() and (found[offset + expected.nbytes :] == 0xA5).all()


def test_wrong_nvjpeg_path(library, tmp_path) -> None:
    """A path that was asked for and holds nothing is a mistake, not a fallback."""
    with pytest.raises(ValueError, match="nvjpeg_path"):
        library.instance("UINT8", device=0, nvjpeg_path=str(tmp_path))
