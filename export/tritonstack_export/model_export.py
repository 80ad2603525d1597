"""`export_model`: from a spec to published versions of a model repository, one for each precision."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonstack.errors import GateError, SetupError
from tritonstack.terminal import Progress
from tritonstack_export import export_identity, image_entry, publication
from tritonstack_export.conversion import convert
from tritonstack_export.converted_model import NameFlags
from tritonstack_export.entry_config import build_config
from tritonstack_export.entry_publication import Entry, publish_entries
from tritonstack_export.labels import read_labels, require_label_count
from tritonstack_export.loaded_model import LoadedModel, load
from tritonstack_export.parity import Distance, ParityRow, summary
from tritonstack_export.spec import ModelSpec
from tritonstack_export.spec_precision import PrecisionName
from tritonstack_export.step_record import Record
from tritonstack_export.variant_making import VariantMaker
from tritonstack_export.variant_trials import preflight_variants, require_preflight, time_variants

if TYPE_CHECKING:
    from tritonstack_export.converted_model import Converted
    from tritonstack_export.publication import StagingArea
    from tritonstack_export.variant import Variant


@dataclass(frozen=True)
class ExportOptions:
    """Everything besides the spec. `version` None: the next free one.

    `allowed_drop`: points of the evaluation metric that a precision may lose, over the spec's `max_drop`.
    `preflight`: compute capabilities to build every variant for with TensorRT for RTX; () for none.
    `reports`: files to write, by suffix .html, .json or .xml (JUnit); written for failed gates as well.
    """

    version: int | None = None
    if_changed: bool = False
    trust: bool = False
    keep_work: Path | None = None
    names: NameFlags = field(default_factory=NameFlags)
    allowed_drop: Mapping[str, float] = field(default_factory=dict)
    preflight: tuple[str, ...] = ()
    reports: tuple[Path, ...] = ()
    command_line: str = ""


@dataclass(frozen=True)
class VariantResult:
    """One published variant. `files`: path below the version folder -> bytes. `facts`: what its manifest says."""

    precision: PrecisionName
    name: str
    version: int
    path: Path
    files: Mapping[str, int]
    tensors: Mapping[str, Any]
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class ExportResult:
    """The published variants, or those that are up to date already (`created` False, no steps).

    `parity`: worst distance per output over all sizes, of the FP32 graph to `compared_with`. `image_entries`: the
    version folders of the entries that take pictures (`preprocess.serve`).
    """

    variants: tuple[VariantResult, ...]
    created: bool
    seconds: Mapping[str, float]
    notes: tuple[str, ...]
    parity: Mapping[str, Distance]
    compared_with: str
    sizes: tuple[Mapping[str, int], ...]
    bare_name: str
    image_entries: tuple[Path, ...] = ()

    @property
    def main(self) -> VariantResult:
        """The variant that bears the model's bare name, or the first one where that one was not made."""
        return next((variant for variant in self.variants if variant.name == self.bare_name), self.variants[0])


def export_model(
    spec: ModelSpec,
    *,
    folder: Path,
    repository: Path,
    options: ExportOptions = ExportOptions(),
    progress: Progress | None = None,
) -> ExportResult:
    """Export `spec` (paths relative to `folder`) into `repository`; blocks until all its variants are published.

    Raises UsageError, InputError, GateError, RepositoryError or SetupError; the repository is then as it was.
    """
    record = Record(progress or Progress(quiet=True))
    image_entry.require_supported(spec)
    names = [spec.precision.model_name(spec.name, precision) for precision in spec.precision.variants]
    for name in (*names, *image_entry.image_entry_names(spec)):
        publication.require_free(repository, name, options.version)
        publication.require_servable(repository, name, options.version, spec.serving.version_policy)
    if options.keep_work is not None:
        publication.require_folder("--keep-work", options.keep_work)
    with record.step("load"):
        model = load(spec, folder, trust=options.trust)
        labels = read_labels(spec.labels, folder=folder) if spec.labels is not None else None
    identity = export_identity.identity(spec, model, labels, options.names, options.allowed_drop, folder)
    if options.if_changed:
        current = _up_to_date(spec, repository, names, identity, options.preflight)
        if current is not None:
            return _without_reports(current, options.reports, record)
    with tempfile.TemporaryDirectory(prefix="tritonstack-export-") as temporary:
        work = Path(temporary)
        job = _Job(spec, model, labels, identity, repository, options, folder, work, record)
        try:
            with publication.staging(repository) as area:
                return job.run(area)
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


@dataclass(frozen=True)
class _Job:
    """One export, from the loaded model on."""

    spec: ModelSpec
    model: LoadedModel
    labels: tuple[str, ...] | None
    identity: Mapping[str, Any]
    repository: Path
    options: ExportOptions
    folder: Path
    work: Path
    record: Record

    def run(self, area: StagingArea) -> ExportResult:
        spec, record = self.spec, self.record
        base = area.draft("fp32")
        converted = convert(self.model, spec, self.options.names, folder=base, work=self.work, record=record)
        with record.step("entry"):
            # Built again for each variant; here so that a key that fits nothing is told before the long steps.
            build_config(spec, converted.signature, converted.tensors, has_labels=self.labels is not None)
            self._require_labels(converted)
        maker = VariantMaker(
            converted=converted,
            spec=spec,
            model=self.model,
            labels=self.labels,
            allowed_drop=self.options.allowed_drop,
            base=base,
            draft=area.draft,
            folder=self.folder,
            work=self.work,
            record=record,
        )
        try:
            maker.make_all()
            if self.options.preflight:
                maker.made = preflight_variants(maker.made, converted, spec, self.options.preflight, record)
                require_preflight(maker.made)
            if self.options.reports:
                maker.made = time_variants(maker.made, converted.signature, record)
            variants = list(maker.made)
            sizes = {variant.name: variant.size_bytes for variant in variants}
            published, image_entries = self._publish(area, converted, variants, maker)
        except GateError as error:
            self._report(maker, (), {}, error)
            raise
        try:
            self._report(maker, published, sizes, None)
        except SetupError as error:
            raise SetupError(
                f"{error.summary}; the variants are published all the same", next_step=error.next_step
            ) from error
        return ExportResult(
            variants=tuple(published),
            created=True,
            seconds=dict(record.seconds),
            notes=tuple(record.notes),
            parity=summary(converted.parity),
            compared_with=converted.compared_with,
            sizes=converted.sizes,
            bare_name=spec.name,
            image_entries=image_entries,
        )

    def _report(
        self,
        maker: VariantMaker,
        published: Sequence[VariantResult],
        sizes: Mapping[str, int],
        error: GateError | None,
    ) -> None:
        """Write the reports that were asked for; of an export that a gate stopped as well."""
        if not self.options.reports:
            return
        from tritonstack_export.export_report import export_report
        from tritonstack_export.report.report_file import write_report

        report = export_report(
            self.spec,
            maker,
            sizes=sizes or {variant.name: variant.size_bytes for variant in maker.made},
            command=self.options.command_line,
            repository=str(self.repository),
            published={variant.name: (variant.version, str(variant.path)) for variant in published},
            error=error,
            record=self.record,
        )
        for path in self.options.reports:
            write_report(report, path)

    def _require_labels(self, converted: Converted) -> None:
        if self.spec.labels is None or self.labels is None:
            return
        wanted = self.spec.labels.output
        output = next((tensor for tensor in converted.tensors.outputs if tensor.name == wanted), None)
        note = require_label_count(self.labels, output.name, output.shape) if output is not None else None
        if note:
            self.record.note(note)

    def _publish(
        self, area: StagingArea, converted: Converted, variants: Sequence[Variant], maker: VariantMaker
    ) -> tuple[list[VariantResult], tuple[Path, ...]]:
        entry = Entry(self.spec, self.model, self.labels, self.identity, converted, self.folder, maker.samples)
        with self.record.step("publish"), publication.publication_lock(self.repository):
            names = [variant.name for variant in variants] + image_entry.image_entry_names(self.spec)
            number = publication.next_version(self.repository, names, self.options.version)
            written = publish_entries(area, self.repository, entry, variants, number, self.record)
        results = [
            VariantResult(
                precision=variant.precision,
                name=variant.name,
                version=number,
                path=published.path,
                files={name: digest.size for name, digest in published.files.items() if not name.startswith("../")},
                tensors={key: published.fields[key] for key in ("inputs", "outputs")},
                facts=published.fields,
            )
            for variant, published in zip(variants, written[: len(variants)], strict=True)
        ]
        return results, tuple(published.path for published in written[len(variants) :])


def _up_to_date(
    spec: ModelSpec,
    repository: Path,
    names: Sequence[str],
    identity: Mapping[str, Any],
    preflight: Sequence[str],
) -> ExportResult | None:
    """The newest versions when all of them were exported from the same things, built for the same compute capabilities
    where that is asked, and are as they were."""
    image_entries = []
    for name in image_entry.image_entry_names(spec):
        if export_identity.newest_up_to_date(repository, name, identity) is None:
            return None
        image_entries.append(repository / name / str(publication.versions(repository, name)[-1]))
    results = []
    for name, precision in zip(names, spec.precision.variants, strict=True):
        recorded = export_identity.newest_up_to_date(repository, name, identity, preflight=preflight)
        if recorded is None:
            return None
        number = publication.versions(repository, name)[-1]
        results.append(
            VariantResult(
                precision=precision,
                name=name,
                version=number,
                path=repository / name / str(number),
                files={name: entry.size for name, entry in recorded.files.items() if not name.startswith("../")},
                tensors={key: recorded.fields.get(key, []) for key in ("inputs", "outputs")},
                facts=recorded.fields,
            )
        )
    first = results[0].facts
    compared_with, rows = _recorded_parity(first)
    return ExportResult(
        variants=tuple(results),
        created=False,
        seconds={},
        notes=tuple(first.get("notes", ())),
        parity=summary(rows),
        compared_with=compared_with,
        sizes=tuple({tuple(row.sizes.items()): row.sizes for row in rows}.values()),
        bare_name=spec.name,
        image_entries=tuple(image_entries),
    )


def _without_reports(current: ExportResult, reports: Sequence[Path], record: Record) -> ExportResult:
    """`current`, and a note for each report that was asked for: there is nothing measured to write."""
    notes = [f"{path} is not written: nothing was exported, since the newest version is up to date" for path in reports]
    for note in notes:
        record.progress.note(note)
    return replace(current, notes=(*current.notes, *notes))


def _recorded_parity(fields: Mapping[str, Any]) -> tuple[str, tuple[ParityRow, ...]]:
    """What a manifest says was compared: with what, and the distances that passed then."""
    parity = fields.get("parity", {})
    rows = tuple(
        ParityRow(row["output"], row["sizes"], Distance(row["max_abs"], row["max_rel"], row["cosine"], None))
        for row in parity.get("rows", ())
    )
    return str(parity.get("compared_with", "")), rows
