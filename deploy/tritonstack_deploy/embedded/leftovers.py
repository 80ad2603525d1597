"""What a server leaves when it or its owner is killed: shared memory of Triton's python backend, and its run folder.

Every server gets a prefix that holds the process id of its owner, so that leftovers can be told from things in use, and
an id of the PID namespace in which that number means something: containers can share /dev/shm but not process ids.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
import zlib
from pathlib import Path

from tritonstack_export.repository.layout import is_shell_safe

_SHM = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory lies on Linux
_OWNED = re.compile(r"^tritonstack_(\d+)_([0-9a-f]{8})_[0-9a-f]{8}_")


def new_prefix() -> str:
    """A prefix for one server's regions and run folder, unique on this machine."""
    return f"tritonstack_{os.getpid()}_{namespace_id()}_{secrets.token_hex(4)}_"


def namespace_id() -> str:
    """Tells this PID namespace from others on this host: eight hexadecimal digits."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    return f"{zlib.crc32(boot + os.readlink('/proc/self/ns/pid').encode()):08x}"  # noqa: PTH115 - not a path


def remove_regions(prefix: str) -> int:
    """Remove what a stopped server left; returns how many regions there were."""
    return sum(_unlink(path) for path in _SHM.glob(f"{prefix}*"))


def run_folder(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder for one server, named so that a later start can sweep it if the owner is killed.

    The paths inside end up in a shell line of Triton's python backend, so a TMPDIR that a shell would read is not used.
    """
    plain = is_shell_safe(tempfile.gettempdir().replace("/", ""))
    return tempfile.TemporaryDirectory(prefix=prefix, dir=None if plain else "/tmp")  # noqa: S108


def remove_orphans() -> int:
    """Remove regions and run folders of servers whose owner is gone (it was killed); returns how many there were.

    Owners in other PID namespaces cannot be asked after, so what is theirs stays, as does what other users own.
    """
    count, here = 0, namespace_id()
    for parent in (_SHM, Path(tempfile.gettempdir())):
        for path in parent.glob("tritonstack_*"):
            match = _OWNED.match(path.name)
            if match and match[2] == here and not Path(f"/proc/{match[1]}").exists():
                count += _unlink(path) if parent == _SHM else _remove_folder(path)
    return count


def _unlink(path: Path) -> bool:
    try:
        path.unlink()
    except (FileNotFoundError, PermissionError):
        return False
    return True


def _remove_folder(path: Path) -> bool:
    # rmtree does not follow links; a link of that name makes it stop with an OSError.
    try:
        if path.lstat().st_uid != os.getuid():
            return False
        shutil.rmtree(path)
    except OSError:
        return False
    return True
