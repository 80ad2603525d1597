"""A short run over every kernel: `compute-sanitizer --tool memcheck python3 sanitize.py LIBRARY`."""

from __future__ import annotations

import sys

import numpy as np
from image_library import ImageLibrary

library = ImageLibrary(sys.argv[1])
random = np.random.default_rng(5)
images = [random.integers(0, 256, (*size, 3), np.uint8) for size in [(1, 1), (33, 47), (90, 301), (200, 640)]]
for interpolation in ("bilinear", "bicubic", "nearest"):
    for antialias in (True, False):
        for rounded in (True, False):
            for geometry in (
                {"resize": "letterbox", "height": 40, "width": 36},
                {"resize": "exact", "height": 61, "width": 90, "center_crop": "21x64"},
            ):
                gpu = library.instance(
                    "FP16", device=0, interpolation=interpolation, antialias=antialias, round_u8=rounded, **geometry
                )
                gpu.raw(images)
print("done")
