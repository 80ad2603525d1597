"""Which sizes of the dynamic dimensions the gates run: seen by the exporter, unseen, and the bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tritonstack_export.signature import Signature
from tritonstack_export.spec import BATCH

BYTES_LIMIT = 256 << 20
"""Input plus output bytes of the largest run; bounds the memory of the gates."""
SECONDS_LIMIT = 15.0
"""Estimated duration of the largest run; bounds the time of the gates."""


@dataclass(frozen=True)
class SizePlan:
    """`example`: what the exporter sees. `runs`: what is compared, smallest first. `notes`: what was left out."""

    example: dict[str, int]
    runs: tuple[dict[str, int], ...]
    notes: tuple[str, ...]


def example_sizes(signature: Signature) -> dict[str, int]:
    """Sizes for the exporter: at least 2 (1 is special to torch.export), unlike each other and unlike fixed sizes."""
    taken = {axis for tensor in signature.inputs for axis in tensor.shape if isinstance(axis, int)}
    sizes = {}
    for name, dimension in signature.dimensions.items():
        # A bound of 1 still exports with 2: the graph is dynamic, and the config says what is served.
        low, high = max(2, dimension.min), max(2, dimension.max)
        candidates = [
            n for n in (3, 5, 7, 11, 13, 6, 9, 10, 4, 2, *range(low, min(high, low + 64) + 1)) if low <= n <= high
        ]
        sizes[name] = next((n for n in candidates if n not in taken), candidates[0])
        taken.add(sizes[name])
    return sizes


def plan_sizes(
    signature: Signature,
    *,
    batches: Sequence[int] | None,
    bytes_per_item: float,
    seconds_per_item: float,
) -> SizePlan:
    """Batches min, 2, an odd one, opt and max at the optimum of the rest; then the rest's min, odd and max.

    `bytes_per_item` and `seconds_per_item` were measured on the example (items: the product of all its sizes); a run
    that would go beyond the limits is made smaller, and a note says so.
    """
    example = example_sizes(signature)
    limit = max(1.0, min(BYTES_LIMIT / max(bytes_per_item, 1e-9), SECONDS_LIMIT / max(seconds_per_item, 1e-12)))
    runs: list[dict[str, int]] = []
    notes: list[str] = []

    def add(sizes: dict[str, int]) -> None:
        fitted = _fit(sizes, signature, limit)
        if fitted != sizes:
            text = " × ".join(f"{k} {v}" for k, v in sizes.items())
            smaller = " × ".join(f"{k} {v}" for k, v in fitted.items())
            notes.append(f"{text} would take too much time or memory here; {smaller} was compared instead")
        if fitted not in runs:
            runs.append(fitted)

    rest = [d for name, d in signature.dimensions.items() if not (name == BATCH and signature.batched)]
    if signature.batched:
        batch = signature.dimensions[BATCH]
        chosen = (
            list(batches)
            if batches
            else [batch.min, 2, _odd(batch.min, batch.max, example[BATCH]), batch.opt, batch.max]
        )
        for size in sorted({n for n in chosen if n is not None and batch.min <= n <= batch.max}):
            add(signature.sizes(batch=size))
    small = {BATCH: max(2, signature.dimensions[BATCH].min)} if signature.batched else {}
    small = {name: min(size, signature.dimensions[name].max) for name, size in small.items()}
    for dimension in rest:
        odd = _odd(dimension.min, dimension.max, example[dimension.name])
        for size in sorted({n for n in (dimension.min, odd, dimension.opt, dimension.max) if n is not None}):
            add(signature.sizes(**{**small, dimension.name: size}))
    if not runs:
        runs.append({})
    runs.sort(key=lambda sizes: _items(sizes))
    return SizePlan(example, tuple(runs), tuple(dict.fromkeys(notes)))


def _odd(low: int, high: int, seen: int) -> int | None:
    """An odd size that the exporter did not see, above 4 where possible: branches like `if n > 4` lie around there."""
    return next(
        (
            n
            for n in (5, 7, 9, 11, 3, *range(low | 1, min(high, (low | 1) + 8) + 1, 2))
            if low <= n <= high and n != seen
        ),
        None,
    )


def _items(sizes: dict[str, int]) -> int:
    product = 1
    for size in sizes.values():
        product *= max(size, 1)
    return product


def _fit(sizes: dict[str, int], signature: Signature, limit: float) -> dict[str, int]:
    """Halve the largest size above its minimum until the run fits."""
    fitted = dict(sizes)
    while _items(fitted) > limit:
        name = max(fitted, key=lambda n: fitted[n] - signature.dimensions[n].min)
        if fitted[name] <= max(1, signature.dimensions[name].min):
            break
        fitted[name] = max(signature.dimensions[name].min, fitted[name] // 2)
    return fitted
