"""Small pictures of every kind, from which fuzzing starts: `fuzz_seeds.py [--with-settings] FOLDER` writes them.

With settings each has a byte in front that chooses the settings, as the fuzz target takes it; our own driver adds one.
"""

from __future__ import annotations

import sys
from pathlib import Path

from image_backend_models import colour, encoded, oriented
from test_image_backend_parity import raw_png, with_alpha, xmp


def seeds() -> list[bytes]:
    """Small pictures of every kind: what is small is mutated often."""
    photo, icon = colour(24, 33), colour(12, 15)
    return [
        *(encoded(photo, "JPEG", quality=60, subsampling=sampling) for sampling in ("4:4:4", "4:2:2", "4:2:0")),
        encoded(photo, "JPEG", progressive=True, quality=50),
        encoded(photo.convert("L"), "JPEG", quality=50),
        encoded(photo.convert("CMYK"), "JPEG", quality=40),
        oriented(photo, 6, quality=40),
        encoded(photo, "JPEG", restart_marker_rows=1, quality=40),
        encoded(icon, "JPEG", xmp=xmp(5), quality=40),
        encoded(icon, "PNG"),
        encoded(icon.convert("LA"), "PNG"),
        encoded(icon.quantize(16), "PNG", bits=4, transparency=2),
        encoded(icon.convert("1"), "PNG"),
        raw_png(11, 13, 16, 6, True),
        raw_png(9, 9, 2, 0, True),
        raw_png(9, 9, 8, 3, False, palette=7),
        oriented(icon, 3, "PNG"),
        encoded(icon, "WEBP", quality=50),
        encoded(icon, "WEBP", lossless=True),
        encoded(with_alpha(icon), "WEBP", quality=50),
        encoded(icon, "WEBP", save_all=True, append_images=[colour(12, 15, 5)], quality=50),
        oriented(icon, 6, "WEBP"),
    ]


def write(folder: Path, *, with_settings: bool) -> None:
    """One file for each seed."""
    for index, seed in enumerate(seeds()):
        (folder / f"{index:02}").write_bytes((bytes([index % 6]) if with_settings else b"") + seed)


if __name__ == "__main__":
    write(Path(sys.argv[-1]), with_settings="--with-settings" in sys.argv[1:-1])
