"""TensorRT for RTX, which builds real engines without a GPU, and a repository with a stand-in for the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tritonstack_export.engine.home import RtxHome


@pytest.fixture(scope="session")
def rtx() -> RtxHome:
    """TensorRT for RTX in the environment that `tritonstack preflight` keeps, installed when it is not there."""
    from tritonstack_export.preflight.environment import ensure_environment

    return RtxHome(ensure_environment())


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    return folder
