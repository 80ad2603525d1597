"""Where an export came from: git revision, tool versions, platform, digests."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

_TOOLS = ("torch", "onnx", "onnxruntime", "onnxscript", "onnx-ir", "numpy")


def tool_versions() -> dict[str, str]:
    """Versions of everything that can change the exported bytes."""
    from tritonstack._version import __version__

    versions = {"tritonstack": __version__, "python": platform.python_version()}
    for name in _TOOLS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def platform_facts() -> dict[str, str]:
    """Operating system and processor architecture."""
    return {"system": platform.system(), "release": platform.release(), "machine": platform.machine()}


def git_state(folder: Path) -> dict[str, Any] | None:
    """`revision` and whether the tree is `dirty`, of the repository that holds `folder`; None outside of one."""
    try:
        revision = _git(folder, "rev-parse", "HEAD")
        changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return {"revision": revision, "dirty": bool(changes)}


def _git(folder: Path, *arguments: str) -> str:
    result = subprocess.run(
        ["git", "--no-optional-locks", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    return result.stdout.strip()
