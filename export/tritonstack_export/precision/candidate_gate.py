"""The gates of a file: every output against FP32 on real inputs, then accuracy on the labelled set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tritonstack.errors import GateError
from tritonstack_export.precision.dataset import Dataset
from tritonstack_export.precision.layer_fallback import Verdict
from tritonstack_export.precision.reference_runner import reference_session
from tritonstack_export.precision.task_accuracy import Accuracy, compare_accuracy, measure
from tritonstack_export.precision.variant_gates import VariantComparison, require_gates
from tritonstack_export.signature import Signature
from tritonstack_export.spec import ModelSpec
from tritonstack_export.spec_precision import PrecisionName, VariantGates


@dataclass(frozen=True)
class CandidateGate:
    """Judges a file; see `layer_fallback.Gate`. `comparison`: FP32's outputs on the samples of the numeric gates.

    `evaluation`, `reference`: the labelled set and what FP32 reaches on it, None where the spec has none. `max_drop`:
    points that may be lost. `waive_limits`: outputs may miss their limits, though not be NaN or of another shape: where
    a drop of accuracy was allowed it alone decides.
    """

    spec: ModelSpec
    signature: Signature
    folder: Path
    outputs: tuple[str, ...]
    comparison: VariantComparison
    precision: PrecisionName
    evaluation: Dataset | None = None
    reference: Accuracy | None = None
    max_drop: float = 1.0
    waive_limits: bool = False

    def __call__(self, path: Path) -> Verdict:
        """The verdict; accuracy is only counted where the outputs pass."""
        session = reference_session(path, self.outputs)
        limits: VariantGates = getattr(self.spec.precision, self.precision).gates
        rows = tuple(self.comparison.rows(session, limits, self.precision))
        try:
            require_gates([row for row in rows if row.distance.problem or not self.waive_limits], self.precision)
        except GateError as error:
            return Verdict(False, error.summary, rows)
        if self.evaluation is None or self.reference is None:
            return Verdict(True, "", rows)
        found = measure(session.run, self.evaluation, self.spec, self.signature, folder=self.folder)
        drop = compare_accuracy(self.precision, self.reference, found, self.max_drop)
        return Verdict(drop.passed, "" if drop.passed else _too_much(drop.text(), self.max_drop), rows, drop)


def _too_much(text: str, max_drop: float) -> str:
    return f"{text}, where {max_drop:g} points may be lost"
