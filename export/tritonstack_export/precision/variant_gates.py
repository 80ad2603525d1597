"""The gates of a variant: every output for itself, at every batch size that matters, against FP32 on real inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tritonstack.errors import GateError, InputError
from tritonstack_export.precision.output_distance import OutputDistance, is_float, output_distance, spread_of
from tritonstack_export.precision.reference_runner import Runner
from tritonstack_export.samples import Array
from tritonstack_export.signature import Signature
from tritonstack_export.spec import BATCH

if TYPE_CHECKING:
    from tritonstack_export.spec_precision import PrecisionName, VariantGates

SAMPLES_PER_BATCH_SIZE = 32
"""At batches above the smallest about this many samples are compared; at the smallest all of them."""


MEASURES = ("snr_db", "cosine", "max_rel", "max_abs", "equal", "channel_db")


@dataclass(frozen=True)
class Limits:
    """What a row has to reach; None: not asked. Of `max_rel` and `max_abs` at most, of the others at least."""

    snr_db: float | None = None
    cosine: float | None = None
    max_rel: float | None = None
    max_abs: float | None = None
    equal: float | None = None
    channel_db: float | None = None


# Measured with real inputs; docs/precision.md has the table. The worst of EfficientNet-Lite0, MobileNetV2 and MiniLM
# reach 39 dB in FP16 and 28 dB in BF16; INT8 of all layers of EfficientNet-Lite0, 19 dB, changes 5 % of the top-1.
DEFAULT_LIMITS: dict[PrecisionName, Limits] = {
    "fp32": Limits(snr_db=60.0, cosine=0.99999, max_rel=0.01, equal=0.999, channel_db=40.0),
    "fp16": Limits(snr_db=35.0, cosine=0.999, max_rel=0.05, equal=0.98, channel_db=15.0),
    "bf16": Limits(snr_db=22.0, cosine=0.985, max_rel=0.15, equal=0.9, channel_db=5.0),
    "int8": Limits(snr_db=15.0, cosine=0.95, max_rel=0.4, equal=0.85, channel_db=0.0),
}
MADE_UP_DB = 17.0
"""Random inputs look alike to a trained model: its outputs hardly vary over them, and so little signal makes the same
noise look worse (EfficientNet-Lite0 in FP16: 30 dB on random inputs, 47 dB on photographs). A lost output has 0 dB."""

_RARE_PART = 0.5
"""Of `equal`: a mask that is 99 % background has to have at least this part of it right in the rest, too."""
_CHANNEL_SLACK_DB = 15.0
"""By how much the worst channel may lie below what is asked of the whole on random inputs. One that is lost has 0 dB or
less; of EfficientNet-Lite0's 1000 the worst reaches 40 dB in FP16, 23 in BF16 and 14 in INT8."""


@dataclass(frozen=True)
class VariantRow:
    """One output at one batch size. `batch` 0: the model has no batch. `against`: `fp32`, or `alone` for the same
    samples run by themselves. `problem`: why it does not pass, None when it does."""

    output: str
    batch: int
    against: str
    distance: OutputDistance
    limits: Limits
    problem: str | None


def limits_for(output: str, gates: VariantGates, precision: PrecisionName, *, made_up: bool = False) -> Limits:
    """Those of the output, else those of all outputs, else the defaults of the precision. `made_up`: for random inputs,
    on which 17 dB less are asked by default."""
    default = DEFAULT_LIMITS[precision]
    if made_up and default.snr_db is not None:
        asked = default.snr_db - MADE_UP_DB
        default = replace(default, snr_db=asked, channel_db=min(default.channel_db or 0.0, asked - _CHANNEL_SLACK_DB))
    own = gates.outputs.get(output)

    def chosen(name: str) -> float | None:
        for source in (own, gates):
            value = getattr(source, name, None)
            if value is not None:
                return float(value)
        return getattr(default, name)  # type: ignore[no-any-return]

    return Limits(*(chosen(name) for name in MEASURES))


def judge(distance: OutputDistance, limits: Limits) -> str | None:
    """Why a distance does not pass, with measure, number and limit; None when it does."""
    if distance.problem is not None:
        return distance.problem
    found = []
    for name, unit in (("snr_db", " dB"), ("cosine", ""), ("equal", "")):
        value, limit = getattr(distance, name), getattr(limits, name)
        if value is not None and limit is not None and value < limit:
            shown = {"snr_db": "SNR", "cosine": "cosine", "equal": "the share of equal values"}[name]
            found.append(f"{shown} is {value:.4g}{unit} where at least {limit:g}{unit} is needed")
    rare = distance.rare_equal
    if rare is not None and limits.equal is not None and rare < limits.equal * _RARE_PART:
        found.append(
            f"of the values other than the most frequent one only {rare:.1%} are equal where at least "
            f"{limits.equal * _RARE_PART:.1%} are needed"
        )
    value, limit = distance.channel_db, limits.channel_db
    if value is not None and limit is not None and value < limit:
        found.append(f"{distance.channel} is spoilt: its SNR is {value:.4g} dB where at least {limit:g} dB is needed")
    for name, shown in (("max_rel", "the largest difference over the spread"), ("max_abs", "the largest difference")):
        value, limit = getattr(distance, name), getattr(limits, name)
        if value is not None and limit is not None and value > limit:
            found.append(f"{shown} is {value:.4g} where at most {limit:g} is allowed")
    return "; ".join(found) or None


def compare_variant(
    reference: Runner,
    variant: Runner,
    samples: Sequence[Mapping[str, Array]],
    signature: Signature,
    gates: VariantGates,
    precision: PrecisionName,
    *,
    made_up: bool = False,
) -> list[VariantRow]:
    """One row for each output at batches 1, 2, opt and max (as far as they are served), and one more for each batch
    above the smallest that compares it with the same samples run alone.

    `samples`: inputs by name. With a batch, axis 0 of each is split into rows first; batches are made of rows of equal
    shapes, repeated where there are too few. `made_up`: they are random, see MADE_UP_DB. The reference runs at the
    smallest batch, so an output that depends on its companions differs from it. Raises InputError without samples and
    for gates of outputs that are not there.
    """
    return VariantComparison(reference, samples, signature, made_up=made_up).rows(variant, gates, precision)


class VariantComparison:
    """The reference's outputs on samples, for comparing several variants with them. See compare_variant."""

    def __init__(
        self,
        reference: Runner,
        samples: Sequence[Mapping[str, Array]],
        signature: Signature,
        *,
        made_up: bool = False,
    ) -> None:
        """Runs the reference. Raises InputError without samples."""
        self._made_up = made_up
        self._batched = signature.batched
        self._groups = _rows(samples, signature) if signature.batched else [[dict(sample)] for sample in samples]
        if not self._groups:
            raise InputError("no samples to compare a variant on", expected="at least one set of inputs")
        self._sizes = _batch_sizes(signature)
        self._expected = [_run(reference, group, self._sizes[0]) for group in self._groups]
        self._names = list(self._expected[0][0])
        flat = {name: [row[name] for group in self._expected for row in group] for name in self._names}
        self._spreads = {name: spread_of(values) for name, values in flat.items() if all(is_float(v) for v in values)}

    def rows(self, variant: Runner, gates: VariantGates, precision: PrecisionName) -> list[VariantRow]:
        """Raises InputError for gates of outputs that are not there, GateError where the variant cannot run."""
        _require_known_outputs(gates, self._names)
        limits = {name: limits_for(name, gates, precision, made_up=self._made_up) for name in self._names}
        rows: list[VariantRow] = []
        alone: list[list[dict[str, Array]]] = []
        for size in self._sizes:
            smallest = size == self._sizes[0]
            chosen = list(_all_rows(self._groups) if smallest else _some_rows(self._groups, size))
            found = [_run(variant, [self._groups[group][row] for row in members], size) for group, members in chosen]
            if smallest:
                alone = found
            values = [row for group in found for row in group]
            for against, source in (("fp32", self._expected), *(() if smallest else (("alone", alone),))):
                paired = [source[group][row] for group, members in chosen for row in members]
                for name in self._names:
                    distance = output_distance(
                        [row[name] for row in paired], [row[name] for row in values], spread=self._spreads.get(name)
                    )
                    problem = judge(distance, limits[name])
                    rows.append(VariantRow(name, size, against, distance, limits[name], problem))
        return rows


def _run(runner: Runner, rows: Sequence[Mapping[str, Array]], size: int) -> list[dict[str, Array]]:
    """The outputs of each row, run in batches of `size`; 0: each by itself, as it is."""
    if size == 0:
        return [runner.run(row) for row in rows]
    results: list[dict[str, Array]] = []
    for start in range(0, len(rows), size):
        members = [rows[(start + offset) % len(rows)] for offset in range(size)]
        inputs = {name: np.concatenate([row[name] for row in members]) for name in members[0]}
        outputs = runner.run(inputs)
        for name, value in outputs.items():
            if value.ndim == 0 or value.shape[0] != size:
                raise GateError(
                    f"output {name!r} does not follow the batch dimension",
                    given=f"shape {list(value.shape)} at batch {size}",
                    expected=f"{size} as its first dimension",
                )
        kept = min(size, len(rows) - start)
        results.extend(
            {name: value[index : index + 1].copy() for name, value in outputs.items()} for index in range(kept)
        )
    return results


def _rows(samples: Sequence[Mapping[str, Array]], signature: Signature) -> list[list[dict[str, Array]]]:
    """Single rows, in groups of equal shapes; the order within a group is that of the samples."""
    groups: dict[tuple[tuple[int, ...], ...], list[dict[str, Array]]] = {}
    names = [tensor.name for tensor in signature.inputs]
    for sample in samples:
        for index in range(sample[names[0]].shape[0]):
            row = {name: sample[name][index : index + 1] for name in names}
            groups.setdefault(tuple(value.shape for value in row.values()), []).append(row)
    return list(groups.values())


def _batch_sizes(signature: Signature) -> list[int]:
    if not signature.batched:
        return [0]
    batch = signature.dimensions[BATCH]
    return sorted({size for size in (1, 2, batch.min, batch.opt, batch.max) if batch.min <= size <= batch.max})


Group = Sequence[Mapping[str, Array]]


def _all_rows(groups: Sequence[Group]) -> Iterator[tuple[int, Sequence[int]]]:
    """(group, rows of it)."""
    yield from ((index, range(len(group))) for index, group in enumerate(groups))


def _some_rows(groups: Sequence[Group], size: int) -> Iterator[tuple[int, Sequence[int]]]:
    """(group, rows of it): about SAMPLES_PER_BATCH_SIZE rows, spread over the groups in proportion to their size.

    Where shapes differ a lot, as lengths of texts do, each group fills a batch of its own, mostly with repetitions:
    then only some groups are taken, from the smallest shape to the largest.
    """
    share = max(size, SAMPLES_PER_BATCH_SIZE)
    most = max(2, 2 * share // size)
    order = sorted(range(len(groups)), key=lambda index: sum(value.size for value in groups[index][0].values()))
    if len(order) > most:
        order = [order[position * (len(order) - 1) // (most - 1)] for position in range(most)]
    total = sum(len(groups[index]) for index in order)
    for index in sorted(order):
        rows = len(groups[index])
        count = rows if total <= share else max(1, round(share * rows / total))
        yield index, [position * rows // count for position in range(count)]


def _require_known_outputs(gates: VariantGates, names: Sequence[str]) -> None:
    for name in gates.outputs:
        if name not in names:
            raise InputError(
                f"gates.outputs: the model has no output {name!r}", expected=f"one of {', '.join(sorted(names))}"
            )


def require_gates(rows: Sequence[VariantRow], precision: PrecisionName, *, hint: str | None = None) -> None:
    """Raises GateError for the first row that does not pass. `hint`: what to try first, where somebody knows it."""
    failed = [row for row in rows if row.problem is not None]
    if not failed:
        return
    first = failed[0]
    where = f" at batch {first.batch}" if first.batch else ""
    if first.against == "alone":
        summary = f"{precision}: a sample's {first.output!r} depends on the others in its batch{where}: {first.problem}"
        next_step = "look for values computed over dimension 0 (dynamic quantization, norms, sorts)"
    else:
        summary = f"{precision}: output {first.output!r} is too far from FP32{where}: {first.problem}"
        next_step = hint or _NEXT_STEP[precision].format(output=first.output)
    others = sorted({row.output for row in failed} - {first.output})
    if others:
        summary += f" (so are {', '.join(map(repr, others))})"
    raise GateError(summary, given=f"{first.distance.samples} samples", next_step=next_step)


_NEXT_STEP: dict[PrecisionName, str] = {
    "fp32": "compare the two files node by node",
    "fp16": "keep the nodes that lose it in FP32 (precision.fp16.keep_fp32: names or operator types), try bf16 where "
    "ranges are wide, or set precision.fp16.gates.outputs.{output} to what the task allows",
    "bf16": "keep the nodes that lose it in FP32 (precision.bf16.keep_fp32), try fp16, which has 8 times the "
    "precision, or set precision.bf16.gates.outputs.{output} to what the task allows",
    "int8": "give back more layers (precision.int8.fallback.max_share, precision.int8.exclude), calibrate on more "
    "typical inputs, or set precision.int8.gates.outputs.{output} to what the task allows",
}


def worst_rows(rows: Sequence[VariantRow]) -> dict[str, VariantRow]:
    """The row of each output with the smallest SNR (or share of equal values) against FP32."""
    worst: dict[str, VariantRow] = {}
    for row in rows:
        if row.against == "fp32" and (row.output not in worst or _rank(row) < _rank(worst[row.output])):
            worst[row.output] = row
    return worst


def _rank(row: VariantRow) -> tuple[bool, float]:
    distance = row.distance
    value = distance.snr_db if distance.snr_db is not None else distance.equal
    return (row.problem is None, float("-inf") if value is None else value)
