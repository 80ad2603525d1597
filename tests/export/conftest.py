"""Run `tritonstack export` in this process and look at what it left behind."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

MODELS = Path(__file__).with_name("models.py")


@dataclass
class Outcome:
    """Exit code and output of one run, and the repository it worked on."""

    code: int
    out: str
    err: str
    repository: Path

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def config(self, name: str) -> Any:
        from tritonstack_export.repository import parse_config

        path = self.repository / name / "config.pbtxt"
        return parse_config(path.read_bytes(), path=path)

    def run_onnx(self, name: str, inputs: dict[str, Any], *, version: int = 1) -> dict[str, np.ndarray[Any, Any]]:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 3
        session = ort.InferenceSession(str(self.repository / name / str(version) / "model.onnx"), options)
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(None, inputs), strict=True))

    def proto(self, name: str, *, version: int = 1) -> Any:
        import onnx

        return onnx.load(self.repository / name / str(version) / "model.onnx")


@pytest.fixture
def export(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """`export("linear", "--max-batch", "4")`: a factory of models.py; or a path of a spec or an ONNX file."""
    from tritonstack.command import main

    def run(source: str | Path, *flags: str, repository: Path | None = None) -> Outcome:
        target = repository or tmp_path / "repository"
        spec = str(source) if isinstance(source, Path) else f"{MODELS}:{source}"
        capfd.readouterr()
        code = main(["export", spec, "--repository", str(target), *flags])
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err, target)

    return run


@pytest.fixture
def write_spec(tmp_path: Path) -> Callable[..., Path]:
    """`write_spec("name: m\\n…")` -> path; `MODELS` in the text becomes the path of models.py."""

    def write(text: str, name: str = "spec.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text.replace("MODELS", str(MODELS)))
        return path

    return write


@pytest.fixture
def marked_line() -> Callable[[str], str]:
    """`models.py:LINE` of the line with `# line: WORD`."""

    def find(word: str) -> str:
        for number, line in enumerate(MODELS.read_text().splitlines(), start=1):
            if line.endswith(f"# line: {word}"):
                return f"models.py:{number}"
        raise AssertionError(f"models.py has no line marked {word}")

    return find


@pytest.fixture
def listing() -> Callable[[Path], dict[str, str]]:
    """Every path below a folder -> digest of its content (empty for folders)."""

    def scan(folder: Path) -> dict[str, str]:
        return {
            path.relative_to(folder).as_posix(): "dir"
            if path.is_dir()
            else hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*"))
        }

    return scan
