"""Expected answers: what each request of the pool should bring, and the first difference in words where it does not.

An expected answer travels in the pool as bytes: a little-endian 32-bit length, a JSON head of that length naming the
tensors and the tolerance, and the tensors' raw bytes one after the other.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tritonstack.client.call import Buffer, Reply
from tritonstack.client.endpoint import Protocol
from tritonstack.client.result import DecodedReply, OutputTensor
from tritonstack.errors import InputError, ServerError, TensorError, UsageError
from tritonstack.tensor.bytes_tensor import decode_bytes_tensor
from tritonstack.tensor.conform import WireTensor, conform, nearest
from tritonstack.tensor.datatype import datatype, float32_from_bfloat16_bits
from tritonstack.tensor.tensor_spec import TensorSpec

Array = np.ndarray[Any, Any]

_LENGTH = struct.Struct("<I")
REMEMBERED_BYTES = 1 << 20
"""Up to this size the last accepted answer is kept, so that the same bytes need no second look."""
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a number may be off: ``|got - expected| ≤ atol + rtol · |expected|``.

    Both 0: the same value (-0 equals 0). `nan_equal`: NaN is right where NaN is expected; else NaN is never right.
    Integers, booleans and BYTES have to be the same whatever the tolerance. Raises UsageError below 0.
    """

    rtol: float = 0.0
    atol: float = 0.0
    nan_equal: bool = False

    def __post_init__(self) -> None:
        for name, value in (("rtol", self.rtol), ("atol", self.atol)):
            if not (0 <= value < math.inf):
                raise UsageError(f"--{name} is a bound on differences", given=f"{value:g}", expected="0 or above")


EXACT = Tolerance()


@dataclass(frozen=True)
class ExpectedTensor:
    """One output as it should be: `data` are row-major little-endian bytes, BYTES with their lengths."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True)
class ExpectedAnswer:
    """The outputs that are looked at (others may be there too)."""

    tensors: tuple[ExpectedTensor, ...]
    tolerance: Tolerance = EXACT

    def encoded(self) -> bytes:
        head = {
            "rtol": self.tolerance.rtol,
            "atol": self.tolerance.atol,
            "nan_equal": self.tolerance.nan_equal,
            "tensors": [[t.name, t.datatype, list(t.shape), len(t.data)] for t in self.tensors],
        }
        text = json.dumps(head, ensure_ascii=False).encode()
        return b"".join([_LENGTH.pack(len(text)), text, *(tensor.data for tensor in self.tensors)])

    @classmethod
    def decoded(cls, encoded: Buffer) -> ExpectedAnswer:
        """What `encoded` gave. Raises InputError for other bytes."""
        view = memoryview(encoded)
        try:
            (length,) = _LENGTH.unpack_from(view)
            head = json.loads(bytes(view[4 : 4 + length]))
            tensors = []
            at = 4 + length
            for name, kind, shape, size in head["tensors"]:
                tensors.append(ExpectedTensor(name, kind, tuple(shape), bytes(view[at : at + size])))
                at += size
            if at != len(view):
                raise ValueError(f"{len(view)} bytes where {at} belong")
            return cls(tuple(tensors), Tolerance(head["rtol"], head["atol"], head["nan_equal"]))
        except (struct.error, ValueError, KeyError, TypeError) as error:
            raise InputError(f"not an expected answer: {error}") from None


def expected_answer(
    values: Mapping[str, object], outputs: Sequence[TensorSpec], *, model: str, tolerance: Tolerance = EXACT
) -> ExpectedAnswer:
    """The expected answer that `values` (arrays or nested lists by output name, with the batch dimension) describe.

    Numbers are converted to the output's data type where they survive that. Raises TensorError naming the output, what
    was given and what the model returns.
    """
    specs = {spec.name: spec for spec in outputs}
    tensors = []
    for name, value in values.items():
        if name not in specs:
            raise TensorError(f"model {model!r} has no output {name!r}", next_step=nearest(name, list(specs)))
        try:
            wire = conform(specs[name], value, max_batch_size=0, cast=True)
        except TensorError as error:
            raise TensorError(
                error.summary.replace("input ", "expected output ", 1).replace("the model wants", "the model returns"),
                given=error.given,
                expected=error.expected,
            ) from None
        tensors.append(_expected_tensor(wire))
    return ExpectedAnswer(tuple(tensors), tolerance)


def _expected_tensor(wire: WireTensor) -> ExpectedTensor:
    return ExpectedTensor(wire.name, wire.datatype, wire.shape, bytes(wire.data))


def recorded(
    reply: Reply,
    protocol: Protocol,
    *,
    tolerance: Tolerance = EXACT,
    outputs: Sequence[str] = (),
) -> ExpectedAnswer:
    """The answer of a request sent once, as what is expected from then on; only `outputs` where some are named.

    Raises ServerError where the reply is malformed or its tensors are not in it (they lie in shared memory),
    TensorError for a data type that nobody knows.
    """
    decoded = decoded_reply(reply, protocol)
    tensors = []
    for name, tensor in decoded.outputs.items():
        if outputs and name not in outputs:
            continue
        datatype(tensor.datatype)
        data, problem = _raw(name, tensor)
        if problem is not None:
            raise ServerError(problem, code="MALFORMED_REPLY")
        tensors.append(ExpectedTensor(name, tensor.datatype, tensor.shape, data))
    return ExpectedAnswer(tuple(tensors), tolerance)


class AnswerCheck:
    """Compares answers with one expected answer; keep one per entry of the pool, it remembers what it accepted.

    An answer whose bytes are those accepted before costs one comparison of bytes, whatever is in it.
    """

    __slots__ = ("_accepted", "_expected", "_protocol")

    def __init__(self, expected: Buffer | ExpectedAnswer, protocol: Protocol) -> None:
        self._expected = expected if isinstance(expected, ExpectedAnswer) else ExpectedAnswer.decoded(expected)
        self._protocol = protocol
        self._accepted: tuple[bytes, str | None] | None = None

    def difference(self, body: Buffer, head_length: str | None = None) -> str | None:
        """The first difference in words; None where the answer is right.

        `head_length` is the value of the header ``Inference-Header-Content-Length``, over HTTP only.
        """
        if self._accepted is not None and self._accepted[0] == body and self._accepted[1] == head_length:
            return None
        try:
            decoded = decoded_reply(reply_of(body, head_length), self._protocol)
        except ServerError as error:
            return error.summary
        found = difference(self._expected, decoded.outputs)
        if found is None and len(body) <= REMEMBERED_BYTES:
            self._accepted = (bytes(body), head_length)
        return found


def difference(expected: ExpectedAnswer, outputs: Mapping[str, OutputTensor]) -> str | None:
    """The first difference of an answer's outputs in words; None where all are right."""
    for wanted in expected.tensors:
        got = outputs.get(wanted.name)
        if got is None:
            names = ", ".join(map(repr, outputs)) or "none"
            return f"output {wanted.name!r} is missing (the answer has {names})"
        found = _tensor_difference(wanted, got, expected.tolerance)
        if found is not None:
            return f"output {wanted.name!r}: {found}"
    return None


def reply_of(body: Buffer, head_length: str | None) -> Reply:
    """An answer as codecs take it; `head_length` as in `Completion`."""
    return Reply(body, {} if head_length is None else {"inference-header-content-length": head_length})


def decoded_reply(reply: Reply, protocol: Protocol) -> DecodedReply:
    """What an answer says. Raises ServerError where it is malformed."""
    if protocol == "grpc":
        from tritonstack.client.grpc_codec import GrpcCodec

        return GrpcCodec().decode_infer(reply)
    from tritonstack.client.http_codec import HttpCodec

    return HttpCodec().decode_infer(reply)


def _tensor_difference(wanted: ExpectedTensor, got: OutputTensor, tolerance: Tolerance) -> str | None:
    if got.datatype != wanted.datatype:
        return f"data type {got.datatype} where {wanted.datatype} is expected"
    if got.shape != wanted.shape:
        return f"shape {list(got.shape)} where {list(wanted.shape)} is expected"
    data, problem = _raw(wanted.name, got)
    if problem is not None:
        return problem
    if wanted.datatype == "BYTES":
        return None if data == wanted.data else _text_difference(wanted, data)
    if data == wanted.data and (tolerance.nan_equal or not _may_hold_nan(wanted.datatype)):
        return None
    if len(data) != len(wanted.data):
        return f"{len(data)} bytes where shape {list(wanted.shape)} has {len(wanted.data)}"
    return _number_difference(
        _numbers(wanted.datatype, wanted.data), _numbers(wanted.datatype, data), wanted, tolerance
    )


def _number_difference(want: Array, got: Array, wanted: ExpectedTensor, tolerance: Tolerance) -> str | None:
    if want.dtype.kind != "f":
        wrong = want != got
    else:
        # Infinity minus infinity is NaN; equal values, infinite ones too, are right without a subtraction.
        with np.errstate(invalid="ignore", over="ignore"):
            near = np.abs(got.astype(np.float64) - want) <= tolerance.atol + tolerance.rtol * np.abs(want, dtype=float)
        near &= np.isfinite(want) & np.isfinite(got)
        right = (want == got) | near
        if tolerance.nan_equal:
            right |= np.isnan(want) & np.isnan(got)
        wrong = ~right
    count = int(np.count_nonzero(wrong))
    if count == 0:
        return None
    at = int(np.argmax(wrong))
    where = [int(i) for i in np.unravel_index(at, wanted.shape)] if wanted.shape else []
    more = f", and {count - 1} more of {len(want)}" if count > 1 else ""
    hint = ""
    if want.dtype.kind == "f" and np.isnan(want[at]) and np.isnan(got[at]):
        hint = " (NaN is right only with --nan-equal)"
    return f"{got[at]!s} at {where} where {want[at]!s} is expected{more}{hint}"


def _text_difference(wanted: ExpectedTensor, data: bytes) -> str:
    want = decode_bytes_tensor(wanted.data, wanted.shape, name=wanted.name).ravel()
    try:
        got = decode_bytes_tensor(data, wanted.shape, name=wanted.name).ravel()
    except ServerError as error:
        return error.summary
    for at in range(len(want)):
        if want[at] != got[at]:
            where = [int(i) for i in np.unravel_index(at, wanted.shape)] if wanted.shape else []
            return f"{_shown(got[at])} at {where} where {_shown(want[at])} is expected"
    raise AssertionError("the same elements in other bytes")


def _shown(element: bytes) -> str:
    try:
        text = repr(element.decode())
    except UnicodeDecodeError:
        text = repr(element)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(element)} bytes)"


def _may_hold_nan(name: str) -> bool:
    kind = datatype(name).numpy_dtype
    return kind is None or kind.kind == "f"


def _numbers(name: str, data: bytes) -> Array:
    """Flat values; BF16 widened to float32, which is exact."""
    kind = datatype(name).numpy_dtype
    if kind is None:
        return float32_from_bfloat16_bits(np.frombuffer(data, "<u2"))
    return np.frombuffer(data, kind.newbyteorder("<"))


def _raw(name: str, tensor: OutputTensor) -> tuple[bytes, str | None]:
    """An output's raw bytes, whatever way it came; or why there are none."""
    if tensor.data is None:
        return b"", f"output {name!r} is not in the answer but in shared memory"
    if isinstance(tensor.data, memoryview):
        return bytes(tensor.data), None
    # JSON over HTTP. Its numbers went through text, so they may not be what the data type can hold.
    spec = TensorSpec(name, tensor.datatype, tensor.shape)
    try:
        kind = object if tensor.datatype == "BYTES" else datatype(tensor.datatype).numpy_dtype
        values = np.array(tensor.data, dtype=kind).reshape(tensor.shape)
        return bytes(conform(spec, values, max_batch_size=0, cast=True).data), None
    except (TensorError, ValueError, TypeError, OverflowError) as error:
        return b"", f"output {name!r} cannot be read from JSON: {error}"
