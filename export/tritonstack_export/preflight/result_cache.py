"""Results of earlier pre-flights: the same file, settings, builder and targets need no second build."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tritonstack_export.digest import file_sha256, json_sha256
from tritonstack_export.preflight.result import PreflightResult, from_dict

SCHEMA_VERSION = 1
_KEEP_DAYS = 90
# What another run may well answer differently: the machine was to blame, not the model.
_PASSING = {"import", "gpu", "memory", "write", "timeout", "died"}


def model_sha256(onnx: Path, external: list[str]) -> str:
    """SHA-256 of a model: of the file, and of each data file it takes weights from, with their names."""
    parts: list[Any] = [file_sha256(onnx)]
    parts += [[location, file_sha256(onnx.parent / location)] for location in sorted(set(external))]
    return str(parts[0]) if len(parts) == 1 else json_sha256(parts)


class ResultCache:
    """Small JSON files under `folder`. An unreadable or foreign one is a miss; a folder that cannot be written to is no
    cache."""

    def __init__(self, folder: Path | None = None) -> None:
        if folder is None:
            from tritonstack_export.preflight.environment import cache_root

            folder = cache_root() / "results"
        self._folder = folder

    @staticmethod
    def key(*, sha256: str, settings: dict[str, Any], builder: str, compute_capabilities: tuple[str, ...]) -> str:
        """Everything a result depends on, the version of this tool included."""
        from tritonstack._version import __version__

        return json_sha256([SCHEMA_VERSION, __version__, sha256, settings, builder, compute_capabilities])

    def read(self, key: str) -> PreflightResult | None:
        """The result under `key`, marked as cached; None when there is none that can be used."""
        path = self._path(key)
        try:
            value = json.loads(path.read_bytes())
            if value.pop("key") != key:
                return None
            result = from_dict(value)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None
        # The time of the last use decides what is swept.
        with contextlib.suppress(OSError):
            os.utime(path)
        return replace(result, cached=True)

    def write(self, key: str, result: PreflightResult) -> None:
        """Keep `result`, unless it says more about the machine than about the model. Never raises for a full disk."""
        if result.problem is not None and result.problem.kind in _PASSING:
            return
        path = self._path(key)
        temporary = ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".new-", dir=path.parent)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"key": key, **result.as_dict()}, file, ensure_ascii=True, allow_nan=False)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
            self._sweep()
        except OSError:
            if temporary:
                Path(temporary).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"

    def _sweep(self) -> None:
        """Remove what was not used for long, and what a killed writer left."""
        oldest = time.time() - _KEEP_DAYS * 86400
        for path in self._folder.iterdir():
            limit = time.time() - 3600 if path.name.startswith(".new-") else oldest
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < limit:
                    path.unlink()
