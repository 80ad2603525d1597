"""Where the results of a low-precision graph leave those of FP32."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tritonstack_export import onnx_tensors
from tritonstack_export.precision import rounding
from tritonstack_export.precision.fp32_islands import Island
from tritonstack_export.precision.output_distance import output_distance
from tritonstack_export.precision.value_ranges import ValueReader
from tritonstack_export.samples import Array

if TYPE_CHECKING:
    from onnx import NodeProto

_LOSS_DB = 6.0
"""A node that loses this much against the worst of its inputs makes the error; one that loses less passes it on."""
_BEST_DB = 80.0
_SOUND_DB = {"fp16": 45.0, "bf16": 27.0}
"""Above this a value is as good as the type allows: rounding each value once costs about 74 and 56 dB."""


def first_wrong_nodes(
    prepared: Path,
    converted: Path,
    samples: Sequence[Mapping[str, Array]],
    precision: str,
    *,
    known: Container[str],
    most: int,
) -> list[Island]:
    """The nodes at which the emulated values of `converted` turn worse than those they are made of, worst first.

    `prepared`: the FP32 graph that `converted` was made from; values are compared by name. `known`: nodes that are in
    FP32 already. Empty when the error has no single source.
    """
    fidelity = _fidelity(prepared, converted, samples)
    graph = onnx_tensors.read_proto(prepared).graph
    producers = {name: node for node in graph.node for name in node.output}
    found: dict[str, tuple[float, Island]] = {}

    def blame(node: NodeProto, loss: float, reason: str) -> None:
        if node.name not in known and loss > found.get(node.name, (0.0, None))[0]:
            found[node.name] = (loss, Island(node.name, node.op_type, reason))

    for node in graph.node:
        measured = [fidelity[name] for name in node.output if name in fidelity]
        if not measured:
            continue
        after = min(measured)
        read = {name: fidelity[name] for name in node.input if name in fidelity}
        before = min(read.values(), default=math.inf)
        loss = min(before, _BEST_DB) - after
        if after >= _SOUND_DB[precision] or loss <= _LOSS_DB:
            continue
        shown = "useless" if after < 0 else f"at {after:.1f} dB SNR"
        if node.name not in known:
            source = f" from inputs at {before:.1f} dB" if math.isfinite(before) else ""
            blame(node, loss, f"its result in {precision} is {shown} against FP32{source}")
            continue
        # In FP32 already and still wrong: what it reads is too coarse for it.
        for name, value in read.items():
            if name in producers and value < _BEST_DB:
                reason = f"its result at {value:.1f} dB SNR makes {node.op_type} {node.name} {shown}"
                blame(producers[name], loss, reason)
    ranked = sorted(found.values(), key=lambda entry: -entry[0])
    return [island for _, island in ranked[:most]]


def _fidelity(prepared: Path, converted: Path, samples: Sequence[Mapping[str, Array]]) -> dict[str, float]:
    """SNR in dB of every value that both graphs have, the worst over the samples; -inf where it is not comparable."""
    exact = ValueReader(prepared)
    emulated = rounding.emulate(onnx_tensors.read_proto(converted)).SerializeToString()
    low = ValueReader(emulated, names=exact.names, folder=converted.parent)
    both = sorted(set(exact.names) & set(low.names))
    exact = ValueReader(prepared, names=both)
    low = ValueReader(emulated, names=both, folder=converted.parent)
    worst: dict[str, float] = {}
    for sample in samples:
        for expected, found in zip(exact.read(sample), low.read(sample), strict=True):
            for name in expected.keys() & found.keys():
                distance = output_distance([expected[name]], [found[name]])
                value = -math.inf if distance.snr_db is None else distance.snr_db
                worst[name] = min(worst.get(name, math.inf), value)
    return worst
