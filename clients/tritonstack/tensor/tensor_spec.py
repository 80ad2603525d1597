"""What a model says about one of its inputs or outputs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorSpec:
    """Name, data type and shape of an input or output.

    `datatype` is Triton's name (``FP32``); `shape` is the whole wire shape including the batch dimension of a batching
    model, with -1 for a dimension of any size. `optional` inputs may be left out.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False

    def describe(self, max_batch_size: int = 0) -> str:
        """``FP32 [batch ≤ 8, 3]``: the data type and the shape with its free dimensions spelled out."""
        dims = ["any" if dim < 0 else str(dim) for dim in self.shape]
        if max_batch_size > 0 and dims:
            dims[0] = f"batch ≤ {max_batch_size}"
        return f"{self.datatype} [{', '.join(dims)}]"
