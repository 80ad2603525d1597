"""Model folders of the backend image_preprocess, pictures for them, and the library itself."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tritonstack.image import ImagePreprocessing
from tritonstack_deploy.embedded.built_backends import built_backends

LIBRARY = (
    Path(__file__).parent.parent.parent / "build" / "backends" / "image_preprocess" / "libtriton_image_preprocess.so"
)
SWITCH = "TRITONSTACK_REQUIRE_BACKEND"
needs_library = pytest.mark.skipif(
    not LIBRARY.is_file() and os.environ.get(SWITCH) != "1",
    reason=f"needs `make backend`; {SWITCH}=1 turns this skip into a failure",
)
needs_backend = pytest.mark.skipif(
    "image_preprocess" not in built_backends() and os.environ.get(SWITCH) != "1",
    reason=f"the backend image_preprocess is not built (make backend); {SWITCH}=1 turns this skip into a failure",
)
"""For tests of what finds the backend by itself, wherever it was built or installed."""

INPUT = "image_bytes"
OUTPUT = "preprocessed"
GEOMETRY = "geometry"


@dataclass(frozen=True)
class ImageModel:
    """One entry: `parameters` as in the backend's table, `dims` of a sample."""

    name: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    dims: tuple[int, int, int] = (3, -1, -1)
    dtype: str = "TYPE_FP32"
    batch: int = 8
    raw: bool = False
    geometry: bool = False
    extra: str = "instance_group { count: 1 kind: KIND_CPU }"

    def write(self, repository: Path) -> None:
        folder = repository / self.name
        (folder / "1").mkdir(parents=True)
        kind, dims = ("TYPE_UINT8", "-1, -1, 3") if self.raw else ("TYPE_STRING", "1")
        ragged = " allow_ragged_batch: true" if self.raw and self.batch else ""
        lines = [
            f'name: "{self.name}"',
            'backend: "image_preprocess"',
            f"max_batch_size: {self.batch}",
            f'input {{ name: "{INPUT}" data_type: {kind} dims: [ {dims} ]{ragged} }}',
            f'output {{ name: "{OUTPUT}" data_type: {self.dtype} dims: [ {", ".join(map(str, self.dims))} ] }}',
        ]
        if self.geometry:
            lines.append(f'output {{ name: "{GEOMETRY}" data_type: TYPE_FP32 dims: [ 8 ] }}')
        lines += [f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}' for k, v in self.parameters.items()]
        (folder / "config.pbtxt").write_text("\n".join([*lines, self.extra]) + "\n")


def parameters_of(image: ImagePreprocessing) -> dict[str, str]:
    """The backend's parameters for a preprocessing of the client."""
    resize = image.resize
    parameters = {"resize": resize.mode, "interpolation": image.interpolation}
    if resize.height is not None:
        parameters["height"] = str(resize.height)
        if resize.mode != "shorter":
            parameters["width"] = str(resize.width)
            parameters["pad_value"] = str(resize.pad)
    if image.crop_fraction is not None:
        parameters["crop_fraction"] = repr(image.crop_fraction)
    if image.center_crop is not None:
        parameters["center_crop"] = "x".join(map(str, image.center_crop))
    parameters["channel_order"] = image.channel_order
    parameters["scale"] = repr(image.scale)
    parameters["mean"] = ",".join(map(repr, image.mean))
    parameters["std"] = ",".join(map(repr, image.std))
    parameters["layout"] = image.layout
    parameters["exif"] = "true" if image.exif else "false"
    return parameters


def model_of(name: str, image: ImagePreprocessing, **options: Any) -> ImageModel:
    height, width = image.output_size or (-1, -1)
    dims = (3, height, width) if image.layout == "NCHW" else (height, width, 3)
    return ImageModel(name, parameters_of(image), dims, f"TYPE_{image.dtype}", **options)


def pixels(height: int, width: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """uint8 [y, x, channel]: smooth colours with noise and hard edges, so that every rounding matters."""
    rng = np.random.default_rng(seed + 1000 * height + width)
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    planes = [127 + 120 * np.sin(x / (3 + c + width / 9) + c) * np.cos(y / (2 + c + height / 7)) for c in range(3)]
    picture = np.stack(planes, -1) + rng.normal(0, 25, (height, width, 3))
    picture[(y // 5 + x // 7) % 4 == 0] = 255
    return np.asarray(np.clip(picture, 0, 255), dtype=np.uint8)


def encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def colour(height: int, width: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(pixels(height, width, seed))


def oriented(picture: Image.Image, orientation: int, kind: str = "JPEG", **options: Any) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(picture, kind, exif=exif, **options)


def as_batch(*pictures: bytes) -> np.ndarray[Any, Any]:
    """BYTES [pictures, 1]."""
    batch = np.empty((len(pictures), 1), dtype=object)
    for index, picture in enumerate(pictures):
        batch[index, 0] = picture
    return batch
