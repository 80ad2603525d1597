"""Requests over gRPC streams (ModelStreamInfer), for models that send any number of answers to a request.

A stream carries one request at a time and is used again after its final answer: so every answer and every error
belongs to a known request, and cancelling a request, which ends its stream, costs no other one. All streams share the
channels of one `StreamSender`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tritonstack.errors import DeadlineExceeded, ServerError, ServerUnavailable, TritonstackError
from tritonstack.load.cancellation import CancelledOnPurpose
from tritonstack.load.histogram import LatencyHistogram, LatencySummary

if TYPE_CHECKING:
    from tritonstack.client.endpoint import Endpoint, TlsOptions

METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
FINAL = "triton_final_response"
STREAM_ERROR = "STREAM_ERROR"
"""The code of errors that Triton sends as an answer in a stream: they carry a text and no status."""


@dataclass(frozen=True, slots=True)
class StreamAnswer:
    """One answered request. Moments on `time.monotonic`, seconds.

    `response_s` are the moments of its responses, without the empty one that only says that it was the last; `done_s`
    is that of the final one. `first` is the first response, a serialised ModelInferResponse, empty where none came.
    """

    sent_s: float
    response_s: tuple[float, ...]
    done_s: float
    first: bytes


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """Streams of one run: time to the first response and between responses, in µs, and responses per request."""

    requests: int
    responses: int
    first: LatencySummary
    between: LatencySummary
    fewest: int
    most: int

    @property
    def responses_per_request(self) -> float | None:
        return self.responses / self.requests if self.requests else None


@dataclass(slots=True)
class StreamTally:
    """Counts answered streams; about 1 µs a response."""

    first: LatencyHistogram = field(default_factory=LatencyHistogram)
    between: LatencyHistogram = field(default_factory=LatencyHistogram)
    requests: int = 0
    responses: int = 0
    fewest: int = 0
    most: int = 0

    def add(self, answer: StreamAnswer) -> None:
        """Count one answer."""
        count = len(answer.response_s)
        self.fewest = count if self.requests == 0 else min(self.fewest, count)
        self.most = max(self.most, count)
        self.requests += 1
        self.responses += count
        before_s = math.nan
        for moment_s in answer.response_s:
            if math.isnan(before_s):
                self.first.record_s(moment_s - answer.sent_s)
            else:
                self.between.record_s(moment_s - before_s)
            before_s = moment_s

    def summary(self) -> StreamSummary:
        return StreamSummary(
            self.requests, self.responses, self.first.summary(), self.between.summary(), self.fewest, self.most
        )


def stream_suffix() -> bytes:
    """Bytes that go behind a serialised ModelInferRequest so that the server marks its last answer."""
    from tritonclient.grpc import service_pb2

    message = service_pb2.ModelInferRequest()
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    suffix: bytes = message.SerializeToString()
    return suffix


class StreamSender:
    """Sends encoded requests over streams of the running loop; use as an asynchronous context manager.

    `channels` connections are used in turn, for servers behind one name.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        channels: int = 1,
        tls: TlsOptions | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        import grpc.aio  # type: ignore[import-untyped]
        from tritonclient.grpc import service_pb2

        from tritonstack.client.grpc_status import CHANNEL_OPTIONS, call_metadata, channel_credentials, target

        self._endpoint = endpoint
        self._metadata = call_metadata(headers or {})
        where = target(endpoint)
        self._channels = [
            grpc.aio.secure_channel(where, channel_credentials(tls), CHANNEL_OPTIONS)
            if endpoint.secure
            else grpc.aio.insecure_channel(where, CHANNEL_OPTIONS)
            for _ in range(channels)
        ]
        self._methods = deque(channel.stream_stream(METHOD) for channel in self._channels)
        self._parse = service_pb2.ModelStreamInferResponse.FromString
        self._end = grpc.aio.EOF
        self._rpc_error = grpc.aio.AioRpcError
        self._suffix = stream_suffix()
        self._idle: list[Any] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def send(
        self, body: bytes, *, timeout_s: float, cancel_after_s: float | None = None, addition: bytes = b""
    ) -> StreamAnswer:
        """Send one serialised ModelInferRequest (`body` and `addition`) and wait for its final answer.

        Raises ServerError for an error among the answers, DeadlineExceeded after `timeout_s`, CancelledOnPurpose after
        `cancel_after_s`, ServerUnavailable where the stream broke. The request is cancelled at the server then.
        """
        stream = self._idle.pop() if self._idle else self._open()
        sent_s = time.monotonic()
        cancels = cancel_after_s is not None and cancel_after_s < timeout_s
        limit_s = cancel_after_s if cancels else timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await stream.write(body + self._suffix + addition)
                answer = await self._answer(stream, sent_s)
        except TimeoutError:
            stream.cancel()
            if cancels:
                raise CancelledOnPurpose(f"cancelled {limit_s:g} s after it was sent") from None
            raise DeadlineExceeded(f"no final answer within {timeout_s:g} s") from None
        except self._rpc_error as error:
            raise self._broken(error) from None
        except asyncio.InvalidStateError:
            # The server ended an idle stream before this request went into it.
            raise ServerUnavailable(f"the stream to {self._endpoint} was closed") from None
        except BaseException:
            stream.cancel()
            raise
        self._idle.append(stream)
        if isinstance(answer, ServerError):
            raise answer
        return answer

    async def close(self) -> None:
        """End all streams in order, so that the server sees no broken one, and close the channels."""
        idle, self._idle = self._idle, []
        for stream in idle:
            await stream.done_writing()
        for stream in idle:
            try:
                async with asyncio.timeout(1.0):
                    while await stream.read() is not self._end:
                        pass
            except (TimeoutError, self._rpc_error, asyncio.InvalidStateError):
                stream.cancel()
        for channel in self._channels:
            await channel.close()

    def _open(self) -> Any:
        method = self._methods[0]
        self._methods.rotate(-1)
        return method(metadata=self._metadata)

    async def _answer(self, stream: Any, sent_s: float) -> StreamAnswer | ServerError:
        """Read to the final response; an error among them is returned once the stream is free again."""
        moments: list[float] = []
        first = b""
        problem: ServerError | None = None
        while True:
            data = await stream.read()
            now_s = time.monotonic()
            if data is self._end:
                # Raises what the status says; an orderly end in the middle of an answer is no status.
                await stream.code()
                raise ServerUnavailable(f"{self._endpoint} ended a stream in the middle of an answer")
            message = self._parse(data)
            response = message.infer_response
            marked = FINAL in response.parameters
            final = not marked or response.parameters[FINAL].bool_param
            if message.error_message:
                problem = problem or ServerError(message.error_message, code=STREAM_ERROR)
            elif response.outputs or not final or not marked:
                if not moments:
                    first = response.SerializeToString()
                moments.append(now_s)
            if final:
                return problem or StreamAnswer(sent_s, tuple(moments), now_s, first)

    def _broken(self, error: Any) -> TritonstackError:
        from tritonstack.client.call import Call
        from tritonstack.client.grpc_status import error_of_status

        call = Call(METHOD, (), "a streamed inference")
        return error_of_status(error.code().name, error.details() or "", call, self._endpoint)
