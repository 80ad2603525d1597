"""Put a finished version into a model repository in one step, or not at all.

Everything is built in a hidden folder inside the repository (same filesystem), which is itself a small repository:
<hidden>/<model>/{config.pbtxt,labels.txt,<version>/…}. When every gate has passed, renames make it visible. The order
for a model that exists already: labels and config (compatible with every version there), then the version folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tritonstack.errors import InputError, RepositoryError, SetupError, UsageError
from tritonstack_export.repository import parse_config, read_config_text
from tritonstack_export.repository.layout import CONFIG_NAME, EntryPaths
from tritonstack_export.repository.manifest import digest_file, read
from tritonstack_export.spec import SpecificVersions

if TYPE_CHECKING:
    from tritonstack_export.repository import ModelConfig

_PREFIX = ".tritonstack-export-"
_DRAFTS = ".drafts"
_BACKENDS = {"onnxruntime_onnx": "onnxruntime", "tensorrt_plan": "tensorrt"}


@dataclass(frozen=True)
class Staging:
    """One model in the hidden folder `root`, which is a repository of all models that are published together."""

    root: Path
    model: Path

    def own_files(self) -> list[str]:
        """The model's files outside of its versions, by their paths below its folder; config.pbtxt, which names the
        others, comes last."""
        found = [
            path.relative_to(self.model).as_posix()
            for path in self.model.rglob("*")
            if path.is_file() and not path.relative_to(self.model).parts[0].isdecimal()
        ]
        return sorted(found, key=lambda name: (name == CONFIG_NAME, name))

    def version(self, number: int) -> Path:
        """The folder of a version, created."""
        folder = self.model / str(number)
        folder.mkdir(exist_ok=True)
        return folder


def versions(repository: Path, name: str) -> list[int]:
    """The version numbers of a model, rising; none when there is no such model."""
    return list(EntryPaths(repository, name).versions())


def require_free(repository: Path, name: str, version: int | None) -> None:
    """Before any work: the repository can be written and `version` is free. Raises UsageError or SetupError."""
    require_folder("--repository", repository)
    model = repository / name
    if model.exists() and not model.is_dir():
        raise RepositoryError(f"{model} exists and is not a folder", next_step="move it away, or choose another --name")
    if version is not None and (model / str(version)).exists():
        raise InputError(
            f"version {version} of {name!r} exists already, and an existing version is never changed",
            expected=f"a free number, such as {EntryPaths(repository, name).next_version()}",
            next_step="leave --version away to get the next one",
        )


def require_folder(flag: str, path: Path) -> None:
    """Before any work: `path` is a folder that can be written, or can be made. Raises UsageError or SetupError."""
    nearest = next((p for p in (path, *path.absolute().parents) if p.exists()), path)
    if not nearest.is_dir():
        raise UsageError(f"{flag}: {nearest} is not a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise SetupError(f"cannot write to {nearest}", next_step=f"choose another {flag}, or change its owner")


def require_servable(repository: Path, name: str, version: int | None, policy: object) -> None:
    """Before any work: a `policy` of specific versions names only those that will be there. Raises UsageError."""
    if not isinstance(policy, SpecificVersions):
        return
    new = version if version is not None else EntryPaths(repository, name).next_version()
    there = sorted({*versions(repository, name), new})
    absent = [number for number in sorted(set(policy.specific)) if number not in there]
    if absent:
        raise UsageError(
            f"serving.version_policy: Triton serves nothing while version {absent[0]} is missing",
            given=f"specific: {policy.specific}",
            expected=f"versions out of {there}, where {new} is this export",
            next_step="name the others once they are exported",
        )


@dataclass(frozen=True)
class StagingArea:
    """The hidden folder: a repository of the models that are published together."""

    root: Path

    def draft(self, name: str) -> Path:
        """A folder for a version whose number is not known yet, created; hidden from whoever reads the repository."""
        folder = self.root / _DRAFTS / name
        folder.mkdir()
        return folder

    def entry(self, name: str) -> Staging:
        """The staged model `name`, its folder created."""
        model = self.root / name
        model.mkdir(exist_ok=True)
        return Staging(self.root, model)


@contextmanager
def staging(repository: Path) -> Iterator[StagingArea]:
    """A hidden folder in `repository`, removed at the end whatever happens; folders created for it go too when
    they are still empty. Leftovers of exports that were killed are removed on the way."""
    created = [p for p in (repository, *repository.absolute().parents) if not p.exists()]
    repository.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(repository)
    root = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=repository))
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _try_lock(handle)
        # Not empty from here on: an empty folder of somebody else is taken for one that is about to be locked.
        (root / _DRAFTS).mkdir()
        yield StagingArea(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)
        os.close(handle)
        for folder in created:
            with suppress(OSError):
                folder.rmdir()


def _try_lock(handle: int) -> bool:
    """Whether the lock was taken. Some network filesystems cannot lock a folder: treated as not taken."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove_leftovers(repository: Path) -> None:
    """Remove staging folders whose owner is gone: the owner holds a lock on its folder, and a dead one none."""
    for folder in repository.glob(f"{_PREFIX}*"):
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            # A folder without content may belong to an export that is between creating and locking it.
            if any(folder.iterdir()) and _try_lock(handle):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(handle)


@contextmanager
def publication_lock(repository: Path) -> Iterator[None]:
    """One publication at a time per repository. A lock on the folder itself: no lock file is left behind."""
    handle = os.open(repository, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Where a folder cannot be locked, the rename of the version folder still decides.
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def next_version(repository: Path, names: Sequence[str], version: int | None) -> int:
    """The version to publish all of `names` as: one number for the variants of a model.

    Call with the lock held. Raises InputError when `version` is taken.
    """
    for name in names:
        require_free(repository, name, version)
    return version if version is not None else max(EntryPaths(repository, name).next_version() for name in names)


def existing_config(model: Path) -> ModelConfig | None:
    """The config of a published model, None when there is none. Raises RepositoryError when it cannot be parsed."""
    path = model / CONFIG_NAME
    return parse_config(read_config_text(path), path=path) if path.is_file() else None


def was_edited(model: Path) -> bool:
    """Whether config.pbtxt is somebody's own: changed after the newest version was exported, or kept by that export."""
    path = model / CONFIG_NAME
    if not path.is_file():
        return False
    for number in reversed(versions(model.parent, model.name)):
        try:
            manifest = read(model / str(number))
        except RepositoryError:
            continue
        recorded = manifest.files.get(f"../{CONFIG_NAME}")
        changed = recorded is None or recorded.sha256 != digest_file(path).sha256
        return changed or bool(manifest.fields.get("config_edited"))
    return True


def require_compatible(old: ModelConfig, new: ModelConfig) -> None:
    """One config serves all versions of a model, so inputs and outputs have to stay. Raises RepositoryError."""
    differences = []
    for kind, before, after in (("input", old.input, new.input), ("output", old.output, new.output)):
        first, second = ({t.name: (t.data_type, tuple(t.dims)) for t in tensors} for tensors in (before, after))
        differences += [f"{kind} {name!r} is gone" for name in first.keys() - second.keys()]
        differences += [f"{kind} {name!r} is new" for name in second.keys() - first.keys()]
        differences += [
            f"{kind} {name!r} has another dtype or shape"
            for name in first.keys() & second.keys()
            if first[name] != second[name]
        ]
    kind, wanted = (config.backend or _BACKENDS.get(config.platform, config.platform) for config in (old, new))
    if kind == "tensorrt" and wanted == "onnxruntime":
        raise RepositoryError(
            f"the published model {new.name!r} is served as TensorRT engines, which a new version does not have yet",
            next_step="switch it back with `tritonstack build-engines --revert`, export, and build the engines again",
        )
    if kind != wanted:
        differences.append(f"it is served by {kind or 'an unnamed backend'} instead of {wanted}")
    if bool(old.max_batch_size) != bool(new.max_batch_size):
        differences.append(f"max_batch_size is {new.max_batch_size} instead of {old.max_batch_size}")
    if differences:
        raise RepositoryError(
            f"the new version does not fit the published model {new.name!r}: {'; '.join(sorted(differences))}",
            expected="the same inputs and outputs in all versions of a model",
            next_step="choose another --name",
        )


def publish(stages: Sequence[Staging], repository: Path, number: int) -> list[Path]:
    """Make the staged versions visible and return their folders, in order. Call with the lock held.

    All or none: when one of them fails, those before it are taken back.
    """
    for stage in stages:
        _sync_tree(stage.model)
    undo: list[Callable[[], object]] = []
    try:
        for stage in stages:
            _publish_one(stage, repository, number, undo)
    except BaseException:
        for step in reversed(undo):
            step()
        raise
    for stage in stages:
        _sync_folder(repository / stage.model.name)
    _sync_folder(repository)
    return [repository / stage.model.name / str(number) for stage in stages]


def _publish_one(stage: Staging, repository: Path, number: int, undo: list[Callable[[], object]]) -> None:
    """The renames of one model; what takes each back is added to `undo`."""
    target = repository / stage.model.name
    if not target.exists():
        stage.model.rename(target)
        undo.append(lambda: target.rename(stage.model))
        return
    for name in stage.own_files():
        staged, current = stage.model / name, target / name
        if current.is_file() and current.read_bytes() == staged.read_bytes():
            continue
        if not current.parent.exists():
            current.parent.mkdir()
            undo.append(current.parent.rmdir)
        if current.exists():
            backup = stage.root / _DRAFTS / f"{stage.model.name}.previous.{name.replace('/', '.')}"
            os.link(current, backup)
            undo.append(partial(backup.replace, current))
        else:
            undo.append(partial(current.unlink, missing_ok=True))
        staged.replace(current)
    version, published = stage.version(number), target / str(number)
    version.rename(published)
    undo.append(lambda: published.rename(version))


def _sync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_symlink():
            continue
        if path.is_dir():
            path.chmod(0o755)
            _sync_folder(path)
        else:
            path.chmod(0o644)
            with path.open("rb") as file:
                os.fsync(file.fileno())
    folder.chmod(0o755)
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
