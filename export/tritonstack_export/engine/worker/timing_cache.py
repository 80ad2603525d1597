"""The timing cache: what earlier builds measured. Nothing that is wrong with it makes a build fail."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tritonstack_export.engine.worker.events import Events


class TimingCache:
    """A timing cache file for one build: read it into the configuration, later write back what was added."""

    def __init__(self, path: Path, config: Any, events: Events) -> None:
        self._path = path
        # The native cache belongs to its configuration: serializing it after the configuration is gone crashes.
        self._config = config
        self._events = events
        self._read = self._content()
        if not self._use(self._read):
            self._warn("is no timing cache of this TensorRT and GPU (or it is damaged); a fresh one is started")
            self._use(b"")

    def save(self) -> None:
        """Write the cache in one step, merged with what another build wrote meanwhile."""
        cache = self._config.get_timing_cache()
        if cache is None:
            return
        temporary = None
        try:
            with _locked(self._path):
                current = self._content()
                if current and current != self._read:
                    self._merge(cache, current)
                handle, temporary = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
                with os.fdopen(handle, "wb") as file:
                    file.write(memoryview(cache.serialize()))
                    file.flush()
                    os.fsync(file.fileno())
                Path(temporary).replace(self._path)
                temporary = None
        except OSError as error:
            self._warn(f"cannot be written ({error.strerror}); the build goes on without it")
        finally:
            if temporary is not None:
                with suppress(OSError):
                    Path(temporary).unlink()

    def _content(self) -> bytes:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            self._warn(f"cannot be read ({error.strerror}); a fresh one is started")
            return b""

    def _use(self, content: bytes) -> bool:
        cache = self._make(content)
        # ignore_mismatch stays off: timings of another GPU would choose kernels by measurements that do not hold.
        return cache is not None and bool(self._config.set_timing_cache(cache, False))

    def _make(self, content: bytes) -> Any:
        try:
            return self._config.create_timing_cache(content)
        except (TypeError, RuntimeError):
            return None

    def _merge(self, cache: Any, content: bytes) -> None:
        other = self._make(content)
        if other is None or not cache.combine(other, False):
            self._warn("was replaced by one that does not fit meanwhile; it is overwritten")

    def _warn(self, text: str) -> None:
        self._events.send("message", level="warning", text=f"timing cache {self._path} {text}", ours=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock beside `path`. It dies with its process; without locks on the filesystem the rename decides."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
