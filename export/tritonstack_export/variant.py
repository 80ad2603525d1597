"""One variant of a model: its graph in one precision, and everything that was measured of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonstack_export.entry_config import EntryTensors, ServingExtras
from tritonstack_export.spec_precision import PrecisionName


@dataclass(frozen=True)
class Variant:
    """A variant whose gates have passed, in the draft `folder` that becomes its version folder.

    `facts`: what the manifest says of it besides what all variants share, as JSON values.
    """

    precision: PrecisionName
    name: str
    folder: Path
    files: tuple[Path, ...]
    tensors: EntryTensors
    extras: ServingExtras = field(default_factory=ServingExtras)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def graph(self) -> Path:
        """The ONNX file."""
        return self.files[0]
