"""TensorRT for RTX in a folder of its own, installed on demand and shared by all processes of a user.

Nothing is put into the user's environment: both wheels go under `cache_root()`, which the worker's process alone puts
on its path. The two are pinned by version and by SHA-256. An installation appears by one rename, so it is whole or not
there; one process installs while the others wait on a lock that dies with its owner.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tritonstack.errors import SetupError
from tritonstack.terminal import Progress, human_bytes
from tritonstack_export.cache_folder import cache_folder
from tritonstack_export.preflight import pip_failure

RTX_VERSION = "1.7.1.116"
"""The version of TensorRT for RTX that models are built with."""


@dataclass(frozen=True)
class Wheel:
    """A pinned wheel: its name at the index, its version, and the SHA-256 of the files that are accepted."""

    name: str
    version: str
    sha256: tuple[str, ...]

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"

    @property
    def metadata_folder(self) -> str:
        return f"{self.name.replace('-', '_')}-{self.version}.dist-info"


BINDINGS = {
    "3.11": "6a4d2bf39a98b71238046b9a9dd22d0e6b146be90cd56ac09f1e068933e4e18d",
    "3.12": "52fb62cb86b922637848f5971b53153bf2e091c33948fa89efd215abaa52b044",
}
"""Python version -> SHA-256 of the bindings' wheel for Linux on x86_64."""

# The libraries come with the execution provider: NVIDIA publishes them on PyPI in no other wheel.
_LIBRARIES = Wheel(
    "onnxruntime-ep-nv-tensorrt-rtx-cu13",
    "0.5.0",
    ("32f575c633d171b4edf4b53d3bb22b72a6c9c0a850d2982ce9a788a5d40d3298",),
)
_WORK_BYTES = 469_000_000
"""Size of both wheels and of what is in them, for the progress."""


def wheels() -> tuple[Wheel, ...]:
    """The two pinned wheels for this interpreter. Raises SetupError where there are none for it."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    here = f"Python {version} on {platform.system()} {platform.machine()}"
    if version not in BINDINGS or platform.system() != "Linux" or platform.machine() != "x86_64":
        raise SetupError(
            "the pre-flight has no TensorRT for RTX for this interpreter",
            given=here,
            expected=f"Python {' or '.join(BINDINGS)} on Linux x86_64",
            next_step="run the pre-flight with one of those",
        )
    return Wheel("tensorrt-rtx-cu13-bindings", RTX_VERSION, (BINDINGS[version],)), _LIBRARIES


def cache_root() -> Path:
    """``$TRITONSTACK_CACHE/preflight``, else ``~/.cache/tritonstack/preflight``. Raises SetupError without a home."""
    return cache_folder("preflight")


def environment_key() -> str:
    """What an installation depends on: the pins and the Python version. Raises SetupError as `wheels` does."""
    text = "\n".join([*(f"{w.requirement} {' '.join(w.sha256)}" for w in wheels()), *map(str, sys.version_info[:2])])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def site_folder(root: Path | None = None) -> Path:
    """Where the installation lies, or will lie."""
    return (root or cache_root()) / environment_key() / "site"


def install_command(site: Path) -> list[str]:
    """The command that installs both wheels into `site`, as a user would type it."""
    return [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--target",
        str(site),
        *(w.requirement for w in wheels()),
    ]


def ensure_environment(
    progress: Progress | None = None, *, install: bool = True, root: Path | None = None, wait_s: float = 900.0
) -> Path:
    """The folder to put on the path of a process that imports TensorRT for RTX; installed when it is not there.

    Blocks while it is installed, here or by another process (at most `wait_s` seconds for the other). With `install`
    False nothing is installed. Raises SetupError when there is no such wheel for this interpreter, the installation
    fails (with the command to run by hand), or what lies there is damaged and may not be renewed.
    """
    progress = progress or Progress(quiet=True)
    site = site_folder(root)
    problems = damage(site) if site.is_dir() else None
    if problems == []:
        return site
    if not install:
        state = f"damaged ({problems[0]})" if problems else "not installed"
        raise SetupError(
            f"TensorRT for RTX {RTX_VERSION} is {state}, and --no-install forbids to install it",
            next_step=f"run {shlex.join(install_command(site))}",
        )
    try:
        site.parent.mkdir(parents=True, exist_ok=True)
        with _lock(site.parent.with_suffix(".lock"), progress, wait_s):
            if site.is_dir():
                # Another process was faster, or somebody ran the command by hand, or the disk lost something.
                problems = damage(site)
                if not problems:
                    return site
                progress.note(f"renewing TensorRT for RTX {RTX_VERSION}: {problems[0]}")
            _sweep(site.parent)
            _install(site, progress)
    except OSError as error:
        raise SetupError(
            f"TensorRT for RTX cannot be kept in {site.parent}: {error.strerror or error}",
            next_step="set TRITONSTACK_CACHE to a folder with about 1 GB of free space that you may write to",
        ) from error
    return site


def damage(site: Path) -> list[str]:
    """What is wrong with an installation, one sentence each; [] when every file of both packages is as it was packed.

    Reads all of it (320 MB, 0.2 s from memory): what is loaded next would crash in unhelpful ways otherwise.
    """
    problems: list[str] = []
    for wheel in wheels():
        record = site / wheel.metadata_folder / "RECORD"
        try:
            with record.open(newline="", encoding="utf-8") as file:
                rows = [row for row in csv.reader(file) if len(row) == 3]
        except OSError:
            problems.append(f"{wheel.requirement} is not in {site}")
            continue
        for name, digest, size in rows:
            problem = _file_problem(site / name, digest, size)
            if problem:
                problems.append(f"{name} {problem}")
    return problems


def _file_problem(path: Path, digest: str, size: str) -> str | None:
    if path.suffix == ".pyc" or ".dist-info" in path.parent.name:
        return None
    try:
        found = path.stat().st_size
    except OSError:
        return "is missing"
    if size.isdigit() and found != int(size):
        return f"has {found} bytes instead of {size}"
    if digest.startswith("sha256="):
        with path.open("rb") as file:
            value = hashlib.file_digest(file, "sha256").digest()
        if base64.urlsafe_b64encode(value).rstrip(b"=").decode() != digest.removeprefix("sha256="):
            return "has other bytes than were packed (its SHA-256 differs)"
    return None


@contextmanager
def _lock(path: Path, progress: Progress, wait_s: float) -> Iterator[None]:
    """Hold an exclusive lock on `path`. The kernel gives it up when its owner ends, however that happens."""
    with path.open("a") as file:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise SetupError(
                        f"another process has been installing TensorRT for RTX for {wait_s:.0f} s",
                        next_step=f"look what holds {path} (`fuser {path}`), and try again",
                    ) from None
                progress.update("waiting for another process that installs TensorRT for RTX")
                time.sleep(0.2)
        yield


def _sweep(folder: Path) -> None:
    """Remove what installations that were killed have left. Only called under the lock."""
    for leftover in folder.glob("tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _install(site: Path, progress: Progress) -> None:
    """Install into a temporary folder, prove that it works, and put it in place by a rename."""
    work = Path(tempfile.mkdtemp(prefix="tmp-", dir=site.parent))
    try:
        fresh, old = work / "site", work / "old"
        _run_pip(fresh, work, site, progress)
        problems = damage(fresh)
        if problems:
            raise SetupError(
                f"pip installed something else than was packed: {problems[0]}",
                next_step=f"check the free space and the disk, then run {shlex.join(install_command(site))}",
            )
        _probe(fresh)
        if site.exists():
            site.rename(old)
        fresh.rename(site)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run_pip(target: Path, work: Path, site: Path, progress: Progress) -> None:
    requirements = work / "requirements.txt"
    requirements.write_text(
        "".join(f"{w.requirement} {' '.join(f'--hash=sha256:{d}' for d in w.sha256)}\n" for w in wheels())
    )
    command = [
        *(sys.executable, "-m", "pip", "install", "--no-deps", "--require-hashes", "--only-binary", ":all:"),
        *("--progress-bar", "off", "--no-input", "--disable-pip-version-check", "--no-compile", "--no-cache-dir"),
        *("--target", str(target), "--requirement", str(requirements)),
    ]
    # pip unpacks there first: beside the target, moving it is a rename, and a small /tmp does not matter.
    scratch = work / "scratch"
    scratch.mkdir()
    log = work / "pip.log"
    progress.note(f"installing TensorRT for RTX {RTX_VERSION} for the pre-flight (148 MB to download, once)")
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(scratch), "PYTHONNOUSERSITE": "1"},
        )  # fmt: skip
        try:
            while True:
                try:
                    code = process.wait(timeout=0.5)
                    break
                except subprocess.TimeoutExpired:
                    size = _folder_bytes(work)
                    progress.update(
                        f"installing TensorRT for RTX: {human_bytes(size)} of about {human_bytes(_WORK_BYTES)}"
                    )
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if code != 0:
        raise pip_failure.explain(log.read_text("utf-8", "replace"), code, by_hand=shlex.join(install_command(site)))


def _folder_bytes(folder: Path) -> int:
    """Bytes of all files below `folder` at this moment; files that vanish meanwhile count as nothing."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return total


_PROBE = """\
import ctypes, pathlib, sys
folder = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(folder))
for name in ("libtensorrt_rtx.so.1", "libtensorrt_onnxparser_rtx.so.1"):
    ctypes.CDLL(str(next((folder / "onnxruntime_ep_nv_tensorrt_rtx").glob(name + "*"))), mode=ctypes.RTLD_GLOBAL)
import tensorrt_rtx_bindings
print(tensorrt_rtx_bindings.__version__)
"""


def _probe(site: Path) -> None:
    """Import it in a process of its own: libraries that do not load here shall fail now, with the loader's words."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", _PROBE, str(site)], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode == 0 and done.stdout.strip() == RTX_VERSION:
        return
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    said = lines[-1] if lines else f"exit status {done.returncode}, version {done.stdout.strip() or 'unknown'}"
    raise SetupError(
        f"TensorRT for RTX {RTX_VERSION} is installed but does not load here: {said}",
        next_step="use a system with glibc 2.28 or newer on x86_64",
    )
