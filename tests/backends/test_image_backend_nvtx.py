"""The named ranges for profilers: their recorder with the backend's own class, on any machine with NVTX's header."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from nvtx_ranges import build_recorder, environment, recorded

SOURCES = Path(__file__).resolve().parents[2] / "backends" / "image_preprocess" / "src"
PROGRAM = """
#include "gpu/trace.h"
int main() {
  const tritonstack::image::Range outer("decode");
  { const tritonstack::image::Range inner("resize"); }
  const tritonstack::image::Range last("copy");
}
"""


def header_folder() -> Path | None:
    places = [os.environ.get("CUDA_HOME", "/nonexistent"), *map(str, Path("/usr/local").glob("cuda*"))]
    return next((Path(p, "include") for p in places if Path(p, "include/nvtx3/nvToolsExt.h").is_file()), None)


def build(tmp_path: Path, *flags: str) -> Path:
    (tmp_path / "ranges.cc").write_text(PROGRAM)
    program = tmp_path / "ranges"
    line = ["c++", "-std=c++17", f"-I{SOURCES}", *flags, tmp_path / "ranges.cc", "-o", program, "-ldl"]
    subprocess.run(line, check=True, timeout=100)
    return program


@pytest.mark.skipif(header_folder() is None, reason="needs NVTX's header, which comes with the CUDA toolkit")
def test_ranges_reach_a_tool_and_cost_nothing_without(tmp_path: Path) -> None:
    program = build(tmp_path, "-isystem", str(header_folder()))
    recorder, record = build_recorder(tmp_path), tmp_path / "record"
    subprocess.run([program], env={"NVTX_RECORDER_FILE": str(record)}, check=True, timeout=20)
    assert not record.exists()
    subprocess.run([program], env=environment(recorder, record), check=True, timeout=20)
    assert recorded(record) == ["decode", "resize", "copy"]


def test_without_the_header_ranges_are_empty(tmp_path: Path) -> None:
    program = build(tmp_path)
    assert subprocess.run([program], check=True, timeout=20).returncode == 0
    assert b"NVTX_INJECTION64_PATH" not in program.read_bytes()
