"""How the encoded requests of a pool reach a server and come back: one interface, a module per way.

A transport belongs to one worker process and to its one thread. It sends entries of a `RequestPool` by index and tells
when their answers came; it knows nothing of schedules, windows or histograms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from tritonstack.client.endpoint import Endpoint, TlsOptions, parse_endpoint
from tritonstack.errors import UsageError

if TYPE_CHECKING:
    from tritonstack.load.request_pool import RequestPool

TransportKind = Literal["h2", "grpcio", "http", "conversation"]
"""gRPC by own HTTP/2 framing (no TLS), gRPC by grpcio, HTTP/1.1 with keep-alive; sequences, streams and requests that
are taken back over either."""


class Completion(NamedTuple):
    """One ended request.

    Moments are those of `time.monotonic`: `sent_s` when its bytes were handed to the system, `first_s` when the first
    byte of its answer was there, `done_s` when the whole of it was. `error` is None or (kind, message), the kind as
    errors are counted: ``ServerError INVALID_ARGUMENT``, ``ServerError HTTP 400``, ``ServerUnavailable``,
    ``DeadlineExceeded``. `body` is the answer as `AnswerCheck.difference` takes it (over gRPC the serialised
    ModelInferResponse), valid until the next `poll`; `head_length` the header ``Inference-Header-Content-Length`` of
    HTTP.
    """

    token: int
    sent_s: float
    first_s: float
    done_s: float
    error: tuple[str, str] | None
    body: bytes | memoryview
    head_length: str | None = None


class Transport(Protocol):
    """Many requests in flight in one thread."""

    def send(self, token: int, entry: int, deadline_s: float) -> None:
        """Queue entry `entry` of the pool; its completion carries `token`, which is in use once at a time.

        `deadline_s` are seconds from now; the request then ends with ``DeadlineExceeded``. Never blocks, never raises
        for what server or network do.
        """
        ...

    def poll(self, until_s: float) -> Sequence[Completion]:
        """Flush what is queued and wait for answers until a moment of `time.monotonic`; empty where none came by then.

        Returns as soon as there is one. With a moment that has passed it looks once and does not wait.
        """
        ...

    def close(self) -> None:
        """Hang up. Requests in flight are forgotten."""
        ...


@dataclass(frozen=True, kw_only=True)
class TransportOptions:
    """Where to and by which way. `connections`: over how many calls are spread, for HTTP/1.1 the most there may be.
    `conversation`: the plan of a conversation, as `Conversation.to_json` makes it."""

    kind: TransportKind
    url: str
    connections: int = 1
    tls: TlsOptions | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    conversation: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.connections < 1:
            raise UsageError("a transport has at least one connection", given=str(self.connections))
        if self.kind != "conversation" and self.endpoint.protocol != ("http" if self.kind == "http" else "grpc"):
            raise UsageError(f"the transport {self.kind} does not speak {self.endpoint.protocol}", given=self.url)
        if self.kind == "h2" and self.endpoint.secure:
            raise UsageError("the transport h2 has no TLS", given=self.url, expected="the transport grpcio")

    @property
    def endpoint(self) -> Endpoint:
        """The address with its scheme, port and TLS."""
        return parse_endpoint(
            self.url, protocol=None if "://" in self.url else _protocol(self.kind), tls=self.tls is not None
        )

    def to_json(self) -> dict[str, Any]:
        body = asdict(self)
        if self.tls is not None:
            body["tls"] = {name: None if path is None else str(path) for name, path in asdict(self.tls).items()}
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> TransportOptions:
        tls = body.get("tls")
        if tls is not None:
            tls = TlsOptions(**{name: None if path is None else Path(path) for name, path in tls.items()})
        return cls(
            kind=body["kind"],
            url=body["url"],
            connections=body["connections"],
            tls=tls,
            headers=dict(body["headers"]),
            conversation=body["conversation"],
        )


def _protocol(kind: TransportKind) -> Literal["grpc", "http"]:
    return "http" if kind == "http" else "grpc"


def open_transport(options: TransportOptions, pool: RequestPool) -> Transport:
    """The transport that `options` describe; it connects when it first sends. The pool outlives it."""
    if options.kind == "h2":
        from tritonstack.load.transport.http2 import Http2Transport

        return Http2Transport(options, pool)
    if options.kind == "conversation" or (options.kind == "http" and options.endpoint.secure):
        from tritonstack.load.transport.conversation import ConversationTransport

        return ConversationTransport(options, pool)
    if options.kind == "grpcio":
        from tritonstack.load.transport.grpcio import GrpcioTransport

        return GrpcioTransport(options, pool)
    from tritonstack.load.transport.http1 import Http1Transport

    return Http1Transport(options, pool)
