"""Embedded server (gRPC, batch 8, concurrency 8) against bare ONNX Runtime in one process with the same threads.

Must reach: a ratio of at least 0.8. Model: EfficientNet-Lite0 as `make demo` exported it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime
from measurement import COMMAND, ROOT, interleave, median_ratio, save

from tritonstack_deploy.embedded import EmbeddedServer

MODEL = "efficientnet_lite0"
BATCH = 8


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repository", type=Path, default=ROOT / "model_repository")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    folder = options.repository / MODEL
    if not folder.is_dir():
        sys.exit(f"{folder} is missing; run `make demo` first")
    path = max(folder.glob("*/model.onnx"), key=lambda p: int(p.parent.name))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).uniform(-1, 1, (BATCH, 3, 224, 224)).astype(np.float32)

    def bare() -> float:
        return inferences_per_second(session, x, options.seconds)

    with EmbeddedServer(options.repository, models={MODEL: folder}) as server:

        def served() -> float:
            command = [COMMAND, "load", MODEL, "--url", server.grpc_url, "--batch", str(BATCH), "--concurrency", "8",
                       "--duration", str(options.seconds), "--warmup", "2", "--json"]  # fmt: skip
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            return float(json.loads(output)["levels"][0]["inferences_per_s"])

        values = interleave(options.rounds, {"bare": bare, "served": served})
    save(
        "serve_throughput",
        {
            "unit": "images/s",
            "batch": BATCH,
            "concurrency": 8,
            "threads": os.cpu_count(),
            "median": {name: statistics.median(found) for name, found in values.items()},
            "values": values,
            "ratio_served_to_bare": median_ratio(values["served"], values["bare"]),
            "must_reach": 0.8,
        },
    )


def inferences_per_second(session: onnxruntime.InferenceSession, x: np.ndarray, seconds: float) -> float:
    """Rows of `x` [batch, 3, 224, 224] per second through `session`, after two warm-up runs."""
    for _ in range(2):
        session.run(None, {"image": x})
    start, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < seconds:
        session.run(None, {"image": x})
        count += len(x)
    return count / elapsed


if __name__ == "__main__":
    main()
