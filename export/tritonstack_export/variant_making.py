"""From the checked FP32 graph to the variants a spec asks for, each through its gates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tritonstack.errors import GateError, UsageError
from tritonstack_export import onnx_graph, onnx_tensors
from tritonstack_export.converted_model import MODEL_FILE
from tritonstack_export.digest import file_sha256, json_sha256
from tritonstack_export.entry_config import EntryTensors, ServingExtras
from tritonstack_export.precision import served_path, task_accuracy
from tritonstack_export.precision.candidate_gate import CandidateGate
from tritonstack_export.precision.reference_runner import ReferenceSession, reference_session
from tritonstack_export.precision.variant_gates import VariantComparison, VariantRow, require_gates
from tritonstack_export.variant import Measured, Variant
from tritonstack_export.variant_samples import Samples, VariantSamples, read_samples

if TYPE_CHECKING:
    from tritonstack_export.converted_model import Converted
    from tritonstack_export.loaded_model import LoadedModel
    from tritonstack_export.precision.int8_model import Int8Result
    from tritonstack_export.precision.layer_fallback import Verdict
    from tritonstack_export.precision.low_precision import FloatConversion
    from tritonstack_export.precision.task_accuracy import Accuracy, AccuracyDrop
    from tritonstack_export.spec import ModelSpec
    from tritonstack_export.spec_precision import PrecisionName
    from tritonstack_export.step_record import Record


@dataclass(frozen=True)
class Refused:
    """A variant that failed a gate: what was measured until then, and why."""

    precision: PrecisionName
    name: str
    error: GateError
    measured: Measured


@dataclass
class VariantMaker:
    """Makes the variants of one export, one after the other; what is done so far can be read for a report.

    `draft`: gives a folder for a variant by its precision. `folder`: that of the spec. `work`: for files that are not
    published.
    """

    converted: Converted
    spec: ModelSpec
    model: LoadedModel
    labels: tuple[str, ...] | None
    allowed_drop: Mapping[str, float]
    base: Path
    draft: Callable[[str], Path]
    folder: Path
    work: Path
    record: Record
    made: list[Variant] = field(default_factory=list)
    refused: Refused | None = None
    samples: VariantSamples | None = None
    reference_accuracy: Accuracy | None = None

    def make_all(self) -> list[Variant]:
        """The variants in the order of `spec.precision.variants`. Raises GateError at the first that fails a gate."""
        variants: Sequence[PrecisionName] = self.spec.precision.variants
        graph = self.converted.files[0]
        digest = graph_sha256(self.converted.files)
        if "fp32" in variants:
            name = self.spec.precision.model_name(self.spec.name, "fp32")
            self.made.append(Variant("fp32", name, self.base, self.converted.files, self.converted.tensors, digest))
        lower = [precision for precision in variants if precision != "fp32"]
        if not lower:
            self._require_no_waiver(())
            return self.made
        self._require_no_waiver(lower)
        names = [tensor.name for tensor in self.converted.tensors.outputs]
        with self.record.step("data"):
            self.samples = read_samples(
                self.spec, self.model, self.converted.signature, self.folder, labels=self.labels, record=self.record
            )
        with self.record.step("fp32 answers"):
            reference = reference_session(graph, names)
            comparison = VariantComparison(
                reference, self.samples.gates, self.converted.signature, made_up=self.samples.made_up
            )
            self.reference_accuracy = self._accuracy(reference)
        if self.made and self.reference_accuracy is not None:
            self.made[0] = self.made[0].with_measured(reference_accuracy=self.reference_accuracy)
        for precision in lower:
            judge = _Judge(self, comparison, names, precision)
            self.made.append(self._make(precision, graph, digest, judge))
        return self.made

    def _require_no_waiver(self, lower: Sequence[str]) -> None:
        for precision in self.allowed_drop:
            if precision not in lower:
                raise UsageError(
                    f"--allow-drop {precision}=…: {precision} is not made",
                    expected=f"one of {', '.join(lower) or 'none: only fp32 is made'}",
                )
            if self.spec.evaluation is None:
                raise UsageError(
                    f"--allow-drop {precision}=…: there is no accuracy to lose, the spec has no `evaluation`",
                    next_step=f"set `precision.{precision}.gates` to what the task allows",
                )

    def _make(self, precision: PrecisionName, graph: Path, digest: str, judge: _Judge) -> Variant:
        folder = self.draft(precision)
        try:
            if precision == "int8":
                self._make_int8(graph, folder / MODEL_FILE, judge)
            else:
                self._make_float(precision, graph, folder / MODEL_FILE, judge)
        except GateError as error:
            name = self.spec.precision.model_name(self.spec.name, precision)
            self.refused = Refused(precision, name, error, judge.measured())
            raise
        files = tuple(sorted((p for p in folder.iterdir() if p.is_file()), key=lambda p: p.name != MODEL_FILE))
        proto = onnx_tensors.read_proto(files[0])
        tensors = EntryTensors(onnx_graph.graph_inputs(proto), onnx_graph.graph_outputs(proto))
        with self.record.step(f"{precision} as served"):
            served = served_path.served_path(files[0], judge.names, self._served_samples())
            for remark in served.remarks:
                self.record.note(f"{precision}: {remark}")
        return Variant(
            precision=precision,
            name=self.spec.precision.model_name(self.spec.name, precision),
            folder=folder,
            files=files,
            tensors=tensors,
            sha256=graph_sha256(files),
            made_from=digest,
            extras=ServingExtras(served.parameters, served.graph_level, gpu_only=not served.usable),
            measured=judge.measured(served=served),
        )

    def _served_samples(self) -> Samples:
        return self.samples.gates[:8] if self.samples is not None else ()

    def _make_float(self, precision: PrecisionName, graph: Path, out: Path, judge: _Judge) -> None:
        with self.record.step(precision):
            judge.floats = self._convert(precision, graph, out)
        with self.record.step(f"{precision} gates"):
            judge.take(judge.gate()(out), hint=judge.floats.problem and _KEEP.format(precision=precision))

    def _convert(self, precision: PrecisionName, graph: Path, out: Path) -> FloatConversion:
        from tritonstack_export.precision.low_precision import convert_float

        assert self.samples is not None and precision in ("fp16", "bf16")  # noqa: S101 - narrows for the type checker
        settings = self.spec.precision.fp16 if precision == "fp16" else self.spec.precision.bf16
        return convert_float(
            graph, precision, settings, self.samples.ranges, out, self.record, made_up=self.samples.made_up
        )

    def _make_int8(self, graph: Path, out: Path, judge: _Judge) -> None:
        from tritonstack_export.precision.int8_model import make_int8

        assert self.samples is not None and self.samples.calibration is not None  # noqa: S101 - read for int8
        settings = self.spec.precision.int8
        half = None
        if settings.rest == "fp16":
            half = next((variant.graph for variant in self.made if variant.precision == "fp16"), None)
            if half is None:
                folder = self.work / "fp16"
                folder.mkdir()
                half = folder / MODEL_FILE
                with self.record.step("fp16"):
                    self._convert("fp16", graph, half)
        judge.int8 = make_int8(
            graph,
            self.samples.calibration,
            self.converted.signature,
            settings,
            passes=judge.gate(),
            out=out,
            record=self.record,
            half=half,
        )
        given_back = sum(layer.sensitivity_db is not None for layer in judge.int8.excluded)
        judge.take(dict(judge.int8.checks)[given_back])

    def _accuracy(self, session: ReferenceSession) -> Accuracy | None:
        if self.samples is None or self.samples.evaluation is None:
            return None
        return task_accuracy.measure(
            session.run, self.samples.evaluation, self.spec, self.converted.signature, folder=self.folder
        )


_KEEP = (
    "keep the nodes that lose it in FP32 (`precision.{precision}.keep_fp32`: names or operator types), or set "
    "`precision.{precision}.gates` to what the task allows"
)


class _Judge:
    """The gates of one precision, and what they found last."""

    def __init__(
        self, maker: VariantMaker, comparison: VariantComparison, names: Sequence[str], precision: PrecisionName
    ) -> None:
        self.names = list(names)
        self.floats: FloatConversion | None = None
        self.int8: Int8Result | None = None
        self._maker = maker
        self._comparison = comparison
        self._precision = precision
        self._allowed = maker.allowed_drop.get(precision)
        self._rows: list[VariantRow] = []
        self._accuracy: AccuracyDrop | None = None

    def measured(self, **more: object) -> Measured:
        """Everything found so far."""
        return Measured(
            rows=tuple(self._rows),
            waived=self._allowed is not None and any(row.problem for row in self._rows),
            reference_accuracy=self._maker.reference_accuracy,
            accuracy=self._accuracy,
            allowed_drop=self._allowed,
            floats=self.floats,
            int8=self.int8,
            **more,  # type: ignore[arg-type]
        )

    def _require_rows(self, *, hint: str | None) -> None:
        """Raises GateError; where a drop of accuracy is allowed only for results that are no numbers."""
        failed = [row for row in self._rows if row.problem is not None]
        if self._allowed is not None and all(row.distance.problem is None for row in failed):
            for row in failed:
                self._maker.record.note(
                    f"{self._precision}: output {row.output!r} misses its limits, which --allow-drop lets through: "
                    f"{row.problem}"
                )
            return
        require_gates(self._rows, self._precision, hint=hint)

    def _require_accuracy(self) -> None:
        """Raises GateError where more is lost than may be."""
        if self._accuracy is None:
            return
        task_accuracy.require_accuracy(self._accuracy)
        note = task_accuracy.resolution_note(self._accuracy)
        if note is not None:
            self._maker.record.note(note)

    def gate(self) -> CandidateGate:
        """What a file of this precision has to pass; see `take`."""
        maker = self._maker
        return CandidateGate(
            maker.spec,
            maker.converted.signature,
            maker.folder,
            tuple(self.names),
            self._comparison,
            self._precision,
            evaluation=maker.samples.evaluation if maker.samples is not None else None,
            reference=maker.reference_accuracy,
            max_drop=self._max_drop(),
            waive_limits=self._allowed is not None,
        )

    def take(self, verdict: Verdict, *, hint: str | None = None) -> None:
        """Keep what was found of the file that is to be published. Raises GateError where it does not pass."""
        self._rows, self._accuracy = list(verdict.rows), verdict.accuracy
        self._require_rows(hint=hint)
        self._require_accuracy()

    def _max_drop(self) -> float:
        """Points that may be lost."""
        evaluation = self._maker.spec.evaluation
        if self._allowed is not None or evaluation is None:
            return self._allowed or 0.0
        return evaluation.max_drop.get(self._precision, 0.0)


def graph_sha256(files: Sequence[Path]) -> str:
    """Digest of an ONNX file; with external data, over the digests of all its files by name."""
    if len(files) == 1:
        return file_sha256(files[0])
    return json_sha256({file.name: file_sha256(file) for file in files})
