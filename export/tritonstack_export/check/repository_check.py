"""Checking a whole model repository: the walk, then each model on its own, then ensembles against their models."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from tritonstack.errors import UsageError
from tritonstack_export.check.config_file import read_config
from tritonstack_export.check.ensemble_rules import check_ensemble, report_cycles, step_models
from tritonstack_export.check.finding import CheckReport, Finding, FindingList, ServableModel, printable
from tritonstack_export.check.folder_walk import find_models, report_no_version
from tritonstack_export.check.instance_rules import check_instances
from tritonstack_export.check.label_rules import check_labels
from tritonstack_export.check.model_entry import ModelEntry
from tritonstack_export.check.model_files import check_model_files
from tritonstack_export.check.parameter_rules import check_parameters
from tritonstack_export.check.plan_target import target_here
from tritonstack_export.check.platform import resolve_backend
from tritonstack_export.check.scheduling_rules import check_scheduling
from tritonstack_export.check.tensor_rules import check_tensors
from tritonstack_export.check.version_policy import resolve_served_versions
from tritonstack_export.check.warmup_rules import check_warmup
from tritonstack_export.engine.plan_record import Target


def check_repository(
    path: Path | str, *, gpus: int | None = None, allow_empty: bool = False, target: Target | None = None
) -> CheckReport:
    """Everything wrong with the model repository at `path`, in one pass that starts no server.

    `gpus` is the number of GPUs of the machine that will serve it: None when unknown (placement is not judged then),
    0 for none. An empty repository is an error unless `allow_empty`. `target`: what TensorRT engines have to fit;
    None: this machine, where it has a GPU and TensorRT. Needs onnx only when an ONNX model is there.

    Raises UsageError when `path` is no folder or is a single model instead of a repository; broken content never
    raises, it becomes a finding.
    """
    root = Path(path)
    _require_repository(root)
    findings = FindingList(path=root)
    entries = find_models(root, findings=findings)
    real_root = Path(os.path.realpath(root))
    if target is None:
        # Asking TensorRT takes a second, so only where an engine is.
        target = target_here() if any(True for _ in root.glob("*/*/*.plan")) else Target()
    for entry in entries:
        _check_model(entry, gpus=gpus, real_root=real_root, target=target)
    models = {entry.name: entry for entry in entries}
    for entry in entries:
        if entry.is_ensemble and entry.config is not None:
            check_ensemble(entry, entry.config, models)
    report_cycles(models)
    _report_broken_steps(models)
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
        ServableModel(entry.name, entry.path, entry.served, entry.backend, step_models(entry))
        for entry in entries
        if entry.served and not entry.findings.has_errors
    )
    return CheckReport(root, tuple(ordered), servable)


def _check_model(entry: ModelEntry, *, gpus: int | None, real_root: Path, target: Target) -> None:
    if not entry.path.is_dir():
        return
    read_config(entry)
    config = entry.config
    if config is None:
        report_no_version(entry)
        return
    if config.name and config.name != entry.name:
        entry.findings.error(
            "model-name",
            f"the config calls the model {printable(config.name)!r}, its folder is {printable(entry.name)!r}",
            fix="remove the name field, or rename the folder",
            at=("name",),
        )
    resolve_backend(entry, config)
    report_no_version(entry)
    resolve_served_versions(entry, config)
    check_tensors(entry, config)
    check_scheduling(entry, config)
    check_instances(entry, config, gpus=gpus)
    check_warmup(entry, config)
    check_labels(entry, config)
    check_parameters(entry, config)
    check_model_files(entry, config, real_root=real_root, target=target)


def _report_broken_steps(models: Mapping[str, ModelEntry]) -> None:
    """An ensemble cannot be served when one of its models cannot; passed on through nested ensembles."""
    changed = True
    while changed:
        changed = False
        for entry in models.values():
            if entry.findings.has_errors:
                continue
            broken = [name for name in step_models(entry) if name in models and models[name].findings.has_errors]
            if broken:
                changed = True
                entry.findings.error(
                    "ensemble-step",
                    f"it needs {', '.join(printable(name) for name in broken)}, which cannot be served",
                    fix="mend the errors of that model first",
                    at=("ensemble_scheduling",),
                )


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
    if _is_model(root):
        parent = printable(root.absolute().parent)
        raise UsageError(
            f"{shown!r} is a single model, not a repository",
            expected="the folder that holds the model folders",
            next_step=f"pass {parent!r}",
        )


def _is_model(root: Path) -> bool:
    """Whether `root` is one model: a config of its own, or version folders with model files, and no models in it."""
    try:
        children = [child for child in root.iterdir() if child.is_dir()]
    except OSError:
        return False
    if any((child / "config.pbtxt").is_file() for child in children):
        return False
    numbered = [child for child in children if child.name.isascii() and child.name.isdigit()]
    return (root / "config.pbtxt").is_file() or any(any(child.glob("model.*")) for child in numbered)
