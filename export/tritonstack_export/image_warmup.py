"""Warm-up of the published preprocessings: small pictures, so that the first request after a load finds the decoders
set up, nvJPEG with its states and device memory among them.

Triton reads the data of a TYPE_STRING input from `<model>/warmup/<file>`: a length of four bytes before each element.
A warm-up that fails ends Triton 2.51, so the pictures are made to fit the preprocessing.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tritonstack.image import ImagePreprocessing
    from tritonstack_export.repository import ModelConfig

FOLDER = "warmup"
_LEAST_SIDE = 64
_MOST_SIDE = 4096


@dataclass(frozen=True)
class _Sample:
    """One kind of JPEG. `batches`: at the model's own warm-up sizes too, not only alone."""

    name: str
    options: Mapping[str, Any]
    batches: bool


# The JPEG engine takes baseline pictures, in states made for one batch size each; progressive ones go another way.
_SAMPLES = (
    _Sample("baseline.jpeg", {"subsampling": "4:2:0"}, batches=True),
    _Sample("progressive.jpeg", {"subsampling": "4:2:0", "progressive": True}, batches=False),
)


def can_warm_up(image: ImagePreprocessing) -> bool:
    """False where only a huge picture would do, which is not worth its place in the repository."""
    return _side(image) <= _MOST_SIDE


def add_warmup(config: ModelConfig, picture_input: str, batch_sizes: list[int]) -> None:
    """Describe in `config` the warm-up with the files of `warmup_files`."""
    from tritonclient.grpc import model_config_pb2 as pb

    for sample in _SAMPLES:
        for size in batch_sizes if sample.batches else [1]:
            name = sample.name.removesuffix(".jpeg")
            warmup = config.model_warmup.add(name=f"{name}_{size}" if sample.batches else name, batch_size=size)
            entry = warmup.inputs[picture_input]
            entry.data_type = pb.TYPE_STRING
            entry.dims.append(1)
            entry.input_data_file = sample.name


def warmup_files(image: ImagePreprocessing) -> dict[str, bytes]:
    """Path below the model's folder -> content, of all files that `add_warmup` names. Needs Pillow."""
    files = {}
    for sample in _SAMPLES:
        data = _jpeg(_side(image), sample.options)
        files[f"{FOLDER}/{sample.name}"] = struct.pack("<I", len(data)) + data
    return files


def _side(image: ImagePreprocessing) -> int:
    """Of a square picture that every step of `image` can take: where nothing resizes, the crop must fit in as it is."""
    left = 1
    if image.resize.mode == "none" and image.center_crop is not None:
        left = max(image.center_crop)
    # The central part is rounded down; one pixel more makes up for it.
    needed = left if image.crop_fraction is None else int(left / image.crop_fraction) + 1
    return max(_LEAST_SIDE, needed)


def _jpeg(side: int, options: Mapping[str, Any]) -> bytes:
    import numpy as np
    from PIL import Image

    y, x = np.mgrid[0:side, 0:side] * 255.0 / max(side - 1, 1)
    pixels = np.stack([y, x, 255 - (y + x) / 2], axis=-1).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=75, **options)
    return buffer.getvalue()
