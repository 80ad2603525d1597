"""The gRPC side of the KServe v2 protocol: protobuf messages to and from bytes.

Tensor bytes never pass through protobuf. In a ModelInferRequest they are field 7, the last one, so the request is the
serialised message without them followed by each tensor as a length-delimited field, joined once. In a reply they are
field 6 and are taken out as views before the rest is parsed.
"""

from __future__ import annotations

from typing import Any

from tritonstack.client import messages
from tritonstack.client.call import Buffer, Call, Reply
from tritonstack.client.model import ModelConfigView, ModelMetadata, ModelStatistics, RepositoryModel, ServerMetadata
from tritonstack.client.request import InferRequest, Parameter, SharedTensor, Span
from tritonstack.client.result import DecodedReply, OutputTensor
from tritonstack.errors import ServerError

_SERVICE = "/inference.GRPCInferenceService/"
_RAW_INPUT_TAG = 7 << 3 | 2
_RAW_OUTPUT_TAG = 6 << 3 | 2
_MAX_MESSAGE_BYTES = 2**31 - 1


class GrpcCodec:
    """Codec of the gRPC protocol."""

    protocol = "grpc"

    def can_address(self, model: str) -> bool:
        """Whether Triton will recognise the model's name: any will do in protobuf."""
        return True

    def live(self) -> Call:
        return _call("ServerLive", safe=True)

    def ready(self, model: str | None, version: str) -> Call:
        if model is None:
            return _call("ServerReady", safe=True)
        return _call("ModelReady", safe=True, name=model, version=version)

    def read_flag(self, reply: Reply) -> bool:
        # ServerLive, ServerReady and ModelReady replies all hold one bool in field 1.
        message = messages.parse_protobuf(messages.new_message("ModelReadyResponse"), reply.body, "a health check")
        return bool(message.ready)

    def server_metadata(self) -> Call:
        return _call("ServerMetadata", safe=True)

    def read_server_metadata(self, reply: Reply) -> ServerMetadata:
        return messages.read_server_metadata(_parse("ServerMetadataResponse", reply))

    def repository_index(self) -> Call:
        return _call("RepositoryIndex", safe=True)

    def read_repository_index(self, reply: Reply) -> tuple[RepositoryModel, ...]:
        return messages.read_repository_index(_parse("RepositoryIndexResponse", reply))

    def model_metadata(self, model: str, version: str) -> Call:
        return _call("ModelMetadata", safe=True, name=model, version=version)

    def read_model_metadata(self, reply: Reply, config: ModelConfigView | None) -> ModelMetadata:
        return messages.read_model_metadata(_parse("ModelMetadataResponse", reply), config)

    def model_config(self, model: str, version: str) -> Call:
        return _call("ModelConfig", safe=True, name=model, version=version)

    def read_model_config(self, reply: Reply) -> ModelConfigView:
        return messages.read_model_config(_parse("ModelConfigResponse", reply).config)

    def statistics(self, model: str | None, version: str) -> Call:
        return _call("ModelStatistics", safe=True, name=model or "", version=version)

    def read_statistics(self, reply: Reply) -> tuple[ModelStatistics, ...]:
        return messages.read_statistics(_parse("ModelStatisticsResponse", reply))

    def register_region(self, name: str, key: str, byte_size: int) -> Call:
        return _call("SystemSharedMemoryRegister", name=name, key=key, offset=0, byte_size=byte_size)

    def unregister_region(self, name: str) -> Call:
        return _call("SystemSharedMemoryUnregister", safe=True, name=name)

    def region_status(self) -> Call:
        return _call("SystemSharedMemoryStatus", safe=True)

    def read_region_names(self, reply: Reply) -> tuple[str, ...]:
        return tuple(sorted(_parse("SystemSharedMemoryStatusResponse", reply).regions))

    def infer(self, request: InferRequest) -> Call:
        """The call for `request`; its body is one bytes object. TensorError above gRPC's limit of 2 GiB."""
        message = messages.new_message("ModelInferRequest")
        message.model_name = request.model
        message.model_version = request.version
        message.id = request.request_id
        _set_parameters(message.parameters, request.parameters)
        raw: list[Buffer] = []
        for tensor in request.inputs:
            entry = message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            if isinstance(tensor, SharedTensor):
                _set_parameters(entry.parameters, _span_parameters(tensor.span))
            else:
                raw.append(bytes((_RAW_INPUT_TAG,)) + _varint(len(tensor.data)))
                raw.append(tensor.data)
        for output in request.outputs:
            wanted = message.outputs.add(name=output.name)
            if output.classes:
                wanted.parameters["classification"].int64_param = output.classes
            if output.span is not None:
                _set_parameters(wanted.parameters, _span_parameters(output.span))
        parts: list[Buffer] = [message.SerializeToString(), *raw]
        request.require_size(parts, protocol="gRPC", most_bytes=_MAX_MESSAGE_BYTES)
        return Call(_SERVICE + "ModelInfer", (b"".join(parts),), f"inference with model {request.model!r}")

    def decode_infer(self, reply: Reply) -> DecodedReply:
        envelope, raw = split_raw_outputs(memoryview(reply.body))
        message = messages.parse_protobuf(messages.new_message("ModelInferResponse"), envelope, "an inference")
        outputs: dict[str, OutputTensor] = {}
        contents = iter(raw)
        for tensor in message.outputs:
            shared = "shared_memory_region" in tensor.parameters
            # Triton adds an empty entry for an output in shared memory when any other output is returned raw.
            data = next(contents, None)
            if data is None and not shared:
                raise _malformed(f"no data for output {tensor.name!r}")
            outputs[tensor.name] = OutputTensor(tensor.datatype, tuple(tensor.shape), None if shared else data)
        return DecodedReply(
            message.model_name,
            message.model_version,
            message.id,
            {key: _parameter(value) for key, value in message.parameters.items()},
            outputs,
        )


def _call(method: str, *, safe: bool = False, **fields: Any) -> Call:
    message = messages.new_message(f"{method}Request")
    for name, value in fields.items():
        setattr(message, name, value)
    return Call(_SERVICE + method, (message.SerializeToString(),), method, safe)


def _parse(name: str, reply: Reply) -> messages.Message:
    return messages.parse_protobuf(messages.new_message(name), reply.body, name.removesuffix("Response"))


def _set_parameters(target: Any, parameters: Any) -> None:
    for name, value in parameters.items():
        if isinstance(value, bool):
            target[name].bool_param = value
        elif isinstance(value, int):
            if name == "priority":
                target[name].uint64_param = value
            else:
                target[name].int64_param = value
        elif isinstance(value, float):
            target[name].double_param = value
        else:
            target[name].string_param = value


def _span_parameters(span: Span) -> dict[str, Parameter]:
    fields: dict[str, Parameter] = {
        "shared_memory_region": span.region,
        "shared_memory_byte_size": span.byte_size,
    }
    if span.offset:
        fields["shared_memory_offset"] = span.offset
    return fields


def _parameter(message: Any) -> Parameter:
    kind = message.WhichOneof("parameter_choice")
    value: Parameter = getattr(message, kind) if kind else ""
    return value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def split_raw_outputs(body: memoryview) -> tuple[bytes, list[memoryview]]:
    """A serialised ModelInferResponse without its raw_output_contents, and these as views into `body`."""
    envelope: list[memoryview] = []
    raw: list[memoryview] = []
    offset = 0
    while offset < len(body):
        start = offset
        tag, offset = _read_varint(body, offset)
        kind = tag & 7
        if kind == 2:
            size, offset = _read_varint(body, offset)
            stop = offset + size
        elif kind == 0:
            _, stop = _read_varint(body, offset)
        elif kind in (1, 5):
            stop = offset + (8 if kind == 1 else 4)
        else:
            raise _malformed(f"wire type {kind}")
        if stop > len(body):
            raise _malformed("it ends in the middle of a field")
        if tag == _RAW_OUTPUT_TAG:
            raw.append(body[offset:stop])
        else:
            envelope.append(body[start:stop])
        offset = stop
    return b"".join(envelope), raw


def _read_varint(body: memoryview, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if offset >= len(body) or shift > 63:
            raise _malformed("it ends in the middle of a number")
        byte = body[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
        shift += 7


def _malformed(what: str) -> ServerError:
    return ServerError(f"the reply to an inference is malformed: {what}", code="MALFORMED_REPLY")
