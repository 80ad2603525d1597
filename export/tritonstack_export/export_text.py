"""The result of an export for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tritonstack_export.model_export import ExportResult, VariantResult


def _variants_table(result: ExportResult) -> str:
    from tritonstack.terminal import human_bytes, table

    rows = []
    for variant in result.variants:
        facts = variant.facts
        decibels = [row.get("snr_db") for row in facts.get("gates", {}).get("rows", ()) if row["against"] == "fp32"]
        lowest = min((value for value in decibels if value is not None), default=None)
        accuracy = facts.get("accuracy", {})
        metric = f"{100 * accuracy['value']:.2f} %" if accuracy else "–"
        lost = f"{accuracy['drop_points']:+.2f}" if "drop_points" in accuracy else "–"
        rows.append(
            (
                variant.name,
                variant.precision,
                human_bytes(sum(variant.files.values())),
                "–" if lowest is None else f"{lowest:.1f}",
                metric,
                lost,
                _kept_text(facts.get("conversion", {})),
            )
        )
    header = ("variant", "precision", "size", "lowest SNR dB", "accuracy", "points lost", "kept in FP32")
    return table(header, rows, align="<<>>>><")


def _kept_text(conversion: dict[str, Any]) -> str:
    if "fp32_islands" in conversion:
        nodes = conversion["nodes"]
        return f"{nodes['fp32']} of {sum(nodes.values())} nodes"
    if "layers" in conversion:
        layers = conversion["layers"]
        return f"{layers['total'] - layers['int8']} of {layers['total']} layers"
    return "all"
