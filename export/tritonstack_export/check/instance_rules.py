"""Rules on instance groups: how many copies of a model run, and on which device."""

from __future__ import annotations

from typing import Any

from tritonstack_export.check.finding import FindingList
from tritonstack_export.check.model_entry import ModelEntry
from tritonstack_export.repository.config_text import ModelConfig


def check_instances(entry: ModelEntry, config: ModelConfig, *, gpus: int | None) -> None:
    """`gpus` as in `check_repository`: None leaves placement alone."""
    findings = entry.findings
    if entry.is_ensemble and config.instance_group:
        findings.error(
            "instance-group",
            "an ensemble has no instances of its own, so Triton refuses instance_group",
            fix="remove it; set instance_group in the models that the steps name",
            at=("instance_group",),
        )
        return
    written = config.DESCRIPTOR.fields_by_name["instance_group"].message_type
    kinds = {value.number: value.name for value in written.fields_by_name["kind"].enum_type.values}
    if entry.backend == "tensorrt" and gpus == 0 and not config.instance_group:
        findings.error(
            "no-gpu",
            "a TensorRT engine needs a GPU, but 0 GPUs visible",
            fix="serve it on the GPU it was built for, or serve the ONNX model instead",
            path=entry.config_path,
        )
    for index, group in enumerate(config.instance_group):
        _check_group(group, index, kinds.get(group.kind, str(group.kind)), entry, gpus=gpus)
    _check_passive(config, findings)


def _check_group(group: Any, index: int, kind: str, entry: ModelEntry, *, gpus: int | None) -> None:
    findings = entry.findings
    at = ("instance_group", index)
    # An absent count reads as 0 too, and then Triton chooses; only a written 0 or less is a mistake.
    written = findings.positions is not None and findings.positions.has(*at, "count")
    if group.count < 0 or (group.count == 0 and written):
        findings.error(
            "instance-count",
            f"instance_group {index + 1} has count {group.count}: no instance would run the model",
            fix="set count to 1 or more, or leave it out",
            at=(*at, "count"),
        )
    if kind in ("KIND_CPU", "KIND_MODEL") and group.gpus:
        findings.error(
            "instance-kind",
            f"instance_group {index + 1} is {kind} but lists gpus {list(group.gpus)}",
            fix="remove gpus, or use KIND_GPU",
            at=(*at, "gpus"),
        )
    if kind == "KIND_GPU" and gpus == 0:
        findings.error(
            "no-gpu",
            f"instance_group {index + 1} is KIND_GPU but 0 GPUs visible",
            fix="use KIND_AUTO, which takes GPUs where there are some, or KIND_CPU",
            at=(*at, "kind"),
        )
    elif kind in ("KIND_GPU", "KIND_AUTO"):
        _check_indices(group, index, entry, gpus=gpus)
    if entry.backend == "tensorrt" and (kind == "KIND_CPU" or (kind == "KIND_AUTO" and gpus == 0)):
        reason = "KIND_CPU" if kind == "KIND_CPU" else "KIND_AUTO with 0 GPUs visible"
        findings.error(
            "instance-kind",
            f"instance_group {index + 1} is {reason}, a TensorRT engine needs a GPU",
            fix="use KIND_GPU",
            at=(*at, "kind"),
        )
    if group.profile and entry.backend != "tensorrt":
        findings.error(
            "instance-profile",
            f"instance_group {index + 1} names a profile, which only TensorRT models have",
            fix="remove profile",
            at=(*at, "profile"),
        )
    for profile in group.profile:
        if entry.backend == "tensorrt" and not (profile.isascii() and profile.isdigit()):
            findings.error(
                "instance-profile",
                f"instance_group {index + 1} names the profile {profile!r}",
                fix="a profile is the number of a TensorRT optimization profile, from 0",
                at=(*at, "profile"),
            )


def _check_indices(group: Any, index: int, entry: ModelEntry, *, gpus: int | None) -> None:
    findings = entry.findings
    at = ("instance_group", index, "gpus")
    negative = [gpu for gpu in group.gpus if gpu < 0]
    absent = [gpu for gpu in group.gpus if gpus is not None and gpu >= gpus]
    if negative:
        findings.error(
            "gpu-index", f"instance_group {index + 1} lists gpu {negative[0]}", fix="GPUs count from 0", at=at
        )
    elif absent:
        there = f"{gpus} GPUs visible" if gpus != 1 else "1 GPU visible (index 0)"
        findings.error(
            "gpu-index",
            f"instance_group {index + 1} lists gpus {absent}, but {there}",
            fix="remove gpus: Triton then uses every GPU it sees",
            at=at,
        )


def _check_passive(config: ModelConfig, findings: FindingList) -> None:
    if config.instance_group and all(group.passive for group in config.instance_group):
        findings.error(
            "instance-group",
            "all instance groups are passive: no instance would take requests",
            fix="make one group active",
            at=("instance_group",),
        )
    names = [group.name for group in config.instance_group if group.name]
    if len(set(names)) < len(names):
        findings.error(
            "instance-group",
            "two instance groups have the same name",
            fix="name each group once",
            at=("instance_group",),
        )
