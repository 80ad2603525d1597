"""How many GPUs a server started here would see."""

from __future__ import annotations

import os
from pathlib import Path


def visible_gpus() -> int:
    """The NVIDIA GPUs of this machine, less those that CUDA_VISIBLE_DEVICES hides. Asks the driver's files only."""
    try:
        present = sum(1 for _ in Path("/proc/driver/nvidia/gpus").iterdir())
    except OSError:
        # Containers may hide /proc/driver; the device nodes are what CUDA opens in the end.
        present = sum(1 for node in Path("/dev").glob("nvidia[0-9]*") if node.name.removeprefix("nvidia").isdigit())
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return present
    count = 0
    for word in chosen.split(","):
        word = word.strip()
        # CUDA stops at the first entry it does not know, such as -1.
        if not word or (word.lstrip("-").isdigit() and not 0 <= int(word) < present):
            break
        count += 1
    return min(count, present)
