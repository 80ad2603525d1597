"""What lies in an engine cache, and what can go: old entries, those of another TensorRT, leftovers of killed builds."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonstack_export.engine.cache import PLAN, RECORD, TIMING, EngineCache
from tritonstack_export.engine.key_lock import LEASE_S, Busy, key_lock
from tritonstack_export.engine.plan_header import same_release, version_numbers

_STOPPED = "left behind by a build that was stopped"
_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class CacheEntry:
    """One engine in the cache. Times are seconds since the epoch; `record` is empty when it cannot be read."""

    key: str
    path: Path
    size_bytes: int
    last_use: float
    record: dict[str, Any]

    @property
    def tensorrt(self) -> str:
        return str(self.record.get("tensorrt", "?"))

    def as_dict(self) -> dict[str, Any]:
        now = time.time()
        return {
            "key": self.key,
            "model": self.record.get("model"),
            "tensorrt": self.record.get("tensorrt"),
            "compute_capability": self.record.get("compute_capability"),
            "gpu": self.record.get("gpu"),
            "precision": self.record.get("precision"),
            "size_bytes": self.size_bytes,
            "built_at": self.record.get("built_at"),
            "unused_s": round(max(0.0, now - self.last_use)),
            "path": str(self.path),
        }


@dataclass(frozen=True)
class Removal:
    """Something that gc removed, or would remove. `reason` completes "removed because it is"."""

    path: Path
    size_bytes: int
    reason: str

    def as_dict(self) -> dict[str, Any]:
        return {"path": str(self.path), "size_bytes": self.size_bytes, "reason": self.reason}


def entries(cache: EngineCache) -> list[CacheEntry]:
    """All entries, the least recently used first. Damaged ones are listed too."""
    found = []
    for folder in _shards(cache):
        for path in folder.iterdir():
            if not _KEY.fullmatch(path.name) or not path.is_dir():
                continue
            record: dict[str, Any] = {}
            last_use = 0.0
            with suppress(OSError, ValueError):
                last_use = (path / RECORD).stat().st_mtime
                read = json.loads((path / RECORD).read_bytes())
                record = read if isinstance(read, dict) else {}
            found.append(CacheEntry(path.name, path, _size(path), last_use, record))
    return sorted(found, key=lambda entry: (entry.last_use, entry.key))


def sweep(
    cache: EngineCache,
    *,
    older_than_s: float | None = None,
    max_bytes: int | None = None,
    tensorrt: str | None = None,
    dry_run: bool = False,
) -> tuple[list[Removal], list[str]]:
    """Remove entries unused for `older_than_s`, those built with `tensorrt`, then the least recently used ones until
    `max_bytes` are left; timing caches by age and version; and leftovers, always.

    An entry that is built or read at the moment stays. Returns what was removed (with `dry_run`: what would be), and
    the keys of entries that stayed because they are in use.
    """
    removed: list[Removal] = []
    busy: list[str] = []
    left = entries(cache)
    total = sum(entry.size_bytes for entry in left)
    now = time.time()
    wanted = version_numbers(tensorrt) if tensorrt is not None else None
    for entry in left:
        reason = None
        built_with = version_numbers(entry.tensorrt)
        if not entry.record or not (entry.path / PLAN).is_file():
            reason = "damaged"
        elif older_than_s is not None and now - entry.last_use > older_than_s:
            reason = f"unused for {(now - entry.last_use) / 86400:.1f} days"
        elif wanted is not None and built_with is not None and same_release(wanted, built_with):
            reason = f"built with TensorRT {entry.tensorrt}"
        elif max_bytes is not None and total > max_bytes:
            reason = "the least recently used, and the cache is too large"
        if reason is None:
            continue
        if not _remove_entry(cache, entry, dry_run=dry_run):
            busy.append(entry.key)
            continue
        total -= entry.size_bytes
        removed.append(Removal(entry.path, entry.size_bytes, reason))
    removed += _sweep_timings(cache, older_than_s=older_than_s, tensorrt=wanted, dry_run=dry_run)
    removed += _sweep_leftovers(cache, dry_run=dry_run)
    return removed, busy


def _shards(cache: EngineCache) -> Iterator[Path]:
    if not cache.root.is_dir():
        return
    for folder in sorted(cache.root.iterdir()):
        if re.fullmatch(r"[0-9a-f]{2}", folder.name) and folder.is_dir():
            yield folder


def _remove_entry(cache: EngineCache, entry: CacheEntry, *, dry_run: bool) -> bool:
    """False when it is in use."""
    handle = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with key_lock(cache.lock_path(entry.key), wait=False):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            except OSError:
                pass  # Folders cannot be locked here; nobody could have locked it either.
            if not dry_run:
                aside = entry.path.with_name(f".{entry.key}.gone")
                shutil.rmtree(aside, ignore_errors=True)
                entry.path.rename(aside)
                shutil.rmtree(aside, ignore_errors=True)
    except Busy:
        return False
    finally:
        os.close(handle)
    return True


def _sweep_timings(
    cache: EngineCache, *, older_than_s: float | None, tensorrt: tuple[int, ...] | None, dry_run: bool
) -> Iterator[Removal]:
    """Timing caches that no build has written for long, or of a TensorRT that is gone. A build that has one open holds
    its content already, and writes it anew."""
    for path in sorted((cache.root / TIMING).glob("tensorrt-*.cache")):
        version = version_numbers(path.name.removeprefix("tensorrt-").rpartition("-sm")[0])
        reason = None
        if older_than_s is not None and _age_s(path) > older_than_s:
            reason = f"a timing cache unused for {_age_s(path) / 86400:.1f} days"
        elif tensorrt is not None and version is not None and same_release(tensorrt, version):
            reason = f"the timing cache of TensorRT {'.'.join(map(str, version))}"
        if reason is not None:
            size = _size(path)
            if not dry_run:
                path.unlink(missing_ok=True)
                path.with_name(f".{path.name}.lock").unlink(missing_ok=True)
            yield Removal(path, size, reason)


def _sweep_leftovers(cache: EngineCache, *, dry_run: bool) -> Iterator[Removal]:
    for folder in _shards(cache):
        leftovers: dict[str, list[Path]] = {}
        for path in sorted(folder.iterdir()):
            key = path.name.lstrip(".").partition(".")[0]
            if _KEY.fullmatch(key) and not _KEY.fullmatch(path.name):
                leftovers.setdefault(key, []).append(path)
        for key, paths in leftovers.items():
            yield from _sweep_key(cache, key, paths, dry_run=dry_run)
    timing = cache.root / TIMING
    if timing.is_dir():
        for path in sorted(timing.glob(".*.cache.*")):
            # Temporary files of timing caches live for milliseconds; locks stay.
            if path.suffix != ".lock" and _age_s(path) > LEASE_S:
                size = _size(path)
                if not dry_run:
                    _remove(path)
                yield Removal(path, size, _STOPPED)


def _sweep_key(cache: EngineCache, key: str, paths: list[Path], *, dry_run: bool) -> Iterator[Removal]:
    """What builds of one key left behind; nothing while somebody holds its lock."""
    lock = cache.lock_path(key)
    was_there = lock.exists()
    work = [path for path in paths if path.suffix not in (".lock", ".lease")]
    try:
        with key_lock(lock, wait=False):
            for path in work:
                # The other name of a lease that is being made, at this moment.
                if path.name.startswith(f".{key}.lease.") and _age_s(path) < LEASE_S:
                    continue
                size = _size(path)
                if not dry_run:
                    _remove(path)
                yield Removal(path, size, _STOPPED)
            # Unlinked while held: whoever waits for it notices that the name is gone.
            if not was_there or (not dry_run and not cache.folder(key).is_dir()):
                lock.unlink(missing_ok=True)
    except Busy:
        return


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; what vanishes meanwhile counts nothing."""
    total = 0
    for file in (path, *(path.rglob("*") if path.is_dir() else ())):
        with suppress(OSError):
            if file.is_file():
                total += file.stat().st_size
    return total
