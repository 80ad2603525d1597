"""What each client method does, written once for both the blocking and the asyncio client.

A flow is a generator that yields the calls to make (and pauses to wait) and is sent the replies; a failed call is
thrown into it. The clients only carry calls to the transport.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Mapping, Sequence
from typing import TypedDict, TypeVar

from tritonstack.client.call import Call, ConnectFailed, Pause, Reply
from tritonstack.client.codec import Codec
from tritonstack.client.model import ModelConfigView, ModelMetadata, ModelStatistics, RepositoryModel, ServerMetadata
from tritonstack.client.request import InferRequest, Parameter, PreparedRequest, RequestedOutput, request_parameters
from tritonstack.client.result import InferResult
from tritonstack.errors import (
    DeadlineExceeded,
    ServerError,
    ServerUnavailable,
    TensorError,
    TritonstackError,
    UsageError,
)
from tritonstack.tensor.conform import check_batch, check_names, conform, nearest

T = TypeVar("T")
Flow = Generator[Call | Pause, Reply, T]
Outputs = Sequence[str] | Mapping[str, int]

_FIRST_RETRY_PAUSE_S = 0.1
_READY_POLL_S = 0.1
# Codes by which a server says "not that model" or "not these tensors": the cached metadata may be stale.
_STALE_CODES = frozenset({"INVALID_ARGUMENT", "NOT_FOUND", "HTTP 400", "HTTP 404"})
_NOT_READY_CODES = frozenset({"NOT_FOUND", "INVALID_ARGUMENT", "HTTP 400", "HTTP 404"})
_NO_CONFIG_CODES = frozenset({"UNIMPLEMENTED", "HTTP 404", "HTTP 405"})


class InferOptions(TypedDict, total=False):
    """Keyword arguments of `infer` and `prepare`.

    - `outputs`: names to return (all when left out), or a mapping from name to the number k of best classes: k above 0
      asks for Triton's classification strings ``score:index:label`` instead of the tensor.
    - `version`: the model version; the server's choice when empty.
    - `request_id`: echoed by the server and written to its log.
    - `queue_timeout_us`: how long the request may wait in the server's queue, in microseconds, where the model's queue
      policy allows it; the client's own deadline is `timeout_s`.
    - `priority`: 1 is the highest; 0 leaves it to the model.
    - `parameters`: custom request parameters.
    - `sequence_id`, `sequence_start`, `sequence_end`: for stateful models.
    - `cast`: convert to the model's data types, refusing values that would not survive: True for every input, or the
      names of those to convert.
    """

    outputs: Outputs | None
    version: str
    request_id: str
    queue_timeout_us: int | None
    priority: int
    parameters: Mapping[str, Parameter]
    sequence_id: int | str
    sequence_start: bool
    sequence_end: bool
    cast: bool | Collection[str]


class Flows:
    """The client's methods as flows over one protocol's codec. Holds the metadata cache; safe from threads."""

    def __init__(self, codec: Codec, *, retries: int) -> None:
        self.codec = codec
        self._retries = retries
        self._metadata: dict[tuple[str, str], ModelMetadata] = {}

    def attempt(self, call: Call) -> Flow[Reply]:
        """One call, repeated after a pause where that is safe.

        Any call is repeated when no connection could be made; after a connection broke only calls that change nothing
        on the server are.
        """
        pause = _FIRST_RETRY_PAUSE_S
        for left in range(self._retries, -1, -1):
            try:
                reply = yield call
            except ServerUnavailable as error:
                if not left or not (call.safe or isinstance(error, ConnectFailed)):
                    raise
            else:
                return reply
            yield Pause(pause)
            pause *= 2
        raise AssertionError("unreachable")

    def is_live(self) -> Flow[bool]:
        return (yield from self._flag(self.codec.live()))

    def is_ready(self, model: str | None, version: str) -> Flow[bool]:
        return (yield from self._flag(self.codec.ready(model, version)))

    def _flag(self, call: Call) -> Flow[bool]:
        try:
            reply = yield call
        except (ServerUnavailable, DeadlineExceeded):
            return False
        except ServerError as error:
            if error.code in _NOT_READY_CODES:
                return False
            raise
        return self.codec.read_flag(reply)

    def wait_ready(self, models: Sequence[str], timeout_s: float) -> Flow[None]:
        """Poll until every model is ready; ServerUnavailable names those that are not, with the server's reason."""
        deadline = time.monotonic() + timeout_s
        waiting = list(models)
        while True:
            still_waiting = []
            for model in waiting:
                if not (yield from self.is_ready(model, "")):
                    still_waiting.append(model)
            waiting = still_waiting
            if not waiting and (models or (yield from self.is_ready(None, ""))):
                return
            if time.monotonic() + _READY_POLL_S >= deadline:
                break
            yield Pause(_READY_POLL_S)
        try:
            index = yield from self.models()
        except TritonstackError as error:
            raise ServerUnavailable(
                f"not ready within {timeout_s:.3g} s: {', '.join(map(repr, waiting)) or 'the server'}",
                given=error.summary,
            ) from None
        states = "; ".join(f"{name!r} {_state(name, index)}" for name in waiting)
        raise ServerUnavailable(f"not ready within {timeout_s:.3g} s: {states or 'the server'}")

    def server_metadata(self) -> Flow[ServerMetadata]:
        return self.codec.read_server_metadata((yield from self.attempt(self.codec.server_metadata())))

    def models(self) -> Flow[tuple[RepositoryModel, ...]]:
        return self.codec.read_repository_index((yield from self.attempt(self.codec.repository_index())))

    def metadata(self, model: str, version: str) -> Flow[ModelMetadata]:
        return (yield from self._cached_metadata(model, version))[0]

    def config(self, model: str, version: str) -> Flow[ModelConfigView]:
        try:
            reply = yield from self.attempt(self.codec.model_config(model, version))
        except ServerError as error:
            raise (yield from self._explained(error, model, version)) from None
        return self.codec.read_model_config(reply)

    def statistics(self, model: str | None, version: str) -> Flow[tuple[ModelStatistics, ...]]:
        try:
            reply = yield from self.attempt(self.codec.statistics(model, version))
        except ServerError as error:
            raise (error if model is None else (yield from self._explained(error, model, version))) from None
        return self.codec.read_statistics(reply)

    def _cached_metadata(self, model: str, version: str) -> Flow[tuple[ModelMetadata, bool]]:
        """The metadata and whether it was fetched just now."""
        cached = self._metadata.get((model, version))
        if cached is not None:
            return cached, False
        return (yield from self._fetch_metadata(model, version)), True

    def _fetch_metadata(self, model: str, version: str) -> Flow[ModelMetadata]:
        if not model:
            raise UsageError("the model's name is empty")
        self._metadata.pop((model, version), None)
        try:
            reply = yield from self.attempt(self.codec.model_metadata(model, version))
        except ServerError as error:
            raise (yield from self._explained(error, model, version)) from None
        config: ModelConfigView | None = None
        try:
            config_reply = yield from self.attempt(self.codec.model_config(model, version))
            config = self.codec.read_model_config(config_reply)
        except ServerError as error:
            if error.code not in _NO_CONFIG_CODES:
                raise
        metadata = self.codec.read_model_metadata(reply, config)
        self._metadata[model, version] = metadata
        return metadata

    def _explained(self, error: ServerError, model: str, version: str = "") -> Flow[TritonstackError]:
        """`error` with what the repository knows about `model`, where the server does not serve it."""
        try:
            index = yield from self.models()
        except TritonstackError:
            return error
        names = sorted({entry.name for entry in index})
        if model not in names:
            return ServerError(
                f"the server has no model {model!r}",
                code=error.code,
                expected=f"one of {', '.join(names)}" if names else "a model (the repository is empty)",
                next_step=nearest(model, names),
            )
        if not any(entry.name == model and entry.state == "READY" for entry in index):
            return ServerUnavailable(f"model {model!r} is not ready: {_state(model, index)}")
        versions = sorted({entry.version for entry in index if entry.name == model and entry.state == "READY"})
        if version and version not in versions:
            return ServerError(
                f"model {model!r} has no version {version!r} that is ready",
                code=error.code,
                expected=f"one of {', '.join(versions)}",
            )
        return error

    def _request(self, metadata: ModelMetadata, inputs: Mapping[str, object], options: InferOptions) -> InferRequest:
        """The validated request; TensorError or UsageError when it does not fit the model."""
        check_names(inputs, metadata.inputs, model=metadata.name)
        cast = options.get("cast", False)
        tensors = tuple(
            conform(spec, inputs[spec.name], max_batch_size=metadata.max_batch_size, cast=_casts(cast, spec.name))
            for spec in metadata.inputs
            if spec.name in inputs
        )
        if metadata.max_batch_size > 0:
            check_batch(tensors, model=metadata.name)
        return InferRequest(
            model=metadata.name,
            version=options.get("version", ""),
            request_id=options.get("request_id", ""),
            inputs=tensors,
            outputs=_requested_outputs(options.get("outputs"), metadata),
            parameters=request_parameters(
                options.get("parameters", {}),
                priority=options.get("priority", 0),
                queue_timeout_us=options.get("queue_timeout_us"),
                sequence_id=options.get("sequence_id", 0),
                sequence_start=options.get("sequence_start", False),
                sequence_end=options.get("sequence_end", False),
            ),
        )

    def _call(
        self, model: str, inputs: Mapping[str, object], options: InferOptions
    ) -> Flow[tuple[Call, ModelMetadata, bool]]:
        """The call for an inference, the metadata it was checked against and whether that is fresh.

        Metadata from the cache is fetched again before tensors are refused: the model may have been replaced.
        """
        unknown = set(options) - InferOptions.__annotations__.keys()
        if unknown:
            raise TypeError(
                f"unknown argument {min(unknown)!r}; {nearest(min(unknown), [*InferOptions.__annotations__])}"
            )
        version = options.get("version", "")
        metadata, fresh = yield from self._cached_metadata(model, version)
        try:
            return self.codec.infer(self._request(metadata, inputs, options)), metadata, fresh
        except TensorError:
            if fresh or (yield from self._fetch_metadata(model, version)) == metadata:
                raise
        metadata = self._metadata[model, version]
        return self.codec.infer(self._request(metadata, inputs, options)), metadata, True

    def prepare(self, model: str, inputs: Mapping[str, object], options: InferOptions) -> Flow[PreparedRequest]:
        call, _, _ = yield from self._call(model, inputs, options)
        return PreparedRequest(model, options.get("version", ""), self.codec.protocol, call.owned())

    def infer(self, model: str, inputs: Mapping[str, object], options: InferOptions) -> Flow[InferResult]:
        call, metadata, fresh = yield from self._call(model, inputs, options)
        try:
            reply = yield from self.attempt(call)
        except ServerError as error:
            # The server refused the request, so it did not run: once more if the model has changed meanwhile.
            if fresh or error.code not in _STALE_CODES:
                raise
            if (yield from self._fetch_metadata(model, options.get("version", ""))) == metadata:
                raise
            call, _, _ = yield from self._call(model, inputs, options)
            reply = yield from self.attempt(call)
        return self.result(reply)

    def send(self, prepared: PreparedRequest) -> Flow[InferResult]:
        if prepared.protocol != self.codec.protocol:
            raise UsageError(
                f"the request was prepared for {prepared.protocol}", expected=f"a client of {prepared.protocol}"
            )
        return self.result((yield from self.attempt(prepared.call)))

    def result(self, reply: Reply) -> InferResult:
        codec = self.codec
        return InferResult(lambda: codec.decode_infer(reply))


def _casts(cast: bool | Collection[str], name: str) -> bool:
    return cast if isinstance(cast, bool) else name in cast


def _requested_outputs(outputs: Outputs | None, metadata: ModelMetadata) -> tuple[RequestedOutput, ...]:
    if outputs is None:
        return ()
    if isinstance(outputs, str):
        raise UsageError("outputs is a single text", given=repr(outputs), expected=f"a list: [{outputs!r}]")
    known = [spec.name for spec in metadata.outputs]
    wanted = []
    for name in outputs:
        if name not in known:
            raise TensorError(f"model {metadata.name!r} has no output {name!r}", next_step=nearest(name, known))
        classes = outputs[name] if isinstance(outputs, Mapping) else 0
        if not isinstance(classes, int) or classes < 0:
            raise UsageError(
                f"bad number of classes for output {name!r}", given=repr(classes), expected="0 for the tensor, or above"
            )
        wanted.append(RequestedOutput(name, classes))
    return tuple(wanted)


def _state(model: str, index: Sequence[RepositoryModel]) -> str:
    entries = [entry for entry in index if entry.name == model]
    if not entries:
        return "is not in the server's repository"
    return ", ".join(
        f"version {entry.version or '?'} is {entry.state or 'not loaded'}{f' ({entry.reason})' if entry.reason else ''}"
        for entry in entries
    )
