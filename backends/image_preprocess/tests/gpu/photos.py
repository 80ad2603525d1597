"""Made-up photographs: smooth regions with edges, and texture with the falling spectrum of natural scenes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image


def photo(height: int, width: int, seed: int) -> np.ndarray[Any, Any]:
    """uint8 [y, x, channel]."""
    random = np.random.default_rng(seed)
    y = np.fft.fftfreq(height)[:, None] * height
    x = np.fft.rfftfreq(width)[None, :] * width
    radius = np.maximum(np.hypot(y, x), 1.0)

    def field(falloff: float) -> np.ndarray[Any, Any]:
        phase = np.exp(2j * np.pi * random.random(radius.shape))
        values = np.fft.irfft2(phase * radius**-falloff, (height, width))
        return values / values.std()

    # Things in front of each other: each covers what a smooth field marks, in its own colour and texture.
    image = np.full((height, width, 3), 110.0) + field(1.8)[..., None] * 30
    for _ in range(6):
        mask = (field(1.9) > random.uniform(-0.5, 1.2))[..., None]
        colour = random.uniform(20, 235, 3)
        texture = field(1.1)[..., None] * random.uniform(6, 26) + field(1.8)[..., None] * 18
        tint = field(1.7)[..., None] * random.uniform(-8, 8, 3)
        image = np.where(mask, colour + texture + tint, image)
    image += random.normal(0, 1.5, (height, width, 1))
    return np.clip(image, 0, 255).astype(np.uint8)


def jpeg(pixels: np.ndarray[Any, Any], quality: int = 87, subsampling: str = "4:2:0", **options: Any) -> bytes:
    """The picture as JPEG."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=quality, subsampling=subsampling, **options)
    return stream.getvalue()
