"""The folders a server is started from: a backend directory, and a view of the repository that holds only models.

Triton takes every folder of a repository for a model (`.git` and `lost+found` too) and loads a ConfigMap mount three
times. The view is a folder of links, one for each model that was asked for.
"""

from __future__ import annotations

import shutil
import stat
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from site import getsitepackages

from tritonstack_deploy.embedded.installation import Installation


def stage_backends(installation: Installation, into: Path, *, libraries: Mapping[str, Path] | None = None) -> Path:
    """Write a backend directory (`python` with the right stub, our `onnxruntime`, compiled ones) and return it.

    `libraries`: backend -> its library. They are copied, so that a new build does not change what a server has mapped.
    """
    python = into / "python"
    python.mkdir(parents=True)
    for file in installation.python_backend.iterdir():
        if file.is_file():
            shutil.copy(file, python / file.name)
    stub = python / installation.stub.name
    shutil.copy(installation.stub, stub)
    stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
    shutil.copytree(
        installation.onnxruntime_backend, into / "onnxruntime", ignore=shutil.ignore_patterns("__pycache__")
    )
    for backend, library in (libraries or {}).items():
        (into / backend).mkdir()
        shutil.copy(library, into / backend / library.name)
    return into


def stage_interpreter(installation: Installation, into: Path) -> Path:
    """The folder to put first on PATH, so that the stub finds the right packages.

    Normally that of the running interpreter. Where the stub needs another numpy, a virtual environment is written
    whose site-packages hold links to it and a path file to the interpreter's own packages.
    """
    if installation.stub_site is None:
        return Path(sys.executable).parent
    site = into / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    site.mkdir(parents=True)
    for entry in installation.stub_site.iterdir():
        (site / entry.name).symlink_to(entry)
    own = dict.fromkeys([*getsitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    # addsitedir, not plain lines, so that path files inside (editable installs) count too.
    lines = [f"import site; site.addsitedir({folder!r})" for folder in own]
    (site / "interpreter.pth").write_text("\n".join(lines) + "\n")
    base = Path(sys.base_prefix) / "bin"
    (into / "pyvenv.cfg").write_text(f"home = {base}\ninclude-system-site-packages = false\n")
    binaries = into / "bin"
    binaries.mkdir()
    for name in ("python3", "python"):
        (binaries / name).symlink_to(Path(sys.executable).resolve())
    return binaries


def stage_models(models: Mapping[str, Path], into: Path) -> Path:
    """Link each model's folder under its name and return the folder of links."""
    into.mkdir(parents=True)
    for name, folder in models.items():
        (into / name).symlink_to(folder.resolve(), target_is_directory=True)
    return into
