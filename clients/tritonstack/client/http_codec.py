"""The HTTP side of the KServe v2 protocol with Triton's binary-data extension.

A request body is a JSON head and the raw tensors behind it; `Inference-Header-Content-Length` holds the length of the
head in bytes (not characters: ids and names may be any text). A reply is split by the same header of its own.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from tritonstack.client import messages
from tritonstack.client.call import Buffer, Call, Reply
from tritonstack.client.model import ModelConfigView, ModelMetadata, ModelStatistics, RepositoryModel, ServerMetadata
from tritonstack.client.request import InferRequest, RequestedOutput, SharedTensor, Span
from tritonstack.client.result import DecodedReply, OutputTensor
from tritonstack.errors import ServerError
from tritonstack.tensor.conform import WireTensor

_HEAD_LENGTH = "Inference-Header-Content-Length"
# Released servers keep the length in a signed 32-bit integer.
_MAX_BODY_BYTES = 2**31 - 1


class HttpCodec:
    """Codec of the HTTP protocol; `prefix` is the path in front of ``/v2``."""

    protocol = "http"

    def __init__(self, prefix: str = "") -> None:
        self._root = f"{prefix}/v2"

    def can_address(self, model: str) -> bool:
        """Whether Triton will recognise the model's name in a URL."""
        return path_segment(model) == model

    def live(self) -> Call:
        return self._get("/health/live", "a health check")

    def ready(self, model: str | None, version: str) -> Call:
        path = "/health/ready" if model is None else f"{_model_path(model, version)}/ready"
        return self._get(path, "a health check")

    def read_flag(self, reply: Reply) -> bool:
        # "No" is a status of 400, which is an error before it gets here.
        return True

    def server_metadata(self) -> Call:
        return self._get("", "server metadata")

    def read_server_metadata(self, reply: Reply) -> ServerMetadata:
        return messages.read_server_metadata(_parse("ServerMetadataResponse", reply, "server metadata"))

    def repository_index(self) -> Call:
        return Call(f"{self._root}/repository/index", (b"{}",), "the repository index", safe=True)

    def read_repository_index(self, reply: Reply) -> tuple[RepositoryModel, ...]:
        return messages.read_repository_index(
            _parse("RepositoryIndexResponse", reply, "the repository index", wrap="models")
        )

    def model_metadata(self, model: str, version: str) -> Call:
        return self._get(_model_path(model, version), "model metadata")

    def read_model_metadata(self, reply: Reply, config: ModelConfigView | None) -> ModelMetadata:
        return messages.read_model_metadata(_parse("ModelMetadataResponse", reply, "model metadata"), config)

    def model_config(self, model: str, version: str) -> Call:
        return self._get(f"{_model_path(model, version)}/config", "a model config")

    def read_model_config(self, reply: Reply) -> ModelConfigView:
        return messages.read_model_config(_parse("ModelConfigResponse", reply, "a model config", field="config"))

    def statistics(self, model: str | None, version: str) -> Call:
        path = "/models/stats" if model is None else f"{_model_path(model, version)}/stats"
        return self._get(path, "statistics")

    def read_statistics(self, reply: Reply) -> tuple[ModelStatistics, ...]:
        return messages.read_statistics(_parse("ModelStatisticsResponse", reply, "statistics"))

    def register_region(self, name: str, key: str, byte_size: int) -> Call:
        body = json.dumps({"key": key, "offset": 0, "byte_size": byte_size}).encode()
        return Call(
            f"{self._root}/systemsharedmemory/region/{path_segment(name)}/register", (body,), "register shared memory"
        )

    def unregister_region(self, name: str) -> Call:
        path = f"{self._root}/systemsharedmemory/region/{path_segment(name)}/unregister"
        return Call(path, (), "unregister shared memory", safe=True)

    def region_status(self) -> Call:
        return self._get("/systemsharedmemory/status", "shared-memory status")

    def read_region_names(self, reply: Reply) -> tuple[str, ...]:
        regions = _json(bytes(reply.body), "shared-memory status", list)
        return tuple(sorted(str(region.get("name", "")) for region in regions))

    def infer(self, request: InferRequest) -> Call:
        """The call for `request`; the parts of its body are the JSON head and the tensors' own memory.

        TensorError above 2 GiB.
        """
        head: dict[str, Any] = {"inputs": [_input(tensor) for tensor in request.inputs]}
        if request.request_id:
            head["id"] = request.request_id
        parameters = dict(request.parameters)
        if request.outputs:
            head["outputs"] = [_output(output) for output in request.outputs]
        else:
            parameters["binary_data_output"] = True
        if parameters:
            head["parameters"] = parameters
        text = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode()
        parts: list[Buffer] = [text, *(t.data for t in request.inputs if isinstance(t, WireTensor))]
        request.require_size(parts, protocol="HTTP", most_bytes=_MAX_BODY_BYTES)
        return Call(
            f"{self._root}{_model_path(request.model, request.version)}/infer",
            tuple(parts),
            f"inference with model {request.model!r}",
            headers=(("Content-Type", "application/octet-stream"), (_HEAD_LENGTH, str(len(text)))),
        )

    def decode_infer(self, reply: Reply) -> DecodedReply:
        body = memoryview(reply.body)
        length = reply.headers.get(_HEAD_LENGTH.lower())
        if length is None:
            split = len(body)
        elif length.isascii() and length.isdigit() and int(length) <= len(body):
            split = int(length)
        else:
            raise _malformed(f"{_HEAD_LENGTH} is {length!r} for a body of {len(body)} bytes")
        head = _json(bytes(body[:split]), "an inference", dict)
        try:
            outputs: dict[str, OutputTensor] = {}
            for tensor in head.get("outputs", []):
                parameters = tensor.get("parameters", {})
                data: memoryview | list[Any] | None
                if "binary_data_size" in parameters:
                    end = split + int(parameters["binary_data_size"])
                    if not split <= end <= len(body):
                        raise _malformed(f"output {tensor['name']!r} runs past the end of the body")
                    data, split = body[split:end], end
                else:
                    data = tensor.get("data")
                outputs[str(tensor["name"])] = OutputTensor(
                    str(tensor["datatype"]), tuple(int(dim) for dim in tensor["shape"]), data
                )
            return DecodedReply(
                str(head["model_name"]),
                str(head.get("model_version", "")),
                str(head.get("id", "")),
                head.get("parameters", {}),
                outputs,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _malformed(f"{type(error).__name__}: {error}") from None

    def _get(self, path: str, what: str) -> Call:
        return Call(self._root + path, (), what, safe=True, verb="GET")


def path_segment(name: str) -> str:
    """A name as one segment of a URL's path.

    Characters that RFC 3986 allows in a segment stay as they are: Triton (seen with 2.51) does not decode percent
    signs, so encoding more than needed would make ``a+b`` an unknown model.
    """
    return quote(name, safe="!$&'()*+,;=:@~")


def _model_path(model: str, version: str) -> str:
    path = f"/models/{path_segment(model)}"
    return f"{path}/versions/{path_segment(version)}" if version else path


def _input(tensor: WireTensor | SharedTensor) -> dict[str, Any]:
    parameters = _span(tensor.span) if isinstance(tensor, SharedTensor) else {"binary_data_size": len(tensor.data)}
    return {"name": tensor.name, "shape": tensor.shape, "datatype": tensor.datatype, "parameters": parameters}


def _output(output: RequestedOutput) -> dict[str, Any]:
    parameters: dict[str, Any] = _span(output.span) if output.span is not None else {"binary_data": True}
    if output.classes:
        parameters["classification"] = output.classes
    return {"name": output.name, "parameters": parameters}


def _span(span: Span) -> dict[str, Any]:
    fields: dict[str, Any] = {"shared_memory_region": span.region, "shared_memory_byte_size": span.byte_size}
    if span.offset:
        fields["shared_memory_offset"] = span.offset
    return fields


def _json(body: bytes, what: str, kind: type[Any]) -> Any:
    try:
        value = json.loads(body)
    except ValueError as error:
        raise ServerError(f"the reply to {what} is not JSON: {error}", code="MALFORMED_REPLY") from None
    if not isinstance(value, kind):
        raise ServerError(f"the reply to {what} is not a JSON {kind.__name__}", code="MALFORMED_REPLY")
    return value


def _parse(name: str, reply: Reply, what: str, *, wrap: str | None = None, field: str | None = None) -> Any:
    message = messages.new_message(name)
    return messages.parse_json(getattr(message, field) if field else message, reply.body, what, wrap=wrap)


def _malformed(what: str) -> ServerError:
    return ServerError(f"the reply to an inference is malformed: {what}", code="MALFORMED_REPLY")
