"""One variant of a model: its graph in one precision, and everything that was measured of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonstack_export.entry_config import EntryTensors, ServingExtras
from tritonstack_export.spec_precision import PrecisionName

if TYPE_CHECKING:
    from tritonstack_export.precision.int8_model import Int8Result
    from tritonstack_export.precision.low_precision import FloatConversion
    from tritonstack_export.precision.served_path import ServedPath
    from tritonstack_export.precision.task_accuracy import Accuracy, AccuracyDrop
    from tritonstack_export.precision.variant_gates import VariantRow
    from tritonstack_export.preflight.result import PreflightResult
    from tritonstack_export.report.data import LatencyRow


@dataclass(frozen=True)
class Measured:
    """What was measured of a variant. Fields that do not apply stay empty.

    `rows`: every output against FP32; `waived`: whether rows that miss their limits were let through by
    ``--allow-drop``. `reference_accuracy`: of FP32 itself. `allowed_drop`: points, where the command line gave them.
    """

    rows: tuple[VariantRow, ...] = ()
    waived: bool = False
    reference_accuracy: Accuracy | None = None
    accuracy: AccuracyDrop | None = None
    allowed_drop: float | None = None
    floats: FloatConversion | None = None
    int8: Int8Result | None = None
    served: ServedPath | None = None
    preflight: PreflightResult | None = None
    latency: tuple[LatencyRow, ...] = ()


@dataclass(frozen=True)
class Variant:
    """A variant in the draft `folder` that becomes its version folder.

    `made_from`: digest of the FP32 graph; None for FP32 itself. `sha256`: digest of its own graph, with external data.
    """

    precision: PrecisionName
    name: str
    folder: Path
    files: tuple[Path, ...]
    tensors: EntryTensors
    sha256: str
    made_from: str | None = None
    extras: ServingExtras = field(default_factory=ServingExtras)
    measured: Measured = field(default_factory=Measured)

    @property
    def graph(self) -> Path:
        """The ONNX file."""
        return self.files[0]

    @property
    def size_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.files)

    def with_measured(self, **changes: Any) -> Variant:
        """The variant with more that was measured of it."""
        return replace(self, measured=replace(self.measured, **changes))
