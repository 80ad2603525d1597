"""Samples for calibration and evaluation: arrays in memory, known by their content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tritonstack.errors import InputError
from tritonstack.terminal import human_bytes
from tritonstack_export.samples import Array
from tritonstack_export.signature import ModelInput, Signature
from tritonstack_export.spec import BATCH

MEMORY_LIMIT = 3 * 2**29
"""Bytes that the arrays of one data set may take (1.5 GiB); more is refused with the `limit` that would fit."""


@dataclass(frozen=True)
class Sample:
    """One sample. `inputs`: name -> array, with a batch axis of 1 where the model is batched. `name`: for messages.

    `digest`: SHA-256 over names, dtypes, shapes and bytes of the inputs, so the same picture under another name, or
    in another file format with the same pixels, has the same one. `label`: None where the set has no labels.
    """

    name: str
    inputs: Mapping[str, Array]
    digest: str
    label: Any = None


@dataclass(frozen=True)
class Dataset:
    """The samples of the spec's `key` (``calibration`` or ``evaluation``). `duplicates`: samples that repeat another.

    `remarks`: what a user should know about the data.
    """

    key: str
    source: str
    entries: tuple[Sample, ...]
    duplicates: int = 0
    remarks: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def samples(self) -> tuple[Mapping[str, Array], ...]:
        """The inputs alone."""
        return tuple(entry.inputs for entry in self.entries)

    @property
    def labels(self) -> tuple[Any, ...]:
        """One label per sample."""
        return tuple(entry.label for entry in self.entries)

    @property
    def sha256(self) -> str:
        """Over the digests of all samples in their order, without labels."""
        return hashlib.sha256("".join(entry.digest for entry in self.entries).encode()).hexdigest()


def digest_inputs(inputs: Mapping[str, Array]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(inputs):
        value = inputs[name]
        digest.update(f"{name}\0{value.dtype}\0{value.shape}\0".encode())
        if value.dtype == object:
            digest.update("\0".join(map(str, value.reshape(-1))).encode())
        elif value.size:
            digest.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def collect(
    key: str,
    source: str,
    samples: Iterable[tuple[str, Mapping[str, Array], Any]],
    signature: Signature,
    *,
    keep_repeats: bool,
) -> Dataset:
    """The set of (name, inputs, label) triples, each checked against the signature.

    Samples with the same inputs as an earlier one are counted, and left out unless `keep_repeats` (the labels of an
    evaluation may differ where the inputs do not).

    Raises InputError for the first sample that does not fit, for none at all, and above MEMORY_LIMIT.
    """
    entries: list[Sample] = []
    seen: set[str] = set()
    duplicates = total = 0
    for name, inputs, label in samples:
        checked = check_inputs(inputs, signature, f"{key}: {name}")
        digest = digest_inputs(checked)
        if digest in seen:
            duplicates += 1
            if not keep_repeats:
                continue
        seen.add(digest)
        total += sum(value.nbytes for value in checked.values())
        if total > MEMORY_LIMIT:
            raise InputError(
                f"the samples of `{key}` take more than {human_bytes(MEMORY_LIMIT)} of memory",
                given=f"more than {len(entries)} samples from {source}",
                next_step=f"set `{key}.limit` to {max(1, len(entries))} or less",
            )
        entries.append(Sample(name, checked, digest, label))
    if not entries:
        raise InputError(f"`{key}` holds no samples", given=source, expected="at least one")
    remarks: tuple[str, ...] = ()
    if duplicates:
        count = len(entries) if keep_repeats else len(entries) + duplicates
        fate = "counted each time" if keep_repeats else "left out"
        remarks = (f"{duplicates} of {count} samples of `{key}` repeat another one: {fate}",)
    return Dataset(key, source, tuple(entries), duplicates, remarks)


def check_inputs(inputs: Mapping[str, Array], signature: Signature, where: str) -> dict[str, Array]:
    """The inputs in the signature's order. Raises InputError naming `where` for names, dtypes, shapes and values that
    do not fit."""
    names = [tensor.name for tensor in signature.inputs]
    if sorted(inputs) != sorted(names):
        missing = [name for name in names if name not in inputs]
        wrong = "lacks " + ", ".join(map(repr, missing)) if missing else "has inputs that the model does not take"
        raise InputError(f"{where} {wrong}", given=", ".join(map(repr, inputs)), expected=", ".join(map(repr, names)))
    sizes: dict[str, int] = {}
    checked = {}
    for tensor in signature.inputs:
        value = inputs[tensor.name]
        wanted = "object" if tensor.dtype == "string" else tensor.dtype
        if str(value.dtype) != wanted:
            raise InputError(
                f"{where}: the input {tensor.name!r} has the dtype {value.dtype}",
                expected=tensor.dtype,
                next_step=f"convert it with .astype({tensor.dtype!r})",
            )
        _check_shape(tensor, value, sizes, signature, where)
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            what = "NaN" if np.isnan(value).any() else "infinity"
            raise InputError(f"{where}: the input {tensor.name!r} holds {what}", expected="finite numbers")
        checked[tensor.name] = np.ascontiguousarray(value)
    return checked


def _check_shape(tensor: ModelInput, value: Array, sizes: dict[str, int], signature: Signature, where: str) -> None:
    expected = [1 if signature.batched and axis == 0 else size for axis, size in enumerate(tensor.shape)]
    problem = None
    if value.ndim != len(expected):
        problem = f"rank {value.ndim}"
    else:
        for found, size in zip(value.shape, expected, strict=True):
            if isinstance(size, int):
                if found != size:
                    problem = f"shape {list(value.shape)}"
                continue
            bounds = signature.dimensions[size]
            if sizes.setdefault(size, found) != found:
                problem = f"{size} {found} where another input has {sizes[size]}"
            elif not bounds.min <= found <= bounds.max:
                problem = f"{size} {found}, outside {bounds.min}..{bounds.max}"
    if problem:
        raise InputError(
            f"{where}: the input {tensor.name!r} does not fit the model",
            given=f"{problem} ({list(value.shape)})" if "shape" not in problem else problem,
            expected=f"[{', '.join(map(str, expected))}]",
        )


def require_enough(dataset: Dataset, least: int) -> None:
    """Raises InputError for fewer than `least` different samples."""
    if len(dataset) < least:
        repeated = f" ({dataset.duplicates} more repeat one of them)" if dataset.duplicates else ""
        raise InputError(
            f"`{dataset.key}` has too few samples: {len(dataset)} different ones{repeated}",
            given=dataset.source,
            expected=f"at least {least} (`{dataset.key}.min_samples`)",
            next_step="add samples that look like what the model will be asked in service",
        )


def require_variety(dataset: Dataset) -> Dataset:
    """Refuse samples from which no range can be learnt; a constant input among others is only remarked.

    Raises InputError where every input is constant over all samples (all zero, all equal).
    """
    constant = []
    for name in dataset.entries[0].inputs:
        arrays = [entry.inputs[name] for entry in dataset.entries if entry.inputs[name].size]
        first = arrays[0].reshape(-1)[0] if arrays else None
        if all((value == first).all() for value in arrays):
            constant.append((name, first))
    if len(constant) == len(dataset.entries[0].inputs):
        what = ", ".join(f"{name!r} is {value} everywhere" for name, value in constant)
        raise InputError(
            f"the samples of `{dataset.key}` say nothing about the model's ranges: {what}",
            given=dataset.source,
            expected="real inputs, different from each other",
        )
    floats = [name for name, _ in constant if dataset.entries[0].inputs[name].dtype.kind == "f"]
    remarks = tuple(f"the input {name!r} has one value in all samples of `{dataset.key}`" for name in floats)
    return replace(dataset, remarks=(*dataset.remarks, *remarks))


def without_leaks(calibration: Dataset, evaluation: Dataset) -> Dataset:
    """`calibration` without the samples that `evaluation` holds too, which is remarked.

    A scale chosen on the very samples that accuracy is counted on would flatter it. Raises InputError where nothing
    is left.
    """
    counted = {entry.digest: entry.name for entry in evaluation.entries}
    kept = tuple(entry for entry in calibration.entries if entry.digest not in counted)
    leaked = [entry for entry in calibration.entries if entry.digest in counted]
    if not leaked:
        return calibration
    example = f"{leaked[0].name} is {counted[leaked[0].digest]}"
    if not kept:
        raise InputError(
            "every sample of `calibration` is in `evaluation` too",
            given=f"{len(leaked)} samples; {example}",
            expected="calibration samples on which accuracy is not counted",
        )
    remark = f"{len(leaked)} samples of `calibration` are in `evaluation` too ({example}): not used for calibration"
    return replace(calibration, entries=kept, remarks=(*calibration.remarks, remark))


def batches(
    samples: Sequence[Mapping[str, Array]], signature: Signature, *, size: int
) -> Iterator[tuple[list[int], dict[str, Array]]]:
    """(indices, inputs) of batches of up to `size` samples of equal shapes, within the model's own batch bounds.

    A batch below the model's smallest is filled up with its own last sample: only the first len(indices) results
    count. An unbatched model gets its samples one by one.
    """
    if not signature.batched:
        for index, sample in enumerate(samples):
            yield [index], dict(sample)
        return
    bounds = signature.dimensions.get(BATCH)
    least, most = (bounds.min, bounds.max) if bounds is not None else (1, 1)
    size = max(least, min(size, most))
    groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(tuple(value.shape for value in sample.values()), []).append(index)
    for indices in groups.values():
        for start in range(0, len(indices), size):
            chosen = indices[start : start + size]
            filled = chosen + [chosen[-1]] * (least - len(chosen))
            yield chosen, {name: np.concatenate([samples[i][name] for i in filled]) for name in samples[chosen[0]]}
