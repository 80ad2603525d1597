"""How much noise each layer alone brings into the outputs when it is quantized."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tritonstack.terminal import Progress
from tritonstack_export.precision.dataset import batches
from tritonstack_export.precision.float_graph import FloatGraph, GraphSession
from tritonstack_export.precision.quantizable_layers import Layer
from tritonstack_export.precision.quantization import Quantizer
from tritonstack_export.samples import Array
from tritonstack_export.signature import Signature

_BATCH = 8
NOISELESS_DB = 200.0
"""Stands for no difference at all."""


@dataclass(frozen=True)
class LayerSensitivity:
    """`snr_db`: signal to noise of the worst output when only this layer is quantized; low means sensitive."""

    layer: Layer
    snr_db: float
    output: str


Outputs = list[dict[str, Array]]


def run_all(session: GraphSession, samples: Sequence[Mapping[str, Array]], signature: Signature) -> Outputs:
    """The outputs of each sample, in order."""
    found: Outputs = [{} for _ in samples]
    for indices, inputs in batches(samples, signature, size=_BATCH):
        for name, value in session.run(inputs).items():
            for position, index in enumerate(indices):
                found[index][name] = value[position : position + 1] if signature.batched else value
    return found


def snr_db(reference: Outputs, found: Outputs, name: str) -> float:
    """10 · log10(signal / noise) of one output over all samples.

    Noise is the sum of squared differences. Signal is the sum of squares about the mean over the samples (per element
    where all have one shape, else over everything), so a constant offset that tells nothing apart does not count as
    signal. Whole numbers and booleans: the share of differing elements is the noise, and 1 the signal.
    """
    expected = [outputs[name] for outputs in reference]
    values = [outputs[name] for outputs in found]
    if expected[0].dtype.kind not in "f":
        different = sum(int(np.count_nonzero(a != b)) for a, b in zip(expected, values, strict=True))
        return _decibels(float(sum(a.size for a in expected)), float(different))
    noise = math.fsum(_squares(a.astype(np.float64) - b) for a, b in zip(expected, values, strict=True))
    if len({a.shape for a in expected}) == 1 and len(expected) > 1:
        mean = np.mean(np.stack(expected, dtype=np.float64), axis=0)
    else:
        mean = np.asarray(math.fsum(float(a.sum()) for a in expected) / max(1, sum(a.size for a in expected)))
    signal = math.fsum(_squares(a - mean) for a in expected)
    return _decibels(signal, noise)


def _squares(values: Array) -> float:
    return float(np.vdot(values, values))


def _decibels(signal: float, noise: float) -> float:
    if not math.isfinite(noise):
        return -NOISELESS_DB
    if noise == 0:
        return NOISELESS_DB
    if signal == 0:
        return -NOISELESS_DB
    return max(-NOISELESS_DB, min(NOISELESS_DB, 10 * math.log10(signal / noise)))


def worst_output(reference: Outputs, found: Outputs) -> tuple[float, str]:
    """(SNR in dB, name) of the output that suffers most."""
    return min((snr_db(reference, found, name), name) for name in reference[0])


def measure_sensitivity(
    graph: FloatGraph,
    quantizer: Quantizer,
    layers: Sequence[Layer],
    samples: Sequence[Mapping[str, Array]],
    signature: Signature,
    progress: Progress,
) -> list[LayerSensitivity]:
    """Each layer alone in INT8 against FP32 on the samples; the most sensitive first, ties in the graph's order."""
    outputs = [value.name for value in graph.skeleton.graph.output]
    reference = run_all(graph.session(graph.copy(), outputs), samples, signature)
    measured = []
    for number, layer in enumerate(layers, start=1):
        progress.update(f"  … sensitivity: layer {number} of {len(layers)}")
        model, arrays = quantizer.quantize([layer])
        found = run_all(graph.session(model, outputs, arrays), samples, signature)
        decibels, output = worst_output(reference, found)
        measured.append(LayerSensitivity(layer, decibels, output))
    return sorted(measured, key=lambda entry: entry.snr_db)
