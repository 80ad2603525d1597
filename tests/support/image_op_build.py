"""The library of the PyTorch op, built from the backend's core for the tests that use it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "backends" / "image_preprocess" / "torch"
SWITCH = "TRITONSTACK_REQUIRE_BACKEND"


@lru_cache(maxsize=1)
def _build() -> tuple[str, str]:
    """(library, "") or ("", why there is none). TRITONSTACK_IMAGE_OP names one that is there, with a GPU part say."""
    if named := os.environ.get("TRITONSTACK_IMAGE_OP"):
        return named, ""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        return "", "no C++ compiler"
    folder = tempfile.mkdtemp(prefix="tritonstack-image-op-")
    result = subprocess.run([FOLDER / "build.sh", folder], capture_output=True, text=True, timeout=250)
    if result.returncode == 0:
        return result.stdout.strip(), ""
    if "No such file or directory" in result.stderr and "#include" in result.stderr:
        return "", f"a library's headers are missing: {result.stderr.strip().splitlines()[0]}"
    raise RuntimeError(result.stderr)


def image_op() -> ModuleType:
    """The module that registers the op; skips the test where the library cannot be built here."""
    library, reason = _build()
    if not library:
        if os.environ.get(SWITCH) == "1":
            pytest.fail(f"the image op cannot be built: {reason}")
        pytest.skip(f"the image op cannot be built: {reason}; {SWITCH}=1 turns this skip into a failure")
    os.environ["TRITONSTACK_IMAGE_OP"] = library
    return _module()


@lru_cache(maxsize=1)
def _module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("image_preprocess_op", FOLDER / "image_preprocess_op.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
