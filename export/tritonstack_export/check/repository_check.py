"""Checking a whole model repository: the walk, then each model on its own, then ensembles against their models."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tritonstack.errors import UsageError

from tritonstack_export.check.config_file import read_config
from tritonstack_export.check.finding import CheckReport, Finding, FindingList, ServableModel, printable
from tritonstack_export.check.folder_walk import find_models
from tritonstack_export.check.model_entry import ModelEntry
from tritonstack_export.check.platform import resolve_backend
from tritonstack_export.check.version_policy import resolve_served_versions


def check_repository(path: Path | str, *, gpus: int | None = None, allow_empty: bool = False) -> CheckReport:
    """Everything wrong with the model repository at `path`, in one pass that starts no server.

    `gpus` is the number of GPUs of the machine that will serve it: None when unknown (placement is not judged then),
    0 for none. An empty repository is an error unless `allow_empty`. Needs onnx only when an ONNX model is there.

    Raises UsageError when `path` is no folder or is a single model instead of a repository; broken content never
    raises, it becomes a finding.
    """
    root = Path(path)
    _require_repository(root)
    findings = FindingList(path=root)
    entries = find_models(root, findings=findings)
    for entry in entries:
        if entry.path.is_dir():
            _check_model(entry, root=root, gpus=gpus)
    if not entries and not allow_empty and not findings.has_errors:
        findings.error(
            "empty",
            f"no models found in {printable(root)}",
            fix="export a model into it, or pass --allow-empty where that is meant",
        )
    ordered: list[Finding] = list(findings.items)
    for entry in entries:
        ordered.extend(sorted(entry.findings.items, key=lambda item: item.severity != "error"))
    servable = tuple(
        ServableModel(entry.name, entry.path, entry.served, entry.backend)
        for entry in entries
        if entry.served and not entry.findings.has_errors
    )
    return CheckReport(root, tuple(ordered), servable)


def _check_model(entry: ModelEntry, *, root: Path, gpus: int | None) -> None:
    read_config(entry)
    if entry.config is None:
        return
    resolve_backend(entry)
    resolve_served_versions(entry)


def _require_repository(root: Path) -> None:
    shown = printable(root)
    try:
        status = root.stat()
    except OSError as error:
        raise UsageError(
            f"cannot read the model repository {shown!r}: {error.strerror}", expected="an existing folder"
        ) from None
    if not stat.S_ISDIR(status.st_mode):
        raise UsageError(f"{shown!r} is a file, not a model repository", expected="a folder with one folder per model")
    if (root / "config.pbtxt").is_file() or _is_version_parent(root):
        parent = printable(Path(os.path.abspath(root)).parent)
        raise UsageError(
            f"{shown!r} is a single model, not a repository",
            expected="the folder that holds the model folders",
            next_step=f"pass {parent!r}",
        )


def _is_version_parent(root: Path) -> bool:
    """Whether `root` holds version folders with model files right away: a model that lost its config."""
    try:
        return any(
            child.name.isascii()
            and child.name.isdigit()
            and not (child / "config.pbtxt").exists()
            and any(child.glob("model.*"))
            for child in root.iterdir()
        )
    except OSError:
        return False
