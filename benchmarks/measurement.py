"""What the benchmarks share: interleaved rounds, medians, and a result file with where it was measured."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
COMMAND = Path(sys.executable).parent / "tritonstack"


def interleave(rounds: int, contenders: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Run each contender once a round, in turn, so that a busy minute of the machine hits them alike."""
    values: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, measure in contenders.items():
            values[name].append(measure())
        shown = "  ".join(f"{name} {values[name][-1]:.4g}" for name in contenders)
        print(f"  round {number + 1}/{rounds}  {shown}", file=sys.stderr, flush=True)
    return values


def median_ratio(over: list[float], under: list[float]) -> float:
    """The median of the ratios within a round."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def environment() -> dict[str, Any]:
    """The machine and the versions a number belongs to."""
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    packages = ("numpy", "torch", "onnxruntime", "onnxruntime-gpu", "tritonclient", "grpcio", "nvidia-pytriton")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "packages": {name: found for name in packages if (found := installed(name))},
        "git": subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
        ).stdout.strip(),
    }


def installed(package: str) -> str | None:
    """The version of an installed package, also one in the folder that the served models import from."""
    for folder in (None, os.environ.get("TRITONSTACK_ONNXRUNTIME_SITE")):
        places = {} if folder is None else {"path": [folder]}
        for found in distributions(name=package, **places):
            return found.version
    return None


def measured_level(arguments: Sequence[str]) -> dict[str, Any]:
    """The one level of a `tritonstack load` with these arguments, as in its report; ends the program where it fails."""
    line = [str(COMMAND), "load", *arguments, "--json", "--quiet", "--metrics-url", "none"]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(line)} failed: {done.stderr[-800:]}")
    level: dict[str, Any] = json.loads(done.stdout)["levels"][0]
    return level


def save(name: str, result: dict[str, Any]) -> None:
    """Print `result` and write it to benchmarks/results/NAME.json."""
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({"benchmark": name, "environment": environment(), **result}, indent=2)
    (RESULTS / f"{name}.json").write_text(text + "\n")
    print(text)
