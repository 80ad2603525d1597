"""An inference request after validation, independent of the protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tritonstack.client.call import Buffer, Call
from tritonstack.errors import TensorError, UsageError
from tritonstack.tensor.conform import WireTensor

if TYPE_CHECKING:
    from tritonstack.shared_memory import SharedMemorySlot

Parameter = bool | int | float | str

_RESERVED = frozenset(
    {
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "binary_data_output",
        "binary_data",
        "binary_data_size",
        "classification",
        "shared_memory_region",
        "shared_memory_offset",
        "shared_memory_byte_size",
        "headers",
    }
)


@dataclass(frozen=True)
class Span:
    """A range of a registered shared-memory region."""

    region: str
    offset: int
    byte_size: int


@dataclass(frozen=True)
class SharedTensor:
    """An input that the server reads from shared memory."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    span: Span


@dataclass(frozen=True)
class RequestedOutput:
    """An output to return: raw, as the `classes` best ``score:index:label`` strings, or written to `span`."""

    name: str
    classes: int = 0
    span: Span | None = None


@dataclass(frozen=True)
class InferRequest:
    """A validated request. Empty `outputs` asks for all of them; an empty `version` lets the server choose."""

    model: str
    version: str
    request_id: str
    inputs: tuple[WireTensor | SharedTensor, ...]
    outputs: tuple[RequestedOutput, ...]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)

    def require_size(self, parts: Sequence[Buffer], *, protocol: str, most_bytes: int) -> None:
        """TensorError when the body, the concatenation of `parts`, is more than `protocol` can carry."""
        size = sum(map(len, parts))
        if size > most_bytes:
            raise TensorError(
                f"the request to model {self.model!r} is too large for {protocol}",
                given=f"{size} bytes",
                expected=f"at most {most_bytes}",
                next_step="send fewer samples per request or use shared memory",
            )


@dataclass(frozen=True)
class OutputSlot:
    """Where an output goes: written there by the server, or by the client when `inline`."""

    slot: SharedMemorySlot
    inline: bool


@dataclass(frozen=True)
class PreparedRequest:
    """A request that was validated and serialised once and may be sent many times, from any thread.

    It owns its bytes: later changes to the arrays it was made from do not reach it (what lies in shared memory is read
    anew each time). It fits the client that made it and others of the same protocol.
    """

    model: str
    version: str
    protocol: str
    call: Call
    slots: Mapping[str, OutputSlot] = field(default_factory=dict)

    @property
    def byte_size(self) -> int:
        """Bytes of the request's body."""
        return self.call.byte_size


def request_parameters(
    parameters: Mapping[str, Parameter],
    *,
    priority: int,
    queue_timeout_us: int | None,
    sequence_id: int | str,
    sequence_start: bool,
    sequence_end: bool,
) -> dict[str, Parameter]:
    """All parameters of a request under Triton's names; UsageError for values that Triton would misread."""
    merged: dict[str, Parameter] = {}
    for name, value in parameters.items():
        if name in _RESERVED or name.startswith("triton_"):
            raise UsageError(
                f"the request parameter {name!r} is reserved by Triton", next_step="use the argument for it"
            )
        if not isinstance(value, (bool, int, float, str)):
            raise UsageError(
                f"request parameter {name!r}", given=type(value).__name__, expected="a bool, int, float or str"
            )
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise UsageError(f"request parameter {name!r} does not fit 64 bits", given=str(value))
        merged[name] = value
    if priority:
        if not 0 < priority < 2**63:
            raise UsageError(
                "bad priority", given=str(priority), expected="0 (the model's default) or above; 1 is highest"
            )
        merged["priority"] = priority
    if queue_timeout_us is not None:
        if not 0 < queue_timeout_us < 2**63:
            raise UsageError("bad queue_timeout_us", given=str(queue_timeout_us), expected="microseconds, at least 1")
        merged["timeout"] = queue_timeout_us
    if sequence_id:
        merged["sequence_id"] = sequence_id
        merged["sequence_start"] = sequence_start
        merged["sequence_end"] = sequence_end
    elif sequence_start or sequence_end:
        raise UsageError("sequence_start and sequence_end need a sequence_id")
    return merged
