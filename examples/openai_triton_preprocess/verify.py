"""Hold the fused kernel to PyTorch's antialiased resize, and time it.

    python verify.py                     on the GPU
    TRITON_INTERPRET=1 python verify.py  in OpenAI Triton's interpreter, on small pictures

Prints one JSON document; the exit code is 1 when a result is further off than the tolerance.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "model_repository" / "fused_preprocess" / "1"))

import torch
import torch.nn.functional as F
from fused_resize import FusedResize
from resampling import Settings, read_settings

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# In levels of 0 to 255: sums of float32 in another order.
TOLERANCE = 0.02
SMALL = ((37, 50), (20, 31), (90, 200), (7, 8), (24, 24), (5, 300), (130, 9))
LARGE = ((375, 500), (1080, 1920), (256, 256), (200, 300), (2160, 3840), (231, 517))
CASES: dict[str, dict[str, str]] = {
    "shorter": {"resize": "shorter", "center_crop": "10x11" if INTERPRETED else "224x224"},
    "exact": {"resize": "exact", "width": "13" if INTERPRETED else "231"},
}
HEIGHT = "12" if INTERPRETED else "256"
IMAGENET = {"scale": str(1 / 255), "mean": "0.485,0.456,0.406", "std": "0.229,0.224,0.225"}


def reference(picture: torch.Tensor, settings: Settings) -> torch.Tensor:
    """The same by torch, in float32: [channel, y, x]."""
    plan = settings.plan(*picture.shape[:2])
    levels = F.interpolate(
        picture.permute(2, 0, 1)[None].float(), size=plan.resized, mode=settings.interpolation, antialias=True
    )
    height, width = settings.output
    levels = levels[0].clamp(0, 255)[:, plan.top : plan.top + height, plan.left : plan.left + width]
    mean, std = (torch.tensor(values)[:, None, None] for values in (settings.mean, settings.std))
    return (levels * settings.scale - mean) / std


def compare(name: str, interpolation: str, dtype: torch.dtype, device: torch.device) -> dict[str, object]:
    """The largest difference over all sizes in one launch, in levels, beside what rounding to `dtype` may cost."""
    settings = read_settings({**CASES[name], "height": HEIGHT, "interpolation": interpolation, **IMAGENET})
    generator = torch.Generator().manual_seed(0)
    pictures = [
        torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=generator)
        for height, width in (SMALL if INTERPRETED else LARGE)
    ]
    if name == "shorter":
        pictures = [picture for picture in pictures if max(picture.shape[:2]) < 8 * min(picture.shape[:2])]
    plans = [settings.plan(*picture.shape[:2]) for picture in pictures]
    on_device = [picture.to(device) for picture in pictures]
    found = FusedResize(settings, device, dtype)(on_device, plans).cpu()
    worst = 0.0
    for picture, sample in zip(pictures, found, strict=True):
        wanted = reference(picture, settings)
        level = settings.scale / torch.tensor(settings.std)[:, None, None]
        rounding = torch.finfo(dtype).eps * wanted.abs() if dtype != torch.float32 else torch.zeros(())
        apart = ((sample.float() - wanted).abs() - rounding).clamp(min=0) / level
        worst = max(worst, float(apart.max()))
    return {
        "case": name, "interpolation": interpolation, "dtype": str(dtype).removeprefix("torch."),
        "pictures": len(pictures), "levels_apart": round(worst, 5), "passed": worst <= TOLERANCE,
    }  # fmt: skip


def timings(device: torch.device) -> list[dict[str, object]]:
    """Microseconds a picture, of the launch alone, on pixels that lie on the GPU."""
    settings = read_settings({**CASES["shorter"], "height": HEIGHT, **IMAGENET})
    resize = FusedResize(settings, device, torch.float16)
    rows: list[dict[str, object]] = []
    for height, width in ((375, 500), (1080, 1920)):
        for batch in (1, 16, 64):
            pictures = [torch.zeros((height, width, 3), dtype=torch.uint8, device=device) for _ in range(batch)]
            plans = [settings.plan(height, width)] * batch
            for _ in range(5):
                resize(pictures, plans)
            torch.cuda.synchronize()
            rounds = []
            for _ in range(20):
                start = time.perf_counter()
                for _ in range(10):
                    resize(pictures, plans)
                torch.cuda.synchronize()
                rounds.append((time.perf_counter() - start) / 10)
            seconds = statistics.median(rounds)
            rows.append(
                {"size": f"{height}x{width}", "batch": batch, "us_per_picture": round(seconds / batch * 1e6, 2),
                 "pictures_per_s": round(batch / seconds)}
            )  # fmt: skip
    return rows


def main() -> int:
    device = torch.device("cpu" if INTERPRETED else "cuda")
    rows = [
        compare(name, interpolation, dtype, device)
        for name in CASES
        for interpolation in ("bilinear", "bicubic")
        for dtype in ((torch.float32,) if INTERPRETED else (torch.float32, torch.float16))
    ]
    document: dict[str, object] = {"device": "interpreter", "tolerance_levels": TOLERANCE, "comparisons": rows}
    if not INTERPRETED:
        document["device"] = torch.cuda.get_device_name()
        document["timings"] = timings(device)
    print(json.dumps(document, indent=2))
    return 0 if all(row["passed"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
