"""A file that is there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def taking_place_of(path: Path, *, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """A new file to write, which gets the name `path` once all of it is on the disk, or vanishes when that fails.

    `mode`: its permissions. Whoever needs the name itself to survive a power cut syncs the folder afterwards.
    """
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
