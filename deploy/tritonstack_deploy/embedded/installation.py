"""Where the embedded tritonserver lies on this machine, and whether it can run.

The server comes with the PyPI package `nvidia-pytriton`, of which only the files are used.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from tritonstack.errors import SetupError

WHEEL = "nvidia-pytriton==0.7.0"
TRITON_VERSION = "2.51.0"
# The stub was compiled against numpy 1: under numpy 2 it hands models tensors with strides and sizes of zero, so that
# answers are wrong without an error (seen: [1, 2, 3] arrives as [1, 1, 1]).
STUB_NUMPY = "numpy==1.26.4"


@dataclass(frozen=True)
class Installation:
    """Paths of one usable embedded server.

    `library_path` goes into LD_LIBRARY_PATH: the wheel's own shared libraries and, where the interpreter keeps it
    outside the loader's path, the folder of libpython. `stub_site` is a folder that shadows the interpreter's own
    packages for Python models: it holds a numpy the stub can work with; None where the interpreter's numpy will do.
    """

    server: Path
    python_backend: Path
    stub: Path
    caches: Path
    library_path: tuple[Path, ...]
    onnxruntime_backend: Path
    stub_site: Path | None


def find_installation() -> Installation:
    """Locate the server for the running interpreter. Raises SetupError with the line that mends what is missing."""
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        raise SetupError("the embedded tritonserver is not installed", next_step=f"pip install --no-deps {WHEEL}")
    package = Path(spec.submodule_search_locations[0])
    root = package / "tritonserver"
    libraries = package.parent / "nvidia_pytriton.libs"
    server = root / "bin" / "tritonserver"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = root / "python_backend_stubs" / python / "triton_python_backend_stub"
    if not server.is_file() or not libraries.is_dir():
        found = importlib.metadata.version("nvidia-pytriton")
        raise SetupError(
            "the installed nvidia-pytriton has no tritonserver in it",
            given=f"version {found} at {package}",
            expected=WHEEL,
            next_step=f"pip install --no-deps --force-reinstall {WHEEL}",
        )
    if not stub.is_file():
        have = ", ".join(sorted(p.name for p in (root / "python_backend_stubs").iterdir()))
        raise SetupError(
            "the embedded server has no python backend stub for this interpreter",
            given=f"Python {python}",
            expected=f"one of {have}",
        )
    return Installation(
        server=server,
        python_backend=root / "backends" / "python",
        stub=stub,
        caches=root / "caches",
        library_path=(libraries, *_libpython_folders()),
        onnxruntime_backend=_onnxruntime_backend(),
        stub_site=_stub_site(),
    )


def _libpython_folders() -> tuple[Path, ...]:
    """Folders to add so that the stub finds libpython; empty when the loader finds it by itself."""
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    folder = Path(sysconfig.get_config_var("LIBDIR") or "/nonexistent")
    if (folder / name).exists():
        return (folder,)
    try:
        ctypes.CDLL(name)
    except OSError:
        package = name.removesuffix(".so.1.0")
        raise SetupError(
            f"{name} was not found, and Triton's python backend needs it",
            expected=f"in the loader's path or in {folder}",
            next_step=f"apt-get install {package} (as root), or use an interpreter built with --enable-shared",
        ) from None
    return ()


def _onnxruntime_backend() -> Path:
    """The folder of our python-based backend: inside an installed wheel, or in the repository it was built from."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_backends" / "onnxruntime", package.parent.parent / "backends" / "onnxruntime"):
        if (folder / "model.py").is_file():
            return folder
    raise SetupError("the onnxruntime backend is missing from this installation", next_step="reinstall tritonstack")


def _stub_site() -> Path | None:
    """A folder with a numpy below 2 for the stub, or None when the interpreter has one itself."""
    try:
        version = importlib.metadata.version("numpy")
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    if version.split(".")[0] in ("0", "1"):
        return None
    site = Path(sys.prefix) / "share" / "tritonstack" / "server-site"
    if (site / "numpy").is_dir():
        return site
    raise SetupError(
        "Python models of the embedded server need a numpy below 2, which can lie beside the interpreter's own",
        given=f"numpy {version}",
        expected=f"{STUB_NUMPY} in {site}",
        next_step=f"{sys.executable} -m pip install --no-deps --target {site} {STUB_NUMPY}",
    )
