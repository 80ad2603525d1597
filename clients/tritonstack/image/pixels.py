"""From decoded pixels to the sample a model wants: geometry in Pillow, arithmetic in numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tritonstack.errors import InputError
from tritonstack.image.decode import MAX_PIXELS, decode_rgb
from tritonstack.image.preprocessing import ImagePreprocessing, Resize

_DTYPES = {"FP32": np.float32, "FP16": np.float16, "UINT8": np.uint8}
_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def preprocess(spec: ImagePreprocessing, source: Path | str | bytes | Image.Image) -> np.ndarray[Any, Any]:
    """One sample, as `ImagePreprocessing.preprocess` promises it."""
    image, name = decode_rgb(source, exif=spec.exif)
    if spec.crop_fraction is not None:
        side = max(1, int(spec.crop_fraction * min(image.size)))
        image = _crop(image, side, side)
    image = _resize(image, spec.resize, _FILTERS[spec.interpolation], name)
    if spec.center_crop is not None:
        height, width = spec.center_crop
        if image.height < height or image.width < width:
            raise InputError(
                f"{name} is smaller than the crop",
                given=f"{image.height} × {image.width} pixels (height × width)",
                expected=f"at least {height} × {width}",
            )
        image = _crop(image, height, width)
    pixels = np.asarray(image)
    if spec.channel_order == "BGR":
        pixels = pixels[..., ::-1]
    return _normalise(spec, pixels)


def _normalise(spec: ImagePreprocessing, pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """uint8 pixels [y, x, channel] as values in the wanted layout and dtype."""
    if spec.dtype == "UINT8":
        values: np.ndarray[Any, Any] = pixels
    else:
        values = pixels.astype(np.float32)
        values *= np.float32(spec.scale)
        values -= np.asarray(spec.mean, np.float32)
        values /= np.asarray(spec.std, np.float32)
    if spec.layout == "NCHW":
        values = values.transpose(2, 0, 1)
    with np.errstate(over="ignore"):
        result = np.array(values, dtype=_DTYPES[spec.dtype], order="C")
    if result.dtype == np.float16 and not np.isfinite(result).all():
        raise InputError("the preprocessing overflows FP16", expected="scale, mean and std that keep below 65504")
    return result


def _crop(image: Image.Image, height: int, width: int) -> Image.Image:
    """The central height × width; an odd remainder leaves the larger margin at the bottom and right."""
    top = (image.height - height) // 2
    left = (image.width - width) // 2
    return image.crop((left, top, left + width, top + height))


def _resize(image: Image.Image, resize: Resize, resample: Image.Resampling, name: str) -> Image.Image:
    if resize.mode == "none" or resize.height is None:
        return image
    if resize.mode == "shorter":
        short, long = sorted(image.size)
        longer = max(1, resize.height * long // short)
        if resize.height * longer > MAX_PIXELS:
            raise InputError(
                f"{name} is too narrow to be resized by its shorter side",
                given=f"{image.width} × {image.height} pixels, which would become {resize.height} × {longer}",
                expected=f"at most {MAX_PIXELS} pixels",
            )
        upright = image.width <= image.height
        return image.resize((resize.height, longer) if upright else (longer, resize.height), resample)
    width = resize.width or resize.height
    if resize.mode == "exact":
        return image.resize((width, resize.height), resample)
    factor = min(resize.height / image.height, width / image.width)
    inner = (max(1, round(image.width * factor)), max(1, round(image.height * factor)))
    canvas = Image.new("RGB", (width, resize.height), (resize.pad,) * 3)
    canvas.paste(image.resize(inner, resample), ((width - inner[0]) // 2, (resize.height - inner[1]) // 2))
    return canvas
