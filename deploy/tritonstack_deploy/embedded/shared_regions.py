"""Shared memory that Triton's python backend leaves in /dev/shm when a server dies.

Every server gets a prefix that holds the process id of its owner, so that leftovers can be told from regions in use,
and an id of the PID namespace in which that number means something: containers can share /dev/shm but not process ids.
"""

from __future__ import annotations

import os
import re
import secrets
import zlib
from pathlib import Path

_SHM = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory lies on Linux
_OWNED = re.compile(r"^tritonstack_(\d+)_([0-9a-f]{8})_[0-9a-f]{8}_")


def new_prefix() -> str:
    """A prefix for one server's regions, unique on this machine."""
    return f"tritonstack_{os.getpid()}_{namespace_id()}_{secrets.token_hex(4)}_"


def namespace_id() -> str:
    """Tells this PID namespace from others on this host: eight hexadecimal digits."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    return f"{zlib.crc32(boot + os.readlink('/proc/self/ns/pid').encode()):08x}"  # noqa: PTH115 - not a path


def remove_regions(prefix: str) -> int:
    """Remove what a stopped server left; returns how many regions there were."""
    return sum(_unlink(path) for path in _SHM.glob(f"{prefix}*"))


def remove_orphans() -> int:
    """Remove regions of servers whose owner is gone (it was killed); returns how many there were.

    Owners in other PID namespaces cannot be asked after, so their regions stay.
    """
    count, here = 0, namespace_id()
    for path in _SHM.glob("tritonstack_*"):
        match = _OWNED.match(path.name)
        if match and match[2] == here and not Path(f"/proc/{match[1]}").exists():
            count += _unlink(path)
    return count


def _unlink(path: Path) -> bool:
    try:
        path.unlink()
    except (FileNotFoundError, PermissionError):
        return False
    return True
