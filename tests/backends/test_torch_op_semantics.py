"""What the backend's core computes, against Pillow (bit for bit), PyTorch, and the formulas of torchvision and OpenCV.

The core is reached through the PyTorch op; the client's own preprocessing is Pillow itself.
"""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from image_op_build import image_op
from PIL import Image

from tritonstack.image import ImagePreprocessing

# height × width: odd and even, tall and wide, tiny, one pixel in a direction, large ratios.
SIZES = [(48, 64), (37, 53), (101, 40), (5, 7), (1, 9), (13, 1), (1, 1), (300, 7), (64, 64), (333, 500)]


@pytest.fixture(scope="module")
def op() -> ModuleType:
    return image_op()


def picture(height: int, width: int, *, smooth: bool = False) -> np.ndarray[Any, Any]:
    """Noise, or a smooth gradient with hard edges: both ends of what pictures are."""
    random = np.random.default_rng(height * 1000 + width)
    if not smooth:
        return random.integers(0, 256, (height, width, 3), dtype=np.uint8)
    y, x = np.mgrid[0:height, 0:width]
    planes = [255 * y / max(1, height - 1), 255 * x / max(1, width - 1), 255 * ((x // 3 + y // 3) % 2)]
    return np.stack(planes, -1).round().astype(np.uint8)


def settings_of(spec: ImagePreprocessing) -> dict[str, Any]:
    """The op's arguments for what the client's class describes: the same mapping as the exporter's parameters."""
    from tritonstack_export.image_entry import backend_parameters

    text = backend_parameters(spec)
    numbers = {name: [float(part) for part in text[name].split(",")] for name in ("mean", "std")}
    sizes = {name: int(text[name]) for name in ("height", "width", "pad_value") if name in text}
    found: dict[str, Any] = {
        "resize": text["resize"],
        "interpolation": text["interpolation"],
        "antialias": text["antialias"] == "true",
        "round_u8": text["round_u8"] == "true",
        "channel_order": text["channel_order"],
        "layout": text["layout"],
        "scale": float(text["scale"]),
        "dtype": {"FP32": torch.float32, "FP16": torch.float16, "UINT8": torch.uint8}[spec.dtype],
        **numbers,
        **sizes,
    }
    if "crop_fraction" in text:
        found["crop_fraction"] = float(text["crop_fraction"])
    if "center_crop" in text:
        found["center_crop"] = [int(side) for side in text["center_crop"].split("x")]
    return found


def require_equal(op: ModuleType, spec: ImagePreprocessing, pixels: np.ndarray[Any, Any]) -> None:
    wanted = spec.preprocess(Image.fromarray(pixels))
    found = op.image_preprocess(torch.from_numpy(pixels), **settings_of(spec)).numpy()
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    # Compared as bytes: -0.0 and 0.0 would pass for equal.
    different = int((found.view(np.uint8) != wanted.view(np.uint8)).sum())
    assert different == 0, (
        f"{different} bytes of {found.nbytes} differ, by up to {np.abs(found.astype(float) - wanted).max()}"
    )


RESIZES: list[dict[str, Any]] = [
    {"mode": "exact", "height": 24, "width": 31},
    {"mode": "exact", "height": 48, "width": 64},
    {"mode": "exact", "height": 90, "width": 17},
    {"mode": "shorter", "height": 21},
    {"mode": "letterbox", "height": 32, "width": 40, "pad": 114},
    {"mode": "none"},
]


@pytest.mark.parametrize("resize", RESIZES, ids=lambda r: "-".join(map(str, r.values())))
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
def test_every_resize_is_pillow_bit_for_bit(op: ModuleType, resize: dict[str, Any], interpolation: str) -> None:
    spec = ImagePreprocessing.from_dict({"resize": resize, "interpolation": interpolation, "dtype": "UINT8"})
    for size, smooth in itertools.product(SIZES, (False, True)):
        if resize["mode"] == "shorter" and max(size) / min(size) > 40:
            continue
        require_equal(op, spec, picture(*size, smooth=smooth))


def pillows_order(source: tuple[int, int], target: tuple[int, int]) -> str:
    """Which pass Pillow does first, seen from its answer; sizes as (height, width). "" where both orders give it."""
    image = Image.fromarray(picture(*source))
    whole = np.asarray(image.resize(target[::-1], Image.Resampling.BICUBIC))
    between = {"horizontal": (source[0], target[1]), "vertical": (target[0], source[1])}
    fits = []
    for order, size in between.items():
        half = image.resize(size[::-1], Image.Resampling.BICUBIC)
        if np.array_equal(np.asarray(half.resize(target[::-1], Image.Resampling.BICUBIC)), whole):
            fits.append(order)
    return fits[0] if len(fits) == 1 else ""


def test_pillow_does_the_vertical_pass_first_where_it_saves_most(op: ModuleType) -> None:
    """Found by trial: vertical first where the height shrinks by more than twice what the width does.

    With 8-bit values between the passes the order shows: by one level with bilinear, by up to 17 with bicubic, whose
    overshoot is cut off in between.
    """
    random = np.random.default_rng(3)
    seen = set()
    for _ in range(300):
        height, width = (int(side) for side in random.integers(8, 160, 2))
        rows = int(random.integers(4, height + 20))
        columns = max(4, int(width - (height - rows) * random.uniform(0.3, 0.7)))
        order = pillows_order((height, width), (rows, columns))
        if not order or rows == height or columns == width:
            continue
        seen.add(order)
        vertical = rows < height and 2 * (width - columns) < height - rows
        assert order == ("vertical" if vertical else "horizontal"), (height, width, rows, columns)
        spec = {"resize": {"mode": "exact", "height": rows, "width": columns}, "interpolation": "bicubic"}
        require_equal(op, ImagePreprocessing.from_dict({**spec, "dtype": "UINT8"}), picture(height, width))
    assert seen == {"horizontal", "vertical"}


@pytest.mark.parametrize("seed", range(40))
def test_random_settings_are_pillow_bit_for_bit(op: ModuleType, seed: int) -> None:
    """All settings together, drawn at random: whichever pair interacts, some draw has it."""
    random = np.random.default_rng(seed)

    def pick(*choices: Any) -> Any:
        return choices[int(random.integers(len(choices)))]

    height, width = (int(side) for side in random.integers(8, 200, 2))
    mode = pick("exact", "shorter", "letterbox", "none")
    resize: dict[str, Any] = {"mode": mode}
    if mode != "none":
        resize["height"] = int(random.integers(8, 120))
    if mode in ("exact", "letterbox"):
        resize["width"] = int(random.integers(8, 120))
    if mode == "letterbox":
        resize["pad"] = int(random.integers(0, 256))
    crop = pick(None, [int(random.integers(1, 9)), int(random.integers(1, 9))])
    fraction = None if mode == "none" and crop else pick(None, 0.875, 1.0, 0.31, 2 / 3)
    dtype = pick("FP32", "FP16", "UINT8")
    spec: dict[str, Any] = {
        "resize": resize,
        "center_crop": crop,
        "crop_fraction": fraction,
        "interpolation": pick("bilinear", "bicubic", "nearest"),
        "channel_order": pick("RGB", "BGR"),
        "layout": pick("NCHW", "NHWC"),
        "dtype": dtype,
    }
    if dtype != "UINT8":
        spec |= {
            "scale": pick(1.0, 1 / 255, 0.017, 2.0),
            "mean": pick([0, 0, 0], [0.485, 0.456, 0.406], [127, 127, 127], [123.675, 116.28, 103.53]),
            "std": pick([1, 1, 1], [0.229, 0.224, 0.225], [128, 128, 128], [58.395, 57.12, 57.375]),
        }
    require_equal(op, ImagePreprocessing.from_dict(spec), picture(height, width, smooth=bool(random.integers(2))))


@pytest.mark.parametrize("margin", range(8))
def test_center_crop_puts_the_larger_margin_last(op: ModuleType, margin: int) -> None:
    """As the client. torchvision rounds margin / 2 half to even: one pixel further at margins of 3, 7, 11, …"""
    pixels = picture(20 + margin, 30 + margin)
    found = op.image_preprocess(torch.from_numpy(pixels), center_crop=[20, 30], layout="NHWC", dtype=torch.uint8)
    offset = margin // 2
    assert np.array_equal(found.numpy(), pixels[offset : offset + 20, offset : offset + 30])
    torchvision = round(margin / 2.0)
    assert torchvision - offset == (1 if margin % 4 == 3 else 0)


@pytest.mark.parametrize(("height", "width"), [(480, 640), (640, 480), (375, 500), (333, 501), (224, 224), (200, 1000)])
@pytest.mark.parametrize("side", [224, 256, 232])
def test_shorter_side_follows_torchvision(op: ModuleType, height: int, width: int, side: int) -> None:
    """torchvision's Resize(int): the longer side becomes int(side · longer / shorter)."""
    short, long = min(height, width), max(height, width)
    longer = int(side * long / short)
    wanted = (longer, side) if width <= height else (side, longer)
    pixels = torch.zeros((height, width, 3), dtype=torch.uint8)
    found = op.image_preprocess(pixels, resize="shorter", height=side)
    assert tuple(found.shape[1:]) == wanted


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("target", [(24, 31), (90, 17), (48, 64), (200, 300)])
def test_unrounded_is_the_antialias_of_torch(op: ModuleType, mode: str, target: tuple[int, int]) -> None:
    """`round_u8: false` is what torchvision does on floats: torch's interpolate with antialias=True, clamped."""
    for size in SIZES:
        pixels = torch.from_numpy(picture(*size))
        found = op.image_preprocess(
            pixels, resize="exact", height=target[0], width=target[1], interpolation=mode, round_u8=False
        )
        wanted = F.interpolate(pixels.permute(2, 0, 1)[None].float(), size=target, mode=mode, antialias=True)
        torch.testing.assert_close(found, wanted[0].clamp(0, 255), atol=1e-2, rtol=0)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("target", [(24, 31), (90, 17), (200, 300)])
def test_plain_is_the_half_pixel_resize_of_opencv(op: ModuleType, mode: str, target: tuple[int, int]) -> None:
    """`antialias: false`: torch's interpolate without antialias, whose pixels OpenCV's INTER_LINEAR has too."""
    for size in SIZES:
        pixels = torch.from_numpy(picture(*size))
        arguments: dict[str, Any] = {
            "resize": "exact", "height": target[0], "width": target[1], "interpolation": mode, "antialias": False,
        }  # fmt: skip
        found = op.image_preprocess(pixels, round_u8=False, **arguments)
        wanted = F.interpolate(pixels.permute(2, 0, 1)[None].float(), size=target, mode=mode, align_corners=False)[0]
        # torch finds its positions in float32.
        torch.testing.assert_close(found, wanted.clamp(0, 255), atol=2e-2, rtol=0)
        rounded = op.image_preprocess(pixels, dtype=torch.uint8, **arguments)
        assert (rounded.float() - found).abs().max() <= 0.5 + 1e-3


def test_antialias_is_no_detail(op: ModuleType) -> None:
    """Why the convention is a setting: on a fine pattern the two differ by tens of levels."""
    pixels = torch.from_numpy(picture(256, 256, smooth=True))
    arguments: dict[str, Any] = {"resize": "exact", "height": 64, "width": 64}
    apart = op.image_preprocess(pixels, **arguments) - op.image_preprocess(pixels, antialias=False, **arguments)
    assert apart.abs().max() > 20


def test_unrounded_differs_from_pillow_by_one_level_at_most(op: ModuleType) -> None:
    for mode in ("bilinear", "bicubic"):
        spec = ImagePreprocessing.from_dict(
            {"resize": {"mode": "exact", "height": 37, "width": 50}, "interpolation": mode}
        )
        pixels = picture(333, 500)
        wanted = spec.preprocess(Image.fromarray(pixels))
        found = op.image_preprocess(torch.from_numpy(pixels), **{**settings_of(spec), "round_u8": False}).numpy()
        assert np.abs(found - wanted).max() <= 1.0


def test_bfloat16_is_the_rounded_float32(op: ModuleType) -> None:
    pixels = torch.from_numpy(picture(60, 80))
    arguments: dict[str, Any] = {
        "resize": "exact",
        "height": 32,
        "width": 32,
        "scale": 1 / 255,
        "mean": [0.4, 0.5, 0.6],
    }
    whole = op.image_preprocess(pixels, **arguments)
    for dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(op.image_preprocess(pixels, dtype=dtype, **arguments), whole.to(dtype))
