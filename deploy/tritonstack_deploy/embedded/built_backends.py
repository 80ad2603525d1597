"""Triton backends that are compiled on this machine: where their libraries lie, and which models wait for them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tritonstack.errors import RepositoryError, UsageError

if TYPE_CHECKING:
    from tritonstack_export.repository import ModelConfig

BUILD_LINES = {"image_preprocess": "make backend"}
"""Backends of this project that have to be compiled -> what does it, in a checkout."""

_PACKAGE = Path(__file__).resolve().parent.parent
_PLACES = (_PACKAGE / "_backends", _PACKAGE.parent.parent / "build" / "backends")


@dataclass(frozen=True)
class MissingBackend:
    """Why a model cannot be served here: `backend` is not there. `through`: the model an ensemble needs it for."""

    model: str
    backend: str
    through: str | None

    @property
    def reason(self) -> str:
        """``needs the backend 'image_preprocess' (for net_preprocess), which is not built``."""
        through = f" (for {self.through})" if self.through else ""
        return f"needs the backend {self.backend!r}{through}, which is not built"

    @property
    def next_step(self) -> str:
        return f"run `{BUILD_LINES[self.backend]}`, or name a library with --backend {self.backend}=FILE"


def library_name(backend: str) -> str:
    return f"libtriton_{backend}.so"


def built_backends(named: Mapping[str, Path] | None = None) -> dict[str, Path]:
    """Backend -> its library: those of an installed wheel or of a checkout's build folder, and `named` before them.

    A named path may be the library or the folder that holds it. Raises UsageError where there is none.
    """
    found = {}
    for backend in BUILD_LINES:
        for place in _PLACES:
            library = place / backend / library_name(backend)
            if library.is_file():
                found[backend] = library
                break
    for backend, path in (named or {}).items():
        library = path / library_name(backend) if path.is_dir() else path
        if not library.is_file():
            raise UsageError(
                f"--backend {backend}: no library there", given=str(path), expected=f"a file {library_name(backend)}"
            )
        if library.name != library_name(backend):
            raise UsageError(
                f"--backend {backend}: Triton would not find it", given=str(path), expected=library_name(backend)
            )
        found[backend] = library
    return found


def backend_arguments(backends: Iterable[str], places: Iterable[str] | None = None) -> list[str]:
    """Flags of tritonserver for the compiled `backends`: where nvJPEG lies, when a package brought it.

    `places`: folders of the interpreter's packages (default: its own path). The loader's path does for a system's own.
    """
    if "image_preprocess" not in backends:
        return []
    for place in sys.path if places is None else places:
        for library in sorted((Path(place) / "nvidia").glob("*/lib/libnvjpeg.so.1[0-9]")):
            return [f"--backend-config=image_preprocess,nvjpeg_path={library}"]
    return []


def missing_backends(models: Mapping[str, Path], available: Iterable[str]) -> list[MissingBackend]:
    """The `models` (name -> folder) that wait for a backend that has to be built, ensembles of such models included.

    A model that brings the library in its own folder waits for nothing.
    """
    from tritonstack_export.repository.layout import CONFIG_NAME

    configs = {name: config for name, folder in models.items() if (config := _config(folder / CONFIG_NAME)) is not None}
    there = set(available)
    missing: dict[str, MissingBackend] = {}
    for name, config in configs.items():
        if config.backend in BUILD_LINES and config.backend not in there and not _has_own(models[name], config.backend):
            missing[name] = MissingBackend(name, config.backend, None)
    changed = True
    while changed:
        changed = False
        for name, config in configs.items():
            steps = (step.model_name for step in config.ensemble_scheduling.step)
            cause = next((missing[step] for step in steps if step in missing), None)
            if cause is not None and name not in missing:
                missing[name] = MissingBackend(name, cause.backend, cause.through or cause.model)
                changed = True
    return sorted(missing.values(), key=lambda found: found.model)


def _config(path: Path) -> ModelConfig | None:
    """None for a config that cannot be read, about which the server has its own words."""
    from tritonstack_export.repository import parse_config

    try:
        return parse_config(path.read_bytes(), path=path)
    except (OSError, RepositoryError):
        return None


def _has_own(folder: Path, backend: str) -> bool:
    name = library_name(backend)
    return (folder / name).is_file() or any(folder.glob(f"*/{name}"))
