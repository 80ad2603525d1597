"""Load a TensorRT module, and say what it is: its version, and the GPUs of this machine."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from tritonstack_export.engine.worker.events import WorkerFailure

# CUdevice_attribute of cuda.h.
_COMPUTE_CAPABILITY_MAJOR, _COMPUTE_CAPABILITY_MINOR = 75, 76
_VERSION_PARTS = ("Major", "Minor", "Patch", "Build")


def load_tensorrt(home: dict[str, Any]) -> ModuleType:
    """Import the module that `home` names. Raises WorkerFailure (import) where it or a library is missing."""
    for library in home["preload"]:
        try:
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise WorkerFailure("import", f"{Path(library).name} cannot be loaded: {error}") from None
    sys.path[:0] = home["paths"]
    try:
        return importlib.import_module(home["module"])
    except ImportError as error:
        raise WorkerFailure("import", str(error)) from None


def version_of(trt: ModuleType) -> str:
    """The version of the library in use, `10.16.1.11`, which can differ from that of the Python binding."""
    names = (f"libnvinfer.so.{major}" for major in range(10, 20))
    for candidate in (ctypes.CDLL(None), *map(_loaded, names)):
        try:
            parts = [getattr(candidate, f"getInferLib{part}Version") for part in _VERSION_PARTS]
        except AttributeError:
            continue
        return ".".join(str(int(part())) for part in parts)
    return str(trt.__version__)


def _loaded(name: str) -> ctypes.CDLL | None:
    """A library that the process has already, None where it has not."""
    try:
        return ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return None


def devices() -> list[dict[str, str]]:
    """Name and compute capability of each GPU that CUDA shows this process; [] without a usable driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int()
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    found = []
    for index in range(count.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        name = ctypes.create_string_buffer(256)
        if cuda.cuDeviceGet(ctypes.byref(device), index) != 0:
            continue
        cuda.cuDeviceGetName(name, len(name), device)
        cuda.cuDeviceGetAttribute(ctypes.byref(major), _COMPUTE_CAPABILITY_MAJOR, device)
        cuda.cuDeviceGetAttribute(ctypes.byref(minor), _COMPUTE_CAPABILITY_MINOR, device)
        found.append(
            {"name": name.value.decode(errors="replace"), "compute_capability": f"{major.value}.{minor.value}"}
        )
    return found


def driver_version() -> str | None:
    """The version of the NVIDIA kernel driver, such as 580.95.05; None where there is none."""
    try:
        first = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        return None
    return next((word for word in first.split() if word[:1].isdigit() and "." in word), None)
