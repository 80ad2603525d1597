"""Loading a model with another configuration through Triton's model control API, and putting it back."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from tritonstack.client.endpoint import Endpoint
from tritonstack.client.http_codec import path_segment
from tritonstack.errors import InputError, ServerError, ServerUnavailable, SetupError

LOAD_TIMEOUT_S = 300.0
"""Loading may build an engine."""

ModelConfig = dict[str, Any]


class ModelControl(Protocol):
    """The two calls that are needed. Both raise ServerError with the server's words and ServerUnavailable."""

    def config(self, model: str) -> ModelConfig:
        """The configuration the model is served with, as the JSON form of model_config.proto."""

    def load(self, model: str, config: Mapping[str, Any]) -> None:
        """Load the model anew with `config`; returns when it is ready."""


@contextlib.contextmanager
def model_control(endpoint: Endpoint) -> Iterator[ModelControl]:
    """Control over the models at `endpoint`."""
    if endpoint.secure:
        raise InputError("models cannot be reloaded over TLS here", given=str(endpoint), expected="http:// or grpc://")
    if endpoint.protocol == "http":
        yield _HttpControl(endpoint)
        return
    control = _GrpcControl(endpoint)
    try:
        yield control
    finally:
        control.close()


class _HttpControl:
    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def config(self, model: str) -> ModelConfig:
        found: ModelConfig = json.loads(self._request("GET", f"/v2/models/{path_segment(model)}/config"))
        return found

    def load(self, model: str, config: Mapping[str, Any]) -> None:
        body = json.dumps({"parameters": {"config": json.dumps(config)}})
        self._request("POST", f"/v2/repository/models/{path_segment(model)}/load", body)

    def _request(self, method: str, path: str, body: str | None = None) -> bytes:
        connection = http.client.HTTPConnection(self._endpoint.host, self._endpoint.port, timeout=LOAD_TIMEOUT_S)
        try:
            connection.request(method, self._endpoint.prefix + path, body)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ServerUnavailable(f"no answer to {method} {path} from {self._endpoint}", given=str(error)) from None
        finally:
            connection.close()
        if answer.status == 200:
            return content
        try:
            words = str(json.loads(content)["error"])
        except (ValueError, KeyError, TypeError):
            words = content.decode("utf-8", "replace")[:200] or "no reason given"
        raise _refused(words, f"HTTP {answer.status}", closed=answer.status in (403, 404, 405))


class _GrpcControl:
    def __init__(self, endpoint: Endpoint) -> None:
        import grpc  # type: ignore[import-untyped]
        from tritonclient.grpc import service_pb2_grpc

        most = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        self._endpoint = endpoint
        self._channel = grpc.insecure_channel(endpoint.authority, options=most)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def config(self, model: str) -> ModelConfig:
        from google.protobuf.json_format import MessageToDict
        from tritonclient.grpc import service_pb2

        answer = self._call(self._stub.ModelConfig, service_pb2.ModelConfigRequest(name=model))
        found: ModelConfig = MessageToDict(answer.config, preserving_proto_field_name=True)
        return found

    def load(self, model: str, config: Mapping[str, Any]) -> None:
        from tritonclient.grpc import service_pb2

        request = service_pb2.RepositoryModelLoadRequest(model_name=model)
        request.parameters["config"].string_param = json.dumps(config)
        self._call(self._stub.RepositoryModelLoad, request)

    def close(self) -> None:
        self._channel.close()

    def _call(self, method: Any, request: Any) -> Any:
        import grpc

        try:
            return method(request, timeout=LOAD_TIMEOUT_S)
        except grpc.RpcError as error:
            code, words = error.code().name, str(error.details())
            if code == "UNAVAILABLE" and "not allowed" not in words:
                raise ServerUnavailable(f"no answer from {self._endpoint}", given=words) from None
            raise _refused(words, code, closed=code in ("UNIMPLEMENTED", "PERMISSION_DENIED")) from None


def _refused(words: str, code: str, *, closed: bool) -> ServerError | SetupError:
    """Triton's refusal; "is not allowed" is what it says in every mode but explicit."""
    if closed or "not allowed" in words or "restricted" in words:
        return SetupError(
            "the server does not let clients load models",
            given=f"{code}: {words}",
            next_step="start it with --model-control-mode=explicit (tritonstack serve --allow model-repository)",
        )
    return ServerError(f"the server refused: {words}", code=code)
