"""Where the parts of a model repository lie: entries, versions, the files of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CONFIG_NAME = "config.pbtxt"
LABELS_NAME = "labels.txt"
ONNX_NAME = "model.onnx"
INT64_MAX = 2**63 - 1

_VERSION = re.compile(r"[1-9][0-9]*")
# Triton's python backend starts its models through `bash -c` with the model's path inside the line (seen in 2.51):
# a space breaks it, and `&`, `(` or `$` run as shell. Only characters that a shell leaves alone may be in a name.
_SHELL_SAFE_NAME = re.compile(r"[\w.+@:,=~%\-]+")


def is_shell_safe(name: str) -> bool:
    """Whether a model of this name can be served without its name being taken for shell syntax."""
    return _SHELL_SAFE_NAME.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class EntryPaths:
    """The paths of one model in a repository; none of them needs to exist."""

    repository: Path
    name: str

    @property
    def folder(self) -> Path:
        return self.repository / self.name

    @property
    def config(self) -> Path:
        return self.folder / CONFIG_NAME

    @property
    def labels(self) -> Path:
        return self.folder / LABELS_NAME

    def version(self, version: int) -> Path:
        return self.folder / str(version)

    def model_file(self, version: int, name: str = ONNX_NAME) -> Path:
        return self.version(version) / name

    def manifest(self, version: int) -> Path:
        from tritonstack_export.repository.manifest import MANIFEST_NAME

        return self.version(version) / MANIFEST_NAME

    def versions(self) -> tuple[int, ...]:
        """Version folders that exist, ascending; () when there is no such model."""
        if not self.folder.is_dir():
            return ()
        return tuple(
            sorted(
                version
                for child in self.folder.iterdir()
                if (version := parse_version(child.name)) is not None and child.is_dir()
            )
        )

    def next_version(self) -> int:
        """One above the highest version that exists in any form, so that no version number is used twice."""
        return max(self.versions(), default=0) + 1


def parse_version(name: str) -> int | None:
    """The number of a version folder called `name`; None for a name that Triton ignores or trips over."""
    if _VERSION.fullmatch(name) and len(name) <= 19 and int(name) <= INT64_MAX:
        return int(name)
    return None


def iterate_entries(repository: Path) -> Iterator[EntryPaths]:
    """The folders of `repository` that have a config.pbtxt, by name; hidden folders and clutter are left out."""
    for child in sorted(repository.iterdir()):
        if not child.name.startswith(".") and (child / CONFIG_NAME).is_file():
            yield EntryPaths(repository, child.name)
