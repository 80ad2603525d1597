"""Pictures that servers are sent in earnest: odd ones that have to be read, and bad ones with the reason to be told."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
from image_backend_models import encoded, oriented
from PIL import Image


def flag() -> Image.Image:
    """Red top left, blue bottom right: a picture that shows when it was turned."""
    picture = np.zeros((20, 40, 3), np.uint8)
    picture[:10, :20] = (255, 0, 0)
    picture[10:, 20:] = (0, 0, 255)
    return Image.fromarray(picture)


def jpeg(picture: Image.Image | None = None, **options: Any) -> bytes:
    return encoded(picture or flag(), "JPEG", **{"quality": 95, **options})


def with_size(data: bytes, height: int, width: int) -> bytes:
    """The JPEG with another size in its header."""
    at = data.find(b"\xff\xc0")
    return data[: at + 5] + struct.pack(">HH", height, width) + data[at + 9 :]


def png_with_size(height: int, width: int) -> bytes:
    data = encoded(flag(), "PNG")
    header = data[12:16] + struct.pack(">II", width, height) + data[24:29]
    return data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]


PNG = encoded(flag(), "PNG")
WEBP = encoded(flag(), "WEBP")
BAD = {
    "empty": (b"", "empty"),
    "text": (b"not an image", "not a picture that can be read"),
    "truncated": (jpeg()[: len(jpeg()) // 2], "cut off"),
    "without its end": (jpeg()[:-2], "cut off"),
    "header only": (jpeg()[:40], "cut off"),
    "start only": (b"\xff\xd8\xff", "cut off"),
    "huge header": (with_size(jpeg(), 65500, 65500), "too large"),
    "no height": (with_size(jpeg(), 0, 40), "damaged"),
    "png truncated": (PNG[: len(PNG) // 2], "cut off"),
    "png header only": (PNG[:20], "cut off"),
    "png huge": (png_with_size(2**31 - 1, 2**31 - 1), "too large"),
    "png wide": (png_with_size(1, 2**30), "too large"),
    "png damaged": (PNG[:50] + b"\0\0\0\0" + PNG[54:], "damaged"),
    "webp truncated": (WEBP[: len(WEBP) // 2], "cut off"),
    "webp header only": (WEBP[:16], "cut off"),
    "gif": (encoded(flag(), "GIF"), "a GIF"),
    "bmp": (encoded(flag(), "BMP"), "a BMP"),
    "tiff": (encoded(flag(), "TIFF"), "a TIFF"),
    "zeros": (bytes(4000), "not a picture"),
    "twelve bits": (jpeg().replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc0\x00\x11\x0c"), "12 bits"),
}
GOOD = {
    "plain": jpeg(),
    "png called jpg": PNG,
    "one pixel": jpeg(flag().crop((0, 0, 1, 1))),
    "gray": jpeg(flag().convert("L")),
    "cmyk": jpeg(flag().convert("CMYK")),
    "progressive": jpeg(progressive=True),
    "rgba": encoded(flag().convert("RGBA"), "PNG"),
    "gray 16": encoded(Image.fromarray((np.arange(800, dtype=np.uint16) * 80).reshape(20, 40)), "PNG"),
    "turned": oriented(flag(), 6, quality=95),
    # libjpeg fills up what the stream lacks before its end mark, and so Pillow does.
    "taller than its data": with_size(jpeg(), 2000, 40),
    "extreme aspect": jpeg(Image.new("RGB", (3000, 1), (9, 9, 9))),
}
