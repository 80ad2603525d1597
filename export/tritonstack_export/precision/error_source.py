"""Where the results of a low-precision graph leave those of FP32."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tritonstack_export import onnx_tensors
from tritonstack_export.precision import rounding
from tritonstack_export.precision.fp32_islands import Island
from tritonstack_export.precision.graph_types import BFLOAT16, FLOAT16
from tritonstack_export.precision.output_distance import output_distance
from tritonstack_export.precision.reference_runner import low_dtype
from tritonstack_export.precision.value_ranges import ValueReader
from tritonstack_export.samples import Array

if TYPE_CHECKING:
    from onnx import NodeProto

_TINY_POWER = 1e-30
_LOSS_DB = 6.0
"""A node that loses this much against the worst of its inputs makes the error; one that loses less passes it on."""
_BEST_DB = 80.0
_SAMPLES = 4
_GROUP_BYTES = 32 << 20
"""Values of this many bytes are held for each sample and graph at a time."""
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
    fidelity, rounded = _fidelity(prepared, converted, samples[:_SAMPLES], precision)
    graph = onnx_tensors.read_proto(prepared).graph
    producers = {name: node for node in graph.node for name in node.output}
    consumers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            consumers.setdefault(name, []).append(node)
    found: dict[str, tuple[float, Island]] = {}

    def blame(node: NodeProto, loss: float, reason: str) -> None:
        if node.name not in known and loss > found.get(node.name, (0.0, None))[0]:
            found[node.name] = (loss, Island(node.name, node.op_type, reason))

    for name, value in rounded.items():
        if value >= _SOUND_DB[precision] or fidelity[name] >= _SOUND_DB[precision]:
            continue
        # The value itself does not survive rounding, so what makes and what reads it has to be in FP32.
        reason = f"rounded to {precision} alone, {name} is at {max(value, 0.0):.1f} dB SNR against FP32"
        makers = [producers[name]] if name in producers else []
        for node in (*makers, *consumers.get(name, [])):
            blame(node, _BEST_DB - value, reason)
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


def _fidelity(
    prepared: Path, converted: Path, samples: Sequence[Mapping[str, Array]], precision: str
) -> tuple[dict[str, float], dict[str, float]]:
    """SNR in dB of every value that both graphs have, over all samples, and of the exact value when it is rounded
    once; -inf where it is not comparable."""
    kind = low_dtype(FLOAT16 if precision == "fp16" else BFLOAT16)
    emulated = rounding.emulate(onnx_tensors.read_proto(converted)).SerializeToString()
    exact = ValueReader(prepared)
    both = sorted(set(exact.names) & set(ValueReader(emulated, folder=converted.parent).names))
    exact = ValueReader(prepared, names=both, group_bytes=_GROUP_BYTES)
    low = ValueReader(emulated, names=both, folder=converted.parent)
    fidelity: dict[str, float] = {}
    rounded: dict[str, float] = {}
    for group in exact.groups(samples[0]):
        expected = [exact.values(group, sample) for sample in samples]
        found = [low.values(group, sample) for sample in samples]
        for name in group:
            values = [row[name] for row in expected]
            fidelity[name] = _snr_db(values, [row[name] for row in found])
            if fidelity[name] < _SOUND_DB[precision]:
                with np.errstate(over="ignore", invalid="ignore"):
                    rounded[name] = _snr_db(values, [value.astype(kind).astype(np.float32) for value in values])
    return fidelity, rounded


def _snr_db(expected: Sequence[Array], found: Sequence[Array]) -> float:
    """As output_distance has it, in FP32 and without its other measures where all is finite and of one shape."""
    if len(expected) > 1 and len({value.shape for value in (*expected, *found)}) == 1 and expected[0].size:
        with np.errstate(all="ignore"):
            mean = sum(expected[1:], expected[0]) / np.float32(len(expected))
            signal = sum(_power(value - mean) for value in expected)
            noise = sum(_power(a - b) for a, b in zip(expected, found, strict=True))
        if math.isfinite(signal) and math.isfinite(noise) and signal > _TINY_POWER and noise > 0:
            return 10 * math.log10(signal / noise)
    distance = output_distance(expected, found)
    return -math.inf if distance.snr_db is None else distance.snr_db


def _power(value: Array) -> float:
    flat = value.reshape(-1)
    return float(np.dot(flat, flat))
