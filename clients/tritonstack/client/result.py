"""The answer to an inference request, decoded only when it is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tritonstack.client.request import OutputSlot, Parameter
from tritonstack.errors import ServerError
from tritonstack.tensor.bytes_tensor import decode_bytes_tensor
from tritonstack.tensor.datatype import bfloat16_dtype, datatype, float32_from_bfloat16_bits

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class OutputTensor:
    """One output as it came: `data` are wire bytes, a JSON list, or None when it lies in shared memory."""

    datatype: str
    shape: tuple[int, ...]
    data: memoryview | list[Any] | None


@dataclass(frozen=True)
class DecodedReply:
    """A reply after its envelope was read; the tensors are still bytes."""

    model_name: str
    model_version: str
    request_id: str
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    outputs: Mapping[str, OutputTensor] = field(default_factory=dict)


class InferResult:
    """What the server answered.

    `result["name"]` is an output as a numpy array that owns its memory (aligned and writable). BYTES outputs are object
    arrays of bytes. BF16 outputs have dtype ``ml_dtypes.bfloat16`` where that package is installed, else float32 (which
    holds every BF16 value exactly). Nothing is decoded before it is asked for; a malformed reply raises ServerError
    then. An output that went to a shared-memory slot is read from there when it is first asked for: look at it before
    the slot is used again.
    """

    def __init__(self, decode: Callable[[], DecodedReply], slots: Mapping[str, OutputSlot] | None = None) -> None:
        self._decode = decode
        self._slots = slots or {}
        self._reply: DecodedReply | None = None
        self._arrays: dict[str, Array] = {}

    def _decoded(self) -> DecodedReply:
        if self._reply is None:
            self._reply = self._decode()
        return self._reply

    def fill_slots(self) -> None:
        """Copy the outputs that came on the wire to the shared-memory slots they were asked into."""
        for name, target in self._slots.items():
            if target.inline:
                target.slot.write(self[name])

    @property
    def model_name(self) -> str:
        """The model that answered."""
        return self._decoded().model_name

    @property
    def model_version(self) -> str:
        """The version that answered."""
        return self._decoded().model_version

    @property
    def request_id(self) -> str:
        """The id of the request, echoed by the server."""
        return self._decoded().request_id

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """Parameters that the server attached to the answer."""
        return self._decoded().parameters

    @property
    def outputs(self) -> Mapping[str, Array]:
        """All outputs by name."""
        return {name: self[name] for name in self._decoded().outputs}

    def datatype(self, name: str) -> str:
        """Triton's data type name of an output."""
        return self._output(name).datatype

    def _output(self, name: str) -> OutputTensor:
        outputs = self._decoded().outputs
        if name not in outputs:
            raise KeyError(f"the answer has no output {name!r}; it has {', '.join(map(repr, outputs)) or 'none'}")
        return outputs[name]

    def __getitem__(self, name: str) -> Array:
        array = self._arrays.get(name)
        if array is None:
            output = self._output(name)
            target = self._slots.get(name)
            shared = target is not None and not target.inline
            array = target.slot.read(output.shape) if target and shared else decode_tensor(name, output)
            self._arrays[name] = array
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded().outputs)

    def __len__(self) -> int:
        return len(self._decoded().outputs)

    def __contains__(self, name: object) -> bool:
        return name in self._decoded().outputs

    def __repr__(self) -> str:
        reply = self._decoded()
        tensors = ", ".join(f"{n}: {t.datatype} {list(t.shape)}" for n, t in reply.outputs.items())
        return f"<InferResult of {reply.model_name} version {reply.model_version}: {tensors}>"


def decode_tensor(name: str, output: OutputTensor) -> Array:
    """An output's array; ServerError when its bytes do not fit its data type and shape."""
    kind = datatype(output.datatype)
    if output.data is None:
        raise ServerError(f"the reply holds no data for output {name!r}", code="MALFORMED_REPLY")
    if isinstance(output.data, list):
        return _from_json(name, output, output.data)
    if kind.name == "BYTES":
        return decode_bytes_tensor(output.data, output.shape, name=name)
    wanted = prod(output.shape) * kind.byte_size
    if len(output.data) != wanted:
        raise ServerError(
            f"the reply's output {name!r} has {len(output.data)} bytes "
            f"where {kind.name} {list(output.shape)} needs {wanted}",
            code="MALFORMED_REPLY",
        )
    if kind.numpy_dtype is not None:
        return np.frombuffer(output.data, kind.numpy_dtype).reshape(output.shape).copy()
    bits = np.frombuffer(output.data, "<u2").reshape(output.shape)
    bfloat16 = bfloat16_dtype()
    return float32_from_bfloat16_bits(bits) if bfloat16 is None else bits.copy().view(bfloat16)


def _from_json(name: str, output: OutputTensor, values: list[Any]) -> Array:
    kind = datatype(output.datatype)
    try:
        if kind.name == "BYTES":
            flat = np.empty(len(values), dtype=object)
            flat[:] = [value.encode() for value in values]
            return flat.reshape(output.shape)
        return np.array(values, dtype=kind.numpy_dtype or np.float32).reshape(output.shape)
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise ServerError(
            f"the reply's output {name!r} is not {kind.name} {list(output.shape)}: {error}", code="MALFORMED_REPLY"
        ) from None
