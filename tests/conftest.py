"""What all tests share: the GPU switch, and a real tritonserver for a repository."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

PHOTOS = Path(__file__).parent.parent / ".cache" / "photos"
"""What `make photos` fetches."""


def _has_gpu() -> bool:
    return Path("/proc/driver/nvidia/gpus").is_dir() and any(Path("/proc/driver/nvidia/gpus").iterdir())


def _has_photos() -> bool:
    return (PHOTOS / "labels.json").is_file()


def _has_browser() -> bool:
    return any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))


NEEDS: dict[str, tuple[Callable[[], bool], str]] = {
    "gpu": (_has_gpu, "needs an NVIDIA GPU"),
    "photos": (_has_photos, "needs the photographs that `make photos` fetches"),
    "browser": (_has_browser, "needs a chromium (apt-get install chromium)"),
}
"""Marker -> whether this machine has what its tests need, and what that is."""


def pytest_configure() -> None:
    """Ctrl-C means Ctrl-C, here and in the programs that tests start: where a shell put pytest into the background it
    would be ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests whose need is not met; with TRITONSTACK_REQUIRE_GPU=1 (_PHOTOS, _BROWSER) they run, and fail."""
    for marker, (is_met, reason) in NEEDS.items():
        switch = f"TRITONSTACK_REQUIRE_{marker.upper()}"
        if is_met() or os.environ.get(switch) == "1":
            continue
        skip = pytest.mark.skip(reason=f"{reason}; {switch}=1 turns this skip into a failure")
        for item in items:
            if marker in item.keywords:
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
