"""The asyncio HTTP transport: a pool of keep-alive connections, received straight into the reply's memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import cast

from tritonstack.client.call import Call, Reply
from tritonstack.client.endpoint import Endpoint, TlsOptions
from tritonstack.client.http_sync import connect_failed
from tritonstack.client.http_wire import ReplyParser, connection_broke, error_of_status, header_lines, request_head
from tritonstack.client.tls import ssl_context
from tritonstack.errors import DeadlineExceeded, ServerError

_MAX_IDLE_S = 50.0


class _Connection(asyncio.BufferedProtocol):
    """One connection; at most one exchange at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.idle_since = 0.0
        self.open = True
        self._parser: ReplyParser | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._stray = memoryview(bytearray(1024))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._stray if self._parser is None or self._parser.done else self._parser.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._parser is None or self._parser.done:
            self.close()  # bytes nobody asked for
            return
        try:
            if self._parser.received(nbytes):
                self._finish(None)
        except ServerError as error:
            self._finish(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if self._parser is not None and not self._parser.done:
            try:
                self._parser.received(0)
            except EOFError:
                self._finish(exc or EOFError("closed by the server"))
            else:
                self._finish(None)

    def _finish(self, error: BaseException | None) -> None:
        if self._waiter is not None and not self._waiter.done():
            if error is None:
                self._waiter.set_result(None)
            else:
                self._waiter.set_exception(error)

    async def exchange(self, head: bytes, call: Call) -> ReplyParser:
        """Send the request and wait for its reply."""
        parser = self._parser = ReplyParser()
        self._waiter = asyncio.get_running_loop().create_future()
        if not self.open or self.transport is None:
            raise EOFError("closed by the server")
        if call.byte_size <= 64 * 1024:
            self.transport.write(b"".join((head, *call.body)))
        else:
            self.transport.write(head)
            for part in call.body:
                self.transport.write(part)
        await self._waiter
        return parser

    def close(self) -> None:
        self.open = False
        if self.transport is not None:
            self.transport.abort()


class AsyncHttpTransport:
    """Connections of the running event loop."""

    def __init__(self, endpoint: Endpoint, *, tls: TlsOptions | None, headers: Mapping[str, str]) -> None:
        self._endpoint = endpoint
        self._lines = header_lines(headers)
        self._tls = ssl_context(tls) if endpoint.secure else None
        self._idle: list[_Connection] = []
        self._closed = False

    async def send(self, call: Call, timeout_s: float) -> Reply:
        """Send and wait for the answer; the whole call takes at most `timeout_s`."""
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(timeout_s):
                connection = self._take() or await self._connect()
                parser = await connection.exchange(request_head(call, self._endpoint, self._lines), call)
        except TimeoutError:
            _drop(connection)
            raise DeadlineExceeded(
                f"{call.what} at {self._endpoint} did not finish in time", given=f"{timeout_s:.3g} s"
            ) from None
        except (OSError, EOFError) as error:
            if connection is None:
                raise connect_failed(self._endpoint, error) from None  # type: ignore[arg-type]
            _drop(connection)
            raise connection_broke(self._endpoint, call, error) from None
        except BaseException:
            _drop(connection)
            raise
        if parser.keep_alive and connection.open and not self._closed:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.close()
        if parser.status >= 400:
            raise error_of_status(parser.status, parser.body, call, self._endpoint)
        return parser.reply()

    def _take(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.open and time.monotonic() - connection.idle_since < _MAX_IDLE_S:
                return connection
            connection.close()
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            _Connection,
            self._endpoint.host,
            self._endpoint.port,
            ssl=self._tls,
            server_hostname=self._endpoint.host if self._tls else None,
        )
        return connection

    async def close(self) -> None:
        """Close the idle connections; those in use are closed when their call ends."""
        self._closed = True
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        await asyncio.sleep(0)  # lets the loop run the closings


def _drop(connection: _Connection | None) -> None:
    if connection is not None:
        connection.close()
