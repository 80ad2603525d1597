"""Where the results of a low-precision graph leave those of FP32."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from tritonstack_export import onnx_tensors
from tritonstack_export.precision import rounding
from tritonstack_export.precision.fp32_islands import Island
from tritonstack_export.precision.output_distance import output_distance
from tritonstack_export.precision.value_ranges import ValueReader
from tritonstack_export.samples import Array

_LOSS_DB = 6.0
"""A node that loses this much against the worst of its inputs makes the error; one that loses less passes it on."""
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
    found: list[tuple[float, Island]] = []
    for node in graph.node:
        measured = [fidelity[name] for name in node.output if name in fidelity]
        if not measured or node.name in known:
            continue
        after = min(measured)
        before = min((fidelity[name] for name in node.input if name in fidelity), default=math.inf)
        loss = min(before, 80.0) - after
        if after < _SOUND_DB[precision] and loss > _LOSS_DB:
            shown = "useless" if after < 0 else f"{after:.1f} dB SNR"
            source = f" from inputs at {before:.1f} dB" if math.isfinite(before) else ""
            reason = f"its result in {precision} is {shown} against FP32{source}"
            found.append((loss, Island(node.name, node.op_type, reason)))
    found.sort(key=lambda entry: -entry[0])
    return [island for _, island in found[:most]]


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
