"""Time and memory of the main job: the export of EfficientNet-Lite0, and the whole demo from an empty repository.

Must reach on 2 cores: export at most 90 s; demo at most 240 s and 4 GiB (all its processes together).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from measurement import COMMAND, ROOT, save

SPEC = "examples/efficientnet_lite0/spec.yaml"


def watched(command: list[object], cwd: Path) -> dict[str, Any]:
    """Run a command; seconds, and the highest sum of proportional memory (PSS) of its process tree."""
    start = time.perf_counter()
    process = subprocess.Popen(list(map(str, command)), cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = 0
    stop = threading.Event()

    def sample() -> None:
        nonlocal peak
        while not stop.wait(0.1):
            total = 0
            try:
                root = psutil.Process(process.pid)
                for member in [root, *root.children(recursive=True)]:
                    try:
                        # Shared pages (weights mapped twice, shared memory) are counted once.
                        total += member.memory_full_info().pss
                    except psutil.Error:
                        continue
            except psutil.Error:
                return
            peak = max(peak, total)

    thread = threading.Thread(target=sample)
    thread.start()
    code = process.wait()
    stop.set()
    thread.join()
    if code != 0:
        sys.exit(f"{command} failed with {code}")
    return {"seconds": round(time.perf_counter() - start, 1), "peak_bytes": peak}


def main() -> None:
    """Measure and save. The demo runs in a copy of the tree, so that it starts without a repository."""
    with tempfile.TemporaryDirectory() as folder:
        export = watched([COMMAND, "export", ROOT / SPEC, "--precision", "fp32", "--repository", folder], cwd=ROOT)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        (copy / "model_repository").mkdir(parents=True)
        shutil.copytree(ROOT / "examples", copy / "examples")
        demo = watched([sys.executable, "examples/demo.py"], cwd=copy)
    save(
        "main_job",
        {
            "export": export,
            "demo": demo,
            "must_reach_at_most": {"export_s": 90, "demo_s": 240, "demo_bytes": 4 * 2**30},
        },
    )


if __name__ == "__main__":
    main()
