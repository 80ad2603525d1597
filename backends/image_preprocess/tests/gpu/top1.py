"""Top-1 of EfficientNet-Lite0 with pictures prepared on the GPU against pictures prepared by Pillow.

    top1.py pixels --library LIBRARY --photos FOLDER --out pixels.npz     # on the machine with the GPU; needs no model
    top1.py judge --pixels pixels.npz --model model.onnx --photos FOLDER  # anywhere, with ONNX Runtime

FOLDER is that of `make photos`: evaluation/ and labels.json. Files of other formats are made JPEGs first (quality 92,
4:2:0), so that the GPU decodes them; both ways start from the same JPEG. `pixels` keeps 8-bit values, from which the
model's input is made exactly.
"""

from __future__ import annotations

import argparse
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIDE = 224
SETTINGS = {"crop_fraction": 0.875, "resize": "exact", "height": SIDE, "width": SIDE, "interpolation": "bicubic"}
BATCH = 16

Array = np.ndarray[Any, Any]


def as_jpeg(path: Path) -> bytes:
    """The file itself where it is a JPEG, else a JPEG of it."""
    data = path.read_bytes()
    if data[:2] == b"\xff\xd8":
        return data
    stream = io.BytesIO()
    Image.open(io.BytesIO(data)).convert("RGB").save(stream, "JPEG", quality=92, subsampling="4:2:0")
    return stream.getvalue()


def by_pillow(data: bytes) -> Array:
    """uint8 [y, x, channel]: the central 87.5 % of the shorter side, to 224 × 224; turned as EXIF says."""
    from PIL import ImageOps

    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    side = int(min(image.size) * 0.875)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    square = image.crop((left, top, left + side, top + side))
    return np.asarray(square.resize((SIDE, SIDE), Image.Resampling.BICUBIC))


def pictures(photos: Path) -> list[str]:
    """Names of the labelled files."""
    return sorted(json.loads((photos / "labels.json").read_text()))


def make_pixels(library: str, photos: Path, *, device: int = 0) -> tuple[Array, list[str]]:
    """uint8 [file, y, x, channel] by the backend's core, and how each file was decoded. Raises RuntimeError."""
    from image_library import ImageLibrary

    nvjpeg = {"nvjpeg_path": path} if (path := os.environ.get("TRITONSTACK_NVJPEG", "")) and device >= 0 else {}
    instance = ImageLibrary(library).instance("UINT8", device=device, layout="NHWC", threads=4, **SETTINGS, **nvjpeg)
    files = [as_jpeg(photos / "evaluation" / name) for name in pictures(photos)]
    samples: list[Array] = []
    paths: list[str] = []
    for first in range(0, len(files), BATCH):
        made, decoded_by = instance.encoded(files[first : first + BATCH], (SIDE, SIDE, 3))
        samples += made
        paths += decoded_by
    return np.stack(samples), paths


def top1(model: Path, pixels: Array) -> list[int]:
    """The class of each picture by ONNX Runtime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    classes: list[int] = []
    for first in range(0, len(pixels), BATCH):
        values = (pixels[first : first + BATCH].astype(np.float32) - np.float32(127)) / np.float32(128)
        batch = np.ascontiguousarray(values.transpose(0, 3, 1, 2))
        logits = session.run(None, {session.get_inputs()[0].name: batch})[0]
        classes += logits.argmax(axis=1).tolist()
    return classes


def judge(model: Path, photos: Path, pixels: Array) -> dict[str, Any]:
    """Right answers both ways, pictures whose class changed, and how far the pixels are apart."""
    labels = json.loads((photos / "labels.json").read_text())
    names = pictures(photos)
    reference = np.stack([by_pillow(as_jpeg(photos / "evaluation" / name)) for name in names])
    found, wanted = top1(model, pixels), top1(model, reference)
    distance = np.abs(pixels.astype(np.int16) - reference)
    return {
        "pictures": len(names),
        "right": sum(c in labels[name] for name, c in zip(names, found, strict=True)),
        "right_by_pillow": sum(c in labels[name] for name, c in zip(names, wanted, strict=True)),
        "changed": [n for n, a, b in zip(names, found, wanted, strict=True) if a != b],
        "largest_distance": int(distance.max()),
        "mean_distance": float(distance.mean()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    verbs = parser.add_subparsers(dest="verb", required=True)
    first = verbs.add_parser("pixels", help="prepare the pictures on a GPU")
    first.add_argument("--library", required=True, help="what build_library.sh made")
    first.add_argument("--out", type=Path, required=True)
    first.add_argument("--device", type=int, default=0, help="a GPU, or -1 for the CPU")
    second = verbs.add_parser("judge", help="classify them")
    second.add_argument("--pixels", type=Path, required=True)
    second.add_argument("--model", type=Path, required=True)
    for verb in (first, second):
        verb.add_argument("--photos", type=Path, required=True)
    options = parser.parse_args()
    if options.verb == "pixels":
        pixels, paths = make_pixels(options.library, options.photos, device=options.device)
        np.savez_compressed(options.out, pixels=pixels, paths=np.array(paths))
        counts = {path: paths.count(path) for path in sorted(set(paths))}
        print(json.dumps({"pictures": len(paths), "decoded_by": counts}))
        return 0
    with np.load(options.pixels) as saved:
        print(json.dumps(judge(options.model, options.photos, saved["pixels"]), indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
