"""JPEG bytes in host memory to 224 × 224 FP16 NCHW on a GPU: this backend, torchvision, DALI and CV-CUDA.

Needs a GPU and the library that backends/image_preprocess/tests/gpu/build_library.sh makes. Contenders whose packages
are missing are left out and named. The pictures are made up (photos.py), and kept in --photos when given.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measurement import ROOT, installed, save

sys.path.insert(0, str(ROOT / "backends" / "image_preprocess" / "tests" / "gpu"))
from image_library import EncodedBatch, ImageLibrary
from photos import jpeg, photo

SIZES = {"500x375": (375, 500), "1920x1080": (1080, 1920)}
BATCHES = (1, 16, 64)
DISTINCT = {"500x375": 64, "1920x1080": 16}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SETTINGS: dict[str, Any] = {
    "resize": "shorter",
    "height": 256,
    "center_crop": "224x224",
    "scale": 1 / 255,
    "mean": ",".join(map(str, MEAN)),
    "std": ",".join(map(str, STD)),
}
Step = Callable[[], Any]


def photographs(folder: Path | None) -> dict[str, list[bytes]]:
    """JPEG files by size, at qualities from 85 to 90 and 4:2:0."""
    found: dict[str, list[bytes]] = {}
    for name, (height, width) in SIZES.items():
        files = []
        for number in range(DISTINCT[name]):
            path = folder / f"{name}-{number}.jpg" if folder else None
            if path is not None and path.is_file():
                files.append(path.read_bytes())
                continue
            files.append(jpeg(photo(height, width, number), 85 + number % 6))
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(files[-1])
        found[name] = files
    return found


def rate(step: Step, batch: int, seconds: float) -> float:
    """Images per second of a step that blocks until its batch is done."""
    # Clocks rise under load only, and the sharing of the decoding settles over some batches.
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds / 2:
        step()
    calls, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds or calls < 3:
        step()
        calls += 1
    return calls * batch / elapsed


class Ours:
    """This backend's core through its C entry, as the server calls it."""

    def __init__(self, library: ImageLibrary, **policy: Any) -> None:
        self.instance = library.instance("FP16", device=0, **SETTINGS, **policy)
        self.batch: EncodedBatch

    def step(self, files: list[bytes]) -> Step:
        """One batch into one tensor on the device."""
        import torch

        self.output = torch.empty((len(files), 3, 224, 224), dtype=torch.float16, device="cuda")
        self.batch = EncodedBatch(files)
        self.batch.point([sample.data_ptr() for sample in self.output])

        def run() -> Any:
            if self.instance.run_encoded(self.batch, 0):
                raise RuntimeError(self.instance.library.error())
            return self.output

        return run


class Torchvision:
    """decode_jpeg of a list on the GPU and the transforms on the stacked batch, which needs pictures of one size."""

    def __init__(self) -> None:
        import torch
        from torchvision.transforms import v2

        self.torch = torch
        self.after = v2.Compose(
            [
                v2.Resize(256, antialias=True),
                v2.CenterCrop(224),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(MEAN, STD),
                v2.ToDtype(torch.float16),
            ]
        )

    def step(self, files: list[bytes]) -> Step:
        """As Ours.step."""
        from torchvision.io import ImageReadMode, decode_jpeg

        tensors = [self.torch.frombuffer(bytearray(file), dtype=self.torch.uint8) for file in files]

        def run() -> Any:
            images = decode_jpeg(tensors, mode=ImageReadMode.RGB, device="cuda")
            result = self.after(self.torch.stack(images))
            self.torch.cuda.synchronize()
            return result

        return run


class Dali:
    """A pipeline with mixed decoding; the load of the hardware engine as given."""

    def __init__(self, hardware_load: float, threads: int) -> None:
        import nvidia.dali as dali

        self.dali = dali
        self.hardware_load = hardware_load
        self.threads = threads

    def step(self, files: list[bytes]) -> Step:
        """As Ours.step."""
        import torch
        from nvidia.dali import fn, types
        from nvidia.dali.plugin.pytorch import feed_ndarray

        arrays = [np.frombuffer(file, np.uint8) for file in files]
        pipeline = self.dali.Pipeline(len(files), self.threads, 0, prefetch_queue_depth=1)
        with pipeline:
            encoded = fn.external_source(source=lambda: arrays, batch=True, device="cpu", no_copy=True)
            images = fn.decoders.image(
                encoded,
                device="mixed",
                output_type=types.RGB,
                hw_decoder_load=self.hardware_load,
                adjust_orientation=False,
                preallocate_width_hint=1920,
                preallocate_height_hint=1080,
            )
            images = fn.resize(
                images,
                size=256,
                mode="not_smaller",
                interp_type=types.INTERP_LINEAR,
                antialias=True,
                subpixel_scale=False,
            )
            images = fn.crop_mirror_normalize(
                images,
                dtype=types.FLOAT16,
                output_layout="CHW",
                crop=(224, 224),
                mean=[255 * value for value in MEAN],
                std=[255 * value for value in STD],
            )
            pipeline.set_outputs(images)
        pipeline.build()
        self.pipeline = pipeline
        output = torch.empty((len(files), 3, 224, 224), dtype=torch.float16, device="cuda")

        def run() -> Any:
            (result,) = pipeline.run()
            feed_ndarray(result.as_tensor(), output, cuda_stream=torch.cuda.current_stream())
            torch.cuda.synchronize()
            return output

        return run


class CvCuda:
    """Decoding by nvImageCodec, then CV-CUDA's antialiased resize, crop and normalisation on the batch."""

    def __init__(self, threads: int) -> None:
        import cvcuda
        from nvidia import nvimgcodec

        self.cvcuda = cvcuda
        self.decoder = nvimgcodec.Decoder(max_num_cpu_threads=threads)
        self.parameters = nvimgcodec.DecodeParams(apply_exif_orientation=False)

    def step(self, files: list[bytes]) -> Step:
        """As Ours.step."""
        import torch

        cvcuda = self.cvcuda
        scale = torch.tensor([255 * value for value in STD], device="cuda").reshape(1, 1, 1, 3)
        base = torch.tensor([255 * value for value in MEAN], device="cuda").reshape(1, 1, 1, 3)
        cv_base, cv_scale = cvcuda.as_tensor(base, "NHWC"), cvcuda.as_tensor(scale, "NHWC")

        def run() -> Any:
            images = [
                torch.as_tensor(image, device="cuda") for image in self.decoder.decode(files, params=self.parameters)
            ]
            pixels = torch.stack(images)
            height, width = pixels.shape[1:3]
            wide = (256, 256 * width // height) if height <= width else (256 * height // width, 256)
            tensor = cvcuda.as_tensor(pixels, "NHWC")
            resized = cvcuda.hq_resize(tensor, wide, antialias=True, interpolation=cvcuda.Interp.LINEAR)
            left, top = (wide[1] - 224) // 2, (wide[0] - 224) // 2
            crop = cvcuda.customcrop(resized, cvcuda.RectI(left, top, 224, 224))
            normal = cvcuda.normalize(
                cvcuda.convertto(crop, np.float32),
                cv_base,
                cv_scale,
                cvcuda.NormalizeFlags.SCALE_IS_STDDEV,
            )
            planar = cvcuda.reformat(normal, "NCHW")
            result = torch.as_tensor(planar.cuda(), device="cuda").half()
            torch.cuda.synchronize()
            return result

        return run


def contenders(library: ImageLibrary, nvjpeg: dict[str, str], threads: int) -> tuple[dict[str, Any], dict[str, str]]:
    """What can run here by name, and why others cannot."""
    ready: dict[str, Any] = {}
    absent: dict[str, str] = {}
    makers: dict[str, Callable[[], Any]] = {
        "tritonstack": lambda: Ours(library, threads=threads, **nvjpeg),
        "torchvision": Torchvision,
        "dali": lambda: Dali(0.65, threads),
        "dali_90": lambda: Dali(0.9, threads),
        "cvcuda": lambda: CvCuda(threads),
    }
    for name, make in makers.items():
        try:
            ready[name] = make()
        except (ImportError, RuntimeError, OSError) as error:
            absent[name] = str(error).strip().splitlines()[0]
    return ready, absent


def compare(ready: dict[str, Any], files: dict[str, list[bytes]], rounds: int, seconds: float) -> dict[str, Any]:
    """Rates in interleaved rounds, and how far each result is from that of Pillow in pixels."""
    cells: dict[str, Any] = {}
    for size, pictures in files.items():
        expected = by_pillow(pictures[0])
        for batch in BATCHES:
            chosen = [pictures[index % len(pictures)] for index in range(batch)]
            steps: dict[str, Step] = {}
            problems: dict[str, str] = {}
            distance: dict[str, float] = {}
            for name, contender in ready.items():
                try:
                    steps[name] = contender.step(chosen)
                    distance[name] = round(pixels_between(steps[name]()[0], expected), 2)
                except Exception as error:  # a peer that fails in one cell must not cost the others
                    problems[name] = f"{type(error).__name__}: {error}"[:300]
                    steps.pop(name, None)
            values: dict[str, list[float]] = {name: [] for name in steps}
            for _ in range(rounds):
                for name, step in steps.items():
                    values[name].append(rate(step, batch, seconds))
            medians = {name: statistics.median(found) for name, found in values.items()}
            peers = {name: value for name, value in medians.items() if name != "tritonstack"}
            best = max(peers, key=lambda name: peers[name]) if peers else None
            cell = {
                "images_per_s": {name: round(value) for name, value in medians.items()},
                "spread": {name: round((max(v) - min(v)) / medians[name], 3) for name, v in values.items()},
                "largest_distance_from_pillow_in_pixel_steps": distance,
                "problems": problems,
            }
            if best is not None and "tritonstack" in values:
                ratios = [a / b for a, b in zip(values["tritonstack"], values[best], strict=True)]
                cell |= {"best_peer": best, "ratio": round(statistics.median(ratios), 2)}
            if (ours := ready.get("tritonstack")) and "tritonstack" in steps:
                paths = ours.batch.decoded_by()
                cell["decoded_by"] = {path: paths.count(path) for path in sorted(set(paths))}
            cells[f"{size} batch {batch}"] = cell
            print(f"  {size} batch {batch}: {cell}", file=sys.stderr, flush=True)
    return cells


def by_pillow(file: bytes) -> np.ndarray[Any, Any]:
    """Normalised sample [channel, y, x] in float32."""
    import io

    from PIL import Image

    image = Image.open(io.BytesIO(file)).convert("RGB")
    short, long = sorted(image.size)
    longer = 256 * long // short
    image = image.resize((longer, 256) if image.width > image.height else (256, longer), Image.Resampling.BILINEAR)
    left, top = (image.width - 224) // 2, (image.height - 224) // 2
    pixels = np.asarray(image.crop((left, top, left + 224, top + 224)), np.float32) / 255
    return ((pixels - np.float32(MEAN)) / np.float32(STD)).transpose(2, 0, 1)


def pixels_between(found: Any, expected: np.ndarray[Any, Any]) -> float:
    """Largest difference, in steps of an 8-bit pixel."""
    scale = np.float32(STD).reshape(3, 1, 1) * 255
    return float((np.abs(found.float().cpu().numpy().reshape(3, 224, 224) - expected) * scale).max())


def kernels(library: ImageLibrary, nvjpeg: dict[str, str]) -> dict[str, Any]:
    """The resampling kernels on pixels that lie on the device, against the bytes they must move at the copy rate."""
    import torch

    big = torch.empty(2_000_000_000, dtype=torch.uint8, device="cuda")
    half = big.numel() // 2
    low, high = big[:half], big[half:]
    copy_rate = 2 * half / statistics.median(timed(lambda: low.copy_(high)) for _ in range(10))
    result: dict[str, Any] = {"copy_bytes_per_s": copy_rate}
    for rounded in (False, True):
        instance = library.instance("FP16", device=0, **SETTINGS, **nvjpeg, round_u8=rounded)
        for size, (height, width) in SIZES.items():
            for batch in (1, 8, 32, 64):
                # More pictures than the L2 holds, so that each launch reads them from memory.
                source = torch.randint(0, 256, (batch, height, width, 3), dtype=torch.uint8, device="cuda")
                output = torch.empty((batch, 3, 224, 224), dtype=torch.float16, device="cuda")
                pictures = [(image.data_ptr(), height, width) for image in source]
                outputs = [sample.data_ptr() for sample in output]
                torch.cuda.synchronize()
                # The GPU raises its clocks under load only.
                begin = time.perf_counter()
                while time.perf_counter() - begin < 0.3:
                    instance.time_kernel(pictures, outputs, 200)
                seconds = statistics.median(instance.time_kernel(pictures, outputs, 20) for _ in range(7))
                factor = min(height, width) / 256
                floor = (224 * factor) ** 2 * 3 + 224 * 224 * 3 * 2
                result[f"{'exact' if rounded else 'float'} {size} batch {batch}"] = {
                    "us_per_image": round(seconds / batch * 1e6, 3),
                    "part_of_byte_floor": round(floor * batch / copy_rate / seconds, 3),
                }
    return result


def timed(step: Step) -> float:
    """Seconds of a step on the device."""
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    step()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


POLICIES: dict[str, dict[str, Any]] = {
    "engine, 1 feeder": {"feeders": 1},
    "engine, 2 feeders": {"feeders": 2, "least_fed": 4},
    "engine, 4 feeders": {"feeders": 4, "least_fed": 4},
    "engine, 4 feeders of 2": {"feeders": 4, "least_fed": 2},
    "engine, 6 feeders": {"feeders": 6, "least_fed": 3},
    "engine, 8 feeders": {"feeders": 8, "least_fed": 2},
    "engine, 4 feeders, a tenth by GPU Huffman": {"thread_share": 0.1, "gpu_huffman_pixels": 1},
    "engine, 4 feeders, a fifth by GPU Huffman": {"thread_share": 0.2, "gpu_huffman_pixels": 1},
    "engine, 4 feeders, a tenth by CPU Huffman": {"thread_share": 0.1, "gpu_huffman_pixels": 0},
    "threads, CPU Huffman": {"hardware": 0, "gpu_huffman_pixels": 0},
    "threads, GPU Huffman": {"hardware": 0, "gpu_huffman_pixels": 1},
}


def tune(library: ImageLibrary, nvjpeg: dict[str, str], files: dict[str, list[bytes]], seconds: float) -> Any:
    """Images per second of every way to share out the decoding."""
    result: dict[str, Any] = {}
    for threads in (16,):
        for name, policy in POLICIES.items():
            ours = Ours(library, threads=threads, **policy, **nvjpeg)
            row = {}
            for size, pictures in files.items():
                for batch in BATCHES:
                    step = ours.step([pictures[index % len(pictures)] for index in range(batch)])
                    row[f"{size} batch {batch}"] = round(rate(step, batch, seconds))
            result[f"{threads} threads, {name}"] = row
            print(f"  {threads} threads, {name}: {row}", file=sys.stderr, flush=True)
    return result


def main() -> None:
    """Measure and write benchmarks/results/preprocess.json (or what --save names)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=Path, help="libtritonstack_image.so")
    parser.add_argument("--nvjpeg", help="libnvjpeg or its folder")
    parser.add_argument("--photos", type=Path, help="folder to keep the made-up photos in")
    parser.add_argument("--threads", type=int, default=16, help="decoding threads of every contender (16)")
    parser.add_argument("--policy", default="", help="of the decoding, as NAME=VALUE,… (c_entry.cc)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement (0.5)")
    parser.add_argument("--parts", default="kernels,compare", help="of kernels, tune, compare")
    parser.add_argument("--save", default="preprocess", help="name of the result file")
    options = parser.parse_args()
    # cuInit by torch first: both then share the primary context.
    import torch

    torch.cuda.init()
    library = ImageLibrary(options.library)
    nvjpeg = {"nvjpeg_path": options.nvjpeg} if options.nvjpeg else {}
    files = photographs(options.photos)
    policy = dict(pair.split("=", 1) for pair in options.policy.split(",") if pair)
    result: dict[str, Any] = {
        "gpu": subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True
        ).stdout.strip(),
        "versions": {
            name: installed(name)
            for name in ("torch", "torchvision", "nvidia-dali-cuda130", "cvcuda-cu13", "nvidia-nvimgcodec-cu13")
        },
        "file_bytes": {
            size: [min(map(len, found)), round(statistics.mean(map(len, found))), max(map(len, found))]
            for size, found in files.items()
        },
        "threads": options.threads,
        "policy": policy,
    }
    parts = options.parts.split(",")
    if "kernels" in parts:
        result["kernels"] = kernels(library, nvjpeg)
        print(f"  {result['kernels']}", file=sys.stderr, flush=True)
    if "tune" in parts:
        result["tune"] = tune(library, nvjpeg, files, options.seconds)
    if "compare" in parts:
        ready, absent = contenders(library, nvjpeg | policy, options.threads)
        result["left_out"] = absent
        result["cells"] = compare(ready, files, options.rounds, options.seconds)
    save(options.save, result)


if __name__ == "__main__":
    main()
