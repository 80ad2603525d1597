"""What all tests share: the GPU switch, and a real tritonserver for a repository."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest


def _has_gpu() -> bool:
    return Path("/proc/driver/nvidia/gpus").is_dir() and any(Path("/proc/driver/nvidia/gpus").iterdir())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where there is none; with TRITONSTACK_REQUIRE_GPU=1 they run, and fail."""
    if _has_gpu() or os.environ.get("TRITONSTACK_REQUIRE_GPU") == "1":
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU; run with TRITONSTACK_REQUIRE_GPU=1 on a machine that has one")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def start_server() -> Iterator[Callable[..., object]]:
    """Start a real tritonserver for a repository: `start_server(path, **options) -> EmbeddedServer`.

    Servers live until the session ends, so one repository should be started once.
    """
    from tritonstack_deploy.embedded import EmbeddedServer

    with ExitStack() as stack:

        def start(repository: Path, **options: object) -> EmbeddedServer:
            return stack.enter_context(EmbeddedServer(repository, **options))  # type: ignore[arg-type]

        yield start
