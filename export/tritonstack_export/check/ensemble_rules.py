"""An ensemble held against the models its steps name: maps, data types, shapes, batch sizes, data flow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tritonstack_export.check.ensemble_flow import check_decoupling, check_flow
from tritonstack_export.check.finding import printable
from tritonstack_export.check.model_entry import ModelEntry
from tritonstack_export.check.nearest import did_you_mean
from tritonstack_export.check.tensor_rules import full_shape, shape_text
from tritonstack_export.repository.config_text import ModelConfig

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class TensorUse:
    """How one party sees an ensemble tensor. `shape` has -1 in front when that party batches."""

    who: str
    data_type: str
    dims: tuple[int, ...]
    shape: tuple[int, ...]
    at: Path


def check_ensemble(entry: ModelEntry, config: ModelConfig, models: Mapping[str, ModelEntry]) -> None:
    """`models` are all entries of the repository by name, already checked one by one."""
    findings = entry.findings
    steps = config.ensemble_scheduling.step
    if not steps:
        findings.error(
            "ensemble-step",
            "the ensemble has no steps",
            fix="add ensemble_scheduling { step [ … ] }",
            at=("ensemble_scheduling",) if config.HasField("ensemble_scheduling") else ("platform",),
        )
        return
    uses: defaultdict[str, list[TensorUse]] = defaultdict(list)
    for kind in ("input", "output"):
        for index, tensor in enumerate(getattr(config, kind)):
            uses[tensor.name].append(_use(f"ensemble {kind}", tensor, config.max_batch_size, (kind, index), shape=True))
    for index, step in enumerate(steps):
        _check_step(index, step, entry, config, models, uses)
    for name, parties in uses.items():
        _check_agreement(name, parties, entry)
    check_flow(entry, config)
    check_decoupling(entry, config, models)


def report_cycles(models: Mapping[str, ModelEntry]) -> None:
    """Report every ensemble that contains itself, directly or through others."""
    for name, entry in models.items():
        if not entry.is_ensemble or entry.config is None:
            continue
        trail = _path_back(name, models)
        if trail:
            entry.findings.error(
                "ensemble-cycle",
                f"the ensemble contains itself: {' -> '.join(map(printable, trail))}",
                fix="remove the step that leads back",
                at=("ensemble_scheduling",),
            )


def step_models(entry: ModelEntry) -> tuple[str, ...]:
    """Names of the models an ensemble calls, each once, in the order of the steps."""
    if not entry.is_ensemble or entry.config is None:
        return ()
    return tuple(dict.fromkeys(step.model_name for step in entry.config.ensemble_scheduling.step))


def _path_back(start: str, models: Mapping[str, ModelEntry]) -> list[str] | None:
    """A way through steps from `start` to itself, breadth first; each model is visited once, so it ends."""
    trails = [[start]]
    seen: set[str] = set()
    while trails:
        trail = trails.pop(0)
        entry = models.get(trail[-1])
        for name in step_models(entry) if entry is not None else ():
            if name == start:
                return [*trail, name]
            if name not in seen:
                seen.add(name)
                trails.append([*trail, name])
    return None


def _check_step(
    index: int,
    step: Any,
    entry: ModelEntry,
    config: ModelConfig,
    models: Mapping[str, ModelEntry],
    uses: defaultdict[str, list[TensorUse]],
) -> None:
    findings = entry.findings
    at: Path = ("ensemble_scheduling", "step", index)
    title = f"step {index + 1}"
    if not step.model_name:
        findings.error("ensemble-step", f"{title} names no model", fix="add model_name", at=at)
        return
    shown = printable(step.model_name)
    model = models.get(step.model_name)
    if model is None:
        if step.model_namespace:
            return
        findings.error(
            "ensemble-step",
            f"{title}: model {shown!r} is not in the repository",
            fix=did_you_mean(step.model_name, [name for name in models if name != entry.name])
            or f"add the model {shown!r}",
            at=(*at, "model_name"),
        )
        return
    if step.model_version != -1 and step.model_version not in model.served and model.versions:
        findings.error(
            "ensemble-version",
            f"{title}: model {shown!r} serves versions {list(model.served)}, the step asks for {step.model_version}",
            fix="use model_version: -1 for the latest, or a version its policy serves",
            at=(*at, "model_version"),
        )
    if model.config is None:
        return
    if model.config.max_batch_size != 0 and model.config.max_batch_size < config.max_batch_size:
        findings.error(
            "ensemble-batch",
            f"{title}: model {shown!r} takes batches up to {model.config.max_batch_size}, the ensemble allows "
            f"{config.max_batch_size}",
            fix=f"set max_batch_size: {model.config.max_batch_size} in the ensemble, or raise it in {shown!r}",
            at=("max_batch_size",),
        )
    _check_map("input", index, step, entry, model.config, uses)
    _check_map("output", index, step, entry, model.config, uses)


def _check_map(
    kind: str,
    index: int,
    step: Any,
    entry: ModelEntry,
    model: ModelConfig,
    uses: defaultdict[str, list[TensorUse]],
) -> None:
    findings = entry.findings
    at: Path = ("ensemble_scheduling", "step", index)
    field = f"{kind}_map"
    title, shown = f"step {index + 1}", printable(step.model_name)
    tensors = {tensor.name: tensor for tensor in getattr(model, kind)}
    mapping = dict(getattr(step, field))
    for key, value in sorted(mapping.items()):
        place = findings.positions.map_entry((*at, field), key) if findings.positions else at
        if key not in tensors:
            findings.error(
                "ensemble-map",
                f"{title}: model {shown!r} has no {kind} {printable(key)!r} (ensemble tensor {printable(value)!r})",
                fix=did_you_mean(key, tensors) or f"its {kind}s are {', '.join(map(repr, tensors))}",
                at=place,
            )
            continue
        who = f"{title}, {kind} {printable(key)!r} of model {shown!r}"
        uses[value].append(_use(who, tensors[key], model.max_batch_size, place))
    if kind == "input":
        missing = [name for name, tensor in tensors.items() if name not in mapping and not tensor.optional]
        for name in missing:
            findings.error(
                "ensemble-map",
                f"{title}: input {printable(name)!r} of model {shown!r} is not mapped to any tensor",
                fix=f'add input_map {{ key: "{printable(name)}" value: "…" }}',
                at=at,
            )
    elif not mapping:
        findings.error(
            "ensemble-map", f"{title}: model {shown!r} has no output_map", fix="map at least one output", at=at
        )
    if findings.positions:
        for key in findings.positions.repeated_keys(*at, field):
            findings.error(
                "ensemble-map",
                f"{title}: {field} names {printable(key)!r} twice; only the last one counts",
                fix="keep one of them",
                at=findings.positions.map_entry((*at, field), key),
            )


def _use(who: str, tensor: Any, max_batch_size: int, at: Path, *, shape: bool = False) -> TensorUse:
    """`shape`: the ensemble's own tensors count with their reshape, those of the steps with what clients see."""
    words = {value.number: value.name for value in tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values}
    if shape and tensor.HasField("reshape"):
        dims = tuple(tensor.reshape.shape)
        full = tuple(full_shape(tensor, max_batch_size))
    else:
        dims = tuple(tensor.dims)
        full = (-1, *dims) if max_batch_size > 0 else dims
    return TensorUse(who, words.get(tensor.data_type, "TYPE_INVALID"), dims, full, at)


def _check_agreement(name: str, parties: Sequence[TensorUse], entry: ModelEntry) -> None:
    """Hold every party against the first one: the ensemble itself where it declares the tensor."""
    first = parties[0]
    for other in parties[1:]:
        # Ensemble tensors are declared in the ensemble's own lists: that line is the one to mend most often.
        at = first.at if first.who.startswith("ensemble") else other.at
        tensor = printable(name)
        if other.data_type != first.data_type:
            entry.findings.error(
                "ensemble-dtype",
                f"{other.who}: tensor {tensor!r} is {other.data_type} there, {first.data_type} for the {first.who}",
                fix="make both the same, or put a model that converts between them",
                at=at,
            )
        elif not _compatible(first.shape, other.shape):
            if _compatible(first.dims, other.dims):
                entry.findings.warning(
                    "ensemble-batch",
                    f"{other.who}: tensor {tensor!r} is {shape_text(other.shape)} with its batch there, "
                    f"{shape_text(first.shape)} for the {first.who}: only single requests can pass",
                    fix="let both batch or neither (max_batch_size)",
                    at=at,
                )
            else:
                entry.findings.error(
                    "ensemble-dims",
                    f"{other.who}: tensor {tensor!r} has dims {shape_text(other.dims)} there, "
                    f"{shape_text(first.dims)} for the {first.who}",
                    fix="make the dims equal; -1 fits any size",
                    at=(*at, "dims") if at and at[0] in ("input", "output") else at,
                )


def _compatible(one: Sequence[int], other: Sequence[int]) -> bool:
    return len(one) == len(other) and all(a == b or -1 in (a, b) for a, b in zip(one, other, strict=True))
