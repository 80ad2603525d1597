"""The report of an export, from what its steps measured; also of one that a gate stopped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tritonstack_export.report import data
from tritonstack_export.variant_facts import number

if TYPE_CHECKING:
    from tritonstack.errors import GateError
    from tritonstack_export.converted_model import Converted
    from tritonstack_export.precision.int8_model import Int8Result
    from tritonstack_export.precision.variant_gates import Limits, VariantRow
    from tritonstack_export.spec import ModelSpec
    from tritonstack_export.step_record import Record
    from tritonstack_export.variant import Measured, Variant
    from tritonstack_export.variant_making import VariantMaker

_MEASURES: tuple[tuple[str, data.Direction], ...] = (
    ("snr_db", "least"), ("cosine", "least"), ("equal", "least"), ("channel_db", "least"),
    ("max_rel", "most"), ("max_abs", "most"),
)  # fmt: skip


def export_report(
    spec: ModelSpec,
    maker: VariantMaker,
    *,
    sizes: Mapping[str, int],
    command: str,
    repository: str,
    published: Mapping[str, tuple[int, str]],
    error: GateError | None,
    record: Record,
) -> data.ExportReport:
    """`sizes`: bytes of each variant by its name. `published`: name -> (version, path), empty where nothing was
    published. `error`: what stopped the export, if that was not the gate of a variant in `maker.refused`."""
    from tritonstack_export.report.environment import read_environment

    rows = [_variant(variant, maker.converted, sizes, published) for variant in maker.made]
    if maker.refused is not None:
        refused = maker.refused
        rows.append(
            replace(
                _measured(refused.measured, data.Variant(name=refused.name, precision=refused.precision)),
                error=str(refused.error),
            )
        )
    elif error is not None and rows and all(row.passed for row in rows):
        rows[-1] = replace(rows[-1], error=str(error))
    samples = maker.samples
    return data.ExportReport(
        model=spec.name,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        environment=read_environment(),
        variants=tuple(rows),
        repository=repository,
        default_variant=spec.name,
        published=bool(published),
        calibration=_data_text(samples.calibration) if samples is not None else "",
        evaluation=_data_text(samples.evaluation) if samples is not None else "",
        seconds=dict(record.seconds),
        notes=tuple(record.notes),
    )


def _data_text(dataset: object) -> str:
    return f"{len(dataset)} samples from {dataset.source}" if dataset is not None else ""  # type: ignore[arg-type, attr-defined]


def _variant(
    variant: Variant, converted: Converted, sizes: Mapping[str, int], published: Mapping[str, tuple[int, str]]
) -> data.Variant:
    version, path = published.get(variant.name, (None, None))
    row = data.Variant(
        name=variant.name,
        precision=variant.precision,
        path=path,
        version=version,
        sha256=variant.sha256,
        size_bytes=sizes.get(variant.name),
        made_from=variant.made_from,
        compared_with="FP32" if variant.made_from is not None else converted.compared_with,
    )
    if variant.made_from is None:
        row = replace(row, rows=_parity_rows(converted))
    return _measured(variant.measured, row)


def _parity_rows(converted: Converted) -> tuple[data.NumericRow, ...]:
    rows = []
    for row in converted.parity:
        tolerance = converted.tolerances[row.output]
        gates = (
            data.GateLimit("cosine", number(row.distance.cosine), tolerance.cosine, "least", not row.distance.problem),
        )
        rows.append(
            data.NumericRow(
                output=row.output,
                sizes=dict(row.sizes),
                max_abs=number(row.distance.max_abs),
                max_rel=number(row.distance.max_rel),
                cosine=number(row.distance.cosine),
                gates=gates,
                problem=row.distance.problem,
            )
        )
    return tuple(rows)


def _measured(measured: Measured, row: data.Variant) -> data.Variant:
    """`row` with everything that was measured."""
    changes: dict[str, object] = {"latency": measured.latency}
    if measured.rows:
        against = [entry for entry in measured.rows if entry.against == "fp32"]
        alone = [entry for entry in measured.rows if entry.against != "fp32"]
        changes["rows"] = tuple(_numeric_row(entry, waived=measured.waived) for entry in against)
        if alone:
            failed = next((entry for entry in alone if entry.problem), None)
            largest = [entry.distance.max_abs for entry in alone if entry.distance.max_abs is not None]
            changes["independence"] = data.BatchIndependence(
                passed=failed is None or measured.waived,
                largest=number(max(largest)) if largest else None,
                detail=f"{failed.output}: {failed.problem}" if failed is not None else "",
            )
    if measured.accuracy is not None:
        drop = measured.accuracy
        changes["accuracy"] = data.Accuracy(
            metric=drop.metric,
            value=drop.value,
            samples=drop.count,
            reference=drop.reference,
            drop=drop.drop,
            max_drop=drop.max_drop,
            agreement=drop.agreement,
            allow_drop=measured.allowed_drop,
            passed=drop.passed,
        )
    elif measured.reference_accuracy is not None and row.precision == "fp32":
        own = measured.reference_accuracy
        changes["accuracy"] = data.Accuracy(metric=own.metric, value=own.value, samples=own.count)
    if measured.floats is not None:
        made = measured.floats
        changes["nodes"] = {made.precision: made.low, "fp32": made.total - made.low}
        changes["islands"] = tuple(data.Island(i.node, i.operator, i.reason) for i in made.islands)
    if measured.int8 is not None:
        changes["layers_quantized"] = measured.int8.quantized
        changes["nodes"] = {
            "int8": measured.int8.quantized, "float": measured.int8.total - measured.int8.quantized
        }  # fmt: skip
        changes["excluded"] = _excluded(measured.int8)
    if measured.served is not None:
        served = measured.served
        changes["served"] = data.ServedPath(
            passed=True, detail=" ".join(served.remarks) or "right as it is served", options=dict(served.parameters)
        )
    if measured.preflight is not None:
        changes["preflight"] = (measured.preflight.as_report_row(),)
    return replace(row, **changes)  # type: ignore[arg-type]


def _numeric_row(row: VariantRow, *, waived: bool) -> data.NumericRow:
    distance = row.distance
    return data.NumericRow(
        output=row.output,
        sizes={"batch": row.batch} if row.batch else {},
        max_abs=number(distance.max_abs),
        max_rel=number(distance.max_rel),
        cosine=number(distance.cosine),
        snr_db=number(distance.snr_db),
        gates=() if waived else _limits(row, row.limits),
        problem=distance.problem,
    )


def _limits(row: VariantRow, limits: Limits) -> tuple[data.GateLimit, ...]:
    gates = []
    for metric, direction in _MEASURES:
        limit, value = getattr(limits, metric), getattr(row.distance, metric)
        if limit is None or value is None:
            continue
        passed = value >= limit if direction == "least" else value <= limit
        gates.append(data.GateLimit(metric, number(value), limit, direction, passed))
    return tuple(gates)


def _excluded(made: Int8Result) -> tuple[data.ExcludedLayer, ...]:
    return tuple(
        data.ExcludedLayer(
            node=layer.name,
            operator=layer.op_type,
            gain_db=number(layer.gain_db),
            macs_share=layer.macs_share,
            bytes_share=layer.bytes_share,
            by_hand=layer.sensitivity_db is None,
        )
        for layer in made.excluded
    )
