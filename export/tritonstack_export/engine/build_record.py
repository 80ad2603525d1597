"""What the cache and the repository keep of a build, as JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tritonstack.errors import RepositoryError
from tritonstack_export.engine.build import BuildOutcome, EngineTensor
from tritonstack_export.engine.engine_config import EngineInterface
from tritonstack_export.engine.machine import Machine
from tritonstack_export.engine.plan_record import SCHEMA_VERSION
from tritonstack_export.engine.settings import BuildSettings

_WORDS = (("INT8", "int8"), ("HALF", "fp16"), ("BF16", "bf16"), ("FLOAT", "fp32"))
"""Lowest first: a network with Quantize layers is INT8 whatever its other layers are."""


def build_record(
    parts: Mapping[str, Any], outcome: BuildOutcome, machine: Machine, settings: BuildSettings, *, model: str
) -> dict[str, Any]:
    """The record of an engine. `parts` made its key; `precision` is read back, `precision_asked` is what was wanted."""
    precision, source = precision_of(outcome)
    return {
        "schema_version": SCHEMA_VERSION,
        **parts,
        "model": model,
        "gpu": machine.gpu,
        "driver": machine.driver,
        "built_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": outcome.seconds,
        "peak_rss_bytes": outcome.peak_rss_bytes,
        "precision_asked": settings.precision,
        "precision": precision,
        "precision_read_from": source,
        "layers": outcome.layers,
        "layer_types": dict(sorted(outcome.types.items())),
        "executed": outcome.summary.as_dict() if outcome.summary is not None else None,
        "inputs": [_described(tensor) for tensor in outcome.inputs],
        "outputs": [_described(tensor) for tensor in outcome.outputs],
        "warnings": list(outcome.warnings),
    }


def precision_of(outcome: BuildOutcome) -> tuple[str, str]:
    """(precision, where it was read: ``engine``, or ``network`` where the engine could not be opened)."""
    if outcome.summary is not None and outcome.summary.detailed and outcome.summary.executed is not None:
        return outcome.summary.executed, "engine"
    return next((word for name, word in _WORDS if name in outcome.types), "other"), "network"


def interface_of(record: Mapping[str, Any]) -> EngineInterface:
    """What an engine takes and gives, from its record. Raises RepositoryError for a record that does not say it."""
    try:
        return _interface(record)
    except (KeyError, TypeError, IndexError, AttributeError):
        raise RepositoryError(
            "the record of the engine does not say what it takes and gives",
            next_step="remove model.plan.json, or the engine in the cache, and build it again",
        ) from None


def _interface(record: Mapping[str, Any]) -> EngineInterface:
    inputs = tuple(map(_tensor, record["inputs"]))
    batched = {tensor.name for tensor in inputs if tensor.shape and tensor.shape[0] < 0}
    # Of each profile the smallest over the inputs, as Triton takes it.
    batches = tuple(
        min((bounds[2][0] for name, bounds in profile.items() if name in batched), default=None)
        for profile in record["settings"]["profiles"]
    )
    return EngineInterface(
        inputs=inputs,
        outputs=tuple(map(_tensor, record["outputs"])),
        batches=batches,
    )


def _described(tensor: EngineTensor) -> dict[str, Any]:
    return {"name": tensor.name, "dtype": tensor.dtype, "shape": None if tensor.shape is None else list(tensor.shape)}


def _tensor(entry: Mapping[str, Any]) -> EngineTensor:
    shape = entry["shape"]
    return EngineTensor(entry["name"], entry["dtype"], None if shape is None else tuple(shape))
