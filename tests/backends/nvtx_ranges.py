"""Which NVTX ranges a process opens: the recorder compiled from nvtx_recorder.c, and what it wrote."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("nvtx_recorder.c")
LIBRARY = "libnvtx_recorder.so"


def build_recorder(folder: Path) -> Path:
    """The tool's library; TRITONSTACK_NVTX_RECORDER names one that is ready, for machines without a compiler."""
    if ready := os.environ.get("TRITONSTACK_NVTX_RECORDER"):
        return Path(ready)
    library = folder / LIBRARY
    line = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", library, SOURCE]
    subprocess.run(line, check=True, timeout=60)
    return library


def environment(recorder: Path, record: Path) -> dict[str, str]:
    return {"NVTX_INJECTION64_PATH": str(recorder), "NVTX_RECORDER_FILE": str(record)}


def recorded(record: Path) -> list[str]:
    """The names of the ranges in the order in which they were opened."""
    return record.read_text().splitlines() if record.exists() else []


def mapped_files(pid: int) -> set[str]:
    """Names of the files that are mapped into a process."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {Path(parts[5]).name for line in lines if len(parts := line.split(None, 5)) == 6}
