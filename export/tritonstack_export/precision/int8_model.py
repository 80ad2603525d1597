"""From an FP32 file and calibration samples to an INT8 file that passes its gates."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tritonstack.errors import GateError, InputError
from tritonstack_export.converted_model import check_file
from tritonstack_export.onnx_graph import strip_metadata
from tritonstack_export.precision import layer_fallback, layer_sensitivity
from tritonstack_export.precision.calibration import Observed, observe
from tritonstack_export.precision.dataset import Dataset
from tritonstack_export.precision.dataset_sources import spread
from tritonstack_export.precision.float_graph import FloatGraph, load_graph
from tritonstack_export.precision.layer_fallback import Gate, Verdict
from tritonstack_export.precision.layer_sensitivity import LayerSensitivity
from tritonstack_export.precision.quantizable_layers import (
    Layer,
    find_layers,
    name_nodes,
    require_quantizable,
    without,
)
from tritonstack_export.precision.quantization import Quantizer
from tritonstack_export.signature import Signature
from tritonstack_export.spec_precision import Int8Settings
from tritonstack_export.step_record import Record

if TYPE_CHECKING:
    from onnx import ModelProto


@dataclass(frozen=True)
class ExcludedLayer:
    """A layer kept in float. `sensitivity_db`: SNR of the worst output with this layer alone in INT8; None where it
    was excluded by the spec and not measured. `gain_db`: by how much the SNR rises when it is given back after those
    before it, predicted from the noise of single layers. `macs_share`, `bytes_share`: of all quantizable layers, 0 to
    1.
    """

    name: str
    op_type: str
    reason: str
    sensitivity_db: float | None
    gain_db: float | None
    macs_share: float
    bytes_share: float


@dataclass(frozen=True)
class Int8Result:
    """`total`: quantizable layers. `sensitivity`: of every layer, most sensitive first; empty where the gates passed
    at once. `checks`: (layers given back, verdict) in rising order. `verdict`: that of the file at
    `path`. `seconds`: by phase."""

    path: Path
    quantized: int
    total: int
    excluded: tuple[ExcludedLayer, ...]
    method: str
    calibration_samples: int
    calibration_sha256: str
    sensitivity: tuple[LayerSensitivity, ...]
    checks: tuple[tuple[int, Verdict], ...]
    verdict: Verdict
    seconds: Mapping[str, float]

    @property
    def macs_share(self) -> float:
        """Share of the multiply-accumulates of all quantizable layers that runs in float."""
        return sum(layer.macs_share for layer in self.excluded)

    @property
    def bytes_share(self) -> float:
        """Share of the weights of all quantizable layers that stays in float."""
        return sum(layer.bytes_share for layer in self.excluded)

    def text(self) -> str:
        """``44 of 50 layers in INT8; 6 in FP32 (31.0 % of the MACs, 2.1 % of the weights): …``."""
        head = f"{self.quantized} of {self.total} layers in INT8"
        if not self.excluded:
            return head
        named = ", ".join(layer.name for layer in self.excluded[:6])
        more = f" and {len(self.excluded) - 6} more" if len(self.excluded) > 6 else ""
        return (
            f"{head}; {len(self.excluded)} in float ({self.macs_share:.1%} of the multiply-accumulates, "
            f"{self.bytes_share:.1%} of the weights): {named}{more}"
        )


@dataclass
class _Plan:
    """What all candidates share."""

    graph: FloatGraph
    layers: list[Layer]
    observed: Observed
    scales: Mapping[str, float]
    quantizer: Quantizer
    published: Mapping[str, Layer]
    """The layers by name in the graph that is written: that of `quantizer`, FP32 or FP16."""
    order: list[LayerSensitivity] = field(default_factory=list)

    def write(self, layers: Sequence[Layer], target: Path) -> None:
        model, arrays = self.quantizer.quantize([self.published[layer.name] for layer in layers])
        _finish(model)
        self.quantizer.graph.write(model, arrays, target)


def make_int8(
    path: Path,
    calibration: Dataset,
    signature: Signature,
    settings: Int8Settings,
    *,
    passes: Gate,
    out: Path,
    record: Record,
    half: Path | None = None,
) -> Int8Result:
    """Quantize the FP32 file at `path` and write `out`; blocks until the gates pass.

    `passes` judges a candidate file; it is asked first with every layer quantized, and again as sensitive layers are
    given back. `half`: the FP16 variant of the same file, which is the rest of the model where `settings.rest` is
    fp16. Raises UsageError for `exclude`, InputError for a model that cannot be quantized, GateError when the gates
    cannot be passed; `out` is then not written.
    """
    seconds: dict[str, float] = {}
    if settings.rest == "fp16" and half is None:
        raise InputError("precision.int8.rest is fp16, yet no FP16 model was made to take the rest from")
    with record.step("calibrate"), _timed(seconds, "calibrate"):
        plan = _plan(path, half if settings.rest == "fp16" else None, calibration, signature, settings, record)
    excluded_by_spec = [layer for layer in plan.layers if layer.name in settings.exclude]
    chosen = without(plan.layers, settings.exclude)
    if not chosen:
        raise InputError("precision.int8.exclude leaves no layer to quantize", given=f"{len(plan.layers)} layers")
    with tempfile.TemporaryDirectory(prefix="tritonstack-int8-", dir=out.parent) as temporary:
        # Of the final name, which the graph holds where its weights lie in a file beside it.
        candidate = Path(temporary) / out.name
        with record.step("quantize"), _timed(seconds, "quantize"):
            plan.write(chosen, candidate)
            check_file(candidate)
            first = passes(candidate)
        checks: tuple[tuple[int, Verdict], ...] = ((0, first),)
        given_back: list[LayerSensitivity] = []
        if not first.passed:
            if settings.fallback is False:
                raise GateError(
                    f"int8 misses its gates with every layer quantized: {first.reason}",
                    next_step="let sensitive layers fall back (`precision.int8.fallback`), or try another `method`",
                )
            count = min(settings.fallback.samples, len(calibration))
            some = [calibration.samples[index] for index in spread(len(calibration), count)]
            with record.step("sensitivity"), _timed(seconds, "sensitivity"):
                single = Quantizer(plan.graph, plan.scales)
                plan.order = layer_sensitivity.measure_sensitivity(
                    plan.graph, single, chosen, some, signature, record.progress
                )

            def check(count: int) -> Verdict:
                back = {entry.layer.name for entry in plan.order[:count]}
                plan.write([layer for layer in chosen if layer.name not in back], candidate)
                return passes(candidate)

            with record.step("fallback"), _timed(seconds, "fallback"):
                choice = layer_fallback.choose(plan.order, check, settings.fallback, record.progress, first=first)
                given_back = plan.order[: choice.given_back]
                checks = choice.verdicts
                back = {entry.layer.name for entry in given_back}
                plan.write([layer for layer in chosen if layer.name not in back], candidate)
                check_file(candidate)
        for file in sorted(Path(temporary).iterdir()):
            shutil.move(file, out.with_name(file.name))
    return Int8Result(
        path=out,
        quantized=len(chosen) - len(given_back),
        total=len(plan.layers),
        excluded=_excluded(plan, excluded_by_spec, given_back),
        method=settings.method if settings.method != "percentile" else f"percentile {settings.percentile:g}",
        calibration_samples=len(calibration),
        calibration_sha256=calibration.sha256,
        sensitivity=tuple(plan.order),
        checks=checks,
        verdict=dict(checks)[len(given_back)],
        seconds=seconds,
    )


def _plan(
    path: Path,
    half: Path | None,
    calibration: Dataset,
    signature: Signature,
    settings: Int8Settings,
    record: Record,
) -> _Plan:
    graph = load_graph(path)
    require_quantizable(graph.skeleton, half=half is not None)
    name_nodes(graph.skeleton)
    layers = find_layers(graph, settings.op_types)
    if not layers:
        raise InputError(
            "the model has no layer that INT8 could run",
            given=f"no {', '.join(settings.op_types)} with constant weights",
            expected="at least one (`precision.int8.op_types`)",
            next_step="leave int8 out of `precision.variants`",
        )
    without(layers, settings.exclude)
    for remark in calibration.remarks:
        record.note(remark)
    observed = observe(graph, layers, calibration.samples, signature, record.progress)
    scales = observed.scales(layers, settings)
    rest, published = graph, {layer.name: layer for layer in layers}
    if half is not None:
        rest = load_graph(half)
        name_nodes(rest.skeleton)
        published = _same_layers(layers, find_layers(rest, settings.op_types))
    return _Plan(graph, layers, observed, scales, Quantizer(rest, scales), published)


def _same_layers(layers: Sequence[Layer], half: Sequence[Layer]) -> dict[str, Layer]:
    """The layers as they are in the FP16 graph, whose values have other names."""
    known = {layer.name: layer for layer in half}
    missing = [layer.name for layer in layers if layer.name not in known]
    if missing:
        raise GateError(f"the FP16 model has no layer {missing[0]!r} of the FP32 model", expected="the same nodes")
    return known


def _excluded(
    plan: _Plan, by_spec: Sequence[Layer], given_back: Sequence[LayerSensitivity]
) -> tuple[ExcludedLayer, ...]:
    macs = sum(plan.observed.macs.values()) or 1
    elements = sum(layer.elements for layer in plan.layers) or 1
    entries: list[tuple[Layer, str, float | None, float | None]] = [
        (layer, "excluded by the spec", None, None) for layer in by_spec
    ]
    gains = layer_fallback.predicted_gains(plan.order)
    entries += [(entry.layer, "sensitive", entry.snr_db, gain) for entry, gain in zip(given_back, gains, strict=False)]
    return tuple(
        ExcludedLayer(
            layer.name,
            layer.op_type,
            reason,
            decibels,
            gain,
            plan.observed.macs[layer.name] / macs,
            layer.elements / elements,
        )
        for layer, reason, decibels, gain in entries
    )


def _finish(model: ModelProto) -> None:
    """The same bytes for the same input: no notes of exporters, no shapes of values that are no more."""
    strip_metadata(model)
    known = {name for node in model.graph.node for name in node.output}
    for value in [value for value in model.graph.value_info if value.name not in known]:
        model.graph.value_info.remove(value)


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    start = time.monotonic()
    try:
        yield
    finally:
        seconds[phase] = round(time.monotonic() - start, 3)
