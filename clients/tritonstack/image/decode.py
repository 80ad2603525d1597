"""Encoded pictures to 8-bit RGB through Pillow."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from tritonstack.errors import InputError

# The largest picture accepted, in pixels: 64 megapixels take 192 MB as RGB, and a crafted header can ask for far more.
MAX_PIXELS = 64_000_000

# What Pillow's decoders raise for damaged files.
_DAMAGED = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    MemoryError,
    struct.error,
    zlib.error,
)


def decode_rgb(source: Path | str | bytes | Image.Image, *, exif: bool) -> tuple[Image.Image, str]:
    """The first frame of a picture as 8-bit RGB, and what to call it in messages.

    Oriented by its EXIF tag when `exif`. InputError with the reason for anything that is not a whole picture.
    """
    name = _name(source)
    if isinstance(source, Image.Image):
        return _finish(source, name, exif=exif), name
    data = source if isinstance(source, bytes) else _read(Path(source), name)
    if not data:
        raise InputError(f"{name} is empty", expected="an encoded picture such as JPEG or PNG")
    try:
        with Image.open(io.BytesIO(data)) as image:
            return _finish(image, name, exif=exif), name
    except InputError:
        raise
    except Image.DecompressionBombError:
        raise InputError(
            f"{name} claims to be larger than any picture accepted", expected=f"at most {MAX_PIXELS} pixels"
        ) from None
    except UnidentifiedImageError:
        raise InputError(
            f"{name} is not a picture that can be read",
            given=f"{len(data)} bytes that start with {data[:8]!r}",
            expected="JPEG, PNG, WebP, BMP, GIF or TIFF",
        ) from None
    except _DAMAGED as error:
        raise InputError(f"{name} is damaged: {str(error) or type(error).__name__}") from None


def _name(source: Path | str | bytes | Image.Image) -> str:
    if isinstance(source, bytes):
        return f"the picture of {len(source)} bytes"
    if isinstance(source, Image.Image):
        return f"the picture {getattr(source, 'filename', '') or f'of {source.width} × {source.height} pixels'}"
    return f"image file {str(source)!r}"


def _read(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror}") from None


def _finish(image: Image.Image, name: str, *, exif: bool) -> Image.Image:
    # The header is known here, the pixels are not: sizes are checked before anything large is allocated.
    if image.width * image.height > MAX_PIXELS:
        raise InputError(
            f"{name} is too large", given=f"{image.width} × {image.height} pixels", expected=f"at most {MAX_PIXELS}"
        )
    if exif:
        # Returns a copy when it has to turn the picture; the caller's image stays as it was.
        image = ImageOps.exif_transpose(image)
    return _to_rgb(image, name)


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    mode = image.mode
    if mode == "RGB":
        image.load()
        return image
    if mode.startswith("I"):
        return _from_wide_gray(image, name)
    if mode in ("1", "L", "CMYK", "YCbCr", "RGBX", "HSV"):
        return image.convert("RGB")
    if mode in ("LA", "La", "PA", "P", "RGBA", "RGBa"):
        # Through RGBA, so that a palette's transparency is dropped and not blended.
        return image.convert("RGBA").convert("RGB")
    raise InputError(
        f"{name} has pixels of a kind that has no one meaning as 8-bit RGB",
        given=f"Pillow mode {mode!r}",
        expected="gray, RGB, palette or CMYK, with or without alpha",
    )


def _from_wide_gray(image: Image.Image, name: str) -> Image.Image:
    """16-bit gray, scaled so that 65535 becomes 255."""
    values = np.asarray(image).astype(np.int64)
    if values.size and (values.min() < 0 or values.max() > 65535):
        raise InputError(f"{name} has gray values beyond 16 bits", given=f"{values.min()} to {values.max()}")
    return Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8)).convert("RGB")
