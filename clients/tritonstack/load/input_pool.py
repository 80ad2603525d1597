"""The requests of a run before they are encoded, and how many of them there may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tritonstack.client.request import Parameter
from tritonstack.errors import UsageError
from tritonstack.terminal import human_bytes

Array = np.ndarray[Any, Any]

POOL_REQUESTS = 16
"""Distinct requests sent in turn; enough that no layer can live on one cached buffer."""
POOL_BYTES = 64_000_000
"""Bound on the pool's memory where no size was asked for; at least one request is kept whatever its size."""
REQUEST_BYTES = 2**31 - 1
"""No protocol carries a larger request: a protobuf message ends there."""


@dataclass(frozen=True)
class RequestExtras:
    """What one entry of the pool has besides its inputs.

    `request_id`: a name of its own, by which traces ask for it. `expected`: what its answer should hold, arrays or
    nested lists by output name with the batch dimension; None where nothing is expected. `sequence`: the sequence it
    belongs to; entries of one sequence are sent in the order of the pool. `parameters`: custom request parameters.
    """

    request_id: str = ""
    expected: Mapping[str, object] | None = None
    sequence: str | int | None = None
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


NO_EXTRAS = RequestExtras()


@dataclass(frozen=True)
class InputPool:
    """Requests to be sent in turn: input arrays by name.

    `cast`: values may be converted to the model's data type where they survive it. `requests` may make each request
    anew whenever it is asked for, so keep what is still needed. `extras` is empty or as long as `requests`.
    """

    requests: Sequence[Mapping[str, Array]]
    origin: str
    cast: bool
    extras: Sequence[RequestExtras] = ()

    def extras_of(self, index: int) -> RequestExtras:
        """What entry `index` has besides its inputs."""
        return self.extras[index] if self.extras else NO_EXTRAS

    @property
    def ids(self) -> tuple[str, ...]:
        """The names of the entries, empty texts where they have none."""
        return tuple(extra.request_id for extra in self.extras)


def pool_length(bytes_per_request: int, wanted: int | None) -> int:
    """How many requests of this size are kept: `wanted`, or as many as the default bounds allow.

    Raises UsageError where as many as wanted would take more than half of the memory that is free.
    """
    size = max(bytes_per_request, 1)
    if wanted is None:
        return max(1, min(POOL_REQUESTS, POOL_BYTES // size))
    require_memory(size * wanted, f"{wanted} requests of {human_bytes(size)}")
    return wanted


def require_memory(size: int, what: str) -> None:
    """UsageError where a pool of `size` bytes would take more than half of the memory that is free."""
    free = _free_bytes()
    if free is not None and size > free // 2:
        raise UsageError(
            "the pool of requests does not fit into memory",
            given=f"{what}, {human_bytes(size)} in all",
            expected=f"at most half of the {human_bytes(free)} that are free",
            next_step="lower --pool",
        )


def array_bytes(array: Array) -> int:
    """The size of an array on the wire: elements of BYTES with their lengths."""
    if array.dtype.kind != "O":
        return int(array.nbytes)
    return sum(4 + len(element) if isinstance(element, (bytes, str)) else 12 for element in array.ravel().tolist())


def _free_bytes() -> int | None:
    """Memory that can be taken without swapping; None where the system does not tell."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None
