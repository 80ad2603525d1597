"""TensorRT for RTX on demand: real pip, several processes, kill -9, and each way in which it can fail."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tritonstack.errors import SetupError
from tritonstack_export.preflight import environment, pip_failure
from tritonstack_export.preflight.environment import cache_root, damage, ensure_environment, site_folder

INSTALL = """\
import sys
from pathlib import Path
from tritonstack.terminal import Progress
from tritonstack_export.preflight.environment import ensure_environment
print(ensure_environment(Progress(), root=Path(sys.argv[1])))
"""


def start(root: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", INSTALL, str(root)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def temporary(root: Path) -> list[Path]:
    return list(root.glob("*/tmp-*"))


@pytest.mark.slow
def test_killed_raced_and_damaged_installations(tmp_path: Path) -> None:
    """One after the other, since each real installation takes seconds: an installer killed with -9, then three
    processes at once, then damage that keeps the size of the file."""
    root = tmp_path / "preflight"
    killed = start(root)
    deadline = time.monotonic() + 60
    while not list(root.glob("*/tmp-*/pip.log")) and time.monotonic() < deadline:
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    assert temporary(root) and not site_folder(root).exists()

    together = [start(root) for _ in range(3)]
    said = [process.communicate(timeout=240) for process in together]
    assert [process.returncode for process in together] == [0, 0, 0], said
    assert {out.strip() for out, _ in said} == {str(site_folder(root))}
    assert sum("installing TensorRT for RTX" in err for _, err in said) == 1
    assert not temporary(root) and damage(site_folder(root)) == []

    victim = site_folder(root) / "tensorrt_rtx_bindings" / "__init__.py"
    victim.write_bytes(bytes(victim.stat().st_size))
    assert "SHA-256" in damage(site_folder(root))[0]
    with pytest.raises(SetupError, match=r"damaged \(tensorrt_rtx_bindings/__init__.py has other bytes"):
        ensure_environment(root=root, install=False)
    assert ensure_environment(root=root) == site_folder(root)
    assert damage(site_folder(root)) == [] and not temporary(root)


def linked_copy(site: Path, folder: Path) -> Path:
    """A copy of the installation whose files are links to the same bytes: nothing may be written into them."""
    copy = folder / site.parent.name / "site"
    shutil.copytree(site, copy, copy_function=lambda a, b: Path(b).symlink_to(a))
    return copy


def test_a_missing_and_a_short_file_are_seen(site: Path, tmp_path: Path) -> None:
    copy = linked_copy(site, tmp_path)
    assert damage(copy) == []
    library = next((copy / "onnxruntime_ep_nv_tensorrt_rtx").glob("libtensorrt_rtx.so*"))
    library.unlink()
    assert damage(copy) == [f"onnxruntime_ep_nv_tensorrt_rtx/{library.name} is missing"]
    library.write_bytes(b"short")
    assert "has 5 bytes instead of 234013248" in damage(copy)[0]
    with pytest.raises(SetupError, match="--no-install"):
        ensure_environment(root=tmp_path, install=False)


def test_what_was_installed_by_hand_is_taken(site: Path, tmp_path: Path) -> None:
    """The command that every error names makes exactly the folder that is looked for."""
    assert environment.install_command(site)[-3:-2] == [str(site)]
    copy = linked_copy(site, tmp_path)
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__" / "left.pyc").write_bytes(b"")
    assert ensure_environment(root=tmp_path, install=False) == copy


def test_nothing_is_installed_when_forbidden(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"is not installed, and --no-install") as caught:
        ensure_environment(root=tmp_path / "new", install=False)
    assert "-m pip install --no-deps --target" in str(caught.value.next_step)
    assert not (tmp_path / "new").exists()


OFFLINE = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": "", "PIP_RETRIES": "0"}


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"PIP_INDEX_URL": "http://127.0.0.1:9/simple"}, "index"),
        ({"PIP_NO_INDEX": "1"}, "the package index does not have the wheels"),
    ],
)
def test_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str) -> None:
    for name, value in {**OFFLINE, **variables}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SetupError, match=said) as caught:
        ensure_environment(root=tmp_path)
    assert f"-m pip install --no-deps --target {site_folder(tmp_path)}" in str(caught.value.next_step)
    assert not temporary(tmp_path) and not site_folder(tmp_path).exists()


def test_other_files_than_those_pinned_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    bindings = environment.wheels()[0]
    name = f"{bindings.name.replace('-', '_')}-{bindings.version}"
    with zipfile.ZipFile(wheels / f"{name}-{python}-none-manylinux_2_28_x86_64.whl", "w") as archive:
        archive.writestr(
            f"{name}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {bindings.name}\nVersion: {bindings.version}\n"
        )
        archive.writestr(
            f"{name}.dist-info/WHEEL",
            f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {python}-none-manylinux_2_28_x86_64\n",
        )
        archive.writestr(f"{name}.dist-info/RECORD", "")
    for key, value in {**OFFLINE, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(SetupError, match="other files than those pinned"):
        ensure_environment(root=tmp_path / "root")


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="TRITONSTACK_CACHE"):
        ensure_environment(root=tmp_path / "file")


def test_waiting_has_an_end(tmp_path: Path) -> None:
    folder = site_folder(tmp_path).parent
    folder.mkdir(parents=True)
    with folder.with_suffix(".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(SetupError, match="another process has been installing"):
            ensure_environment(root=tmp_path, wait_s=0.3)


@pytest.mark.parametrize("version", [(3, 10, 0), (3, 13, 1)])
def test_interpreters_without_a_wheel(monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...]) -> None:
    from collections import namedtuple

    fake = namedtuple("fake", "major minor micro")(*version)
    monkeypatch.setattr(environment.sys, "version_info", fake)
    with pytest.raises(SetupError, match=r"expected Python 3.11 or 3.12 on Linux x86_64"):
        environment.wheels()


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITONSTACK_CACHE", str(tmp_path))
    assert cache_root() == tmp_path / "preflight"
    monkeypatch.setenv("TRITONSTACK_CACHE", "")
    assert cache_root() == Path.home() / ".cache" / "tritonstack" / "preflight"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "the disk is full"),
        ("ERROR: Could not install: [Errno 122] Disk quota exceeded: 'x'", "quota"),
        (
            "WARNING: Retrying ... Temporary failure in name resolution\nERROR: No matching distribution found",
            "reached",
        ),
        ("/usr/bin/python3: No module named pip", "no pip"),
        ("ERROR: something new", "pip ended with status 2 (something new)"),
        ("", "pip ended with status 2"),
    ],
)
def test_what_pip_says_in_words(log: str, said: str) -> None:
    error = pip_failure.explain(log, 2, by_hand="pip install X")
    assert said in str(error) and "pip install X" in str(error) and "\n" not in str(error)


def test_a_machine_without_a_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs under an arbitrary user id; both caches are found the same way."""
    from tritonstack_export.engine.cache import default_root

    monkeypatch.setenv("TRITONSTACK_CACHE", "~no_such_user/cache")
    for folder in (cache_root, default_root):
        with pytest.raises(SetupError, match=r"no home folder.*given TRITONSTACK_CACHE=~no_such_user/cache; next: set"):
            folder()
    monkeypatch.delenv("TRITONSTACK_CACHE")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    for folder in (cache_root, default_root):
        with pytest.raises(SetupError, match=r"no home folder.*HOME is not set; next: set TRITONSTACK_CACHE"):
            folder()
