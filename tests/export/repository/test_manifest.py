"""The manifest of a version: written, read, and held against the files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tritonstack.errors import RepositoryError
from tritonstack_export.repository import manifest


@pytest.fixture
def version(tmp_path: Path) -> Path:
    folder = tmp_path / "net" / "1"
    (folder / "weights").mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"model")
    (folder / "weights" / "part.bin").write_bytes(b"w" * 1000)
    (folder.parent / "config.pbtxt").write_text("max_batch_size: 0\n")
    files = manifest.digest_version(folder, also=[folder.parent / "config.pbtxt"])
    manifest.write(folder, manifest.Manifest(files=files, fields={"opset": 20, "tools": {"torch": "2.13"}}))
    return folder


def test_it_comes_back_as_written(version: Path) -> None:
    read = manifest.read(version)
    assert read.fields == {"opset": 20, "tools": {"torch": "2.13"}}
    assert sorted(read.files) == ["../config.pbtxt", "model.onnx", "weights/part.bin"]
    assert read.files["model.onnx"].size == 5
    assert manifest.verify(version) == []
    assert [path.name for path in version.iterdir() if path.name.startswith(".")] == []


def test_every_difference_is_named(version: Path) -> None:
    (version / "model.onnx").write_bytes(b"MODEL")
    (version / "weights" / "part.bin").write_bytes(b"w" * 999)
    assert manifest.verify(version) == [
        "model.onnx was changed after export (its SHA-256 differs)",
        "weights/part.bin was changed after export (999 bytes, exported with 1000)",
    ]
    (version / "model.onnx").unlink()
    assert "model.onnx was exported but is not there" in manifest.verify(version)


def test_config_and_new_files_may_change(version: Path) -> None:
    (version.parent / "config.pbtxt").write_text("max_batch_size: 8\n")
    (version / "timing.cache").write_text("made by the server")
    assert manifest.verify(version) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no JSON"),
        ("[]", "no JSON object"),
        ("{}", "unknown schema"),
        ('{"schema_version": 99, "files": {}}', "unknown schema"),
        ('{"schema_version": 1}', "lists no files"),
        ('{"schema_version": 1, "files": {"../../secret": {"size": 1, "sha256": ""}}}', "leads out"),
        ('{"schema_version": 1, "files": {"/etc/passwd": {"size": 1, "sha256": ""}}}', "leads out"),
        ('{"schema_version": 1, "files": {"a": {"size": 1, "sha256": "xyz"}}}', "no size and SHA-256"),
        ('{"schema_version": 1, "files": {"a": 3}}', "no size and SHA-256"),
    ],
)
def test_a_broken_manifest_is_refused_in_one_line(version: Path, text: str, message: str) -> None:
    (version / manifest.MANIFEST_NAME).write_text(text)
    with pytest.raises(RepositoryError, match=message):
        manifest.read(version)
    assert len(manifest.verify(version)) == 1


def test_no_number_json_cannot_hold_is_written(version: Path) -> None:
    before = (version / manifest.MANIFEST_NAME).read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        manifest.write(version, manifest.Manifest(files={}, fields={"parity": float("nan")}))
    assert (version / manifest.MANIFEST_NAME).read_bytes() == before
    assert json.loads(before)["schema_version"] == 1
