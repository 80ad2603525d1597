"""The wheel as people install it: with the compiled backend inside it serves pictures, without it is pure Python."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from image_backend_models import LIBRARY, needs_library

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "wheel.py"
PLACE = "tritonstack_deploy/_backends/image_preprocess/libtriton_image_preprocess.so"
CONFIG = """backend: "image_preprocess"
max_batch_size: 4
input { name: "image_bytes" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "preprocessed" data_type: TYPE_FP32 dims: [ 3, 8, 8 ] }
parameters { key: "resize" value { string_value: "exact" } }
parameters { key: "height" value { string_value: "8" } }
parameters { key: "width" value { string_value: "8" } }
instance_group { kind: KIND_CPU }
"""
# In a process of its own, with the installed packages before those of the checkout.
SERVE = """
import io, sys
from pathlib import Path
import numpy as np
from PIL import Image
import tritonstack_deploy
from tritonstack import Client
from tritonstack.image import ImagePreprocessing, Resize
from tritonstack_deploy.embedded import EmbeddedServer, built_backends

site, models = map(Path, sys.argv[1:])
assert Path(tritonstack_deploy.__file__).is_relative_to(site), tritonstack_deploy.__file__
assert built_backends.built_backends()["image_preprocess"].is_relative_to(site)
stream = io.BytesIO()
Image.fromarray(np.arange(24 * 30 * 3, dtype=np.uint8).reshape(24, 30, 3)).save(stream, "JPEG")
picture = stream.getvalue()
with EmbeddedServer(models) as server, Client(server.grpc_url) as client:
    found = client.infer("pictures", {"image_bytes": np.array([[picture]], dtype=object)})["preprocessed"][0]
np.testing.assert_array_equal(found, ImagePreprocessing(resize=Resize("exact", 8, 8)).preprocess(picture))
print("served")
"""


def build(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, timeout=200, check=False)


@needs_library
def test_the_installed_wheel_serves_pictures(tmp_path: Path) -> None:
    done = build("--out", tmp_path / "dist")
    assert done.returncode == 0, done.stderr
    wheel = Path(done.stdout.strip())
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl") and list((tmp_path / "dist").iterdir()) == [wheel]
    with zipfile.ZipFile(wheel) as packed:
        assert packed.read(PLACE) == LIBRARY.read_bytes()
        record = next(name for name in packed.namelist() if name.endswith("/RECORD"))
        listed = [row[0] for row in csv.reader(packed.read(record).decode().splitlines())]
        assert sorted(listed) == sorted(packed.namelist())
    site, models = tmp_path / "site", tmp_path / "models"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", site, wheel], check=True, timeout=100)
    (models / "pictures" / "1").mkdir(parents=True)
    (models / "pictures" / "config.pbtxt").write_text(CONFIG)
    served = subprocess.run(
        [sys.executable, "-c", SERVE, site, models],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert served.returncode == 0 and served.stdout.strip() == "served", served.stderr


def test_without_the_library_the_wheel_is_pure(tmp_path: Path) -> None:
    done = build("--out", tmp_path / "dist", "--backend", tmp_path / "nothing.so")
    assert done.returncode == 0, done.stderr
    wheel = Path(done.stdout.strip())
    assert wheel.name.endswith("-py3-none-any.whl") and "without the backend" in done.stderr
    with zipfile.ZipFile(wheel) as packed:
        assert not [name for name in packed.namelist() if name.endswith(".so")]
        assert "tritonstack_deploy/_backends/onnxruntime/model.py" in packed.namelist()


@pytest.mark.parametrize("words", [["--outt", "x"], ["--backend"]])
def test_wrong_words_are_wrong_usage(words: list[str]) -> None:
    done = build(*words)
    assert done.returncode == 2 and words[0].rstrip("t")[:5] in done.stderr
