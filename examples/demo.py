"""The main job from end to end, with the real parts: what `make demo` runs.

Every step is a command of `tritonstack` that is printed before it runs, so each can be repeated by hand.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COMMAND = Path(sys.executable).parent / "tritonstack"
REPOSITORY = "model_repository"
MODELS = ("efficientnet_lite0", "sentence_embedding")
# The ensemble that takes encoded pictures, and the library of the backend it needs.
IMAGES = f"{MODELS[0]}_images"
BACKEND = Path("build/backends/image_preprocess/libtriton_image_preprocess.so")
REPORT = ".demo/load.json"

# Photographs that ship inside Python packages: (package, folder, file names).
PHOTOS = (
    ("skimage", "data", ("chelsea.png", "coffee.png", "rocket.jpg", "camera.png")),
    ("sklearn", "datasets/images", ("china.jpg", "flower.jpg")),
    ("foolbox", "data", ("imagenet_*.jpg",)),
)


def main() -> int:
    """Run the demo; the exit code is that of the first command that fails."""
    os.chdir(ROOT)
    start = time.monotonic()
    try:
        for model in MODELS:
            title(f"Export {model}: PyTorch → ONNX → checked repository entry")
            run("export", f"examples/{model}/spec.yaml", "--precision", "fp32", "--repository", REPOSITORY,
                "--if-changed")  # fmt: skip
        title("Check the repository, harder than Triton does")
        run("check", REPOSITORY)
        with serve() as server:
            answers = classify(server)
            classify_encoded(server, answers)
            title("A second model, not an image in sight: sentence embeddings")
            run_line([sys.executable, "examples/sentence_embedding/client.py", "--url", server["grpc"]])
            title("Load: 1 and 8 requests in flight, 10 s each")
            Path(REPORT).parent.mkdir(exist_ok=True)
            run("load", MODELS[0], "--url", server["grpc"], "--concurrency", "1,8", "--duration", "10",
                "--warmup", "2", "--output", REPORT)  # fmt: skip
            title("Stop")
    except subprocess.CalledProcessError as error:
        print(f"\ndemo: {shlex.join(map(str, error.cmd))} failed with exit code {error.returncode}", file=sys.stderr)
        return 1
    places = {
        f"{REPOSITORY}/{MODELS[0]}/config.pbtxt": "how Triton serves it",
        f"{REPOSITORY}/{MODELS[0]}/1/model.onnx": "the model, and beside it",
        f"{REPOSITORY}/{MODELS[0]}/1/manifest.json": "what it was exported from, with the measured parity",
        f"examples/{MODELS[0]}/spec.yaml": "the spec to start your own from",
        REPORT: "the load report",
    }
    width = max(map(len, places))
    print(f"\nDone in {time.monotonic() - start:.0f} s. Where everything lies:")
    for place, what in places.items():
        print(f"  {place:<{width}}  {what}")
    print(f"Next: .venv/bin/tritonstack serve {REPOSITORY}")
    return 0


def classify(server: dict[str, Any]) -> list[dict[str, Any]]:
    """Top-5 of every photo over gRPC and over HTTP, returned; fails when the two differ."""
    photos = find_photos()
    title(f"Classify {len(photos)} photographs over gRPC and over HTTP")
    answers = {}
    for protocol in ("grpc", "http"):
        answers[protocol] = infer(MODELS[0], server[protocol], photos)
    images = {protocol: answer["images"] for protocol, answer in answers.items()}
    if images["grpc"] != images["http"]:
        raise SystemExit("demo: the answers over gRPC and HTTP differ")
    hits = labelled = 0
    for image in images["grpc"]:
        path = Path(image["file"])
        best = ", ".join(f"{c['label']} {c['probability']:.1%}" for c in image["classes"])
        print(f"  {path.name:<20} {best}")
        if path.name.startswith("imagenet_"):
            labelled += 1
            hits += int(path.stem.rsplit("_", 1)[1]) == image["classes"][0]["index"]
    print(f"\n  identical over gRPC and HTTP; {hits} of the {labelled} photos with a known label have it first")
    print(f"  answered by {MODELS[0]} version {answers['grpc']['model_version']}")
    return images["grpc"]


def classify_encoded(server: dict[str, Any], answers: list[dict[str, Any]]) -> None:
    """The same photos as the files they are, preprocessed by the server; fails when an answer differs."""
    photos = find_photos()
    title(f"Send the {len(photos)} files as they are: the server decodes, resizes and normalises them")
    if not BACKEND.is_file():
        print(f"  left out: {IMAGES} needs the backend image_preprocess; `make backend` builds it in a minute or two")
        return
    start = time.monotonic()
    images = infer(IMAGES, server["grpc"], photos)["images"]
    if images != answers:
        raise SystemExit("demo: the answers differ from those to the client's own preprocessing")
    print(f"  {len(images)} photos in {time.monotonic() - start:.1f} s, answers equal to the last digit")


def infer(model: str, url: str, photos: list[Path]) -> dict[str, Any]:
    """Show and run `tritonstack infer` on the photos."""
    arguments = ["infer", model, "--url", url, "--top", "5", "--json"]
    show(["tritonstack", *arguments, "--image", f"… {len(photos)} files"])
    output = subprocess.run(
        [COMMAND, *arguments, "--image", *photos], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    answer: dict[str, Any] = json.loads(output)
    return answer


def find_photos() -> list[Path]:
    """The photographs, from the installed packages (which are not imported)."""
    found: list[Path] = []
    for package, folder, patterns in PHOTOS:
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit(f"demo: the package {package} is not installed; run `make setup`")
        base = Path(spec.submodule_search_locations[0]) / folder
        for pattern in patterns:
            found += sorted(base.glob(pattern))
    return found


@contextmanager
def serve():
    """`tritonstack serve` on free ports for as long as the block lasts; yields its endpoints."""
    title("Serve it with the real tritonserver")
    arguments = ["serve", REPOSITORY, "--port-base", "0", "--json"]
    for model in (*MODELS, *([IMAGES] if BACKEND.is_file() else [])):
        arguments += ["--model", model]
    show(["tritonstack", *arguments])
    process = subprocess.Popen([COMMAND, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        text = ""
        for line in process.stdout:
            text += line
            if line.rstrip() == "}":
                break
        if not text:
            raise subprocess.CalledProcessError(process.wait(), [COMMAND, *arguments])
        endpoints = json.loads(text)
        for model in endpoints["models"]:
            print(f"  {model['name']} version {model['version']} is ready{on_text(model['providers'])}")
        print(f"  gRPC {endpoints['grpc']}   HTTP {endpoints['http']}   metrics {endpoints['metrics']}")
        yield endpoints
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(60)


def on_text(providers: list[str]) -> str:
    return f" on {', '.join(providers)}" if providers else ""


def title(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n== {text}", flush=True)


def show(command: list[str]) -> None:
    print(f"$ {shlex.join(command)}", flush=True)


def run(*arguments: str) -> None:
    """Show and run one `tritonstack` command."""
    show(["tritonstack", *arguments])
    subprocess.run([COMMAND, *arguments], check=True)


def run_line(command: list[str]) -> None:
    """Show and run another program of the examples."""
    show(["python", *command[1:]])
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main())
