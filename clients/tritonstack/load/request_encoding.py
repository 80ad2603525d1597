"""From the arrays of one request to the bytes that go over the wire: gRPC, HTTP with raw tensors, HTTP with JSON.

What is encoded once is sent many times; parts that change from request to request (the place in a sequence) are added
to the encoded bytes by `in_sequence` without encoding anything again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tritonstack.client.request import (
    InferRequest,
    Parameter,
    RequestedOutput,
    SharedTensor,
    Span,
    request_parameters,
)
from tritonstack.client.request_builder import InferOptions, Regions, build_request
from tritonstack.errors import TensorError, UsageError
from tritonstack.tensor.bytes_tensor import decode_bytes_tensor
from tritonstack.tensor.conform import WireTensor
from tritonstack.tensor.datatype import datatype
from tritonstack.terminal import human_bytes

if TYPE_CHECKING:
    from tritonstack.client.model import ModelMetadata

Encoding = Literal["grpc", "http", "json"]
"""gRPC; HTTP with tensors as raw bytes behind a JSON head; HTTP with everything in JSON."""

MOST_BYTES = 2**31 - 1
"""A protobuf message ends there, and released HTTP front ends keep the length of a body in a signed 32-bit integer."""
GRPC_DEFAULT_BYTES = 4 * 2**20
"""What gRPC libraries and proxies receive unless they are told otherwise; Triton's own limit is 2 GiB."""
HTTP_DEFAULT_BYTES = 64 * 2**20
"""What the HTTP front end of newer Tritons accepts unless ``--http-max-input-size`` says otherwise."""

_HEAD_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """What a request says besides its inputs. `outputs`: names to return, all where empty; `queue_timeout_us`: how long
    it may wait in the server's queue, in microseconds, where the model's queue policy allows that."""

    outputs: tuple[str, ...] = ()
    version: str = ""
    request_id: str = ""
    priority: int = 0
    queue_timeout_us: int | None = None
    parameters: Mapping[str, Parameter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        request_parameters(
            self.parameters,
            priority=self.priority,
            queue_timeout_us=self.queue_timeout_us,
            sequence_id=0,
            sequence_start=False,
            sequence_end=False,
        )


@dataclass(frozen=True)
class EncodedRequest:
    """One request on the wire: `target` is a gRPC method or an HTTP path, `headers` are those of HTTP beyond the usual
    ones."""

    encoding: Encoding
    target: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class SequencePlace:
    """Where in a sequence a request stands. Triton's correlation id is an unsigned 64-bit number above 0 or a text."""

    sequence_id: int | str
    start: bool
    end: bool


def build(
    metadata: ModelMetadata, inputs: Mapping[str, object], options: RequestOptions, *, cast: bool
) -> InferRequest:
    """The checked request; `cast` as in `InferOptions`. Raises TensorError naming the input, what was given and what
    the model wants."""
    wanted: InferOptions = {
        "version": options.version,
        "request_id": options.request_id,
        "priority": options.priority,
        "queue_timeout_us": options.queue_timeout_us,
        "parameters": options.parameters,
        "cast": cast,
    }
    if options.outputs:
        wanted["outputs"] = options.outputs
    request, _ = build_request(metadata, inputs, wanted, Regions())
    return request


def encode(request: InferRequest, encoding: Encoding, *, prefix: str = "") -> EncodedRequest:
    """`request` as bytes; `prefix` is the path in front of ``/v2``. Raises TensorError above 2 GiB, before anything of
    that size is copied, and for what JSON cannot say."""
    if encoding == "grpc":
        from tritonstack.client.grpc_codec import GrpcCodec

        call = GrpcCodec().infer(request)
        return EncodedRequest("grpc", call.target, bytes(call.owned().body[0]))
    from tritonstack.client.http_codec import HttpCodec

    if encoding == "http":
        call = HttpCodec(prefix).infer(request).owned()
        return EncodedRequest("http", call.target, bytes(call.body[0]), call.headers)
    target = HttpCodec(prefix).infer(replace(request, inputs=())).target
    body = _json_body(request)
    request.require_size([body], protocol="HTTP", most_bytes=MOST_BYTES)
    return EncodedRequest("json", target, body, (("Content-Type", "application/json"),))


def in_shared_memory(
    request: InferRequest, *, inputs: Mapping[str, Span], outputs: Mapping[str, Span] | None = None
) -> InferRequest:
    """The same request whose inputs the server reads from `inputs` and whose outputs it writes to `outputs`, by name.

    The caller has put the bytes of `WireTensor.data` at each span. Raises TensorError where a span is missing or of
    another size than its tensor.
    """
    shared: list[WireTensor | SharedTensor] = []
    for tensor in request.inputs:
        span = inputs.get(tensor.name)
        if span is None or (isinstance(tensor, WireTensor) and span.byte_size != len(tensor.data)):
            given = "none" if span is None else f"{span.byte_size} bytes"
            raise TensorError(f"input {tensor.name!r} has no fitting place in shared memory", given=given)
        shared.append(SharedTensor(tensor.name, tensor.datatype, tensor.shape, span))
    wanted = request.outputs
    if outputs:
        names = tuple(output.name for output in wanted) or tuple(outputs)
        wanted = tuple(RequestedOutput(name, span=outputs.get(name)) for name in names)
    return replace(request, inputs=tuple(shared), outputs=wanted)


def in_sequence(request: EncodedRequest, place: SequencePlace) -> EncodedRequest:
    """The encoded request as one of a sequence. Costs a copy of its bytes, and no encoding of tensors."""
    parameters = request_parameters(
        {},
        priority=0,
        queue_timeout_us=None,
        sequence_id=place.sequence_id,
        sequence_start=place.start,
        sequence_end=place.end,
    )
    if not parameters:
        raise UsageError("a sequence has an id above 0", given=repr(place.sequence_id))
    if request.encoding == "grpc":
        return replace(request, body=request.body + sequence_suffix(place))
    addition = json.dumps(parameters, ensure_ascii=False, separators=(",", ":")).encode()[1:-1]
    length = int(dict(request.headers).get(_HEAD_LENGTH, len(request.body)))
    head = _with_parameters(request.body[:length], addition)
    headers = tuple((name, str(len(head)) if name == _HEAD_LENGTH else value) for name, value in request.headers)
    return replace(request, body=head + request.body[length:], headers=headers)


def sequence_suffix(place: SequencePlace) -> bytes:
    """Bytes that make a serialised ModelInferRequest one of a sequence when they are put behind it: entries of its map
    of parameters, since protobuf takes fields in any order."""
    from tritonclient.grpc import service_pb2

    message = service_pb2.ModelInferRequest()
    if isinstance(place.sequence_id, str):
        message.parameters["sequence_id"].string_param = place.sequence_id
    else:
        message.parameters["sequence_id"].int64_param = place.sequence_id
    message.parameters["sequence_start"].bool_param = place.start
    message.parameters["sequence_end"].bool_param = place.end
    suffix: bytes = message.SerializeToString()
    return suffix


def size_limit_hint(encoding: Encoding, request_bytes: int) -> str | None:
    """What to do where a server refused a request of this size as too large; None where its size cannot be why."""
    if encoding == "grpc" and request_bytes > GRPC_DEFAULT_BYTES:
        return (
            f"the request has {human_bytes(request_bytes)}, and gRPC servers and proxies take 4 MiB unless told "
            "otherwise: raise the limit of what stands in front of Triton (Triton's own is 2 GiB), or use shared memory"
        )
    if encoding != "grpc" and request_bytes > HTTP_DEFAULT_BYTES:
        return (
            f"the request has {human_bytes(request_bytes)}, and Triton's HTTP front end takes 64 MiB by default: start "
            "it with a larger --http-max-input-size, or use gRPC or shared memory"
        )
    return None


def _with_parameters(head: bytes, addition: bytes) -> bytes:
    """A JSON object's text with members added to its member ``parameters``.

    The text is our own: compact, with ``parameters`` last where it is there.
    """
    if head.endswith(b"}}") and (start := head.rfind(b'"parameters":{')) >= 0 and _is_last_member(head, start):
        return head[:-2] + b"," + addition + b"}}"
    return head[:-1] + b',"parameters":{' + addition + b"}}"


def _is_last_member(head: bytes, start: int) -> bool:
    """Whether the member at `start` is one of the outermost object and the last of it."""
    try:
        json.loads(head[start + len(b'"parameters":') : -1])
        json.loads(head[:start].rstrip(b",") + b"}")
    except ValueError:
        return False
    return True


def _json_body(request: InferRequest) -> bytes:
    head: dict[str, Any] = {"inputs": [_json_tensor(tensor) for tensor in request.inputs]}
    if request.request_id:
        head["id"] = request.request_id
    if request.outputs:
        head["outputs"] = [_json_output(output) for output in request.outputs]
    if request.parameters:
        head["parameters"] = dict(request.parameters)
    return json.dumps(head, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _json_tensor(tensor: WireTensor | SharedTensor) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": tensor.name, "shape": list(tensor.shape), "datatype": tensor.datatype}
    if isinstance(tensor, SharedTensor):
        return {**fields, "parameters": _span(tensor.span)}
    return {**fields, "data": _json_values(tensor)}


def _json_output(output: RequestedOutput) -> dict[str, Any]:
    parameters: dict[str, Any] = _span(output.span) if output.span is not None else {"binary_data": False}
    if output.classes:
        parameters["classification"] = output.classes
    return {"name": output.name, "parameters": parameters}


def _span(span: Span) -> dict[str, Any]:
    return {
        "shared_memory_region": span.region,
        "shared_memory_byte_size": span.byte_size,
        "shared_memory_offset": span.offset,
    }


def _json_values(tensor: WireTensor) -> Sequence[Any]:
    """The elements in row-major order as JSON says them."""
    if len(tensor.data) > MOST_BYTES:
        raise TensorError(f"input {tensor.name!r} is too large for JSON", given=human_bytes(len(tensor.data)))
    if tensor.datatype == "BYTES":
        elements = decode_bytes_tensor(tensor.data, tensor.shape, name=tensor.name).ravel().tolist()
        try:
            return [element.decode() for element in elements]
        except UnicodeDecodeError:
            raise TensorError(
                f"input {tensor.name!r} holds bytes that are not UTF-8 text, which JSON cannot carry",
                next_step="send raw tensors: without --json-body",
            ) from None
    kind = datatype(tensor.datatype).numpy_dtype
    if kind is None or (kind.itemsize == 2 and kind.kind == "f"):
        raise TensorError(
            f"input {tensor.name!r} is {tensor.datatype}, which Triton does not take as JSON",
            next_step="send raw tensors: without --json-body",
        )
    values: list[Any] = np.frombuffer(tensor.data, kind.newbyteorder("<")).tolist()
    if kind.kind == "f" and not all(map(math.isfinite, values)):
        raise TensorError(
            f"input {tensor.name!r} holds NaN or infinity, which JSON cannot carry",
            next_step="send raw tensors: without --json-body",
        )
    return values
