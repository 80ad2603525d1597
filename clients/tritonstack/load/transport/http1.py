"""HTTP/1.1 with keep-alive over own sockets: one request in flight per connection, many connections, one thread.

Connections are opened as they are needed, up to the bound; requests beyond it wait. A connection that ends in the
middle of a call fails that call. With TLS the client's own asyncio transport is used instead (`open_transport`).
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque
from typing import TYPE_CHECKING

from tritonstack.client.call import Call
from tritonstack.client.http_wire import (
    ReplyParser,
    connection_broke,
    error_of_status,
    header_lines,
    request_head,
)
from tritonstack.errors import DeadlineExceeded, ServerError, TritonstackError
from tritonstack.load.failure import failure_of
from tritonstack.load.transport import Completion, TransportOptions
from tritonstack.load.transport.addresses import Address
from tritonstack.load.transport.sockets import FAR_S, Backoff, SocketTransport, begin_connection, refusal

if TYPE_CHECKING:
    from tritonstack.load.request_pool import RequestPool

IDLE_S = 1.0
"""A connection that rested for less cannot have been closed for being idle."""
JOINED_BYTES = 64 * 1024
"""Requests up to this size are sent in one piece."""
HEADS_KEPT = 256
"""Different heads of good answers whose meaning is remembered; a server has a few, by the lengths in them."""
_RECEIVE_BYTES = 256 * 1024
_HEAD_END = b"\r\n\r\n"


class _Exchange:
    """One request and what has become of it."""

    __slots__ = ("again", "deadline_s", "entry", "first_s", "sent_s", "token")

    def __init__(self, token: int, entry: int, deadline_s: float) -> None:
        self.token = token
        self.entry = entry
        self.deadline_s = deadline_s
        self.sent_s = 0.0
        self.first_s = 0.0
        self.again = False
        """Whether it was sent before, over a connection that the server had closed while it was idle."""


class _Connection:
    """A socket, the request in it and the bytes that are still to be sent."""

    __slots__ = ("connected", "exchange", "fd", "parser", "rested_at_s", "socket", "unsent", "wants_write")

    def __init__(self, address: Address) -> None:
        self.socket = begin_connection(address)
        self.fd = self.socket.fileno()
        self.connected = False
        self.rested_at_s = FAR_S
        """Since when it was idle before its present request; it never was where it is new."""
        self.exchange: _Exchange | None = None
        self.parser: ReplyParser | None = None
        self.unsent: list[memoryview] = []
        self.wants_write = True


class Http1Transport(SocketTransport):
    """See `Transport`."""

    def __init__(self, options: TransportOptions, pool: RequestPool) -> None:
        super().__init__(options)
        self._pool = pool
        self._most = options.connections
        self._lines = header_lines(options.headers)
        self._heads: dict[int, bytes] = {}
        self._known: dict[bytes, tuple[int, str | None]] = {}
        self._connections: dict[int, _Connection] = {}
        self._idle: list[_Connection] = []
        self._waiting: deque[_Exchange] = deque()
        self._opened = 0
        self._backoff = Backoff()
        self._problem = ""

    def send(self, token: int, entry: int, deadline_s: float) -> None:
        exchange = _Exchange(token, entry, time.monotonic() + deadline_s)
        if exchange.deadline_s < self._next_deadline_s:
            self._next_deadline_s = exchange.deadline_s
        connection = self._rested()
        if connection is not None:
            self._begin(connection, exchange)
        else:
            self._waiting.append(exchange)

    def close(self) -> None:
        for connection in tuple(self._connections.values()):
            self._forget(connection)
        self._readiness.close()

    # ---- connections

    def _advance(self) -> None:
        """Give waiting requests to idle connections, and open more while there may be."""
        if not self._waiting:
            return
        now_s = time.monotonic()
        while self._waiting:
            connection = self._rested()
            if connection is not None:
                self._begin(connection, self._waiting.popleft())
            elif len(self._connections) >= self._most:
                return
            elif now_s < self._backoff.retry_at_s:
                if not self._connections:
                    # Nothing listens and nothing is on its way: the requests fail as they come.
                    while self._waiting:
                        self._fail(self._waiting.popleft(), self._unreachable(), now_s)
                return
            elif not self._open(self._waiting[0], now_s):
                return
            else:
                self._waiting.popleft()

    def _rested(self) -> _Connection | None:
        """An idle connection that the server has not closed."""
        while self._idle:
            connection = self._idle.pop()
            try:
                connection.socket.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                return connection
            except OSError:
                pass
            # Closed, or it says something that nobody has asked for.
            self._forget(connection)
        return None

    def _open(self, exchange: _Exchange, now_s: float) -> bool:
        """Begin a connection for a request; False where no address takes one."""
        for where in self._book.candidates(self._opened):
            try:
                connection = _Connection(where)
            except OSError as error:
                self._problem = os.strerror(error.errno) if error.errno else str(error)
                continue
            self._opened += 1
            self._connections[connection.fd] = connection
            self._readiness.register(connection.fd, select.EPOLLIN | select.EPOLLOUT)
            connection.exchange = exchange
            return True
        self._problem = self._problem or self._book.problem
        self._retreat(now_s)
        return False

    def _retreat(self, now_s: float) -> None:
        self._backoff.failed(now_s)
        self._book.ask_again()

    def _forget(self, connection: _Connection) -> None:
        if self._connections.pop(connection.fd, None) is not None:
            self._readiness.unregister(connection.fd)
            connection.socket.close()
        if connection in self._idle:
            self._idle.remove(connection)

    # ---- one exchange

    def _begin(self, connection: _Connection, exchange: _Exchange) -> None:
        """Send a request over a connection that is open and free."""
        connection.exchange = exchange
        connection.parser = None
        head = self._heads.get(exchange.entry)
        if head is None:
            head = self._heads[exchange.entry] = self._head(exchange.entry)
        _, body = self._pool.entry(exchange.entry)
        exchange.sent_s = time.monotonic()
        if len(body) <= JOINED_BYTES:
            connection.unsent = [memoryview(head + body)]
        else:
            connection.unsent = [memoryview(head), body]
        self._flush(connection)

    def _head(self, entry: int) -> bytes:
        _, body = self._pool.entry(entry)
        call = Call(self._pool.target(entry), (body,), "an inference", headers=self._pool.headers(entry))
        return request_head(call, self._endpoint, self._lines)

    def _flush(self, connection: _Connection) -> None:
        try:
            while connection.unsent:
                sent = connection.socket.sendmsg(connection.unsent)
                while connection.unsent and sent >= len(connection.unsent[0]):
                    sent -= len(connection.unsent.pop(0))
                if sent:
                    connection.unsent[0] = connection.unsent[0][sent:]
        except BlockingIOError:
            pass
        except OSError as error:
            self._broke(connection, error)
            return
        wants = bool(connection.unsent)
        if wants != connection.wants_write:
            connection.wants_write = wants
            self._readiness.modify(connection.fd, select.EPOLLIN | (select.EPOLLOUT if wants else 0))

    def _handle(self, fd: int, events: int) -> None:
        connection = self._connections.get(fd)
        if connection is None:
            return
        if not connection.connected:
            code = refusal(connection.socket, events)
            if code:
                self._refused(connection, code)
                return
            if not events & select.EPOLLOUT:
                return
            connection.connected = True
            self._backoff.pause_s = 0.0
            exchange = connection.exchange
            if exchange is not None:
                self._begin(connection, exchange)
            else:
                self._rest(connection)
            return
        if connection.unsent and events & select.EPOLLOUT:
            self._flush(connection)
            if fd not in self._connections:
                return
        if events & (select.EPOLLIN | select.EPOLLERR | select.EPOLLHUP):
            self._receive(connection)

    def _refused(self, connection: _Connection, code: int) -> None:
        self._problem = os.strerror(code)
        exchange = connection.exchange
        self._forget(connection)
        now_s = time.monotonic()
        self._retreat(now_s)
        if exchange is not None:
            self._fail(exchange, self._unreachable(), now_s)

    def _receive(self, connection: _Connection) -> None:
        try:
            parser = connection.parser
            if parser is None:
                data = connection.socket.recv(_RECEIVE_BYTES)
                self._first_bytes(connection, data)
                return
            while not parser.done:
                count = connection.socket.recv_into(parser.buffer())
                parser.received(count)
        except BlockingIOError:
            return
        except (OSError, EOFError) as error:
            self._broke(connection, error)
            return
        except ServerError as error:
            self._malformed(connection, error)
            return
        self._finished(connection, parser)

    def _first_bytes(self, connection: _Connection, data: bytes) -> None:
        """The beginning of an answer, most often all of it."""
        exchange = connection.exchange
        if exchange is None or not data:
            # The server closed an idle connection, or said something that nobody had asked for.
            self._broke(connection, EOFError())
            return
        exchange.first_s = time.monotonic()
        end = data.find(_HEAD_END)
        if end > 0:
            known = self._known.get(data[:end])
            if known is not None and len(data) == end + 4 + known[0]:
                self._answered(connection, memoryview(data)[end + 4 :], known[1])
                return
        parser = connection.parser = ReplyParser()
        head = None if end < 0 else data[:end]
        view = memoryview(data)
        while view and not parser.done:
            room = parser.buffer()
            count = min(len(room), len(view))
            room[:count] = view[:count]
            parser.received(count)
            view = view[count:]
        if view:
            parser.keep_alive = False
        if head is not None and parser.status == 200 and parser.keep_alive and len(self._known) < HEADS_KEPT:
            length = parser.headers.get("content-length")
            if length is not None:
                self._known[head] = int(length), parser.headers.get("inference-header-content-length")
        if parser.done:
            self._finished(connection, parser)

    def _finished(self, connection: _Connection, parser: ReplyParser) -> None:
        if parser.status < 400 and parser.keep_alive:
            self._answered(connection, memoryview(parser.body), parser.headers.get("inference-header-content-length"))
            return
        exchange = connection.exchange
        if parser.keep_alive:
            self._rest(connection)
        else:
            self._forget(connection)
        if exchange is None:
            return
        now_s = time.monotonic()
        if parser.status >= 400:
            error = error_of_status(parser.status, parser.body, _CALL, self._endpoint)
            self._done.append(
                Completion(exchange.token, exchange.sent_s, exchange.first_s, now_s, failure_of(error), b"")
            )
            return
        head_length = parser.headers.get("inference-header-content-length")
        body = memoryview(parser.body)
        self._done.append(Completion(exchange.token, exchange.sent_s, exchange.first_s, now_s, None, body, head_length))

    def _answered(self, connection: _Connection, body: memoryview, head_length: str | None) -> None:
        exchange = connection.exchange
        self._rest(connection)
        if exchange is not None:
            self._done.append(
                Completion(exchange.token, exchange.sent_s, exchange.first_s, time.monotonic(), None, body, head_length)
            )

    def _rest(self, connection: _Connection) -> None:
        connection.exchange = None
        connection.parser = None
        connection.rested_at_s = time.monotonic()
        if connection.unsent:
            # Answered before the whole request was sent: what is left would be taken for the next one.
            self._forget(connection)
            return
        self._idle.append(connection)

    # ---- failures

    def _broke(self, connection: _Connection, error: Exception) -> None:
        exchange = connection.exchange
        if isinstance(error, EOFError) and connection.parser is not None and connection.parser.status:
            try:
                if connection.parser.received(0):
                    self._finished(connection, connection.parser)
                    return
            except EOFError:
                pass
        answered = exchange is not None and exchange.first_s > 0
        self._forget(connection)
        if exchange is None:
            return
        now_s = time.monotonic()
        # A request that meets a closed socket is answered by a reset, or by a broken pipe where that was seen before.
        hung_up = isinstance(error, EOFError | ConnectionResetError | BrokenPipeError)
        idle_before = exchange.sent_s - connection.rested_at_s > IDLE_S
        if hung_up and idle_before and not answered and not exchange.again and now_s < exchange.deadline_s:
            # A server may close a connection that it thinks idle just when a request goes into it: it goes once more.
            # One that hung up on a busy connection may have run the request, and that is a failure to be counted.
            exchange.again = True
            self._waiting.appendleft(exchange)
            return
        self._fail(exchange, connection_broke(self._endpoint, _CALL, error), now_s)

    def _malformed(self, connection: _Connection, error: ServerError) -> None:
        exchange = connection.exchange
        self._forget(connection)
        if exchange is not None:
            self._fail(exchange, error, time.monotonic())

    def _unreachable(self) -> TritonstackError:
        from tritonstack.client.http_sync import connect_failed

        return connect_failed(self._endpoint, OSError(self._problem))

    def _expire(self, now_s: float) -> None:
        for connection in tuple(self._connections.values()):
            exchange = connection.exchange
            if exchange is not None and exchange.deadline_s <= now_s:
                # Its answer may still come, and HTTP/1.1 has no other way to say that nobody waits for it.
                self._forget(connection)
                self._late(exchange, now_s)
        for exchange in [one for one in self._waiting if one.deadline_s <= now_s]:
            self._waiting.remove(exchange)
            self._late(exchange, now_s)
        open_s = [one.exchange.deadline_s for one in self._connections.values() if one.exchange is not None]
        self._next_deadline_s = min([*open_s, *(one.deadline_s for one in self._waiting)], default=FAR_S)

    def _late(self, exchange: _Exchange, now_s: float) -> None:
        self._fail(exchange, DeadlineExceeded(f"an inference at {self._endpoint} did not finish in time"), now_s)

    def _fail(self, exchange: _Exchange, error: TritonstackError, now_s: float) -> None:
        self._done.append(
            Completion(
                exchange.token, exchange.sent_s or now_s, exchange.first_s or now_s, now_s, failure_of(error), b""
            )
        )


_CALL = Call("", (), "an inference")
"""How the encoded requests of a pool are called in errors."""
