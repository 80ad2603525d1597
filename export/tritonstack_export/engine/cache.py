"""The engine cache: `<root>/<key[:2]>/<key>/{model.plan,record.json}`, where entries appear whole or not at all.

The folder may be shared by processes and machines. An engine under work lies in `<root>/<key[:2]>/.<key>.…`; a process
that was killed leaves that behind, and `engines gc` removes it. The modification time of record.json is the last use.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonstack.errors import SetupError
from tritonstack_export.cache_folder import cache_folder
from tritonstack_export.digest import file_sha256
from tritonstack_export.engine.key_lock import OnWait, key_lock

PLAN = "model.plan"
RECORD = "record.json"
TIMING = "timing"


def default_root() -> Path:
    """`$TRITONSTACK_CACHE/engines`, else `~/.cache/tritonstack/engines`. Raises SetupError without a home folder."""
    return cache_folder("engines")


@dataclass(frozen=True)
class CachedEngine:
    """An entry whose engine was compared with its digest."""

    key: str
    plan: Path
    record: dict[str, Any]


@dataclass
class EngineCache:
    """A cache folder. `notes` collects remarks, such as that a damaged entry was thrown away."""

    root: Path
    notes: list[str] = field(default_factory=list)

    def folder(self, key: str) -> Path:
        return self.root / key[:2] / key

    def lock_path(self, key: str) -> Path:
        return self.root / key[:2] / f"{key}.lock"

    def timing_cache(self, tensorrt: str, compute_capability: str) -> Path:
        """The file for timings of one TensorRT and one kind of GPU."""
        return self.root / TIMING / f"tensorrt-{tensorrt}-sm{compute_capability.replace('.', '')}.cache"

    def find(self, key: str) -> CachedEngine | None:
        """The entry, None when there is none or its content is not what was stored; such a one is thrown away."""
        folder = self.folder(key)
        if not folder.is_dir():
            return None
        problem, record = verify_entry(folder)
        if problem is None:
            with suppress(OSError):
                os.utime(folder / RECORD)
            return CachedEngine(key, folder / PLAN, record)
        self.notes.append(f"the cached engine {key[:12]} is damaged ({problem}) and is built again")
        self._discard(folder)
        return None

    def get_or_build(
        self, key: str, build: Callable[[Path], dict[str, Any]], *, on_wait: OnWait | None = None
    ) -> tuple[CachedEngine, bool]:
        """The entry of `key`, and whether it was built now.

        `build(path)` writes the engine to `path` and returns its record; `plan_bytes` and `plan_sha256` are added
        here. While another process builds the same engine, this one waits. Raises what `build` raises, and SetupError
        when the cache cannot be written.
        """
        found = self.find(key)
        if found is not None:
            return found, False
        with self._told():
            self.lock_path(key).parent.mkdir(parents=True, exist_ok=True)
            with key_lock(self.lock_path(key), on_wait=on_wait):
                found = self.find(key)
                if found is not None:
                    return found, False
                self._build(key, build)
        found = self.find(key)
        if found is None:
            raise SetupError(
                f"the engine {key[:12]} was built, but reads back differently",
                given=str(self.root),
                next_step="check the disk of the cache, or choose another --cache",
            )
        return found, True

    def _build(self, key: str, build: Callable[[Path], dict[str, Any]]) -> None:
        folder = self.folder(key)
        work = Path(tempfile.mkdtemp(prefix=f".{key}.", dir=folder.parent))
        try:
            plan = work / PLAN
            record = {**build(plan), "key": key}
            record |= {"plan_bytes": plan.stat().st_size, "plan_sha256": file_sha256(plan)}
            write_synced(work / RECORD, json.dumps(record, indent=2, ensure_ascii=False).encode() + b"\n")
            with plan.open("rb") as file:
                os.fsync(file.fileno())
            # The cache may be shared between users of one volume.
            plan.chmod(0o644)
            work.chmod(0o755)
            sync_folder(work)
            try:
                work.rename(folder)
            except OSError as error:
                # Where neither lock held, another builder was faster: its engine is as good.
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            sync_folder(folder.parent)
        finally:
            shutil.rmtree(work, ignore_errors=True)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise SetupError(
                f"the disk of the engine cache {self.root} is full"
                if full
                else f"the engine cache {self.root} cannot be written: {error.strerror or error}",
                next_step="free space with `tritonstack engines gc`, or choose another --cache"
                if full
                else "check its owner, or choose another --cache",
            ) from error

    def _discard(self, folder: Path) -> None:
        """Take an entry out of the cache in one step, so that nobody sees a half of it."""
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        with suppress(OSError):
            folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)

    @contextmanager
    def in_use(self, key: str) -> Iterator[None]:
        """Keep `engines gc` away from an entry while it is read. Where folders cannot be locked, nothing is held."""
        handle = None
        with suppress(OSError):
            handle = os.open(self.folder(key), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(handle, fcntl.LOCK_SH)
        try:
            yield
        finally:
            if handle is not None:
                os.close(handle)


def verify_entry(folder: Path) -> tuple[str | None, dict[str, Any]]:
    """(what is wrong with an entry or None, its record)."""
    try:
        record = json.loads((folder / RECORD).read_bytes())
        size = (folder / PLAN).stat().st_size
    except OSError as error:
        return f"{Path(str(error.filename)).name}: {error.strerror}", {}
    except ValueError:
        return f"{RECORD} is no JSON", {}
    if not isinstance(record, dict):
        return f"{RECORD} is no JSON object", {}
    if record.get("key") != folder.name:
        return f"{RECORD} belongs to another engine", record
    if record.get("plan_bytes") != size:
        return f"{PLAN} has {size} bytes instead of {record.get('plan_bytes')}", record
    if record.get("plan_sha256") != file_sha256(folder / PLAN):
        return f"the SHA-256 of {PLAN} differs", record
    return None, record


def write_synced(path: Path, content: bytes) -> None:
    """Write a new file and see it on the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """See the names in a folder on the disk; filesystems that cannot are left alone."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)
