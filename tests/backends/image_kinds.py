"""One set of tests for CPU and GPU instances: which library, which nvJPEG, and how near the answers have to be.

On a machine with a GPU the library may come from elsewhere (tests/gpu/build_backend.sh): TRITONSTACK_IMAGE_BACKEND
names it, and TRITONSTACK_NVJPEG names libnvjpeg where the loader does not find it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from image_backend_models import LIBRARY, needs_library

from tritonstack_deploy.embedded.built_backends import backend_arguments

GPU_TESTS = Path(__file__).resolve().parents[2] / "backends" / "image_preprocess" / "tests" / "gpu"
KINDS = [pytest.param("CPU", marks=needs_library), pytest.param("GPU", marks=pytest.mark.gpu)]


def library() -> Path:
    return Path(os.environ.get("TRITONSTACK_IMAGE_BACKEND") or LIBRARY)


def direct_library() -> Path:
    """With the C entry; CMake builds it where there is an nvcc, TRITONSTACK_IMAGE_LIBRARY names another."""
    return Path(os.environ.get("TRITONSTACK_IMAGE_LIBRARY") or LIBRARY.parent / "tests" / "libtritonstack_image.so")


def load_module(path: Path, name: str) -> ModuleType:
    """A file of backends/image_preprocess/tests/gpu, which is no package and not on the path."""
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Kind:
    """`name`: CPU or GPU."""

    name: str

    @property
    def on_gpu(self) -> bool:
        return self.name == "GPU"

    def group(self, count: int = 1) -> str:
        return f"instance_group {{ count: {count} kind: KIND_{self.name} }}"

    def gathering(self, size: int = 8) -> str:
        """Waits until `size` pictures are there, or for 0.4 s."""
        return (
            f"dynamic_batching {{ max_queue_delay_microseconds: 400000 preferred_batch_size: [ {size} ] }}\n"
            + self.group()
        )

    def require_near(self, found: Any, wanted: Any, *, levels: float, step: float = 1.0, why: str = "") -> None:
        """The same on a CPU; on a GPU within `levels` of an 8-bit pixel, one of which is `step` in the tensor.

        `levels` 0 means equal on both: what the GPU does not decode itself is the CPU's, bit for bit.
        """
        if not self.on_gpu or levels == 0:
            np.testing.assert_array_equal(found, wanted, err_msg=why)
            return
        assert found.shape == wanted.shape, why
        distance = np.abs(found.astype(np.float64) - wanted.astype(np.float64)).max() / step
        # A float32 result of arithmetic on whole levels is a little off them.
        assert distance <= levels + 1e-3, f"{why}: {distance:.2f} levels apart"


class Servers:
    """Starts real servers with the library under test; they end with the test module."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def start(self, repository: Path, *, log: list[str] | None = None, arguments: tuple[str, ...] = (), **options: Any):  # type: ignore[no-untyped-def]
        from tritonstack_deploy.embedded import EmbeddedServer

        nvjpeg = os.environ.get("TRITONSTACK_NVJPEG")
        if nvjpeg and not backend_arguments(["image_preprocess"]):
            arguments = (*arguments, f"--backend-config=image_preprocess,nvjpeg_path={nvjpeg}")
        keep: Callable[[Any], None] | None = None if log is None else (lambda line: log.append(line.message))
        return self._stack.enter_context(
            EmbeddedServer(
                repository,
                backends={"image_preprocess": library()},
                extra_arguments=arguments,
                on_log=keep,
                **options,
            )
        )


def counter(server: Any, family: str, **labels: str) -> float:
    """The sum over all series of a metric family that bear these labels."""
    with urllib.request.urlopen(server.metrics_url) as reply:  # noqa: S310 - our own server
        text = reply.read().decode()
    total = 0.0
    for match in re.finditer(rf"^{family}{{([^}}]*)}} (\S+)$", text, re.MULTILINE):
        found = dict(re.findall(r'(\w+)="([^"]*)"', match[1]))
        if all(found.get(name) == value for name, value in labels.items()):
            total += float(match[2])
    return total
