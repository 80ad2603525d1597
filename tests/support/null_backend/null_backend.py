"""Builds the null backend and writes a repository with its two models, for tests and benchmarks of clients."""

from __future__ import annotations

import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
IMAGE_ELEMENTS = 150_528
"""Of the input of `nullimg`: 602,112 bytes."""
SCORES = 1000

_SMALL = """backend: "null"
max_batch_size: 0
input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }
instance_group { count: 2 kind: KIND_CPU }
"""
_IMAGE = f"""backend: "null"
max_batch_size: 0
input {{ name: "x" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }}
output {{ name: "y" data_type: TYPE_FP32 dims: [ {SCORES} ] }}
instance_group {{ count: 2 kind: KIND_CPU }}
parameters {{ key: "output_elements" value {{ string_value: "{SCORES}" }} }}
"""


def build(folder: Path) -> Path:
    """Compile the backend with g++ into `folder` unless it is there and new enough; returns the library."""
    library = folder / "libtriton_null.so"
    sources = [HERE / "null.cc", ROOT / "backends" / "image_preprocess" / "src" / "triton" / "abi.h"]
    if library.is_file() and all(library.stat().st_mtime > source.stat().st_mtime for source in sources):
        return library
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f".{library.name}.new"
    include = ROOT / "backends" / "image_preprocess" / "src"
    line = ["g++", "-std=c++17", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*line, f"-I{include}", str(HERE / "null.cc"), "-o", str(fresh)], check=True)
    fresh.replace(library)
    return library


def write_models(repository: Path, *, delay_us: int = 0) -> None:
    """`nullsmall` (FP32[4] to x + 1) and `nullimg` (602,112 bytes to 4,000), each execution of at least `delay_us`."""
    delay = f'parameters {{ key: "delay_us" value {{ string_value: "{delay_us}" }} }}\n' if delay_us else ""
    for name, config in (("nullsmall", _SMALL), ("nullimg", _IMAGE)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(f'name: "{name}"\n{config}{delay}')
