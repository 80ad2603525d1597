"""FP32, FP16 and INT8 variants on this CPU with ONNX Runtime: how fast, and how right, as served and by default.

INT8 runs twice: with the session options that its entry is served with (those that make it right on every CPU), and
with ONNX Runtime's defaults, which fuse Q/DQ into integer kernels. On a CPU with VNNI these are fast and right; on one
with AVX2 alone they saturate (`signed × signed` products in 16 bits) and answers are wrong.

Needs a repository that `tritonstack export --precision fp32,fp16,int8` wrote. Rounds are interleaved; two threads.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from measurement import interleave, save
from precision_gpu import inputs, snr_db

from tritonstack_export.repository import parse_config

BATCHES = (1, 8)
THREADS = 2


def session(folder: Path, *, as_served: bool) -> Any:
    """A session of `folder`/model.onnx, with the session options of the entry's config or with defaults."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = THREADS
    if as_served:
        config = parse_config((folder.parent / "config.pbtxt").read_bytes(), path=folder.parent / "config.pbtxt")
        for key, value in config.parameters.items():
            if key.startswith("session."):
                options.add_session_config_entry(key, value.string_value)
        levels = {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}
        if config.optimization.graph.level in levels:
            options.graph_optimization_level = getattr(
                ort.GraphOptimizationLevel, levels[config.optimization.graph.level]
            )
    return ort.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])


def rate(run: Any, feeds: dict[str, np.ndarray], batch: int, seconds: float) -> float:
    """Samples per second over about `seconds`."""
    run.run(None, feeds)
    calls, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        run.run(None, feeds)
        calls += 1
    return calls * batch / (time.perf_counter() - start)


def main() -> None:
    """Measure every model of the repository that has an FP32 variant."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("repository", type=Path)
    parser.add_argument("--samples", type=Path, help="folder of <model>.npz with real inputs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    folders: dict[str, dict[str, tuple[Path, dict[str, Any]]]] = {}
    for file in sorted(options.repository.glob("*/1/manifest.json")):
        manifest = json.loads(file.read_text())
        folders.setdefault(manifest["spec"]["name"], {})[manifest["precision"]] = (file.parent, manifest)
    flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")).split()
    result: dict[str, Any] = {}
    for name, variants in folders.items():
        if "fp32" not in variants:
            continue
        sessions = {precision: session(folder, as_served=True) for precision, (folder, _) in variants.items()}
        if "int8" in variants:
            sessions["int8_default"] = session(variants["int8"][0], as_served=False)
        samples = options.samples / f"{name}.npz" if options.samples else None
        feeds = {batch: inputs(variants["fp32"][1], batch, samples) for batch in (*BATCHES, 16)}
        answers = {key: run.run(None, feeds[16])[0] for key, run in sessions.items()}
        rates: dict[int, dict[str, list[float]]] = {}
        for batch in BATCHES:
            print(f"{name}, batch {batch}", file=sys.stderr, flush=True)
            rates[batch] = interleave(
                options.rounds,
                {
                    key: (lambda run=run, batch=batch, feeds=feeds: rate(run, feeds[batch], batch, options.seconds))
                    for key, run in sessions.items()
                },
            )
        result[name] = {
            "median": {b: {k: round(statistics.median(v), 1) for k, v in found.items()} for b, found in rates.items()},
            "ratio_to_fp32": {
                b: {
                    k: round(statistics.median(x / y for x, y in zip(v, found["fp32"], strict=True)), 2)
                    for k, v in found.items()
                }
                for b, found in rates.items()
            },
            "snr_db_to_fp32": {
                key: round(snr_db(answers["fp32"].astype(np.float32), value.astype(np.float32)), 1)
                for key, value in answers.items()
            },
            "bytes": {p: (folder / "model.onnx").stat().st_size for p, (folder, _) in variants.items()},
        }
    save(
        "precision_cpu",
        {
            "unit": f"samples/s by batch size, {THREADS} threads",
            "instruction_sets": sorted(f for f in flags if "vnni" in f or f in ("avx2", "avx512f", "amx_int8")),
            "models": result,
        },
    )


if __name__ == "__main__":
    main()
