"""Which nodes of a graph have to stay in FP32 when the rest becomes FP16, by the ranges seen on samples.

FP16 spans 6e-8 to 65504. A value outside of it is lost, whatever comes after: `x / inf` is a finite, useless 0. BF16
spans what FP32 does, so none of these rules is about it.

| rule | nodes |
|---|---|
| a value times the headroom exceeds 65504 | those that make and read it |
| a weight exceeds 65504, or lies below 6.1e-5 altogether | those that read it |
| a sum inside a node exceeds 65504 (means over large maps, ReduceL2, ReduceLogSumExp) | that node |
| squares are summed (RMS norm, L2 norm, variance): the exponent doubles | from the square to the division |
| a small constant (eps below 6.1e-5) guards a division, root or logarithm | from the constant to that operator |
| a divisor or the argument of a logarithm falls below 3e-8, where FP16 is 0 | those that make and read it |
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tritonstack_export.precision.graph_types import FLOAT
from tritonstack_export.precision.value_ranges import FP16_MAX, FP16_SMALLEST_NORMAL, FP16_ZERO_BELOW, Range

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from onnx import ModelProto, NodeProto, TensorProto

HEADROOM = 4.0
"""Samples never show the largest value there is: two bits of the exponent are kept free for what they do not show.
From 17 to 244 photographs no activation of EfficientNet-Lite0 grew by more than 1.9, none of MobileNetV2 by more
than 2.9."""


@dataclass(frozen=True)
class Island:
    """One node that stays in FP32, and why."""

    node: str
    operator: str
    reason: str


_MOVES = frozenset(
    {
        "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Expand", "Tile", "Slice", "Concat",
        "Gather", "GatherElements", "GatherND", "Split", "DepthToSpace", "SpaceToDepth",
    }
)  # fmt: skip
_SUMS = frozenset({"ReduceSum", "ReduceMean", "ReduceL1", "GlobalAveragePool", "AveragePool", "CumSum"})
_AFTER_SQUARES = frozenset(
    {
        "Add", "Clip", "Max", "Sqrt", "Reciprocal", "Pow", "Expand", "Unsqueeze", "Squeeze", "Reshape", "Mul", "Div",
    }
)  # fmt: skip
_GUARDED = frozenset({"Div", "Reciprocal", "Sqrt", "Log", "Pow"})


def demanded_islands(model: ModelProto, ranges: Mapping[str, Range], *, headroom: float = HEADROOM) -> list[Island]:
    """The nodes that FP16 would spoil, in the order of the graph, each with the first reason that applies.

    `ranges` by value name, of the FP32 graph `model`, whose nodes have names.
    """
    return _Rules(model, ranges, headroom).islands()


class _Rules:
    def __init__(self, model: ModelProto, ranges: Mapping[str, Range], headroom: float) -> None:
        self._nodes = list(model.graph.node)
        self._ranges = ranges
        self._headroom = headroom
        self._producer = {name: node for node in self._nodes for name in node.output if name}
        self._consumers: dict[str, list[NodeProto]] = {}
        for node in self._nodes:
            for name in node.input:
                if name:
                    self._consumers.setdefault(name, []).append(node)
        self._constants = _constants(model)
        self._reasons: dict[str, str] = {}

    def islands(self) -> list[Island]:
        self._values()
        self._weights()
        for node in self._nodes:
            self._sums(node)
            self._squares(node)
            self._small_constants(node)
            self._tiny_divisors(node)
        return [
            Island(node.name, node.op_type, self._reasons[node.name])
            for node in self._nodes
            if node.name in self._reasons
        ]

    def _keep(self, node: NodeProto, reason: str) -> None:
        if node.op_type not in ("Constant", "Shape", "Size"):
            self._reasons.setdefault(node.name, reason)

    def _around(self, name: str) -> Iterator[NodeProto]:
        if name in self._producer:
            yield self._producer[name]
        yield from self._consumers.get(name, [])

    def _values(self) -> None:
        for name, seen in self._ranges.items():
            if seen.magnitude * self._headroom > FP16_MAX:
                over = seen.magnitude > FP16_MAX
                reason = f"|{name}| reaches {seen.magnitude:.3g} on the samples; FP16 ends at 65504"
                if not over:
                    reason += f", and a factor of {self._headroom:g} is kept free for other inputs"
                for node in self._around(name):
                    self._keep(node, reason)

    def _weights(self) -> None:
        for name, value in self._constants.items():
            if value.dtype.name != "float32" or not value.size:
                continue
            finite = abs(value[_finite(value)])
            largest = float(finite.max()) if finite.size else 0.0
            reason = None
            if largest > FP16_MAX:
                reason = f"the constant {name} reaches {largest:.3g}; FP16 ends at 65504"
            elif value.size > 1 and 0 < largest < FP16_SMALLEST_NORMAL:
                reason = f"all of {name} lies below 6.1e-5 (largest: {largest:.3g}), where FP16 loses precision"
            if reason is not None:
                for node in self._consumers.get(name, []):
                    self._keep(node, reason)

    def _sums(self, node: NodeProto) -> None:
        source, result = self._range(node.input, 0), self._range(node.output, 0)
        if source is None or result is None:
            return
        inner = 0.0
        if node.op_type in _SUMS:
            # Means are taken of sums. Values of one sign add up; those of both grow with the root of their number.
            count = source.elements / max(result.elements, 1)
            means = node.op_type in ("ReduceMean", "GlobalAveragePool")
            inner = max(result.magnitude * (count if means else 1), source.magnitude * math.sqrt(count))
        elif node.op_type in ("ReduceL2", "ReduceSumSquare", "LpNormalization"):
            inner = max(result.magnitude, source.magnitude) ** 2 if node.op_type != "ReduceSumSquare" else 0.0
        elif node.op_type == "ReduceLogSumExp":
            inner = math.exp(min(source.max, 700.0)) if source.elements else 0.0
        if inner * self._headroom > FP16_MAX:
            self._keep(node, f"a sum inside of it reaches {inner:.3g} on the samples; FP16 ends at 65504")

    def _range(self, names: object, index: int) -> Range | None:
        listed = list(names)  # type: ignore[call-overload]
        return self._ranges.get(listed[index]) if index < len(listed) else None

    def _squares(self, node: NodeProto) -> None:
        """Sums of squares, forward to the division that ends the norm and back to the square."""
        if node.op_type in ("ReduceL2", "ReduceSumSquare", "LpNormalization"):
            start = [node]
        elif node.op_type in ("ReduceMean", "ReduceSum") and (square := self._square(node.input[0])) is not None:
            start = [square, node]
        else:
            return
        source = start[0].input[0]
        reason = f"it belongs to a norm, which sums the squares of {source}"
        seen = self._ranges.get(source)
        if seen is not None and seen.elements:
            reason += f" (|x| up to {seen.magnitude:.3g})"
        for member in start:
            self._keep(member, reason)
        self._follow(node, reason)

    def _square(self, name: str) -> NodeProto | None:
        node = self._producer.get(name)
        if node is None:
            return None
        if node.op_type == "Mul" and node.input[0] == node.input[1]:
            return node
        if node.op_type == "Pow":
            exponent = self._constants.get(node.input[1])
            if exponent is not None and exponent.size == 1 and float(exponent.reshape(-1)[0]) == 2:
                return node
        return None

    def _follow(self, node: NodeProto, reason: str) -> None:
        """Forward through what a norm is made of, up to and with the first division or product."""
        waiting = [node]
        seen = {node.name}
        while waiting:
            current = waiting.pop()
            for output in current.output:
                for user in self._consumers.get(output, []):
                    if user.op_type not in _AFTER_SQUARES or user.name in seen:
                        continue
                    if user.op_type == "Add" and not any(name in self._constants for name in user.input):
                        continue  # an Add of two activations is no eps
                    seen.add(user.name)
                    self._keep(user, reason)
                    if user.op_type not in ("Div", "Mul"):
                        waiting.append(user)

    def _small_constants(self, node: NodeProto) -> None:
        if node.op_type not in ("Add", "Max", "Clip"):
            return
        names = node.input[1:2] if node.op_type == "Clip" else node.input
        for name in names:
            value = self._constants.get(name)
            if value is None or value.size != 1 or value.dtype.name != "float32":
                continue
            eps = float(value.reshape(-1)[0])
            if not 0 < eps < FP16_SMALLEST_NORMAL:
                continue
            guarded = list(self._guarded_by(node))
            if guarded:
                reason = f"it depends on the constant {eps:g}, below FP16's smallest normal number 6.1e-5"
                for member in (node, *guarded):
                    self._keep(member, reason)

    def _guarded_by(self, node: NodeProto) -> Iterator[NodeProto]:
        """From an Add, Max or Clip to the operators that fail on 0, through those that only move values."""
        waiting = [node]
        seen = {node.name}
        while waiting:
            current = waiting.pop()
            for output in current.output:
                for user in self._consumers.get(output, []):
                    if user.name in seen:
                        continue
                    seen.add(user.name)
                    if user.op_type in _GUARDED:
                        if user.op_type == "Div" and user.input[1] != output:
                            continue
                        yield user
                        if user.op_type in ("Sqrt", "Pow"):
                            waiting.append(user)
                    elif user.op_type in _MOVES:
                        yield user
                        waiting.append(user)

    def _tiny_divisors(self, node: NodeProto) -> None:
        position = {"Div": 1, "Reciprocal": 0, "Log": 0}.get(node.op_type)
        if position is None:
            return
        name = node.input[position]
        seen = self._ranges.get(name)
        if seen is not None and 0 < seen.smallest < FP16_ZERO_BELOW:
            what = "divides by" if node.op_type != "Log" else "takes the logarithm of"
            reason = f"it {what} {name}, which falls to {seen.smallest:.3g} on the samples; FP16 is 0 below 3e-8"
            self._keep(node, reason)
            if name in self._producer:
                self._keep(self._producer[name], reason)


def _finite(value: NDArray[Any]) -> NDArray[np.bool_]:
    import numpy as np

    return np.asarray(np.isfinite(value))


def _constants(model: ModelProto) -> dict[str, NDArray[Any]]:
    """FP32 weights and constants inside the file, by value name; those in external files are left to the samples."""
    from onnx import TensorProto, numpy_helper

    tensors: list[tuple[str, TensorProto]] = [(tensor.name, tensor) for tensor in model.graph.initializer]
    for node in model.graph.node:
        if node.op_type == "Constant":
            tensors.extend((node.output[0], a.t) for a in node.attribute if a.HasField("t"))
    return {
        name: numpy_helper.to_array(tensor)
        for name, tensor in tensors
        if tensor.data_type == FLOAT and tensor.data_location != TensorProto.EXTERNAL
    }
