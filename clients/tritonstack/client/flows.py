"""What each client method does, written once for both the blocking and the asyncio client.

A flow is a generator that yields the calls to make (and pauses to wait) and is sent the replies; a failed call is
thrown into it. The clients only carry calls to the transport.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from tritonstack.client.call import Call, ConnectFailed, Pause, Reply
from tritonstack.client.codec import Codec
from tritonstack.client.model import ModelConfigView, ModelMetadata, ModelStatistics, RepositoryModel, ServerMetadata
from tritonstack.client.request import PreparedRequest
from tritonstack.client.request_builder import InferOptions, Regions, build_request, check_options
from tritonstack.client.result import InferResult
from tritonstack.errors import (
    DeadlineExceeded,
    ServerError,
    ServerUnavailable,
    TensorError,
    TritonstackError,
    UsageError,
)
from tritonstack.tensor.conform import closest

if TYPE_CHECKING:
    from tritonstack.shared_memory import SharedMemoryRegion

T = TypeVar("T")
Flow = Generator[Call | Pause, Reply, T]

_FIRST_RETRY_PAUSE_S = 0.1
_READY_POLL_S = 0.1
# Codes by which a server says "not that model" or "not these tensors": the cached metadata may be stale.
_STALE_CODES = frozenset({"INVALID_ARGUMENT", "NOT_FOUND", "HTTP 400", "HTTP 404"})
_NOT_READY_CODES = frozenset({"NOT_FOUND", "INVALID_ARGUMENT", "HTTP 400", "HTTP 404"})
_NO_CONFIG_CODES = frozenset({"UNIMPLEMENTED", "HTTP 404", "HTTP 405"})


class Flows:
    """The client's methods as flows over one protocol's codec. Holds the metadata cache; safe from threads."""

    def __init__(self, codec: Codec, *, retries: int) -> None:
        self.codec = codec
        self._retries = retries
        self._metadata: dict[tuple[str, str], ModelMetadata] = {}
        self.regions = Regions()

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
                next_step=closest(model, names),
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
        if not self.codec.can_address(model):
            return ServerError(
                f"Triton cannot be asked for model {model!r} over HTTP, because it does not decode names in URLs",
                code=error.code,
                next_step="use gRPC, or rename the model to letters, digits, '_', '-' and '.'",
            )
        return error

    def _prepared(
        self, model: str, inputs: Mapping[str, object], options: InferOptions
    ) -> Flow[tuple[PreparedRequest, ModelMetadata, bool]]:
        """The request as a call, the metadata it was checked against and whether that is fresh.

        Metadata from the cache is fetched again before tensors are refused: the model may have been replaced.
        """
        check_options(options)
        version = options.get("version", "")
        metadata, fresh = yield from self._cached_metadata(model, version)
        try:
            return self._encoded(metadata, inputs, options), metadata, fresh
        except TensorError:
            if fresh:
                raise
            current = yield from self._fetch_metadata(model, version)
            if current == metadata:
                raise
        return self._encoded(current, inputs, options), current, True

    def _encoded(self, metadata: ModelMetadata, inputs: Mapping[str, object], options: InferOptions) -> PreparedRequest:
        request, slots = build_request(metadata, inputs, options, self.regions)
        return PreparedRequest(metadata.name, request.version, self.codec.protocol, self.codec.infer(request), slots)

    def prepare(self, model: str, inputs: Mapping[str, object], options: InferOptions) -> Flow[PreparedRequest]:
        prepared, _, _ = yield from self._prepared(model, inputs, options)
        return replace(prepared, call=prepared.call.owned())

    def infer(self, model: str, inputs: Mapping[str, object], options: InferOptions) -> Flow[InferResult]:
        prepared, metadata, fresh = yield from self._prepared(model, inputs, options)
        try:
            return (yield from self.send(prepared))
        except ServerError as error:
            # The server refused the request, so it did not run: once more if the model has changed meanwhile.
            if fresh or error.code not in _STALE_CODES:
                raise
            if (yield from self._fetch_metadata(model, options.get("version", ""))) == metadata:
                raise
        prepared, _, _ = yield from self._prepared(model, inputs, options)
        return (yield from self.send(prepared))

    def send(self, prepared: PreparedRequest) -> Flow[InferResult]:
        if prepared.protocol != self.codec.protocol:
            raise UsageError(
                f"the request was prepared for {prepared.protocol}", expected=f"a client of {prepared.protocol}"
            )
        reply = yield from self.attempt(prepared.call)
        codec = self.codec
        result = InferResult(lambda: codec.decode_infer(reply), prepared.slots)
        result.fill_slots()
        return result

    def register(self, region: SharedMemoryRegion, *, fallback: bool) -> Flow[bool]:
        region.check()
        if region.name in self.regions.shared:
            return True
        try:
            yield from self.attempt(self.codec.register_region(region.name, region.key, region.byte_size))
        except ServerError as error:
            # Names are unique, so a region of this name is this one, registered through another client.
            if "already in manager" not in error.summary:
                if fallback:
                    self.regions.inline.add(region.name)
                    return False
                raise ServerError(
                    f"the server cannot use the shared-memory region: {error.summary}",
                    code=error.code,
                    expected="client and server on one host with one /dev/shm (the same IPC namespace), "
                    "and the server's shared-memory API open (`tritonstack serve --allow shared-memory`)",
                    next_step="mend that, or register with fallback=True to send the tensors in the requests",
                ) from None
        self.regions.inline.discard(region.name)
        self.regions.shared.add(region.name)
        return True

    def unregister(self, region: SharedMemoryRegion) -> Flow[None]:
        self.regions.inline.discard(region.name)
        if region.name in self.regions.shared:
            yield from self.attempt(self.codec.unregister_region(region.name))
            self.regions.shared.discard(region.name)

    def clean_shared_memory(self, prefix: str) -> Flow[tuple[str, ...]]:
        from tritonstack.shared_memory import is_orphan, remove_orphans

        remove_orphans(prefix)
        names = self.codec.read_region_names((yield from self.attempt(self.codec.region_status())))
        orphans = tuple(name for name in names if is_orphan(name, prefix))
        for name in orphans:
            yield from self.attempt(self.codec.unregister_region(name))
        return orphans


def _state(model: str, index: Sequence[RepositoryModel]) -> str:
    entries = [entry for entry in index if entry.name == model]
    if not entries:
        return "is not in the server's repository"
    return ", ".join(
        f"version {entry.version or '?'} is {entry.state or 'not loaded'}{f' ({entry.reason})' if entry.reason else ''}"
        for entry in entries
    )
