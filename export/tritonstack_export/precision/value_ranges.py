"""What values the tensors of a model take on samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tritonstack.errors import GateError, InputError
from tritonstack_export import onnx_tensors
from tritonstack_export.precision.graph_types import FLOAT, infer, scope_of
from tritonstack_export.samples import Array
from tritonstack_export.source_location import first_line

FP16_MAX = 65504.0
FP16_SMALLEST_NORMAL = 2.0**-14
"""6.1e-5: below it FP16 loses precision bit by bit."""
FP16_ZERO_BELOW = 2.0**-25
"""3e-8: half of the smallest subnormal number; what is smaller becomes 0."""
_GROUP_BYTES = 256 << 20
"""Values of this many bytes are held at a time, besides what the model itself needs."""


@dataclass(frozen=True)
class Range:
    """The values of one tensor over all samples. Infinities and NaN are left out of the numbers and counted.

    `smallest`: smallest magnitude that is not 0 (infinity: all are 0). `subnormal`: share of the elements whose
    magnitude lies below FP16's smallest normal number, 6.1e-5, without being 0. `elements`: in all samples together.
    """

    min: float
    max: float
    smallest: float
    subnormal: float
    not_finite: int
    elements: int

    @property
    def magnitude(self) -> float:
        """The largest finite |x|."""
        return max(abs(self.min), abs(self.max)) if self.elements > self.not_finite else 0.0

    def merged(self, other: Range) -> Range:
        """The range of both together."""
        elements = self.elements + other.elements
        share = (self.subnormal * self.elements + other.subnormal * other.elements) / elements if elements else 0.0
        return Range(
            min(self.min, other.min),
            max(self.max, other.max),
            min(self.smallest, other.smallest),
            share,
            self.not_finite + other.not_finite,
            elements,
        )


def range_of(values: Array) -> Range:
    """The range of one array of floats."""
    finite = values
    not_finite = 0
    if values.size:
        low, high = float(values.min()), float(values.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            finite = values[np.isfinite(values)]
            not_finite = values.size - finite.size
    if finite.size == 0:
        return Range(math.inf, -math.inf, math.inf, 0.0, not_finite, values.size)
    magnitudes = np.abs(finite)
    some = magnitudes > 0
    smallest = float(np.min(magnitudes, where=some, initial=np.inf))
    subnormal = 0
    if smallest < FP16_SMALLEST_NORMAL:
        subnormal = int(np.count_nonzero(some & (magnitudes < FP16_SMALLEST_NORMAL)))
    return Range(
        float(finite.min()), float(finite.max()), smallest, subnormal / values.size, not_finite, int(values.size)
    )


def observe_ranges(
    path: Path, samples: Iterable[Mapping[str, Array]], *, names: Sequence[str] | None = None
) -> dict[str, Range]:
    """Ranges of the FP32 values of the graph at `path` over `samples` (inputs by name, as the model takes them).

    `names`: only these values; None: all inputs, outputs and intermediates outside of subgraphs. Samples are run one
    by one and values are read in groups of at most 256 MiB, so memory stays near what a run of the model needs.
    Raises InputError without samples, GateError when the model fails on one.
    """
    reader = ValueReader(path, names=names)
    ranges: dict[str, Range] = {}
    for sample in samples:
        for values in reader.read(sample):
            for name, value in values.items():
                seen = range_of(value)
                ranges[name] = ranges[name].merged(seen) if name in ranges else seen
    if not ranges:
        raise InputError("no samples to observe ranges on", expected="at least one set of inputs")
    return ranges


class ValueReader:
    """Reads intermediate values of a model, a bounded group at a time."""

    def __init__(
        self,
        source: Path | bytes,
        *,
        names: Sequence[str] | None = None,
        folder: Path | None = None,
        group_bytes: int = _GROUP_BYTES,
    ) -> None:
        """`source`: a file, or a serialised graph whose external weights lie in `folder`. `names`: see observe_ranges;
        those that the graph lacks are left out. `group_bytes`: of the values read at a time. Raises GateError when
        ONNX Runtime cannot load it."""
        import onnx

        self._group_bytes = group_bytes

        model = onnx_tensors.read_proto(source) if isinstance(source, Path) else onnx.load_from_string(source)
        self._folder = source.parent if isinstance(source, Path) else folder
        typed = infer(model)
        scope = scope_of(typed.graph)
        inputs = {value.name for value in typed.graph.input}
        weights = {tensor.name for tensor in typed.graph.initializer}
        computed = {name for node in typed.graph.node for name in node.output if name}
        wanted = computed | (inputs - weights) if names is None else set(names) & (computed | inputs)
        floats = sorted(name for name in wanted if scope.get(name) == FLOAT)
        self._fed = [name for name in floats if name in inputs]
        self._computed = [name for name in floats if name in computed]
        self.names = (*self._fed, *self._computed)
        self._groups: list[list[str]] | None = None
        self._session = self._open(typed)
        self._inputs = {value.name for value in self._session.get_inputs()}

    def _open(self, typed: Any) -> Any:
        import onnxruntime as ort
        from onnx import TensorProto, helper

        outputs = {value.name for value in typed.graph.output}
        for name in self._computed:
            if name not in outputs:
                typed.graph.output.append(helper.make_tensor_value_info(name, FLOAT, None))
            size = f"{name}__size_of_value"
            typed.graph.node.append(helper.make_node("Size", [name], [size]))
            typed.graph.output.append(helper.make_tensor_value_info(size, TensorProto.INT64, None))
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.enable_mem_pattern = False
        options.enable_cpu_mem_arena = False
        # Fusions would take values away; those that are asked for stay, as outputs, at the price of the fusion.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if self._folder is not None:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(self._folder))
        try:
            return ort.InferenceSession(typed.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise GateError(f"ONNX Runtime cannot load the model: {first_line(error)}") from error

    def read(self, inputs: Mapping[str, Array]) -> Iterable[dict[str, Array]]:
        """Values by name, in groups; the model runs once for each group, and once more for the first sample."""
        for group in self.groups(inputs):
            yield self.values(group, inputs)

    def groups(self, inputs: Mapping[str, Array]) -> list[list[str]]:
        """The names in groups whose values together are no larger than they may be, for samples like `inputs`."""
        if self._groups is None:
            feeds = {name: value for name, value in inputs.items() if name in self._inputs}
            self._groups = [group for group in (self._fed, *self._sized_groups(feeds)) if group]
        return self._groups

    def values(self, names: Sequence[str], inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The named values for one sample."""
        found = {name: inputs[name] for name in names if name in inputs}
        computed = [name for name in names if name not in found]
        if computed:
            feeds = {name: value for name, value in inputs.items() if name in self._inputs}
            found.update(zip(computed, self._run(computed, feeds), strict=True))
        return found

    def _sized_groups(self, feeds: Mapping[str, Array]) -> list[list[str]]:
        if not self._computed:
            return []
        sizes = self._run([f"{name}__size_of_value" for name in self._computed], feeds)
        groups: list[list[str]] = []
        room = 0
        for name, size in zip(self._computed, sizes, strict=True):
            needed = 4 * int(size)
            if not groups or needed > room:
                groups.append([])
                room = self._group_bytes
            groups[-1].append(name)
            room -= needed
        return groups

    def _run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        try:
            result: list[Array] = self._session.run(list(names), dict(feeds))
        except Exception as error:
            shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in feeds.items())
            raise GateError(f"the model fails on a sample: {first_line(error)}", given=shapes) from error
        return result
