"""The README's commands and its Python example work as written, in a copy of the tree; its links lead somewhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def commands(prefix: str) -> list[str]:
    return [line for block in blocks("sh") for line in block.splitlines() if line.startswith(prefix)]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands need of the repository, without its model_repository."""
    tree = tmp_path_factory.mktemp("readme")
    shutil.copytree(ROOT / "examples", tree / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    spec = find_spec("sklearn")
    assert spec is not None and spec.submodule_search_locations
    shutil.copy(Path(spec.submodule_search_locations[0]) / "datasets/images/china.jpg", tree / "photo.jpg")
    return tree


def environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def run(line: str, tree: Path, timeout_s: float = 400) -> str:
    # The line is the README's own text, run by the shell as a reader would.
    result = subprocess.run(  # noqa: S602
        line, shell=True, cwd=tree, env=environment(), capture_output=True, text=True, timeout=timeout_s
    )
    assert result.returncode == 0, f"{line}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def served(tree: Path) -> Iterator[Path]:
    """The tree after `export` and `check`, with `serve` running on the README's ports."""
    export, _ = commands("tritonstack export")
    [check] = commands("tritonstack check")
    [serve] = commands("tritonstack serve")
    assert "published efficientnet_lite0 version 1" in run(export, tree)
    assert "up to date" in run(export, tree), "a second run reuses what is there"
    assert "0 errors" in run(check, tree)
    process = subprocess.Popen(serve.split(), cwd=tree, env=environment(), stdout=subprocess.PIPE, text=True)
    try:
        lines = []
        for line in process.stdout or ():
            lines.append(line)
            if line.startswith("Try:"):
                break
        else:
            raise AssertionError("".join(lines))
        assert any(line.split() == ["HTTP", "http://127.0.0.1:8000"] for line in lines), lines
        yield tree
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        if process.stdout:
            process.stdout.close()


@pytest.mark.slow
@pytest.mark.photos
@pytest.mark.timeout(600)
def test_all_precisions_of_the_example(tree: Path) -> None:
    """FP16 loses at most one of the labelled photographs (0.41 points) and INT8 at most 1 point; pre-flight passes."""
    (tree / ".cache").symlink_to(ROOT / ".cache")
    _, export = commands("tritonstack export")
    output = run(export.replace("model_repository", "precisions"), tree)
    for name, limit in (("efficientnet_lite0_fp16", 0.42), ("efficientnet_lite0_int8", 1.0)):
        facts = json.loads((tree / "precisions" / name / "1" / "manifest.json").read_text())
        assert f"published {name} version 1" in output
        assert facts["accuracy"]["drop_points"] <= limit and facts["accuracy"]["samples"] == 244
        assert facts["preflight"]["passed"]
    assert "efficientnet_lite0_int8" in (tree / "report.html").read_text()
    # Elsewhere than on the GPU: said, and the repository stays servable.
    [build] = commands("tritonstack build-engines")
    told = subprocess.run(  # noqa: S602
        build.replace("model_repository", "precisions"), shell=True, cwd=tree, env=environment(), capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip
    assert "TensorRT" in told.stdout + told.stderr and "Traceback" not in told.stderr
    assert "0 errors" in run("tritonstack check precisions", tree)


@pytest.mark.slow
def test_infer_names_what_is_in_the_photo(served: Path) -> None:
    [line] = commands("tritonstack infer")
    output = run(line, served)
    assert "palace" in output
    assert "version 1" in output


@pytest.mark.slow
@pytest.mark.parametrize("line", commands("tritonstack load"))
def test_load_reports(served: Path, line: str) -> None:
    output = run(line, served)
    assert "p99" in output and "efficientnet_lite0" in output


@pytest.mark.slow
def test_python_example(served: Path) -> None:
    [source] = blocks("python")
    result = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "(1, 1000) from version 1\n"


def test_every_command_of_the_readme_is_covered() -> None:
    known = ("make demo", "make test", "make photos", "source .venv/bin/activate", "tritonstack ")
    for block in blocks("sh"):
        for line in block.splitlines():
            assert line.startswith(known), line


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make ([a-z-]+)`?$", "\n".join(commands("make")), re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target


@pytest.mark.parametrize(
    "document", ["README.md", "CONTRIBUTING.md", *sorted(p.name for p in (ROOT / "docs").glob("*.md"))]
)
def test_links_and_folders_exist(document: str) -> None:
    path = ROOT / document if (ROOT / document).exists() else ROOT / "docs" / document
    for link in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        if "://" not in link:
            assert (path.parent / link).exists(), f"{document}: {link}"
    for folder in re.findall(r"^\| `([\w./]+)` \|", path.read_text(), re.M) if document == "README.md" else ():
        if "/" in folder or (ROOT / folder).exists():
            assert (ROOT / folder).exists(), folder
