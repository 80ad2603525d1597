"""The backend's own C++ tests, and its decoders fed with mutated pictures.

Where `SANITIZE=address,undefined make backend` was run as well, the sanitized programs are taken.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from image_backend_models import LIBRARY, colour, encoded, needs_library, oriented
from test_image_backend_parity import raw_png, with_alpha, xmp

pytestmark = needs_library

SANITIZED = LIBRARY.parent.with_name(LIBRARY.parent.name + "-sanitized")
RUNS = 100_000


def programs() -> list[Path]:
    folders = [LIBRARY.parent, SANITIZED]
    return [folder for folder in folders if (folder / "fuzz" / "decode_fuzzer").is_file()]


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


@pytest.mark.parametrize("folder", programs(), ids=lambda folder: folder.name)
def test_core_tests_pass(folder: Path) -> None:
    done = subprocess.run([folder / "tests" / "core_tests"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("folder", programs(), ids=lambda folder: folder.name)
def test_mutated_pictures_neither_crash_nor_leak(folder: Path, tmp_path: Path) -> None:
    for index, seed in enumerate(seeds()):
        (tmp_path / f"{index:02}").write_bytes(seed)
    fuzzer = folder / "fuzz" / "decode_fuzzer"
    done = subprocess.run([fuzzer, tmp_path, str(RUNS)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-5000:]
    assert f"{RUNS} inputs from {len(seeds())} seeds" in done.stdout
