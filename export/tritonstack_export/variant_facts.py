"""What the manifest of a variant says of it: how it was made, from what, and what was measured. JSON values only."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tritonstack_export.precision.int8_model import Int8Result
    from tritonstack_export.precision.low_precision import FloatConversion
    from tritonstack_export.precision.variant_gates import VariantRow
    from tritonstack_export.variant import Variant
    from tritonstack_export.variant_samples import VariantSamples

VARIANT_KEYS = (
    "made_from", "gates", "accuracy", "allowed_drop", "conversion", "served_path", "preflight", "latency",
)  # fmt: skip


def variant_facts(variant: Variant, samples: VariantSamples | None) -> dict[str, Any]:
    """The fields that belong to one variant; those that do not apply are left out."""
    measured = variant.measured
    facts: dict[str, Any] = {}
    if variant.made_from is not None:
        facts["made_from"] = {"precision": "fp32", "sha256": variant.made_from}
    if measured.floats is not None:
        facts["conversion"] = _float_facts(measured.floats)
    if measured.int8 is not None:
        facts["conversion"] = _int8_facts(measured.int8)
    if measured.rows:
        facts["gates"] = {
            "compared_on": samples.origin if samples is not None else "",
            "samples": len(samples.gates) if samples is not None else 0,
            "waived": measured.waived,
            "rows": [_row_facts(row) for row in measured.rows],
        }
    if measured.accuracy is not None:
        drop = measured.accuracy
        facts["accuracy"] = {
            "metric": drop.metric,
            "samples": drop.count,
            "value": drop.value,
            "reference": drop.reference,
            "drop_points": round(drop.drop, 6),
            "max_drop_points": drop.max_drop,
            "agreement": drop.agreement,
        }
    elif measured.reference_accuracy is not None and variant.precision == "fp32":
        own = measured.reference_accuracy
        facts["accuracy"] = {"metric": own.metric, "samples": own.count, "value": own.value}
    if measured.allowed_drop is not None:
        facts["allowed_drop"] = measured.allowed_drop
    if measured.served is not None:
        facts["served_path"] = {
            "usable": measured.served.usable,
            "remarks": list(measured.served.remarks),
            "parameters": dict(measured.served.parameters),
        }
    if measured.preflight is not None:
        result = measured.preflight
        facts["preflight"] = {
            "builder": result.builder,
            "compute_capabilities": list(result.compute_capabilities),
            "passed": result.passed,
            "layers": result.layers,
            "precision": result.precision,
        }
    if measured.latency:
        facts["latency"] = [
            {"batch": row.batch, "p50_ms": row.p50_ms, "p90_ms": row.p90_ms, "samples_per_s": row.samples_per_s}
            for row in measured.latency
        ]
    return facts


def _float_facts(made: FloatConversion) -> dict[str, Any]:
    return {
        "by": "nvidia-modelopt AutoCast",
        "nodes": {made.precision: made.low, "fp32": made.total - made.low},
        "fp32_islands": [
            {"node": island.node, "operator": island.operator, "reason": island.reason} for island in made.islands
        ],
    }


def _int8_facts(made: Int8Result) -> dict[str, Any]:
    return {
        "by": "Q/DQ, symmetric, per-channel weights",
        "method": made.method,
        "layers": {"int8": made.quantized, "total": made.total},
        "calibration": {"samples": made.calibration_samples, "sha256": made.calibration_sha256},
        "excluded": [
            {
                "node": layer.name,
                "operator": layer.op_type,
                "reason": layer.reason,
                "sensitivity_db": number(layer.sensitivity_db),
                "gain_db": number(layer.gain_db),
                "macs_share": round(layer.macs_share, 6),
                "bytes_share": round(layer.bytes_share, 6),
            }
            for layer in made.excluded
        ],
    }


def _row_facts(row: VariantRow) -> dict[str, Any]:
    distance = row.distance
    return {
        "output": row.output,
        "batch": row.batch,
        "against": row.against,
        **{
            key: number(getattr(distance, key))
            for key in ("snr_db", "cosine", "max_rel", "max_abs", "equal", "channel_db")
            if getattr(distance, key) is not None
        },
        "passed": row.problem is None,
    }


def number(value: float | None) -> float | None:
    """JSON has no infinity: an exact result has no noise and so no SNR, which is None."""
    return value if value is not None and math.isfinite(value) else None
