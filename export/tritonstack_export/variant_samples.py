"""The inputs that variants are made and judged on: real ones where the spec names data, else random ones in range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tritonstack_export.samples import Array, random_inputs
from tritonstack_export.spec import BATCH

if TYPE_CHECKING:
    from tritonstack_export.loaded_model import LoadedModel
    from tritonstack_export.precision.dataset import Dataset
    from tritonstack_export.signature import Signature
    from tritonstack_export.spec import ModelSpec
    from tritonstack_export.step_record import Record

GATE_SAMPLES = 64
"""Numeric gates see at most this many samples, spread evenly; accuracy is counted on all of them."""
_RANDOM_SAMPLES = 16

Samples = Sequence[Mapping[str, Array]]


@dataclass(frozen=True)
class VariantSamples:
    """`ranges`: what value ranges are observed on. `gates`: what outputs are compared on. Both in the form the model
    takes, with a batch of one or more. `origin`: in words, where `gates` come from. `made_up`: random, on which outputs
    of a trained model vary less than on real inputs, so that less is asked of their signal-to-noise ratio."""

    ranges: Samples
    gates: Samples
    calibration: Dataset | None
    evaluation: Dataset | None
    origin: str
    made_up: bool = False


def read_samples(
    spec: ModelSpec,
    model: LoadedModel,
    signature: Signature,
    folder: Path,
    *,
    labels: Sequence[str] | None,
    record: Record,
) -> VariantSamples:
    """Read the data sets of the spec. Calibration samples that the evaluation holds too are left out, with a note.

    Raises UsageError for keys that lead nowhere, InputError for data that do not fit the model.
    """
    from tritonstack_export.precision import dataset, dataset_sources

    evaluation = dataset_sources.read_evaluation(spec, signature, folder, labels=labels)
    calibration = None
    if spec.calibration is not None or "int8" in spec.precision.variants:
        calibration = dataset_sources.read_calibration(spec, signature, folder)
        if evaluation is not None and spec.calibration is not None:
            calibration = dataset.without_leaks(calibration, evaluation)
            dataset.require_enough(calibration, spec.calibration.min_samples)
    for data in (calibration, evaluation):
        for remark in data.remarks if data is not None else ():
            record.note(remark)
    if evaluation is not None:
        gates, origin = evenly(evaluation.samples, GATE_SAMPLES), "`evaluation`"
    elif calibration is not None:
        gates, origin = evenly(calibration.samples, GATE_SAMPLES), "`calibration`"
    else:
        gates, origin = _made_up(spec, model, signature), "random data"
        record.note(
            "variants were judged on random inputs within `range`, since the spec names neither `calibration` nor "
            "`evaluation`: real inputs may reach other ranges"
        )
    ranges = calibration.samples if calibration is not None else gates
    made_up = evaluation is None and calibration is None
    return VariantSamples(ranges, gates, calibration, evaluation, origin, made_up)


def evenly(samples: Samples, most: int) -> Samples:
    """At most `most` samples, spread over all of them."""
    count = min(most, len(samples))
    return [samples[index * len(samples) // count] for index in range(count)]


def _made_up(spec: ModelSpec, model: LoadedModel, signature: Signature) -> Samples:
    """Random inputs, and the factory's own example: its values are what the model is made for."""
    samples: list[Mapping[str, Array]] = []
    example = _example(model, signature)
    if example is not None:
        samples.append(example)
    sizes = signature.sizes(**({BATCH: signature.dimensions[BATCH].min} if signature.batched else {}))
    samples += [random_inputs(signature, sizes, seed=spec.parity.seed + 100 + n) for n in range(_RANDOM_SAMPLES)]
    return samples


def _example(model: LoadedModel, signature: Signature) -> Mapping[str, Array] | None:
    """The example inputs where they fit the signature as they are, else None."""
    examples = model.built.examples if model.built is not None else ()
    if len(examples) != len(signature.inputs):
        return None
    values = {}
    by_name = {name: tensor for name, tensor in examples if name is not None}
    for (_, positional), tensor in zip(examples, signature.inputs, strict=True):
        value = by_name.get(tensor.parameter or tensor.name, positional).detach().cpu().numpy()
        shape = tensor.shape
        fits = value.ndim == len(shape) and all(
            not isinstance(axis, int) or axis == size for axis, size in zip(shape, value.shape, strict=True)
        )
        if not fits or str(value.dtype) != tensor.dtype or (value.ndim and value.shape[0] == 0):
            return None
        values[tensor.name] = value
    if signature.batched and not (signature.dimensions[BATCH].min <= len(next(iter(values.values())))):
        return None
    return values
