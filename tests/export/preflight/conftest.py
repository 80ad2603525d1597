"""The command in this process, with the shared installation of TensorRT for RTX and a result cache of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Run:
    """Exit code and output of one run."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def results(self) -> Any:
        return self.json["results"]


@pytest.fixture(scope="session")
def site() -> Path:
    """The installation that `tritonstack preflight` keeps, made when it is not there."""
    from tritonstack_export.preflight.environment import ensure_environment

    return ensure_environment()


@pytest.fixture
def cache(site: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty $TRITONSTACK_CACHE that has the shared installation; returns its folder of results."""
    folder = tmp_path_factory.mktemp("cache")
    (folder / "preflight").mkdir()
    (folder / "preflight" / site.parent.name).symlink_to(site.parent)
    monkeypatch.setenv("TRITONSTACK_CACHE", str(folder))
    return folder / "preflight" / "results"


@pytest.fixture
def preflight(cache: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Run]:
    def run(*arguments: object) -> Run:
        from tritonstack.command import main

        capfd.readouterr()
        try:
            code = main(["preflight", *map(str, arguments)])
        except SystemExit as end:
            code = int(end.code or 0)
        said = capfd.readouterr()
        return Run(code, said.out, said.err)

    return run
