"""The image backend on a CPU against a python-backend model that uses Pillow, both in one real server.

Each has one instance of one thread. Requests carry one JPEG each, from threads that keep both busy in turn; samples go
to shared memory, as an ensemble would hand them on without a wire. Two numbers: images a second, and images a second of
processor time of whoever does the work (tritonserver, and the python model's own process), which other load on the
machine does not change.

    python benchmarks/preprocess_cpu.py [--rounds N] [--seconds S]
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from measurement import interleave, median_ratio, save
from PIL import Image

from tritonstack import Client, SharedMemoryRegion
from tritonstack_deploy.embedded import EmbeddedServer

if TYPE_CHECKING:
    import psutil

SIZES = {"500x375": (375, 500), "1920x1080": (1080, 1920)}
SENDERS = 3
SIDE = 224
OURS = """backend: "image_preprocess"
max_batch_size: 8
input { name: "image_bytes" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "preprocessed" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }
parameters { key: "resize" value { string_value: "shorter" } }
parameters { key: "height" value { string_value: "256" } }
parameters { key: "center_crop" value { string_value: "224x224" } }
parameters { key: "scale" value { string_value: "0.00392156862745098" } }
parameters { key: "mean" value { string_value: "0.485,0.456,0.406" } }
parameters { key: "std" value { string_value: "0.229,0.224,0.225" } }
dynamic_batching { }
instance_group { count: 1 kind: KIND_CPU }
"""
PILLOW = """backend: "python"
max_batch_size: 8
input { name: "image_bytes" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "preprocessed" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }
dynamic_batching { }
instance_group { count: 1 kind: KIND_CPU }
"""
MODEL = """
import io
import numpy as np
import triton_python_backend_utils as pb
from PIL import Image

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)


def prepare(data):
    image = Image.open(io.BytesIO(data)).convert("RGB")
    short = min(image.size)
    size = tuple(256 * side // short for side in image.size)
    image = image.resize(size, Image.Resampling.BILINEAR)
    left, top = (size[0] - 224) // 2, (size[1] - 224) // 2
    image = image.crop((left, top, left + 224, top + 224))
    pixels = np.asarray(image).astype(np.float32)
    pixels *= np.float32(1 / 255)
    pixels -= MEAN
    pixels /= STD
    return pixels.transpose(2, 0, 1)


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            data = pb.get_input_tensor_by_name(request, "image_bytes").as_numpy().ravel()
            batch = np.ascontiguousarray(np.stack([prepare(item) for item in data]))
            responses.append(pb.InferenceResponse(output_tensors=[pb.Tensor("preprocessed", batch)]))
        return responses
"""


def photo(height: int, width: int) -> bytes:
    """A JPEG with the spectrum of natural pictures (amplitude falls with frequency), quality 88, 4:2:0."""
    rng = np.random.default_rng(height)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    frequency[0, 0] = 1
    shape = (*frequency.shape, 3)
    spectrum = (rng.normal(size=shape) + 1j * rng.normal(size=shape)) / frequency[..., None] ** 1.1
    planes = np.fft.irfft2(spectrum, (height, width), axes=(0, 1))
    planes = (planes - planes.mean()) / planes.std()
    # Channels of photographs go together.
    planes = 0.75 * planes.mean(axis=2, keepdims=True) + 0.25 * planes
    pixels = np.clip(planes * 90 + 120, 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=88, subsampling="4:2:0")
    return buffer.getvalue()


def write_models(repository: Path) -> None:
    for name, config in (("ours", OURS), ("pillow", PILLOW)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(f'name: "{name}"\n{config}')
    (repository / "pillow" / "1" / "model.py").write_text(MODEL)


def processor_time_s(server: psutil.Process) -> float:
    """Of the server and its children, in seconds."""
    total = 0.0
    for process in (server, *server.children(recursive=True)):
        times = process.cpu_times()
        total += times.user + times.system
    return total


class Sender:
    """One thread's requests for one model, with its own room in shared memory for the answers."""

    def __init__(self, client: Client, model: str, data: bytes) -> None:
        batch = np.empty((1, 1), dtype=object)
        batch[0, 0] = data
        self.region = SharedMemoryRegion(3 * SIDE * SIDE * 4)
        client.register(self.region)
        target = self.region.slot((1, 3, SIDE, SIDE), "FP32")
        self.client = client
        self.request = client.prepare(model, {"image_bytes": batch}, outputs={"preprocessed": target})

    def run_until(self, end_s: float) -> int:
        count = 0
        while time.monotonic() < end_s:
            self.client.send(self.request)
            count += 1
        return count


def measure(
    client: Client, server: psutil.Process, model: str, data: bytes, seconds: float, per_cpu: list[float]
) -> Callable[[], float]:
    senders = [Sender(client, model, data) for _ in range(SENDERS)]

    def run() -> float:
        counts = [0] * SENDERS
        end_s = time.monotonic() + seconds

        def work(index: int) -> None:
            counts[index] = senders[index].run_until(end_s)

        before = processor_time_s(server)
        start_s = time.monotonic()
        threads = [threading.Thread(target=work, args=(index,)) for index in range(SENDERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took_s = time.monotonic() - start_s
        per_cpu.append(sum(counts) / max(1e-3, processor_time_s(server) - before))
        return sum(counts) / took_s

    run()
    per_cpu.clear()
    return run


def main() -> int:
    import psutil

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each model in each round")
    options = parser.parse_args()
    cells = {}
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder))
        with (
            EmbeddedServer(Path(folder), allow=("shared-memory",)) as server,
            Client(server.grpc_url) as client,
        ):
            assert server.pid
            process = psutil.Process(server.pid)
            for label, (height, width) in SIZES.items():
                data = photo(height, width)
                print(f"{label}: {len(data)} bytes", file=sys.stderr)
                per_cpu: dict[str, list[float]] = {"ours": [], "pillow": []}
                contenders = {
                    name: measure(client, process, name, data, options.seconds, per_cpu[name]) for name in per_cpu
                }
                rates = interleave(options.rounds, contenders)
                cells[label] = {
                    "jpeg_bytes": len(data),
                    "images_per_s": {name: statistics.median(values) for name, values in rates.items()},
                    "images_per_cpu_s": {name: statistics.median(values) for name, values in per_cpu.items()},
                    "ratio": median_ratio(rates["ours"], rates["pillow"]),
                    "ratio_per_cpu": median_ratio(per_cpu["ours"], per_cpu["pillow"]),
                }
                print(f"{label}: {cells[label]}", file=sys.stderr)
    save("preprocess_cpu", {"senders": SENDERS, "cells": cells})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
