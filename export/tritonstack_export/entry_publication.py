"""The entries of a model's variants: config, labels and manifest, checked as they will be, then published together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonstack.errors import GateError
from tritonstack_export import provenance, publication
from tritonstack_export.entry_config import build_config
from tritonstack_export.image_entry import build_image_entries, require_unshared
from tritonstack_export.labels import render_labels
from tritonstack_export.repository import manifest, render_config
from tritonstack_export.repository.layout import CONFIG_NAME, LABELS_NAME
from tritonstack_export.spec import LatestVersions, ModelSpec, SpecificVersions
from tritonstack_export.variant_facts import variant_facts

if TYPE_CHECKING:
    from tritonstack_export.converted_model import Converted
    from tritonstack_export.loaded_model import LoadedModel
    from tritonstack_export.onnx_graph import GraphTensor
    from tritonstack_export.publication import Staging, StagingArea
    from tritonstack_export.repository import ModelConfig
    from tritonstack_export.repository.manifest import FileDigest
    from tritonstack_export.step_record import Record
    from tritonstack_export.variant import Variant
    from tritonstack_export.variant_samples import VariantSamples


@dataclass(frozen=True)
class Entry:
    """What all variants of an export have in common."""

    spec: ModelSpec
    model: LoadedModel
    labels: tuple[str, ...] | None
    identity: Mapping[str, Any]
    converted: Converted
    folder: Path
    samples: VariantSamples | None = None


@dataclass(frozen=True)
class PublishedEntry:
    """A published version: its folder, the digests and the fields of its manifest."""

    path: Path
    files: Mapping[str, FileDigest]
    fields: Mapping[str, Any]


def publish_entries(
    area: StagingArea, repository: Path, entry: Entry, variants: Sequence[Variant], number: int, record: Record
) -> list[PublishedEntry]:
    """Publish all `variants` as version `number`, with the entries for pictures that the spec asks for, or none.

    Returns them in that order. Call with the publication lock held. Raises GateError when `check` refuses an entry,
    RepositoryError when one does not fit the published model.
    """
    stages = []
    written: list[tuple[Mapping[str, FileDigest], Mapping[str, Any]]] = []
    for variant in variants:
        config = build_config(
            entry.spec,
            entry.converted.signature,
            variant.tensors,
            has_labels=entry.labels is not None,
            name=variant.name,
            extras=variant.extras,
        )
        for tensor in (*config.input, *config.output):
            if tensor.HasField("reshape"):
                record.note(
                    f"{tensor.name!r} holds one value per sample, which Triton serves with the shape [batch, 1]"
                )
        stage = area.entry(variant.name)
        variant.folder.rename(stage.model / str(number))
        fields = _manifest_fields(entry, variant, number, record)
        written.append(_stage_entry(config, entry.labels, stage, repository, number, fields, record))
        stages.append(stage)
    image_entries = build_image_entries(entry.spec, entry.converted.signature, variants)
    require_unshared(repository, image_entries)
    for served in image_entries:
        stage = area.entry(served.name)
        labels = entry.labels if served.labels else None
        fields = {
            "name": served.name, "version": number, "format": served.format, **_common_fields(entry)
        }  # fmt: skip
        for relative, content in served.files.items():
            path = stage.model / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        written.append(_stage_entry(served.config, labels, stage, repository, number, fields, record))
        stages.append(stage)
    _check_staged(stages, repository, entry.spec, number, record)
    paths = publication.publish(stages, repository, number)
    return [PublishedEntry(path, files, fields) for path, (files, fields) in zip(paths, written, strict=True)]


def _stage_entry(
    config: ModelConfig,
    labels: tuple[str, ...] | None,
    stage: Staging,
    repository: Path,
    number: int,
    fields: Mapping[str, Any],
    record: Record,
) -> tuple[Mapping[str, FileDigest], Mapping[str, Any]]:
    """Config, labels and manifest around the staged version folder; returns the manifest's digests and fields."""
    edited = _write_entry(config, labels, stage, repository, record)
    fields = {**fields, "config_edited": edited}
    version = stage.version(number)
    also = [stage.model / name for name in stage.own_files()]
    digests = manifest.digest_version(version, also=also)
    manifest.write(version, manifest.Manifest(files=digests, fields=fields))
    return digests, fields


def _write_entry(
    config: ModelConfig, labels: tuple[str, ...] | None, stage: Staging, repository: Path, record: Record
) -> bool:
    """config.pbtxt and labels.txt of the staged model. A config that somebody edited is kept, which is returned."""
    target = repository / stage.model.name
    published = publication.existing_config(target)
    text = render_config(config)
    edited = published is not None and publication.was_edited(target)
    if published is not None:
        publication.require_compatible(published, config)
        if edited:
            text = (target / CONFIG_NAME).read_text("utf-8")
            record.note(
                f"{CONFIG_NAME} of {stage.model.name!r} was edited since it was exported, and is kept "
                "(delete it to have it written anew)"
            )
    (stage.model / CONFIG_NAME).write_text(text, "utf-8")
    if labels is not None:
        (stage.model / LABELS_NAME).write_text(render_labels(labels), "utf-8")
    elif (target / LABELS_NAME).is_file():
        (stage.model / LABELS_NAME).write_bytes((target / LABELS_NAME).read_bytes())
    return edited


def _check_staged(stages: Sequence[Staging], repository: Path, spec: ModelSpec, number: int, record: Record) -> None:
    """The last gate: what `tritonstack check` says about the entries as they will be."""
    from tritonstack_export.check import check_repository

    linked = []
    policy = spec.serving.version_policy
    if isinstance(policy, SpecificVersions):
        # The versions that the policy names besides the new one have to be seen for the check to judge it.
        for stage in stages:
            for other in publication.versions(repository, stage.model.name):
                link = stage.model / str(other)
                link.symlink_to((repository / stage.model.name / str(other)).resolve())
                linked.append(link)
        if number not in policy.specific:
            record.note(f"version {number} is not among the versions to serve ({policy.specific})")
    try:
        report = check_repository(stages[0].root)
    finally:
        for link in linked:
            link.unlink()
    errors = [f for f in report.findings if f.severity == "error"]
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise GateError(f"check refuses the entry: {errors[0].message}{more}", next_step=errors[0].fix)
    if isinstance(policy, LatestVersions):
        for stage in stages:
            newer = [v for v in publication.versions(repository, stage.model.name) if v > number]
            if len(newer) >= policy.latest:
                record.note(
                    f"version {number} is not served: the policy is latest {policy.latest}, and {newer[-1]} exists"
                )


def _common_fields(entry: Entry) -> dict[str, Any]:
    """What the manifests of all entries of an export say: from what they were made, and with what."""
    return {
        **entry.identity,
        "spec": entry.spec.model_dump(mode="json", exclude_defaults=True),
        "git": provenance.git_state(entry.folder),
        "platform": provenance.platform_facts(),
    }


def _manifest_fields(entry: Entry, variant: Variant, number: int, record: Record) -> dict[str, Any]:
    def described(tensor: GraphTensor) -> dict[str, Any]:
        return {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape)}

    spec, converted = entry.spec, entry.converted
    return {
        "name": variant.name,
        "version": number,
        "format": "onnx",
        "precision": variant.precision,
        "opset": converted.opset,
        "parameters": entry.model.parameters,
        "inputs": [described(tensor) for tensor in variant.tensors.inputs],
        "outputs": [described(tensor) for tensor in variant.tensors.outputs],
        "dimensions": {
            d.name: {"min": d.min, "opt": d.opt, "max": d.max} for d in converted.signature.dimensions.values()
        },
        **_common_fields(entry),
        "parity": {
            "compared_with": converted.compared_with,
            "seed": spec.parity.seed,
            "tolerances": {
                name: {"atol": t.atol, "rtol": t.rtol, "cosine": t.cosine} for name, t in converted.tolerances.items()
            },
            "rows": [
                {
                    "output": row.output,
                    "sizes": dict(row.sizes),
                    "max_abs": row.distance.max_abs,
                    "max_rel": row.distance.max_rel,
                    "cosine": row.distance.cosine,
                }
                for row in converted.parity
            ],
        },
        **variant_facts(variant, entry.samples),
        "seconds": dict(record.seconds),
        "notes": list(record.notes),
    }
