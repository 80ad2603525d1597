"""How far two results of the same computation lie apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tritonstack_export.samples import Array
from tritonstack_export.spec import Parity


@dataclass(frozen=True)
class Tolerance:
    """An element passes within `atol` + `rtol` × (largest reference magnitude); `cosine` is the smallest allowed."""

    atol: float
    rtol: float
    cosine: float


@dataclass(frozen=True)
class Distance:
    """The comparison of one output at one size.

    `max_abs`: largest difference. `max_rel`: the same divided by the largest reference magnitude. `cosine`: of the
    two flattened arrays. `problem`: why it does not pass, None when it does.
    """

    max_abs: float
    max_rel: float
    cosine: float
    problem: str | None


# For float32: 60 times the error seen on EfficientNet-Lite0 (1.6e-6 of the largest logit), 1/100 of what a wrong
# branch or a wrong normalisation makes.
_BY_DTYPE = {
    "float16": Tolerance(1e-3, 1e-2, 0.999),
    "float32": Tolerance(1e-5, 1e-4, 0.99999),
    "float64": Tolerance(1e-8, 1e-6, 0.999999),
}


def tolerance_for(dtype: str, parity: Parity) -> Tolerance:
    """The tolerance of an output: by its dtype, where the spec does not say. Integers and booleans are exact."""
    if dtype not in _BY_DTYPE:
        return Tolerance(0.0, 0.0, 1.0)
    default = _BY_DTYPE[dtype]
    return Tolerance(
        default.atol if parity.atol is None else parity.atol,
        default.rtol if parity.rtol is None else parity.rtol,
        default.cosine if parity.cosine is None else parity.cosine,
    )


def distance(expected: Array, found: Array, tolerance: Tolerance) -> Distance:
    """Compare two arrays. Infinities have to agree in place and sign; NaN never passes."""
    if expected.dtype != found.dtype:
        return Distance(0, 0, 0, f"the dtype is {found.dtype} instead of {expected.dtype}")
    if expected.shape != found.shape:
        return Distance(0, 0, 0, f"the shape is {list(found.shape)} instead of {list(expected.shape)}")
    if expected.size == 0:
        return Distance(0.0, 0.0, 1.0, None)
    if expected.dtype.kind not in "f":
        different = int(np.count_nonzero(expected != found))
        if different:
            largest = max(abs(int(a) - int(b)) for a, b in zip(*_first_differences(expected, found), strict=True))
            return Distance(float(largest), 1.0, 0.0, f"{different} of {expected.size} whole numbers differ")
        return Distance(0.0, 0.0, 1.0, None)
    return _float_distance(expected, found, tolerance)


def _first_differences(expected: Array, found: Array) -> tuple[list[int], list[int]]:
    where = np.flatnonzero((expected != found).reshape(-1))[:10000]
    return expected.reshape(-1)[where].tolist(), found.reshape(-1)[where].tolist()


def _float_distance(expected: Array, found: Array, tolerance: Tolerance) -> Distance:
    for name, array in (("the reference", expected), ("ONNX Runtime", found)):
        if np.isnan(array).any():
            return Distance(0, 0, 0, f"{name} holds NaN")
    infinite = np.isinf(expected) | np.isinf(found)
    if infinite.any():
        if not np.array_equal(expected[infinite], found[infinite]):
            return Distance(0, 0, 0, "infinities differ")
        expected, found = expected[~infinite], found[~infinite]
        if expected.size == 0:
            return Distance(0.0, 0.0, 1.0, None)
    a, b = expected.reshape(-1).astype(np.float64), found.reshape(-1).astype(np.float64)
    max_abs = float(np.abs(a - b).max())
    scale = float(np.abs(a).max())
    max_rel = max_abs / scale if scale else (0.0 if max_abs == 0 else 1.0)
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    # Two tiny vectors have no direction worth comparing.
    cosine = float(np.dot(a, b)) / norms if norms > tolerance.atol**2 * a.size and norms > 0 else 1.0
    allowed = tolerance.atol + tolerance.rtol * scale
    problem = None
    if max_abs > allowed:
        problem = f"differs by {max_abs:.3g} where {allowed:.3g} is allowed"
    elif cosine < tolerance.cosine:
        problem = f"has cosine {cosine:.6f} where {tolerance.cosine:g} is needed"
    return Distance(max_abs, max_rel, cosine, problem)


@dataclass(frozen=True)
class ParityRow:
    """The comparison of one output at one set of sizes."""

    output: str
    sizes: Mapping[str, int]
    distance: Distance


def summary(rows: tuple[ParityRow, ...]) -> dict[str, Distance]:
    """The worst distance of each output over all sizes."""
    worst: dict[str, Distance] = {}
    for row in rows:
        seen, new = worst.get(row.output), row.distance
        worst[row.output] = (
            new
            if seen is None
            else Distance(
                max(seen.max_abs, new.max_abs),
                max(seen.max_rel, new.max_rel),
                min(seen.cosine, new.cosine),
                seen.problem or new.problem,
            )
        )
    return worst
