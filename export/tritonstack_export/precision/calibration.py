"""Observe a model's activations on real inputs, in one streaming pass."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tritonstack.terminal import Progress
from tritonstack_export.precision.activation_range import LEVELS, MagnitudeHistogram
from tritonstack_export.precision.dataset import batches
from tritonstack_export.precision.float_graph import FloatGraph
from tritonstack_export.precision.quantizable_layers import Layer
from tritonstack_export.samples import Array
from tritonstack_export.signature import Signature
from tritonstack_export.spec_precision import Int8Settings

if TYPE_CHECKING:
    from onnx import ModelProto

_BATCH = 8
_CHUNK_BYTES = 256 << 20
"""Bytes of activations fetched from one run; more layers take several passes."""


@dataclass(frozen=True)
class Observed:
    """`histograms`: activation tensor -> magnitudes. `macs`: layer -> multiply-accumulates of one sample."""

    histograms: Mapping[str, MagnitudeHistogram]
    macs: Mapping[str, int]

    def scales(self, layers: Sequence[Layer], settings: Int8Settings) -> dict[str, float]:
        """Layer -> scale of its activation, above 0. Any method, from the same observation."""
        thresholds = {
            name: self.histograms[name].threshold(settings) for name in sorted({layer.activation for layer in layers})
        }
        # A tensor that is always zero has no scale of its own; any one represents it.
        return {layer.name: _rounded((thresholds[layer.activation] or float(LEVELS)) / LEVELS) for layer in layers}


def observe(
    graph: FloatGraph,
    layers: Sequence[Layer],
    samples: Sequence[Mapping[str, Array]],
    signature: Signature,
    progress: Progress,
) -> Observed:
    """Run the samples and gather the magnitudes of each layer's activation input. Memory stays bounded: see
    `_CHUNK_BYTES`. Raises GateError when the model fails on a sample."""
    _, first = next(batches(samples, signature, size=1))
    count = next(iter(first.values())).shape[0] if signature.batched else 1
    shapes = _shapes(graph, layers, first)
    macs = {layer.name: layer.macs(shapes[layer.activation], shapes[layer.output]) // count for layer in layers}
    types = {layer.activation: layer.element_type for layer in layers}
    histograms = {layer.activation: MagnitudeHistogram() for layer in layers}
    given = {tensor.name for tensor in signature.inputs}
    fetched = [name for name in histograms if name not in given]
    chunks = _chunks(fetched, shapes)
    for number, chunk in enumerate(chunks):
        model = graph.copy()
        _publish(model, {name: types[name] for name in chunk})
        session = graph.session(model, chunk)
        done = 0
        for indices, inputs in batches(samples, signature, size=_BATCH):
            found = session.run(inputs) if chunk else {}
            for name, value in found.items():
                histograms[name].observe(value[: len(indices)] if signature.batched else value)
            if number == 0:
                for name in given & set(histograms):
                    histograms[name].observe(inputs[name][: len(indices)] if signature.batched else inputs[name])
            done += len(indices)
            progress.update(f"  … calibrate: {done} of {len(samples)} samples, pass {number + 1} of {len(chunks)}")
    return Observed(histograms, macs)


def _rounded(scale: float) -> float:
    """`scale` with 11 significant bits: FP16 holds it exactly, and the last digits of a sum, which depend on the CPU
    and its threads, do not change the file."""
    mantissa, exponent = math.frexp(scale)
    return math.ldexp(round(mantissa * 2048) / 2048, exponent)


def _publish(model: ModelProto, types: Mapping[str, int]) -> None:
    """Make inner values outputs of the graph. `types`: name -> ONNX element type."""
    from onnx import helper

    existing = {value.name for value in model.graph.output}
    for name, kind in types.items():
        if name not in existing:
            model.graph.output.append(helper.make_tensor_value_info(name, kind, None))


def _shapes(graph: FloatGraph, layers: Sequence[Layer], sample: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    """The shapes of all activations and outputs of the layers on one sample, asked from the graph itself."""
    from onnx import TensorProto, helper

    names = sorted({name for layer in layers for name in (layer.activation, layer.output)})
    model = graph.copy()
    del model.graph.output[:]
    for index, name in enumerate(names):
        model.graph.node.append(helper.make_node("Shape", [name], [f"tritonstack_shape_{index}"]))
        model.graph.output.append(helper.make_tensor_value_info(f"tritonstack_shape_{index}", TensorProto.INT64, None))
    asked = [f"tritonstack_shape_{index}" for index in range(len(names))]
    found = graph.session(model, asked).run(sample)
    return {name: tuple(map(int, found[key])) for name, key in zip(names, asked, strict=True)}


def _chunks(names: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> list[list[str]]:
    """The tensors in groups of up to _CHUNK_BYTES at the batch that is run; at least one group."""
    groups: list[list[str]] = [[]]
    filled = 0
    for name in names:
        size = 4 * _BATCH
        for axis in shapes[name]:
            size *= axis
        if groups[-1] and filled + size > _CHUNK_BYTES:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    return groups
