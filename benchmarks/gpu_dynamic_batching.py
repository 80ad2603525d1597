"""Dynamic batching on a GPU through the onnxruntime backend: one session a batch size against one session for all.

Needs a GPU, onnxruntime-gpu (TRITONSTACK_ONNXRUNTIME_SITE) and EfficientNet-Lite0 as `make demo` exported it. Single
images at 1, 8 and 32 requests in flight; at 8 the batch size changes all the time.
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
from pathlib import Path

from measurement import ROOT, save

from tritonstack_deploy.embedded import EmbeddedServer

MODEL = "efficientnet_lite0"
LEVELS = ("1", "8", "32")
CONTENDERS = {"one_session_for_all": "0", "one_session_a_size": "1,8,32"}


def main() -> None:
    """Measure in turn and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repository", type=Path, default=ROOT / "model_repository")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    values: dict[str, dict[str, list[float]]] = {name: {level: [] for level in LEVELS} for name in CONTENDERS}
    for number in range(options.rounds):
        for name, buckets in CONTENDERS.items():
            with tempfile.TemporaryDirectory() as folder:
                entry = Path(folder) / MODEL
                shutil.copytree(options.repository / MODEL, entry)
                with (entry / "config.pbtxt").open("a") as config:
                    config.write(f'parameters {{ key: "batch_buckets" value {{ string_value: "{buckets}" }} }}\n')
                for level, rate in load(Path(folder)).items():
                    values[name][level].append(rate)
            print(f"  round {number + 1}  {name}  {values[name]}", file=sys.stderr, flush=True)
    medians = {name: {level: statistics.median(v) for level, v in found.items()} for name, found in values.items()}
    gpu = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True
    ).stdout.strip()
    save(
        "gpu_dynamic_batching",
        {
            "unit": "images/s by requests in flight",
            "gpu": gpu,
            "onnxruntime_site": bool(os.environ.get("TRITONSTACK_ONNXRUNTIME_SITE")),
            "median": medians,
            "values": values,
            "ratio": {
                level: medians["one_session_a_size"][level] / medians["one_session_for_all"][level] for level in LEVELS
            },
        },
    )


def load(repository: Path) -> dict[str, float]:
    """Images per second by requests in flight."""
    with EmbeddedServer(repository, load_timeout_s=120) as server:
        command = [sys.executable, "-m", "tritonstack", "load", MODEL, "--url", server.grpc_url, "--concurrency",
                   ",".join(LEVELS), "--duration", "4", "--warmup", "3", "--json"]  # fmt: skip
        report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return {str(row["arrival"]["concurrency"]): row["inferences_per_s"] for row in report["levels"]}


if __name__ == "__main__":
    main()
