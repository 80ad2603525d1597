"""gRPC by own HTTP/2 framing: unary calls without TLS over a few connections, in one thread.

A connection that is lost fails its calls and is opened anew by the next one, after a pause that grows while nothing
listens. Whatever a server sends, the worst that comes of it is a failed call.
"""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING

from tritonstack.client.call import Call
from tritonstack.client.grpc_status import call_metadata, error_of_status
from tritonstack.errors import TensorError
from tritonstack.load.failure import failure_of
from tritonstack.load.transport import Completion, TransportOptions
from tritonstack.load.transport.frames import BrokenConnection
from tritonstack.load.transport.h2_connection import Connection, UnaryCall, WireRequest, wire_request
from tritonstack.load.transport.header_block import request_block
from tritonstack.load.transport.sockets import FAR_S, Backoff, SocketTransport, refusal

if TYPE_CHECKING:
    from tritonstack.load.request_pool import RequestPool

MOST_BYTES = 2**31 - 1
"""A protobuf message ends there."""
COPIED_POOL_BYTES = 16_000_000
"""A pool up to this size is copied into objects that are faster to join than views of the shared one."""
DEADLINES_KEPT = 64
"""Requests are kept with their headers for so many different deadlines."""


class _Channel:
    """One place for a connection: the one in use, and when the next may be tried."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.connection: Connection | None = None
        self.attempt = 0
        """Which of the addresses is tried next."""
        self.failed = 0
        """How many addresses have refused in a row."""
        self.backoff = Backoff()
        self.problem = ""


class Http2Transport(SocketTransport):
    """See `Transport`. Raises TensorError for a pool with a request that gRPC cannot carry."""

    def __init__(self, options: TransportOptions, pool: RequestPool) -> None:
        if pool.largest > MOST_BYTES:
            raise TensorError(
                "a request is too large for gRPC",
                given=f"{pool.largest} bytes",
                expected=f"at most {MOST_BYTES}",
                next_step="send fewer samples per request or use shared memory",
            )
        super().__init__(options)
        self._headers = call_metadata(options.headers)
        self._pool = pool
        self._copies = pool.byte_size <= COPIED_POOL_BYTES
        self._requests: dict[float, list[WireRequest | None]] = {}
        self._channels = [_Channel(number) for number in range(max(options.connections, self._book.servers))]
        self._turn = 0
        self._connections: dict[int, tuple[Connection, _Channel]] = {}
        self._events: dict[int, int] = {}
        for channel in self._channels:
            self._connect(channel, time.monotonic())

    def send(self, token: int, entry: int, deadline_s: float) -> None:
        now_s = time.monotonic()
        requests = self._requests.get(deadline_s)
        request = None if requests is None else requests[entry]
        if request is None:
            request = self._prepare(entry, deadline_s)
        ends_s = now_s + deadline_s
        if ends_s < self._next_deadline_s:
            self._next_deadline_s = ends_s
        self._place(UnaryCall(token, entry, ends_s, request), now_s)

    def close(self) -> None:
        for connection, _ in list(self._connections.values()):
            connection.say_goodbye()
            connection.lost()
        self._connections.clear()
        self._readiness.close()

    def _prepare(self, entry: int, deadline_s: float) -> WireRequest:
        """The request with its headers, kept for the next time."""
        pool = self._pool
        block = request_block(self._endpoint.authority, pool.target(entry), deadline_s, self._headers)
        message = pool.framed(entry)
        request = wire_request(block, bytes(message) if self._copies else message)
        if deadline_s not in self._requests:
            if len(self._requests) >= DEADLINES_KEPT:
                self._requests.clear()
            self._requests[deadline_s] = [None] * len(pool)
        self._requests[deadline_s][entry] = request
        return request

    def _place(self, call: UnaryCall, now_s: float) -> None:
        """Give a call to a connection, or fail it where there is none."""
        if len(self._channels) == 1:
            channel = self._channels[0]
            connection = channel.connection
            if connection is None or connection.closing:
                connection = self._connect(channel, now_s)
        else:
            channel, connection = self._choose(now_s)
        if connection is not None:
            connection.submit(call)
        else:
            details = f"failed to connect to all addresses: {channel.problem}"
            self._fail(call, "UNAVAILABLE", details, now_s)

    def _choose(self, now_s: float) -> tuple[_Channel, Connection | None]:
        """The next channel in turn that is connected; one that is about to be where none is."""
        about: tuple[_Channel, Connection] | None = None
        channels = self._channels
        for _ in channels:
            self._turn = (self._turn + 1) % len(channels)
            channel = channels[self._turn]
            connection = channel.connection
            if connection is None or connection.closing:
                connection = self._connect(channel, now_s)
            if connection is None:
                continue
            if connection.connected:
                return channel, connection
            about = about or (channel, connection)
        return about or (channels[self._turn], None)

    def _connect(self, channel: _Channel, now_s: float) -> Connection | None:
        """Begin a connection; None where it is too early to try again or no address takes one."""
        channel.connection = None
        if now_s < channel.backoff.retry_at_s:
            return None
        candidates = self._book.candidates(channel.number)
        while channel.failed < len(candidates):
            address = candidates[channel.attempt % len(candidates)]
            try:
                connection = Connection(address, self._explain)
            except OSError as error:
                self._refused(channel, error)
                continue
            channel.connection = connection
            self._connections[connection.fd] = connection, channel
            events = select.EPOLLIN | select.EPOLLOUT
            self._readiness.register(connection.fd, events)
            self._events[connection.fd] = events
            return connection
        if not candidates:
            channel.problem = self._book.problem
        channel.failed = 0
        channel.backoff.failed(now_s)
        self._book.ask_again()
        return None

    def _refused(self, channel: _Channel, error: OSError) -> None:
        channel.problem = os.strerror(error.errno) if error.errno else str(error)
        channel.attempt += 1
        channel.failed += 1

    def _handle(self, fd: int, events: int) -> None:
        found = self._connections.get(fd)
        if found is None:
            return
        connection, channel = found
        if not connection.connected:
            code = refusal(connection.socket, events)
            if code:
                self._refused(channel, OSError(code, ""))
                self._drop(connection, channel, "UNAVAILABLE", "", elsewhere=True)
                return
            if not events & select.EPOLLOUT:
                return
            connection.connected = True
        try:
            if events & (select.EPOLLIN | select.EPOLLERR | select.EPOLLHUP):
                connection.receive(self._done)
                if connection.greeted:
                    channel.backoff.pause_s = 0.0
                channel.failed = 0
            if connection.moved:
                self._move(connection)
            if connection.closing and connection.idle:
                self._drop(connection, channel, "UNAVAILABLE", "Socket closed")
        except BrokenConnection as error:
            self._drop(connection, channel, "UNAVAILABLE", error.summary)
        except OSError as error:
            self._drop(connection, channel, "UNAVAILABLE", _words(error))

    def _move(self, connection: Connection) -> None:
        """Send calls that the server has not begun over another connection, once."""
        calls, connection.moved = connection.moved, []
        now_s = time.monotonic()
        for call in calls:
            if call.moved:
                self._fail(call, "UNAVAILABLE", "the server sent the call away twice", now_s)
            else:
                call.moved = True
                self._place(call, now_s)

    def _drop(
        self, connection: Connection, channel: _Channel, status: str, details: str, *, elsewhere: bool = False
    ) -> None:
        """A connection is over; its calls fail, or go `elsewhere` where the server cannot have seen them."""
        self._connections.pop(connection.fd, None)
        self._events.pop(connection.fd, None)
        self._readiness.unregister(connection.fd)
        if channel.connection is connection:
            channel.connection = None
            if not connection.greeted and not elsewhere:
                # Something listens but does not speak HTTP/2: no need to ask it a thousand times a second.
                channel.problem = details
                channel.backoff.failed(time.monotonic())
        now_s = time.monotonic()
        for call in connection.lost() + connection.moved:
            if elsewhere:
                self._place(call, now_s)
            else:
                self._fail(call, status, details, now_s)

    def _advance(self) -> None:
        for connection, channel in list(self._connections.values()):
            if not connection.wants_write:
                continue
            try:
                connection.flush()
            except OSError as error:
                self._drop(connection, channel, "UNAVAILABLE", _words(error))
                continue
            events = select.EPOLLIN | select.EPOLLOUT if connection.wants_write else select.EPOLLIN
            if events != self._events[connection.fd]:
                self._readiness.modify(connection.fd, events)
                self._events[connection.fd] = events

    def _expire(self, now_s: float) -> None:
        earliest_s = FAR_S
        for connection, _ in self._connections.values():
            late = [stream for stream, call in connection.streams.items() if call.deadline_s <= now_s]
            for stream in late:
                call = connection.streams[stream]
                connection.cancel(stream)
                self._late(call, now_s)
            for call in [call for call in connection.waiting if call.deadline_s <= now_s]:
                connection.waiting.remove(call)
                self._late(call, now_s)
            for call in (*connection.streams.values(), *connection.waiting):
                earliest_s = min(earliest_s, call.deadline_s)
        self._next_deadline_s = earliest_s

    def _late(self, call: UnaryCall, now_s: float) -> None:
        self._fail(call, "DEADLINE_EXCEEDED", "no answer within the deadline", now_s)

    def _fail(self, call: UnaryCall, status: str, details: str, now_s: float) -> None:
        error = self._explain(status, details)
        self._done.append(Completion(call.token, call.sent_s or now_s, call.first_s or now_s, now_s, error, b""))

    def _explain(self, status: str, details: str) -> tuple[str, str]:
        """How a failure is counted, in the words of the project's own client."""
        return failure_of(error_of_status(status, details, _CALL, self._endpoint))


def _words(error: OSError) -> str:
    return str(error) if error.errno is None else os.strerror(error.errno)


_CALL = Call("", (), "an inference")
