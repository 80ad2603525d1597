"""Where TensorRT lies: the real one for engines that are served, TensorRT for RTX for builds without a GPU."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonstack.errors import SetupError

_RTX_LIBRARIES = ("libtensorrt_rtx.so", "libtensorrt_onnxparser_rtx.so")
_RTX_LIBRARY_PACKAGE = "onnxruntime_ep_nv_tensorrt_rtx"


@dataclass(frozen=True)
class TensorRtHome:
    """The `tensorrt` of an interpreter. `site`: a folder put first on its import path. `library_path`: folders where
    the libraries libnvinfer, libnvinfer_plugin and libnvonnxparser are looked for first."""

    module: str = "tensorrt"
    site: Path | None = None
    library_path: tuple[Path, ...] = ()
    python: Path = Path(sys.executable)
    is_rtx = False

    def request(self) -> dict[str, Any]:
        """What the worker needs to load it."""
        paths = [] if self.site is None else [str(self.site.absolute())]
        return {"module": self.module, "paths": paths, "preload": [], "rtx": False}


@dataclass(frozen=True)
class RtxHome:
    """TensorRT for RTX in a folder that `pip install --no-deps --target` filled with its binding and its libraries."""

    site: Path
    python: Path = Path(sys.executable)
    library_path: tuple[Path, ...] = ()
    is_rtx = True

    def request(self) -> dict[str, Any]:
        """What the worker needs to load it. Raises SetupError where a library is missing."""
        folder = self.site.absolute() / _RTX_LIBRARY_PACKAGE
        preload = []
        for name in _RTX_LIBRARIES:
            # The wheel holds the full file names, libtensorrt_rtx.so.1.7.1.
            found = sorted(folder.glob(f"{name}.1*"))
            if not found:
                raise SetupError(
                    f"{folder} holds no {name}.1", next_step="make the environment of `tritonstack preflight` again"
                )
            preload.append(str(found[0]))
        return {
            "module": "tensorrt_rtx_bindings",
            "paths": [str(self.site.absolute())],
            "preload": preload,
            "rtx": True,
        }


def find_tensorrt() -> TensorRtHome | None:
    """The TensorRT that this interpreter can import, None without one. Nothing is imported.

    The binding alone (`tensorrt_bindings`) will do where the system has the libraries, as NVIDIA's Triton images have.
    """
    for module in ("tensorrt", "tensorrt_bindings"):
        if importlib.util.find_spec(module) is not None:
            return TensorRtHome(module)
    return None
