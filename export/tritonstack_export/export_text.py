"""The result of an export for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tritonstack_export.model_export import ExportResult, VariantResult


def as_json(result: ExportResult) -> dict[str, Any]:
    """What ``--json`` prints."""
    main = result.main
    return {
        "name": main.name,
        "version": main.version,
        "path": str(main.path),
        "created": result.created,
        "precision": main.precision,
        "files": dict(main.files),
        **main.tensors,
        "variants": [_variant_json(variant) for variant in result.variants],
        "image_entries": [
            {"name": path.parent.name, "version": int(path.name), "path": str(path)} for path in result.image_entries
        ],
        "parity": {
            "compared_with": result.compared_with,
            "sizes": [dict(sizes) for sizes in result.sizes],
            "outputs": {
                name: {"max_abs": d.max_abs, "max_rel": d.max_rel, "cosine": d.cosine}
                for name, d in result.parity.items()
            },
        },
        "seconds": dict(result.seconds),
        "notes": list(result.notes),
    }


def _variant_json(variant: VariantResult) -> dict[str, Any]:
    from tritonstack_export.variant_facts import VARIANT_KEYS

    own = {key: variant.facts[key] for key in VARIANT_KEYS if key in variant.facts}
    return {
        "name": variant.name,
        "precision": variant.precision,
        "version": variant.version,
        "path": str(variant.path),
        "files": dict(variant.files),
        **variant.tensors,
        **own,
    }


def as_text(result: ExportResult) -> str:
    """What is printed otherwise."""
    from tritonstack.terminal import human_bytes, human_seconds, table
    from tritonstack_export.gates import sizes_text

    where = [f"{v.name} version {v.version}: {v.path}" for v in result.variants]
    where += [f"{path.parent.name} version {path.name}: {path}" for path in result.image_entries]
    if not result.created:
        return "\n".join(f"up to date: {line}" for line in where)
    details = {
        "check": "onnx.checker, strict shape inference",
        "parity": f"ONNX Runtime against {result.compared_with}, at {len(result.sizes)} sizes",
        "runs": "ONNX Runtime alone: no PyTorch model to compare with",
        "publish": human_bytes(sum(size for variant in result.variants for size in variant.files.values())),
    }
    rows = [(step, human_seconds(seconds), details.get(step, "")) for step, seconds in result.seconds.items()]
    rows.append(("total", human_seconds(sum(result.seconds.values())), ""))
    parts = [table(("step", "time", "result"), rows, align="<><")]
    if result.parity:
        distances = [
            (name, f"{d.max_abs:.2g}", f"{d.max_rel:.2g}", f"{d.cosine:.7f}") for name, d in result.parity.items()
        ]
        parts.append(table(("output", "max abs", "max rel", "cosine"), distances, align="<>>>"))
        parts.append("compared at " + "; ".join(sizes_text(sizes) for sizes in result.sizes))
    if len(result.variants) > 1 or result.variants[0].precision != "fp32":
        parts.append(_variants_table(result))
    parts.append("\n".join(f"published {line}" for line in where))
    return "\n\n".join(parts)


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
