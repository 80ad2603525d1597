"""`<version>/manifest.json`: what a version was exported from, with what, and the digest of every file.

The file is one JSON object. Two fields are fixed here, because `check` relies on them: `schema_version` and `files`
(relative path with forward slashes -> size in bytes and SHA-256). Paths start at the version folder; the model's own
files (config, labels) are written as ``../config.pbtxt``. All other fields belong to whoever writes the manifest.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from tritonstack.errors import RepositoryError
from tritonstack.whole_file import taking_place_of
from tritonstack_export.digest import file_sha256

MANIFEST_NAME = "manifest.json"
SCHEMA_VERSION = 1

_HEX = set("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class FileDigest:
    """Size in bytes and lower-case hexadecimal SHA-256 of a file's content."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest as read or to be written. `fields` holds everything but `schema_version` and `files`."""

    files: Mapping[str, FileDigest]
    fields: Mapping[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready values, `files` sorted by path."""
        files = {name: {"size": digest.size, "sha256": digest.sha256} for name, digest in sorted(self.files.items())}
        return {"schema_version": self.schema_version, **self.fields, "files": files}


def digest_file(path: Path) -> FileDigest:
    """Size and SHA-256 of a file, read in pieces."""
    return FileDigest(path.stat().st_size, file_sha256(path))


def digest_version(version_dir: Path, *, also: Iterable[Path] = ()) -> dict[str, FileDigest]:
    """Digests of all files under `version_dir` except the manifest, and of `also` (files of the model's folder)."""
    found: dict[str, FileDigest] = {}
    for path in sorted(version_dir.rglob("*")):
        if path.is_file() and path.name != MANIFEST_NAME:
            found[path.relative_to(version_dir).as_posix()] = digest_file(path)
    for path in also:
        found[f"../{path.relative_to(version_dir.parent).as_posix()}"] = digest_file(path)
    return found


def write(version_dir: Path, manifest: Manifest) -> Path:
    """Write the manifest into `version_dir` in one step (temporary name, fsync, rename); returns its path."""
    text = json.dumps(manifest.as_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    path = version_dir / MANIFEST_NAME
    with taking_place_of(path) as file:
        file.write(text.encode())
    return path


def read(version_dir: Path) -> Manifest:
    """The manifest of a version. Raises RepositoryError when it is missing, no JSON, or lacks a fixed field."""
    path = version_dir / MANIFEST_NAME
    if path.exists() and not path.is_file():
        raise RepositoryError(f"{path} is no regular file", next_step="export the version again")
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise RepositoryError(f"{path}: {error.strerror}", next_step="export the version again") from None
    except ValueError as error:
        raise RepositoryError(f"{path} is no JSON: {error}", next_step="export the version again") from None
    if not isinstance(data, dict):
        raise RepositoryError(f"{path} is no JSON object", next_step="export the version again")
    version = data.pop("schema_version", None)
    if version != SCHEMA_VERSION:
        raise RepositoryError(
            f"{path} has an unknown schema",
            given=f"schema_version {version!r}",
            expected=str(SCHEMA_VERSION),
            next_step="use a tritonstack as new as the one that wrote it",
        )
    return Manifest(files=_files(data.pop("files", None), path), fields=data, schema_version=version)


def verify(version_dir: Path) -> list[str]:
    """What differs between a version folder and its manifest, one sentence each; [] when all is as exported.

    A missing or unreadable manifest is one problem. Files that the manifest does not list are left alone, since
    servers cache things there; the model's own files (``../config.pbtxt``) may change after an export and are not
    compared.
    """
    try:
        manifest = read(version_dir)
    except RepositoryError as error:
        return [error.summary.removeprefix(f"{version_dir / MANIFEST_NAME} ").removeprefix(f"{version_dir}/")]
    problems = []
    listed = {name: digest for name, digest in manifest.files.items() if not name.startswith("../")}
    for name, expected in sorted(listed.items()):
        path = version_dir / name
        try:
            status = path.stat()
            size = status.st_size
            if not stat.S_ISREG(status.st_mode):
                problems.append(f"{name} is no regular file any more")
            elif size != expected.size:
                problems.append(f"{name} was changed after export ({size} bytes, exported with {expected.size})")
            elif digest_file(path).sha256 != expected.sha256:
                problems.append(f"{name} was changed after export (its SHA-256 differs)")
        except FileNotFoundError:
            problems.append(f"{name} was exported but is not there")
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror}")
    return problems


def _files(value: Any, path: Path) -> dict[str, FileDigest]:
    def wrong(detail: str) -> RepositoryError:
        return RepositoryError(f"{path}: {detail}", next_step="export the version again")

    if not isinstance(value, dict):
        raise wrong("it lists no files")
    files = {}
    for name, entry in value.items():
        parts = PurePosixPath(name).parts
        inside = parts[1:] if parts[:1] == ("..",) else parts
        if not inside or ".." in inside or PurePosixPath(name).is_absolute():
            raise wrong(f"the file name {name!r} leads out of the model")
        size, sha256 = (entry.get("size"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
        if not isinstance(size, int) or not isinstance(sha256, str) or len(sha256) != 64 or not set(sha256) <= _HEX:
            raise wrong(f"the entry of {name!r} has no size and SHA-256")
        files[name] = FileDigest(size, sha256)
    return files
