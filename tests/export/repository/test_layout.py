"""Paths and version numbers of repository entries."""

from __future__ import annotations

from pathlib import Path

import pytest

from tritonstack_export.repository.layout import EntryPaths, iterate_entries, parse_version


@pytest.mark.parametrize("name", ["0", "01", "-1", "+1", "1.0", "v1", "", " 1", "١", "9223372036854775808", "9" * 20])
def test_names_triton_ignores_or_trips_over_are_no_versions(name: str) -> None:
    assert parse_version(name) is None


@pytest.mark.parametrize(("name", "version"), [("1", 1), ("20261130", 20261130), ("9223372036854775807", 2**63 - 1)])
def test_version_numbers(name: str, version: int) -> None:
    assert parse_version(name) == version


def test_next_version_is_above_all_that_exist(tmp_path: Path) -> None:
    entry = EntryPaths(tmp_path, "net")
    assert entry.versions() == () and entry.next_version() == 1
    for name in ("1", "3", "20", "04", "x"):
        entry.folder.joinpath(name).mkdir(parents=True)
    entry.folder.joinpath("99").write_text("a file")
    assert entry.versions() == (1, 3, 20)
    assert entry.next_version() == 21
    assert entry.model_file(3) == tmp_path / "net" / "3" / "model.onnx"


def test_entries_are_folders_with_a_config(tmp_path: Path) -> None:
    for name in ("b", "a", ".git", "docs"):
        (tmp_path / name).mkdir()
    for name in ("b", "a", ".git"):
        (tmp_path / name / "config.pbtxt").write_text("")
    assert [entry.name for entry in iterate_entries(tmp_path)] == ["a", "b"]
