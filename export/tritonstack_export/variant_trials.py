"""What is tried with finished variants before they are published: pre-flight builds, and latency on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tritonstack.errors import GateError

if TYPE_CHECKING:
    from tritonstack_export.converted_model import Converted
    from tritonstack_export.signature import Signature
    from tritonstack_export.spec import ModelSpec
    from tritonstack_export.step_record import Record
    from tritonstack_export.variant import Variant


def preflight_variants(
    variants: Sequence[Variant],
    converted: Converted,
    spec: ModelSpec,
    compute_capabilities: Sequence[str],
    record: Record,
) -> list[Variant]:
    """Build every variant with TensorRT for RTX and throw the engines away; see require_preflight."""
    from tritonstack_export.engine.profile import Extent, InputShape, profiles_from_spec
    from tritonstack_export.engine.settings import settings_from_spec
    from tritonstack_export.preflight.onnx_preflight import preflight_onnx
    from tritonstack_export.preflight.result_cache import ResultCache

    extents = {d.name: Extent(d.min, d.opt, d.max) for d in converted.signature.dimensions.values()}
    tried = []
    for variant in variants:
        shapes = [InputShape(tensor.name, tuple(tensor.shape)) for tensor in converted.signature.inputs]
        settings = settings_from_spec(
            spec.engine, profiles_from_spec(spec.engine, shapes, extents), precision=variant.precision
        )
        with record.step(f"{variant.precision} pre-flight"):
            result = preflight_onnx(
                variant.graph,
                settings,
                compute_capabilities=compute_capabilities,
                cache=ResultCache(),
                progress=record.progress,
            )
        tried.append(variant.with_measured(preflight=result))
    return tried


def require_preflight(variants: Sequence[Variant]) -> None:
    """Raises GateError for the first variant that TensorRT for RTX refused, and names the others."""
    failed = [
        (variant, variant.measured.preflight.problem)
        for variant in variants
        if variant.measured.preflight is not None and variant.measured.preflight.problem is not None
    ]
    if not failed:
        return
    variant, problem = failed[0]
    others = ", ".join(other.precision for other, _ in failed[1:])
    raise GateError(
        f"{variant.precision}: the pre-flight fails: {problem.summary}" + (f" (so do {others})" if others else ""),
        given=problem.given,
        next_step=problem.remedy,
    )


def time_variants(variants: Sequence[Variant], signature: Signature, record: Record) -> list[Variant]:
    """Latency of the variants with ONNX Runtime on this CPU, with the session options that each is served with."""
    from tritonstack_export.report.latency import Candidate, measure_latency

    usable = [variant for variant in variants if not variant.extras.gpu_only]
    with record.step("latency"):
        found = measure_latency(
            [Candidate(v.name, v.graph, dict(v.extras.parameters), v.extras.graph_level or 0) for v in usable],
            signature,
        )
    return [variant.with_measured(latency=found.get(variant.name, ())) for variant in variants]
