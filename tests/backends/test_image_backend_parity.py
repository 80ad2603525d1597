"""The backend inside the real server gives what the client's preprocessing gives, bit for bit."""

from __future__ import annotations

import io
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_backend_models import (
    INPUT,
    LIBRARY,
    OUTPUT,
    as_batch,
    colour,
    encoded,
    model_of,
    needs_library,
    oriented,
    pixels,
)
from PIL import Image

from tritonstack import Client
from tritonstack.image import ImagePreprocessing, Resize

pytestmark = needs_library

IMAGENET = {"scale": 1 / 255, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
SETTINGS: dict[str, ImagePreprocessing] = {
    "pixels": ImagePreprocessing(dtype="UINT8", layout="NHWC"),
    "imagenet": ImagePreprocessing(resize=Resize("shorter", 64), center_crop=(56, 56), **IMAGENET),
    "imagenet_half": ImagePreprocessing(resize=Resize("shorter", 37), center_crop=(31, 32), dtype="FP16", **IMAGENET),
    "exact": ImagePreprocessing(resize=Resize("exact", 24, 40), dtype="UINT8"),
    "exact_large": ImagePreprocessing(resize=Resize("exact", 131, 97), dtype="UINT8", channel_order="BGR"),
    "cubic": ImagePreprocessing(
        resize=Resize("exact", 33, 29), interpolation="bicubic", layout="NHWC", scale=1 / 127.5
    ),
    "cubic_crop": ImagePreprocessing(
        resize=Resize("shorter", 50), interpolation="bicubic", center_crop=(47, 49), dtype="UINT8"
    ),
    "nearest": ImagePreprocessing(resize=Resize("exact", 45, 61), interpolation="nearest", dtype="UINT8"),
    "letterbox": ImagePreprocessing(resize=Resize("letterbox", 64, 48, pad=114), **IMAGENET),
    "letterbox_crop": ImagePreprocessing(
        resize=Resize("letterbox", 60, 80, pad=7), center_crop=(51, 33), dtype="UINT8"
    ),
    "fraction": ImagePreprocessing(
        crop_fraction=0.875, resize=Resize("exact", 28, 28), channel_order="BGR", **IMAGENET
    ),
    "fraction_only": ImagePreprocessing(crop_fraction=0.4, dtype="UINT8"),
    "no_exif": ImagePreprocessing(resize=Resize("exact", 21, 35), exif=False, dtype="UINT8"),
    "shorter": ImagePreprocessing(resize=Resize("shorter", 23), dtype="UINT8", layout="NHWC"),
}
SIZES = [(1, 1), (2, 3), (7, 5), (16, 16), (20, 40), (33, 64), (57, 171), (240, 101), (131, 97), (375, 500)]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, start_server: Callable[..., Any]) -> Iterator[Client]:
    repository = tmp_path_factory.mktemp("parity")
    for name, image in SETTINGS.items():
        model_of(name, image).write(repository)
    with Client(start_server(repository).grpc_url) as client:
        yield client


def compare(client: Client, name: str, pictures: dict[str, bytes]) -> None:
    """Every picture that the client can process comes out equal; every other one is refused."""
    image = SETTINGS[name]
    for label, data in pictures.items():
        answer = client.infer(name, {INPUT: as_batch(data)})[OUTPUT]
        expected = image.preprocess(data)
        assert answer.dtype == expected.dtype, label
        assert answer[0].shape == expected.shape, label
        different = int((answer[0] != expected).sum())
        assert not different, f"{name}: {label} differs in {different} of {expected.size} values"


def fitting(name: str, pictures: dict[str, bytes]) -> dict[str, bytes]:
    """Without what is smaller than the setting's crop."""
    crop = SETTINGS[name].center_crop
    if crop is None or SETTINGS[name].resize.mode != "none":
        return pictures
    sizes = {label: Image.open(io.BytesIO(data)).size for label, data in pictures.items()}
    return {label: d for label, d in pictures.items() if sizes[label][0] >= crop[1] and sizes[label][1] >= crop[0]}


def jpegs() -> dict[str, bytes]:
    pictures = {}
    for height, width in SIZES:
        for subsampling in ("4:4:4", "4:2:2", "4:2:0"):
            picture = colour(height, width)
            pictures[f"{height}x{width} {subsampling}"] = encoded(picture, "JPEG", quality=90, subsampling=subsampling)
    picture = colour(211, 333)
    pictures["progressive"] = encoded(picture, "JPEG", progressive=True, quality=80)
    pictures["restarts"] = encoded(picture, "JPEG", restart_marker_rows=1)
    pictures["optimised"] = encoded(picture, "JPEG", optimize=True, quality=100)
    pictures["low quality"] = encoded(picture, "JPEG", quality=5)
    pictures["rgb"] = encoded(picture, "JPEG", keep_rgb=True)
    pictures["gray"] = encoded(picture.convert("L"), "JPEG")
    pictures["gray progressive"] = encoded(picture.convert("L"), "JPEG", progressive=True)
    pictures["cmyk"] = encoded(picture.convert("CMYK"), "JPEG", quality=95)
    pictures["cmyk small"] = encoded(colour(19, 23).convert("CMYK"), "JPEG")
    pictures["with metadata"] = encoded(picture, "JPEG", comment=b"x" * 500, icc_profile=b"i" * 70000)
    pictures["trailing bytes"] = encoded(picture, "JPEG") + b"behind the end"
    return pictures


def pngs() -> dict[str, bytes]:
    picture = colour(90, 131)
    gray16 = Image.fromarray((pixels(61, 50)[..., 0].astype(np.uint16) * 257 + 77).astype(np.uint16))
    pictures = {
        "rgb": encoded(picture, "PNG"),
        "rgba": encoded(with_alpha(picture), "PNG"),
        "gray": encoded(picture.convert("L"), "PNG"),
        "gray alpha": encoded(with_alpha(picture).convert("LA"), "PNG"),
        "bilevel": encoded(picture.convert("1"), "PNG"),
        "gray 16": encoded(gray16, "PNG"),
        "palette": encoded(picture.quantize(200), "PNG"),
        "palette 16": encoded(picture.quantize(16), "PNG", bits=4),
        "palette 4": encoded(picture.quantize(4), "PNG", bits=2),
        "palette 2": encoded(picture.quantize(2), "PNG", bits=1),
        "palette transparent": encoded(picture.quantize(8), "PNG", transparency=3),
        "palette alphas": encoded(picture.quantize(8), "PNG", transparency=bytes(range(0, 256, 32))),
        "rgb transparent": encoded(picture, "PNG", transparency=(255, 255, 255)),
        "gray transparent": encoded(picture.convert("L"), "PNG", transparency=255),
        "one pixel": encoded(colour(1, 1), "PNG"),
    }
    for depth, kind in [(16, 2), (16, 6), (16, 4), (2, 0), (4, 0), (8, 6), (8, 2), (8, 0), (16, 0), (1, 0)]:
        for interlaced in (False, True):
            pictures[f"type {kind} depth {depth} interlaced {interlaced}"] = raw_png(37, 53, depth, kind, interlaced)
    pictures["palette interlaced"] = raw_png(37, 53, 8, 3, True, palette=256)
    pictures["palette too short"] = raw_png(13, 17, 8, 3, False, palette=10)
    return pictures


def webps() -> dict[str, bytes]:
    picture = colour(90, 131)
    return {
        "lossy": encoded(picture, "WEBP", quality=80),
        "lossless": encoded(picture, "WEBP", lossless=True),
        "lossy alpha": encoded(with_alpha(picture), "WEBP", quality=70),
        "lossless alpha": encoded(with_alpha(picture), "WEBP", lossless=True, exact=True),
        "odd": encoded(colour(77, 33), "WEBP"),
        "one pixel": encoded(colour(1, 1), "WEBP"),
        "animated": encoded(picture, "WEBP", save_all=True, append_images=[colour(90, 131, 5)], quality=60),
        "animated alpha": encoded(
            with_alpha(picture), "WEBP", save_all=True, append_images=[with_alpha(colour(90, 131, 5))], lossless=True
        ),
        "exif": oriented(colour(40, 60), 6, "WEBP"),
    }


def with_alpha(picture: Image.Image) -> Image.Image:
    result = picture.convert("RGBA")
    result.putalpha(Image.fromarray(pixels(picture.height, picture.width, 9)[..., 1]))
    return result


def raw_png(height: int, width: int, depth: int, kind: int, interlaced: bool, palette: int = 0) -> bytes:
    """A PNG of random samples that Pillow cannot write itself."""
    samples = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[kind]
    rng = np.random.default_rng(depth * 10 + kind)
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    data = b""
    for top, left, down, across in passes if interlaced else [(0, 0, 1, 1)]:
        rows, columns = len(range(top, height, down)), len(range(left, width, across))
        if rows and columns:
            row_bytes = (columns * samples * depth + 7) // 8
            data += b"".join(b"\0" + rng.bytes(row_bytes) for _ in range(rows))

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, int(interlaced))
    colours = chunk(b"PLTE", rng.bytes(3 * palette)) if palette else b""
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + colours
        + chunk(b"IDAT", zlib.compress(data))
        + chunk(b"IEND", b"")
    )


def xmp(orientation: int) -> bytes:
    return f'<x:xmpmeta><rdf:Description tiff:Orientation="{orientation}"/></x:xmpmeta>'.encode()


def orientations() -> dict[str, bytes]:
    picture = colour(37, 83)
    pictures = {f"exif {value}": oriented(picture, value, quality=92) for value in range(10)}
    pictures |= {f"exif {value} 4:2:0": oriented(colour(150, 233), value, subsampling="4:2:0") for value in range(1, 9)}
    pictures |= {f"png {value}": oriented(picture, value, "PNG") for value in (3, 6, 7)}
    pictures["gray exif"] = oriented(picture.convert("L"), 8)
    pictures["xmp"] = encoded(picture, "JPEG", xmp=xmp(6))
    pictures["webp xmp"] = encoded(picture, "WEBP", xmp=xmp(3))
    return pictures


@pytest.mark.parametrize("name", SETTINGS)
def test_jpegs_come_out_as_from_pillow(client: Client, name: str) -> None:
    compare(client, name, fitting(name, jpegs()))


@pytest.mark.parametrize("name", ["pixels", "imagenet", "cubic_crop", "fraction", "nearest"])
@pytest.mark.parametrize("pictures", [pngs, webps, orientations], ids=["png", "webp", "orientation"])
def test_other_kinds_come_out_as_from_pillow(
    client: Client, name: str, pictures: Callable[[], dict[str, bytes]]
) -> None:
    compare(client, name, fitting(name, pictures()))


@pytest.mark.parametrize("name", ["pixels", "imagenet"])
def test_jpegs_that_few_programs_write_come_out_as_from_pillow(client: Client, name: str, tmp_path: Path) -> None:
    """All samplings, also with CMYK, YCCK and arithmetic coding."""
    subprocess.run([LIBRARY.parent / "tests" / "write_jpegs", tmp_path], check=True, timeout=60)
    pictures = {path.name: path.read_bytes() for path in sorted(tmp_path.iterdir())}
    assert len(pictures) > 120
    compare(client, name, pictures)


def test_orientation_is_left_alone_when_told_so(client: Client) -> None:
    compare(client, "no_exif", orientations())


@pytest.mark.photos
def test_photographs_come_out_as_from_pillow(client: Client) -> None:
    photos = sorted((Path(__file__).parent.parent.parent / ".cache" / "photos").rglob("*.jp*g"))
    assert photos
    for name in ("imagenet", "letterbox", "cubic_crop", "fraction"):
        compare(client, name, {photo.name: photo.read_bytes() for photo in photos[:12]})
