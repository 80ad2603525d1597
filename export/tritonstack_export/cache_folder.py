"""Where a user's machine keeps what can be made again: engines, and what the pre-flight needs."""

from __future__ import annotations

import os
from pathlib import Path

from tritonstack.errors import SetupError


def cache_folder(name: str) -> Path:
    """``$TRITONSTACK_CACHE/<name>``, or the same below ``~/.cache/tritonstack``; absolute, and not made here.

    Raises SetupError where that needs a home folder and there is none, as for a container's arbitrary user id.
    """
    chosen = os.environ.get("TRITONSTACK_CACHE")
    try:
        base = Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "tritonstack"
    except RuntimeError:
        raise SetupError(
            "there is no home folder to keep the cache in",
            given=f"TRITONSTACK_CACHE={chosen}" if chosen else f"user id {os.getuid()}, and HOME is not set",
            next_step="set TRITONSTACK_CACHE to a folder that you may write to",
        ) from None
    return base.absolute() / name
