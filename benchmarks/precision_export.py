"""The whole export of EfficientNet-Lite0 (FP32, FP16, INT8 with calibration and fallback, gates, pre-flight) against
ModelOpt, ONNX Runtime and Polygraphy used by hand for the same results: as command lines (`export_by_commands.py`),
and as libraries in one Python process (`export_by_hand.py`).

Must reach on 2 cores: at most 8 minutes and 6 GiB, and at most half of the wall time by hand. The three take turns;
the photographs and TensorRT for RTX are there beforehand for all, results of earlier pre-flights are not. A second
export from cache (`--if-changed`, `preflight`) is timed as well.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from main_job import SPEC, watched
from measurement import COMMAND, ROOT, median_ratio, save

from tritonstack_export.preflight.environment import ensure_environment, site_folder


def main() -> None:
    """Measure in turn and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    photos = ROOT / ".cache/photos"
    if not photos.is_dir():
        sys.exit("the photographs are missing: run `make photos`")
    ensure_environment()
    ours: list[dict[str, Any]] = []
    peers: dict[str, list[dict[str, Any]]] = {"by_commands": [], "by_hand": []}
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            ours.append(export(Path(folder)))
        for name, runs in peers.items():
            with tempfile.TemporaryDirectory() as folder:
                runs.append(by_hand(f"export_{name}.py", photos, Path(folder)))
        told = ", ".join(f"{name} {runs[-1]['total_seconds']} s" for name, runs in peers.items())
        print(f"  round {number + 1}: {ours[-1]['seconds']} s, {told}", file=sys.stderr)
    totals = {name: [run["total_seconds"] for run in runs] for name, runs in peers.items()}
    own = [run["seconds"] for run in ours]
    save(
        "precision_export",
        {
            "unit": "seconds",
            "median": {name: statistics.median(found) for name, found in {"tritonstack": own, **totals}.items()},
            "ratio": {name: round(median_ratio(own, found), 3) for name, found in totals.items()},
            "peak_bytes": max(run["peak_bytes"] for run in ours),
            "tritonstack": ours,
            **peers,
        },
    )


def export(folder: Path) -> dict[str, Any]:
    """One export with all variants and pre-flight, then the same once more from cache."""
    cache, repository = folder / "cache", folder / "models"
    site = site_folder()
    environment = cache / site.parent.parent.name / site.parent.name
    environment.parent.mkdir(parents=True)
    # TensorRT for RTX is there already, results of earlier pre-flights are not.
    shutil.copytree(site.parent, environment, copy_function=os.link)
    os.environ["TRITONSTACK_CACHE"] = str(cache)
    command = [COMMAND, "export", ROOT / SPEC, "--repository", repository, "--precision", "fp32,fp16,int8"]
    measured = watched([*command, "--preflight", "--json"], cwd=ROOT)
    manifest = json.loads((repository / "efficientnet_lite0_int8/1/manifest.json").read_text())
    measured["steps"] = manifest["seconds"]
    measured["accuracy"] = manifest["accuracy"]
    measured["layers"] = manifest["conversion"]["layers"]
    for name, again in (
        ("if_changed_seconds", [*command, "--if-changed"]),
        ("preflight_from_cache_seconds", [COMMAND, "preflight", repository]),
    ):
        start = time.perf_counter()
        subprocess.run(again, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        measured[name] = round(time.perf_counter() - start, 2)
    del os.environ["TRITONSTACK_CACHE"]
    return measured


def by_hand(script: str, photos: Path, folder: Path) -> dict[str, Any]:
    """One run of a peer."""
    run = subprocess.run(
        [sys.executable, Path(__file__).parent / script, photos, site_folder(), folder],
        check=True,
        capture_output=True,
        text=True,
    )
    result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return result


if __name__ == "__main__":
    main()
