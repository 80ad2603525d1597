"""`export_model`: from a spec to a published version of a model repository."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonstack.errors import GateError, RepositoryError, SetupError
from tritonstack.terminal import Progress
from tritonstack_export import provenance, publication
from tritonstack_export.conversion import convert
from tritonstack_export.converted_model import Converted, NameFlags
from tritonstack_export.digest import json_sha256
from tritonstack_export.entry_config import build_config
from tritonstack_export.labels import read_labels, render_labels, require_label_count
from tritonstack_export.loaded_model import LoadedModel, load
from tritonstack_export.onnx_graph import GraphTensor
from tritonstack_export.parity import Distance, ParityRow, summary
from tritonstack_export.repository import manifest, render_config
from tritonstack_export.repository.layout import CONFIG_NAME, LABELS_NAME
from tritonstack_export.spec import LatestVersions, ModelSpec, SpecificVersions
from tritonstack_export.step_record import Record

if TYPE_CHECKING:
    from tritonstack_export.publication import Staging
    from tritonstack_export.repository import ModelConfig


@dataclass(frozen=True)
class ExportOptions:
    """Everything besides the spec. `version` None: the next free one."""

    version: int | None = None
    if_changed: bool = False
    trust: bool = False
    keep_work: Path | None = None
    names: NameFlags = field(default_factory=NameFlags)


@dataclass(frozen=True)
class ExportResult:
    """A published version, or the one that is up to date already (`created` False, no steps).

    `parity`: worst distance per output over all sizes. `files`: path below the version folder -> bytes.
    """

    name: str
    version: int
    path: Path
    created: bool
    seconds: Mapping[str, float]
    notes: tuple[str, ...]
    parity: Mapping[str, Distance]
    compared_with: str
    sizes: tuple[Mapping[str, int], ...]
    files: Mapping[str, int]
    tensors: Mapping[str, Any] = field(default_factory=dict)


def export_model(
    spec: ModelSpec,
    *,
    folder: Path,
    repository: Path,
    options: ExportOptions = ExportOptions(),
    progress: Progress | None = None,
) -> ExportResult:
    """Export `spec` (paths relative to `folder`) into `repository`; blocks until it is published.

    Raises UsageError, InputError, GateError, RepositoryError or SetupError; the repository is then as it was.
    """
    record = Record(progress or Progress(quiet=True))
    publication.require_free(repository, spec.name, options.version)
    if options.keep_work is not None:
        publication.require_folder("--keep-work", options.keep_work)
    publication.require_servable(repository, spec.name, options.version, spec.serving.version_policy)
    with record.step("load"):
        model = load(spec, folder, trust=options.trust)
        labels = read_labels(spec.labels, folder=folder) if spec.labels is not None else None
    identity = _identity(spec, model, labels, options.names)
    if options.if_changed:
        current = _up_to_date(repository, spec.name, identity)
        if current is not None:
            return current
    with tempfile.TemporaryDirectory(prefix="tritonstack-export-") as temporary:
        work = Path(temporary)
        try:
            with publication.staging(repository, spec.name) as stage:
                return _build(spec, model, labels, identity, stage, repository, options, folder, work, record)
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            raise SetupError(
                f"the export stopped on a file operation: {error.strerror or error}{where}",
                next_step="check the free space and the permissions of the repository and of TMPDIR",
            ) from error
        finally:
            if options.keep_work is not None:
                _keep(work, options.keep_work, record)


def _keep(work: Path, target: Path, record: Record) -> None:
    try:
        shutil.copytree(work, target, dirs_exist_ok=True)
    except OSError as error:
        # Told and not raised: it must not hide why the export failed, nor turn a published version into a failure.
        reason = error.strerror or "not every file could be copied"
        record.note(f"the intermediate files could not be kept in {target}: {reason}")


def _build(
    spec: ModelSpec,
    model: LoadedModel,
    labels: tuple[str, ...] | None,
    identity: dict[str, Any],
    stage: Staging,
    repository: Path,
    options: ExportOptions,
    folder: Path,
    work: Path,
    record: Record,
) -> ExportResult:
    draft = stage.root / "version"
    draft.mkdir()
    converted = convert(model, spec, options.names, folder=draft, work=work, record=record)
    with record.step("entry"):
        config = build_config(spec, converted.signature, converted.tensors, has_labels=labels is not None)
        for tensor in (*config.input, *config.output):
            if tensor.HasField("reshape"):
                record.note(
                    f"{tensor.name!r} holds one value per sample, which Triton serves with the shape [batch, 1]"
                )
        if spec.labels is not None and labels is not None:
            output = next(t for t in converted.tensors.outputs if t.name == spec.labels.output)
            note = require_label_count(labels, output.name, output.shape)
            if note:
                record.note(note)
    with record.step("publish"), publication.publication_lock(repository):
        number = publication.next_version(repository, spec.name, options.version)
        draft.rename(stage.model / str(number))
        edited = _write_entry(config, labels, stage, repository, record)
        fields = _manifest_fields(spec, model, converted, identity, folder, number, record)
        fields["config_edited"] = edited
        version = stage.version(number)
        also = [stage.model / name for name in (CONFIG_NAME, LABELS_NAME) if (stage.model / name).is_file()]
        digests = manifest.digest_version(version, also=also)
        manifest.write(version, manifest.Manifest(files=digests, fields=fields))
        _check_staged(stage, repository, spec, number, record)
        path = publication.publish(stage, repository, number)
    return ExportResult(
        name=spec.name,
        version=number,
        path=path,
        created=True,
        seconds=dict(record.seconds),
        notes=tuple(record.notes),
        parity=summary(converted.parity),
        compared_with=converted.compared_with,
        sizes=converted.sizes,
        files={name: entry.size for name, entry in digests.items() if not name.startswith("../")},
        tensors={key: fields[key] for key in ("inputs", "outputs")},
    )


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
                f"{CONFIG_NAME} was edited since it was exported, and is kept (delete it to have it written anew)"
            )
    (stage.model / CONFIG_NAME).write_text(text, "utf-8")
    if labels is not None:
        (stage.model / LABELS_NAME).write_text(render_labels(labels), "utf-8")
    elif (target / LABELS_NAME).is_file():
        (stage.model / LABELS_NAME).write_bytes((target / LABELS_NAME).read_bytes())
    return edited


def _check_staged(stage: Staging, repository: Path, spec: ModelSpec, number: int, record: Record) -> None:
    """The last gate: what `tritonstack check` says about the entry as it will be."""
    from tritonstack_export.check import check_repository

    linked = []
    policy = spec.serving.version_policy
    if isinstance(policy, SpecificVersions):
        # The versions that the policy names besides the new one have to be seen for the check to judge it.
        for other in publication.versions(repository, spec.name):
            link = stage.model / str(other)
            link.symlink_to((repository / spec.name / str(other)).resolve())
            linked.append(link)
        if number not in policy.specific:
            record.note(f"version {number} is not among the versions to serve ({policy.specific})")
    try:
        report = check_repository(stage.root)
    finally:
        for link in linked:
            link.unlink()
    errors = [f for f in report.findings if f.severity == "error"]
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise GateError(f"check refuses the entry: {errors[0].message}{more}", next_step=errors[0].fix)
    if isinstance(policy, LatestVersions):
        newer = [v for v in publication.versions(repository, spec.name) if v > number]
        if len(newer) >= policy.latest:
            record.note(f"version {number} is not served: the policy is latest {policy.latest}, and {newer[-1]} exists")


def _identity(spec: ModelSpec, model: LoadedModel, labels: tuple[str, ...] | None, names: NameFlags) -> dict[str, Any]:
    """What decides whether an export would give the same version again."""
    return {
        "spec_sha256": json_sha256(spec.model_dump(mode="json")),
        "flags_sha256": json_sha256([names.input_names, [axis.text for axis in names.dynamic]]),
        "weights_sha256": model.weights_sha256,
        "source_sha256": model.source_sha256,
        "labels_sha256": json_sha256(list(labels)) if labels is not None else None,
        "tools": provenance.tool_versions(),
    }


def _up_to_date(repository: Path, name: str, identity: dict[str, Any]) -> ExportResult | None:
    """The newest version when it was exported from the same things and all its files are as they were."""
    numbers = publication.versions(repository, name)
    if not numbers:
        return None
    path = repository / name / str(numbers[-1])
    try:
        recorded = manifest.read(path)
    except RepositoryError:
        return None
    if any(recorded.fields.get(key) != value for key, value in identity.items()) or manifest.verify(path):
        return None
    for relative in (f"../{CONFIG_NAME}", f"../{LABELS_NAME}"):
        expected, file = recorded.files.get(relative), path / relative
        if expected is not None and (not file.is_file() or manifest.digest_file(file) != expected):
            return None
    files = {name: entry.size for name, entry in recorded.files.items() if not name.startswith("../")}
    compared_with, rows = _recorded_parity(recorded.fields)
    return ExportResult(
        name=name,
        version=numbers[-1],
        path=path,
        created=False,
        seconds={},
        notes=tuple(recorded.fields.get("notes", ())),
        parity=summary(rows),
        compared_with=compared_with,
        sizes=tuple({tuple(row.sizes.items()): row.sizes for row in rows}.values()),
        files=files,
        tensors={key: recorded.fields.get(key, []) for key in ("inputs", "outputs")},
    )


def _recorded_parity(fields: Mapping[str, Any]) -> tuple[str, tuple[ParityRow, ...]]:
    """What a manifest says was compared: with what, and the distances that passed then."""
    parity = fields.get("parity", {})
    rows = tuple(
        ParityRow(row["output"], row["sizes"], Distance(row["max_abs"], row["max_rel"], row["cosine"], None))
        for row in parity.get("rows", ())
    )
    return str(parity.get("compared_with", "")), rows


def _manifest_fields(
    spec: ModelSpec,
    model: LoadedModel,
    converted: Converted,
    identity: dict[str, Any],
    folder: Path,
    number: int,
    record: Record,
) -> dict[str, Any]:
    def described(tensor: GraphTensor) -> dict[str, Any]:
        return {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape)}

    return {
        "name": spec.name,
        "version": number,
        "format": "onnx",
        "opset": converted.opset,
        "parameters": model.parameters,
        "inputs": [described(tensor) for tensor in converted.tensors.inputs],
        "outputs": [described(tensor) for tensor in converted.tensors.outputs],
        "dimensions": {
            d.name: {"min": d.min, "opt": d.opt, "max": d.max} for d in converted.signature.dimensions.values()
        },
        **identity,
        "spec": spec.model_dump(mode="json", exclude_defaults=True),
        "git": provenance.git_state(folder),
        "platform": provenance.platform_facts(),
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
        "seconds": dict(record.seconds),
        "notes": list(record.notes),
    }
