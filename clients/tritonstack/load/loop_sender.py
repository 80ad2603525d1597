"""Sending what workers do not: sequences, streams and requests that are taken back, in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tritonstack.client.call import Call, Reply
from tritonstack.errors import TritonstackError, UsageError
from tritonstack.load.cancellation import CancelledOnPurpose, CancelPlan
from tritonstack.load.expected import AnswerCheck
from tritonstack.load.histogram import LatencySummary
from tritonstack.load.request_encoding import EncodedRequest, SequencePlace, in_sequence, sequence_suffix
from tritonstack.load.sequence import SequenceBook, SequencePlan, SequenceStep
from tritonstack.load.sequence_driver import SequenceDriver
from tritonstack.load.stream import StreamSender, StreamSummary, StreamTally

if TYPE_CHECKING:
    from tritonstack.client.endpoint import Endpoint, TlsOptions


class WrongAnswer(TritonstackError):
    """An answer that differs from the expected one; the message says where."""


@dataclass(frozen=True, slots=True)
class SequenceFigures:
    """Sequences of a run: begun, ended by their last answer, and broken off after a failed request."""

    begun: int
    completed: int
    broken: int


@dataclass(frozen=True, slots=True)
class LoopFigures:
    """What a run of this kind has besides latencies. `cancelled`: requests taken back before their answer came."""

    cancelled: int
    sequences: SequenceFigures | None
    streams: StreamSummary | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> LoopFigures:
        """What `to_json` gave."""
        sequences, streams = body["sequences"], body["streams"]
        if streams is not None:
            streams = StreamSummary(
                **{
                    **streams,
                    "first": LatencySummary(**streams["first"]),
                    "between": LatencySummary(**streams["between"]),
                }
            )
        return cls(body["cancelled"], None if sequences is None else SequenceFigures(**sequences), streams)


class LoopSender:
    """`send(index)` for an engine; use as an asynchronous context manager in the engine's loop.

    `requests` are the entries of the pool, `expected` their answers as `ExpectedAnswer.encoded` made them, None where
    nothing is expected. With `sequences` the book chooses the entries, else the engine does. Raises what the transport
    raises, `WrongAnswer` for an answer that is not the expected one and `CancelledOnPurpose` for what `cancel` took
    back.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        requests: Sequence[EncodedRequest],
        *,
        timeout_s: float,
        expected: Sequence[bytes | None] = (),
        stream: bool = False,
        sequences: SequencePlan | None = None,
        cancel: CancelPlan | None = None,
        channels: int = 1,
        tls: TlsOptions | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if stream and endpoint.protocol != "grpc":
            raise UsageError(
                "streams exist over gRPC only", given=str(endpoint), next_step="use grpc://… or --protocol grpc"
            )
        self._endpoint = endpoint
        self._requests = requests
        self._timeout_s = timeout_s
        self._cancel = cancel
        self._stream = stream
        self._channels = channels
        self._tls = tls
        self._headers = headers or {}
        self._checks = [AnswerCheck(one, endpoint.protocol) if one is not None else None for one in expected]
        self._book = SequenceBook(sequences, pool_size=len(requests)) if sequences is not None else None
        self._driver = SequenceDriver(self._book, self._send_step) if self._book is not None else None
        self._tally = StreamTally()
        self._number = 0
        self._cancelled = 0
        self._open = AsyncExitStack()
        self._streams: StreamSender | None = None
        self._transport: Any = None

    async def __aenter__(self) -> Self:
        if self._stream:
            self._streams = await self._open.enter_async_context(
                StreamSender(self._endpoint, channels=self._channels, tls=self._tls, headers=self._headers)
            )
        elif self._endpoint.protocol == "grpc":
            from tritonstack.client.grpc_async import AsyncGrpcTransport

            self._transport = AsyncGrpcTransport(self._endpoint, tls=self._tls, headers=self._headers)
        else:
            from tritonstack.client.http_async import AsyncHttpTransport

            self._transport = AsyncHttpTransport(self._endpoint, tls=self._tls, headers=self._headers)
        if self._transport is not None:
            self._open.push_async_callback(self._transport.close)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._driver is not None and kind is None:
            await self._driver.finish()
        await self._open.aclose()

    async def send(self, index: int) -> object:
        """Send the pool's entry `index`, or the next step of a free sequence, and wait for the answer."""
        if self._driver is not None:
            return await self._driver.send(index)
        return await self._exchange(index, None)

    def figures(self) -> LoopFigures:
        """What has been counted so far."""
        book = self._book
        return LoopFigures(
            self._cancelled,
            SequenceFigures(book.begun, book.completed, book.broken) if book is not None else None,
            self._tally.summary() if self._stream else None,
        )

    async def _send_step(self, step: SequenceStep) -> object:
        return await self._exchange(step.entry, step.place)

    async def _exchange(self, entry: int, place: SequencePlace | None) -> object:
        after_s = None
        if self._cancel is not None:
            after_s = self._cancel.after_of(self._number)
        self._number += 1
        try:
            if self._streams is not None:
                answer = await self._streams.send(
                    self._requests[entry].body,
                    timeout_s=self._timeout_s,
                    cancel_after_s=after_s,
                    addition=b"" if place is None else sequence_suffix(place),
                )
                self._tally.add(answer)
                self._check(entry, answer.first, None)
                return answer
            reply = await self._unary(self._requests[entry], place, after_s)
        except CancelledOnPurpose:
            self._cancelled += 1
            raise
        self._check(entry, reply.body, reply.headers.get("inference-header-content-length"))
        return reply

    async def _unary(self, request: EncodedRequest, place: SequencePlace | None, after_s: float | None) -> Reply:
        if place is not None:
            request = in_sequence(request, place)
        call = Call(request.target, (request.body,), "an inference", headers=request.headers)
        if after_s is None or after_s >= self._timeout_s:
            reply: Reply = await self._transport.send(call, self._timeout_s)
            return reply
        sending = asyncio.ensure_future(self._transport.send(call, self._timeout_s))
        done, _ = await asyncio.wait([sending], timeout=after_s)
        if not done:
            sending.cancel()
            await asyncio.wait([sending])
            if sending.cancelled():
                raise CancelledOnPurpose(f"cancelled {after_s:g} s after it was sent")
        answer: Reply = await sending
        return answer

    def _check(self, entry: int, body: Any, head_length: str | None) -> None:
        check = self._checks[entry] if self._checks else None
        if check is not None and (difference := check.difference(body, head_length)) is not None:
            raise WrongAnswer(difference)
