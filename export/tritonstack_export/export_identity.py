"""What decides whether an export would give the same versions again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tritonstack.errors import RepositoryError
from tritonstack_export import provenance, publication
from tritonstack_export.checkpoint import resolve_resource
from tritonstack_export.converted_model import NameFlags
from tritonstack_export.digest import file_sha256, json_sha256
from tritonstack_export.loaded_model import LoadedModel
from tritonstack_export.repository import manifest
from tritonstack_export.spec import ModelSpec
from tritonstack_export.spec_precision import DataSource, Evaluation


def identity(
    spec: ModelSpec,
    model: LoadedModel,
    labels: tuple[str, ...] | None,
    names: NameFlags,
    allowed_drop: Mapping[str, float],
    folder: Path,
) -> dict[str, Any]:
    """Digests of everything an export reads, and the versions of the tools, as fields of the manifest."""
    return {
        "spec_sha256": json_sha256(spec.model_dump(mode="json")),
        "flags_sha256": json_sha256(
            [names.input_names, [axis.text for axis in names.dynamic], dict(sorted(allowed_drop.items()))]
        ),
        "weights_sha256": model.weights_sha256,
        "source_sha256": model.source_sha256,
        "labels_sha256": json_sha256(list(labels)) if labels is not None else None,
        "data_sha256": _data_sha256(spec, folder),
        "tools": provenance.tool_versions(),
    }


def _data_sha256(spec: ModelSpec, folder: Path) -> str | None:
    """Over the files of the calibration and evaluation sets; None where only FP32 is made, which reads neither.

    Of a Python iterator its source file counts, and not what that reads in turn.
    """
    if spec.precision.variants == ["fp32"]:
        return None
    parts: list[Any] = []
    for source in (spec.calibration, spec.evaluation):
        if source is not None:
            parts.append([_file_digest(file, name) for name, file in _files(source, folder)])
    metric = spec.evaluation.metric if spec.evaluation is not None else ""
    if ".py:" in metric:
        file = folder / metric.rpartition(":")[0]
        parts.append(_file_digest(file, file.name))
    return json_sha256(parts)


def _files(source: DataSource, folder: Path) -> list[tuple[str, Path]]:
    """(name, file), the name below the folder of the set: without labels of their own, folders are the classes."""
    if source.python is not None:
        file = folder / source.python.rpartition(":")[0]
        return [(file.name, file)] if file.suffix == ".py" else []
    found: list[tuple[str, Path]] = []
    texts = {"images": source.images, "npz": source.npz}
    if isinstance(source, Evaluation) and source.images is not None:
        texts["labels"] = source.labels
    for key, text in texts.items():
        if text is None:
            continue
        path = resolve_resource(text, folder=folder, key=key, may_be_folder=True)
        if path.is_dir():
            found += [(p.relative_to(path).as_posix(), p) for p in sorted(path.rglob("*")) if p.is_file()]
        else:
            found.append((path.name, path))
    return found


def _file_digest(path: Path, name: str) -> list[str]:
    return [name, file_sha256(path) if path.is_file() else ""]


def newest_up_to_date(
    repository: Path, name: str, wanted: Mapping[str, Any], *, preflight: Sequence[str] = ()
) -> manifest.Manifest | None:
    """The manifest of the newest version, when that was exported from the same things and its files are unchanged.

    `preflight`: compute capabilities that it must have been built for then.
    """
    numbers = publication.versions(repository, name)
    if not numbers:
        return None
    path = repository / name / str(numbers[-1])
    try:
        recorded = manifest.read(path)
    except RepositoryError:
        return None
    if any(recorded.fields.get(key) != value for key, value in wanted.items()) or manifest.verify(path):
        return None
    if not set(preflight) <= set(recorded.fields.get("preflight", {}).get("compute_capabilities", ())):
        return None
    for relative, expected in recorded.files.items():
        file = path / relative
        if relative.startswith("../") and (not file.is_file() or manifest.digest_file(file) != expected):
            return None
    return recorded
