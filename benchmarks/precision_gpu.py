"""FP32, FP16, BF16 and INT8 variants of exported models on a GPU with ONNX Runtime's CUDA provider.

Inputs and outputs stay on the device (I/O binding), so the numbers are those of the graph. Also how far each variant
is from FP32 there, which is what the gates of the export predicted on a CPU by emulation.

Needs a GPU, onnxruntime-gpu (TRITONSTACK_ONNXRUNTIME_SITE) and a repository that `tritonstack export` wrote.
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
from typing import Any

import numpy as np
from measurement import save

if site := os.environ.get("TRITONSTACK_ONNXRUNTIME_SITE"):
    sys.path.insert(0, site)

BATCHES = (1, 8, 32)
PRECISIONS = ("fp32", "fp16", "bf16", "int8")


class Variant:
    """One graph on the GPU, with one session a batch size, since the CUDA provider tunes itself for the last one."""

    def __init__(self, path: Path) -> None:
        import onnxruntime as ort

        ort.preload_dlls()
        ort.set_default_logger_severity(4)
        self.manifest = json.loads((path / "manifest.json").read_text())
        self.path = path / "model.onnx"
        self.ort = ort
        self.sessions: dict[int, Any] = {}

    def session(self, batch: int) -> Any:
        """The session for a batch size; raises with ONNX Runtime's reason."""
        if batch not in self.sessions:
            options = self.ort.SessionOptions()
            options.log_severity_level = 4
            self.sessions[batch] = self.ort.InferenceSession(
                str(self.path), options, providers=["CUDAExecutionProvider", "CPUExecutionProvider"], enable_fallback=0
            )
        return self.sessions[batch]

    def rate(self, feeds: dict[str, np.ndarray], batch: int, seconds: float) -> float:
        """Samples per second at `batch`, over about `seconds`."""
        session = self.session(batch)
        binding = session.io_binding()
        values = [self.ort.OrtValue.ortvalue_from_numpy(value, "cuda", 0) for value in feeds.values()]
        for name, value in zip(feeds, values, strict=True):
            binding.bind_ortvalue_input(name, value)
        for output in session.get_outputs():
            binding.bind_output(output.name, "cuda", 0)
        for _ in range(10):
            session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        calls, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            for _ in range(5):
                session.run_with_iobinding(binding)
            binding.synchronize_outputs()
            calls += 5
        return calls * batch / (time.perf_counter() - start)

    def answers(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """All outputs on `feeds`, as float32."""
        values = self.session(len(next(iter(feeds.values())))).run(None, feeds)
        return [np.asarray(value, np.float32) for value in values]


def inputs(manifest: dict[str, Any], batch: int, samples: Path | None) -> dict[str, np.ndarray]:
    """Real samples from an .npz where there is one (repeated to fill the batch), else random ones in the dtype."""
    stored = np.load(samples) if samples is not None and samples.is_file() else None
    feeds = {}
    random = np.random.default_rng(0)
    for tensor in manifest["inputs"]:
        sizes = {name: bounds["opt"] for name, bounds in manifest["dimensions"].items()} | {"batch": batch}
        shape = [sizes[axis] if isinstance(axis, str) else axis for axis in tensor["shape"]]
        if stored is not None:
            value = np.resize(stored[tensor["name"]], (batch, *stored[tensor["name"]].shape[1:]))
        elif tensor["dtype"].startswith("int"):
            value = random.integers(1, 2, shape)
        else:
            value = random.uniform(-1, 1, shape)
        feeds[tensor["name"]] = np.ascontiguousarray(value.astype(tensor["dtype"]))
    return feeds


def snr_db(reference: np.ndarray, found: np.ndarray) -> float:
    """Signal-to-noise ratio in dB; the signal is the spread of the reference about its mean over the samples."""
    signal = float(np.square(reference - reference.mean(axis=0, keepdims=True)).sum())
    noise = float(np.square(reference - found).sum())
    return (
        10 * float(np.log10(signal / noise)) if noise and np.isfinite(noise) else float("inf" if not noise else "nan")
    )


def main() -> None:
    """Measure every model of the repository that has an FP32 variant."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("repository", type=Path)
    parser.add_argument("--samples", type=Path, help="folder of <model>.npz with real inputs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    options = parser.parse_args()
    models: dict[str, dict[str, Variant]] = {}
    for file in sorted(options.repository.glob("*/1/manifest.json")):
        variant = Variant(file.parent)
        base = variant.manifest["spec"]["name"]
        models.setdefault(base, {})[variant.manifest["precision"]] = variant
    result: dict[str, Any] = {}
    for name, variants in models.items():
        samples = options.samples / f"{name}.npz" if options.samples else None
        result[name] = measure(variants, samples, options.rounds, options.seconds)
        print(f"  {name}: {json.dumps(result[name]['ratio_to_fp32'])}", file=sys.stderr, flush=True)
    gpu = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True
    ).stdout.strip()
    save("precision_gpu", {"gpu": gpu, "unit": "samples/s by batch size, ONNX Runtime CUDA", "models": result})


def measure(variants: dict[str, Variant], samples: Path | None, rounds: int, seconds: float) -> dict[str, Any]:
    """Rates by precision and batch, ratios to FP32 within a round, and the distance from FP32 on the device."""
    refused: dict[str, str] = {}
    usable = {}
    reference: list[np.ndarray] = []
    distance: dict[str, list[float]] = {}
    for precision in (p for p in PRECISIONS if p in variants):
        variant = variants[precision]
        try:
            answers = variant.answers(inputs(variant.manifest, 32, samples))
        except Exception as error:
            refused[precision] = str(error).strip().splitlines()[0][:300]
            continue
        usable[precision] = variant
        reference = reference or answers
        distance[precision] = [round(snr_db(a, b), 1) for a, b in zip(reference, answers, strict=True)]
    values: dict[str, dict[int, list[float]]] = {p: {b: [] for b in BATCHES} for p in usable}
    for _ in range(rounds):
        for batch in BATCHES:
            for precision, variant in usable.items():
                feeds = inputs(variant.manifest, batch, samples)
                values[precision][batch].append(variant.rate(feeds, batch, seconds))
    medians = {p: {b: round(statistics.median(v), 1) for b, v in found.items()} for p, found in values.items()}
    ratios = {
        p: {
            b: round(statistics.median(x / y for x, y in zip(values[p][b], values["fp32"][b], strict=True)), 2)
            for b in BATCHES
        }
        for p in values
        if "fp32" in values
    }
    return {"median": medians, "ratio_to_fp32": ratios, "snr_db_to_fp32_on_the_device": distance, "refused": refused}


if __name__ == "__main__":
    main()
