"""One builder per cache key, also between machines that share the cache folder.

Two layers, because neither is enough alone. A flock dies with its process, at once, but some shared filesystems keep it
to one machine or do not know it. A lease is a file whose owner touches it every few seconds; it works wherever files
can be created, but a dead owner is noticed late. A lease left on this machine is void as soon as the flock is ours.

Should both fail, two builders do the same work: entries appear by rename, so a cache is never broken by that.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
HEARTBEAT_S = 5.0
LEASE_S = 45.0
"""A lease that was not touched for this long is void: nine heartbeats, against stalls of network filesystems."""
_POLL_S = 0.2

OnWait = Callable[[str, float], None]
"""Called while waiting, with who holds the lock and for how many seconds we have waited."""


class Busy(Exception):
    """Somebody else holds the lock, and waiting was not asked for. The text says who."""


@contextmanager
def key_lock(path: Path, *, wait: bool = True, on_wait: OnWait | None = None) -> Iterator[None]:
    """Hold the lock `path` (its folder exists). Blocks until it is free, or raises Busy when `wait` is false."""
    start_s = time.monotonic()
    handle = _flock(path, wait=wait, on_wait=on_wait, start_s=start_s)
    try:
        with _lease(
            path.with_suffix(".lease"), flocked=handle is not None, wait=wait, on_wait=on_wait, start_s=start_s
        ):
            yield
    finally:
        if handle is not None:
            os.close(handle)


def _flock(path: Path, *, wait: bool, on_wait: OnWait | None, start_s: float) -> int | None:
    """A descriptor that holds the flock, or None where the filesystem has none."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if error.errno in _NO_LOCKS:
                return None
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            _pause(path.with_suffix(".lease"), wait=wait, on_wait=on_wait, start_s=start_s)
            continue
        except BaseException:
            os.close(handle)
            raise
        # The file may have been cleaned away between opening and locking: a lock on a nameless file guards nothing.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        os.close(handle)


@contextmanager
def _lease(path: Path, *, flocked: bool, wait: bool, on_wait: OnWait | None, start_s: float) -> Iterator[None]:
    mine = json.dumps({"host": socket.gethostname(), "boot": _boot_id(), "pid": os.getpid(), "token": uuid.uuid4().hex})
    seen: tuple[str, int] | None = None
    seen_at_s = time.monotonic()
    while not _create(path, mine):
        current = _look(path)
        if current is None:
            continue
        if current != seen:
            seen, seen_at_s = current, time.monotonic()
        ours_and_dead = flocked and _field(current[0], "boot") == _boot_id()
        if ours_and_dead or time.monotonic() - seen_at_s > LEASE_S:
            _take_away(path, current[0])
            continue
        _pause(path, wait=wait, on_wait=on_wait, start_s=start_s)
    stop = threading.Event()
    beat = threading.Thread(target=_beat, args=(path, mine, stop), name="engine-cache-lease", daemon=True)
    beat.start()
    try:
        yield
    finally:
        stop.set()
        beat.join()
        # A lease that was taken over belongs to somebody else by now.
        current = _look(path)
        if current is not None and current[0] == mine:
            with suppress(OSError):
                path.unlink()


def _create(path: Path, content: str) -> bool:
    """Make the lease, whole or not at all; False when there is one. A link is atomic on network filesystems too."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    temporary.write_text(content)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:
        # No links here (some FUSE and SMB mounts).
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(handle, "w") as file:
            file.write(content)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _look(path: Path) -> tuple[str, int] | None:
    """Content and time of the last heartbeat; None without a lease. Never compared with our clock, only with itself."""
    try:
        return path.read_text(errors="replace"), path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _take_away(path: Path, content: str) -> None:
    """Remove a void lease, but not one that somebody else has made in its place meanwhile."""
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.rename(aside)
    except FileNotFoundError:
        return
    if aside.read_text(errors="replace") != content:
        with suppress(OSError):
            os.link(aside, path)
    aside.unlink(missing_ok=True)


def _beat(path: Path, mine: str, stop: threading.Event) -> None:
    while not stop.wait(HEARTBEAT_S):
        current = _look(path)
        if current is None or current[0] != mine:
            return
        with suppress(OSError):
            os.utime(path)


def _pause(lease: Path, *, wait: bool, on_wait: OnWait | None, start_s: float) -> None:
    try:
        current = _look(lease)
    except OSError:
        current = None
    content = current[0] if current is not None else ""
    owner = f"process {_field(content, 'pid')} on {_field(content, 'host')}" if content else "another process"
    if not wait:
        raise Busy(owner)
    if on_wait is not None:
        on_wait(owner, time.monotonic() - start_s)
    time.sleep(_POLL_S)


def _field(content: str, name: str) -> str:
    try:
        return str(json.loads(content)[name])
    except (ValueError, KeyError, TypeError):
        return "?"


def _boot_id() -> str:
    """What tells machines apart: the same in all containers of one machine, which share its flocks."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
