"""Put engines into an entry, and take them out again, so that a kill at any point leaves an entry that is served.

The order: engines and their records (ONNX Runtime's config does not look at them), the copy of ONNX Runtime's config,
then config.pbtxt in one rename, then the manifests. A record or a manifest that would contradict the engine in between
is taken away first.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tritonstack.errors import RepositoryError
from tritonstack.whole_file import taking_place_of
from tritonstack_export.digest import file_sha256
from tritonstack_export.engine.cache import sync_folder
from tritonstack_export.engine.engine_config import engine_config
from tritonstack_export.engine.entry import ONNX_CONFIG, EngineEntry, read_entry
from tritonstack_export.engine.plan_header import read_plan_header
from tritonstack_export.engine.plan_record import PLAN_NAME, RECORD_NAME
from tritonstack_export.publication import publication_lock
from tritonstack_export.repository import manifest, parse_config, read_config_text, render_config
from tritonstack_export.repository.layout import CONFIG_NAME

if TYPE_CHECKING:
    from tritonstack_export.repository import ModelConfig

_OWN = (PLAN_NAME, RECORD_NAME)


@dataclass(frozen=True)
class VersionEngine:
    """An engine for one version: the file, its record, and whether that file is the one in place, compared just now."""

    version: int
    plan: Path
    record: Mapping[str, Any]
    in_place: bool = False


def require_writable(entry: EngineEntry) -> None:
    """Before any build: the entry can be changed. Raises RepositoryError."""
    folder = _unwritable(entry)
    if folder is not None:
        raise RepositoryError(
            f"{folder} cannot be written, so no engine can be put there",
            next_step="mount the repository writable, or copy it to a volume that is",
        )


def _unwritable(entry: EngineEntry) -> Path | None:
    """The first folder of the entry in which nothing can be changed, None where all can be."""
    for folder in (entry.paths.folder, *(entry.paths.version(number) for number in entry.paths.versions())):
        if not os.access(folder, os.W_OK | os.X_OK) or os.statvfs(folder).f_flag & os.ST_RDONLY:
            return folder
    return None


def publish_engines(
    entry: EngineEntry,
    engines: Sequence[VersionEngine],
    *,
    profiles: int,
    require: Callable[[ModelConfig], None],
) -> tuple[bool, tuple[str, ...]]:
    """Serve `entry` by `engines`, one for each of its versions. Returns whether anything changed, and remarks.

    `require` compares a config with the engines and raises where they do not fit. Raises RepositoryError for a file
    that Triton's tensorrt backend could not load, and for an entry that was changed since `entry` was read.
    """
    if entry.switched and all(engine.in_place for engine in engines) and _unwritable(entry) is not None:
        # As in a pod that mounts a prepared repository read-only: there is nothing to put anywhere.
        require(parse_config(read_config_text(entry.paths.config), path=entry.paths.config))
        return False, ()
    with _changing(entry) as entry:
        # Everything that can be refused comes before the first change.
        for engine in engines:
            _require_tensorrt(engine.plan)
        _require_all_versions(entry, engines)
        text, generated, notes = _config_text(entry, profiles)
        require(parse_config(text, path=entry.paths.config))
        if not entry.switched:
            _require_own_place(entry)
        records = {engine.version: {**engine.record, "config_sha256": _sha256(generated)} for engine in engines}
        changed = False
        for engine in engines:
            changed |= _put_engine(entry, engine, records[engine.version])
        if not entry.switched:
            _keep_onnx_config(entry)
        changed |= _write_if_new(entry.paths.config, text.encode())
        for engine in engines:
            changed |= _update_manifest(entry, engine.version, records[engine.version])
    return changed, notes


def fall_back(entry: EngineEntry, *, remove: bool) -> tuple[bool, tuple[str, ...]]:
    """Serve `entry` by ONNX Runtime again. `remove`: the engines go too. Returns whether anything changed, remarks."""
    notes: list[str] = []
    with _changing(entry) as entry:
        kept = entry.paths.folder / ONNX_CONFIG
        changed = False
        if entry.switched:
            if _edited(entry):
                aside = entry.paths.folder / "configs" / "tensorrt.pbtxt"
                _write_if_new(aside, entry.paths.config.read_bytes())
                notes.append(f"{CONFIG_NAME} was edited while it was for the engine: that one is kept as {aside.name}")
            changed |= _write_if_new(entry.paths.config, kept.read_bytes())
        for version in entry.paths.versions():
            folder = entry.paths.version(version)
            if remove and any((folder / name).exists() for name in _OWN):
                _forget_engine(folder)
                for name in reversed(_OWN):
                    (folder / name).unlink(missing_ok=True)
                changed = True
            changed |= _update_manifest(entry, version, None)
        # config.pbtxt is that config again, and may be edited as such.
        kept.unlink(missing_ok=True)
        with suppress(OSError):
            kept.parent.rmdir()
    return changed, tuple(notes)


@contextmanager
def _changing(entry: EngineEntry) -> Iterator[EngineEntry]:
    """One change of a repository at a time; gives the entry as it is by now. Raises RepositoryError."""
    try:
        with publication_lock(entry.paths.repository):
            current = read_entry(entry.paths)
            if isinstance(current, str) or current.config != entry.config:
                raise RepositoryError(
                    f"the config of {entry.name!r} was changed while its engine was built", next_step="run it again"
                )
            yield current
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise RepositoryError(
            f"{entry.paths.folder} cannot be changed: {error.strerror or error}{where}",
            next_step="check the free space and the permissions of the repository, then run it again",
        ) from error


def is_current(entry: EngineEntry, version: int, key: str) -> bool:
    """Whether the version holds the engine of that key already, whole."""
    folder = entry.paths.version(version)
    try:
        record = json.loads((folder / RECORD_NAME).read_bytes())
        return bool(
            record["key"] == key
            and record["plan_bytes"] == (folder / PLAN_NAME).stat().st_size
            and record["plan_sha256"] == file_sha256(folder / PLAN_NAME)
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _require_all_versions(entry: EngineEntry, engines: Sequence[VersionEngine]) -> None:
    """A version without an engine would not load once config.pbtxt is switched, and it may be the one to serve."""
    changed = sorted(set(entry.paths.versions()) ^ {engine.version for engine in engines})
    if changed:
        raise RepositoryError(
            f"version {changed[0]} of {entry.name!r} was published or removed while engines were built",
            next_step="run it again",
        )


def _require_tensorrt(plan: Path) -> None:
    try:
        header = read_plan_header(plan)
    except OSError as error:
        raise RepositoryError(
            f"the engine {plan} cannot be read any more: {error.strerror}", next_step="run it again"
        ) from None
    if header.kind == "tensorrt":
        return
    what = "an engine of TensorRT for RTX" if header.kind == "rtx" else "no TensorRT engine"
    raise RepositoryError(
        f"{plan.name} is {what}, which Triton's tensorrt backend cannot load: it does not get into a repository",
        next_step="build it with TensorRT itself, on the GPU that serves it",
    )


def _config_text(entry: EngineEntry, profiles: int) -> tuple[str, str, tuple[str, ...]]:
    """config.pbtxt for the engine, how it was generated, and remarks; they differ when somebody edited it since."""
    config, notes = engine_config(entry.config, profiles=profiles)
    generated = render_config(config)
    if entry.switched and _edited(entry):
        current = entry.paths.config.read_text("utf-8")
        if current != generated:
            return current, generated, (f"{CONFIG_NAME} was edited since it was switched to the engine, and is kept",)
    return generated, generated, () if entry.switched else notes


def _edited(entry: EngineEntry) -> bool:
    """Whether config.pbtxt differs from what the newest record says was generated for the engine."""
    for version in reversed(entry.paths.versions()):
        try:
            record = json.loads((entry.paths.version(version) / RECORD_NAME).read_bytes())
            return bool(record["config_sha256"] != file_sha256(entry.paths.config))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return False


def _put_engine(entry: EngineEntry, engine: VersionEngine, record: Mapping[str, Any]) -> bool:
    folder = entry.paths.version(engine.version)
    content = (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode()
    if engine.in_place and engine.plan.is_file():
        return _write_if_new(folder / RECORD_NAME, content)
    _forget_engine(folder)
    (folder / RECORD_NAME).unlink(missing_ok=True)
    _copy_in(engine.plan, folder / PLAN_NAME)
    _write_if_new(folder / RECORD_NAME, content)
    return True


def _forget_engine(folder: Path) -> None:
    """Let the manifest say nothing of an engine that is about to change: it would be taken for a damaged one."""
    try:
        current = manifest.read(folder)
    except RepositoryError:
        return
    if any(name in current.files for name in _OWN):
        files = {name: digest for name, digest in current.files.items() if name not in _OWN}
        fields = {name: value for name, value in current.fields.items() if name != "engine"}
        manifest.write(folder, manifest.Manifest(files=files, fields=fields))


def _require_own_place(entry: EngineEntry) -> None:
    """Raise RepositoryError where another config lies than the one for ONNX Runtime that is to be kept there."""
    path = entry.paths.folder / ONNX_CONFIG
    if path.is_file() and path.read_bytes() != entry.text:
        there = parse_config(path.read_bytes(), path=path)
        if render_config(there) != render_config(entry.config):
            raise RepositoryError(
                f"{path} is there already and is another config than {CONFIG_NAME}",
                next_step="move it away: the config for ONNX Runtime is to be kept there",
            )


def _keep_onnx_config(entry: EngineEntry) -> None:
    path = entry.paths.folder / ONNX_CONFIG
    path.parent.mkdir(exist_ok=True)
    _write_if_new(path, entry.text)


def _update_manifest(entry: EngineEntry, version: int, record: Mapping[str, Any] | None) -> bool:
    """Let the manifest of a version, where there is one, say what lies there now."""
    folder = entry.paths.version(version)
    if not entry.paths.manifest(version).is_file():
        return False
    current = manifest.read(folder)
    files = {name: digest for name, digest in current.files.items() if name not in _OWN}
    for name in _OWN:
        if not (folder / name).is_file():
            continue
        if name == PLAN_NAME and record is not None:
            # Compared with its digest when it was built, fetched or found in place: gigabytes are read once.
            files[name] = manifest.FileDigest(record["plan_bytes"], record["plan_sha256"])
        else:
            files[name] = manifest.digest_file(folder / name)
    if f"../{CONFIG_NAME}" in files:
        files[f"../{CONFIG_NAME}"] = manifest.digest_file(entry.paths.config)
    fields = {name: value for name, value in current.fields.items() if name != "engine"}
    if record is not None:
        fields["engine"] = dict(record)
    updated = manifest.Manifest(files=files, fields=fields)
    if updated.as_dict() == current.as_dict():
        return False
    manifest.write(folder, updated)
    return True


def _copy_in(source: Path, target: Path) -> None:
    with source.open("rb") as file, _taking_place_of(target) as out:
        shutil.copyfileobj(file, out, 8 << 20)


def _write_if_new(path: Path, content: bytes) -> bool:
    """Write a small file in one step, unless it has that content; whether it was written."""
    with suppress(OSError):
        if path.read_bytes() == content:
            return False
    with _taking_place_of(path) as file:
        file.write(content)
    return True


@contextmanager
def _taking_place_of(path: Path) -> Iterator[IO[bytes]]:
    """As `whole_file.taking_place_of`, and the name is on the disk too."""
    with taking_place_of(path) as file:
        yield file
    sync_folder(path.parent)


def _sha256(text: str) -> str:
    from hashlib import sha256

    return sha256(text.encode()).hexdigest()
