"""Run an ONNX file on the CPU with ONNX Runtime, as the served model will be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tritonstack.errors import GateError
from tritonstack_export import source_location
from tritonstack_export.samples import Array


class OnnxSession:
    """One session by path, so models above 2 GB work. Outputs come as name -> array."""

    def __init__(self, path: Path, outputs: Sequence[str]) -> None:
        """Raises GateError with ONNX Runtime's reason when it cannot load the file."""
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 4
        # Only a handful of runs of growing size: a pattern per shape and an arena that doubles would only cost memory.
        options.enable_mem_pattern = False
        options.enable_cpu_mem_arena = False
        self._outputs = list(outputs)
        try:
            self._session: Any = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise GateError(f"ONNX Runtime cannot load the model: {source_location.first_line(error)}") from error

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Raises GateError naming the shapes when the model fails on them."""
        try:
            values = self._session.run(self._outputs, dict(inputs))
        except Exception as error:
            shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in inputs.items())
            raise GateError(
                f"ONNX Runtime fails on a size the model is to be served with: {source_location.first_line(error)}",
                given=shapes,
            ) from error
        return dict(zip(self._outputs, values, strict=True))
