"""Seeded random inputs, different for every input and every size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonstack_export.signature import ModelInput, Signature

Array = NDArray[Any]


def random_inputs(signature: Signature, sizes: Mapping[str, int], *, seed: int) -> dict[str, Array]:
    """One array per input at the given sizes. The same seed and sizes give the same values."""
    return {
        tensor.name: _values(
            tensor,
            signature.shape(tensor, sizes),
            np.random.default_rng([seed, index, *(sizes[name] for name in sorted(sizes))]),
        )
        for index, tensor in enumerate(signature.inputs)
    }


def _values(tensor: ModelInput, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """Floats: uniform within the range, else standard normal. Integers: uniform within the range, else 0 or 1, since
    they may be indices of unknown extent; uint8 without a range: 0 to 255, the values of a picture."""
    if tensor.dtype == "string":
        return random.integers(0, 10**6, shape).astype(str).astype(object)
    dtype = np.dtype(tensor.dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    if dtype.kind == "f":
        if tensor.low is None or tensor.high is None:
            return random.standard_normal(shape).astype(dtype)
        return random.uniform(tensor.low, tensor.high, shape).astype(dtype)
    low, high = (0, 255) if dtype == np.uint8 else (0, 1)
    if tensor.low is not None and tensor.high is not None:
        low, high = int(tensor.low), int(tensor.high)
    # The largest uint64 does not fit the generator's default dtype.
    return random.integers(low, high, shape, dtype=dtype.type, endpoint=True)
