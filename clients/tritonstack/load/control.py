"""Messages between the session and its workers: JSON with its length in front, over a socket."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any

from tritonstack.errors import InternalError

Message = dict[str, Any]

_LENGTH = struct.Struct(">I")
MOST_BYTES = 1 << 30


def packed(message: Message) -> bytes:
    """The bytes of a message."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


async def read_message(reader: asyncio.StreamReader) -> Message | None:
    """The next message; None where the other side is gone."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > MOST_BYTES:
            raise InternalError(f"a message of {length} bytes between session and worker")
        message: Message = json.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return message


class WorkerEnd:
    """The worker's end. What it tells while a run goes on is sent as far as the socket takes it and kept otherwise, so
    that a slow session does not hold the load up."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._in = bytearray()
        self._out = bytearray()
        self.gone = False
        """Whether the session has hung up."""

    def tell(self, message: Message) -> None:
        """Send a message without waiting."""
        self._out += packed(message)
        self._socket.setblocking(False)
        try:
            while self._out:
                del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            return
        except OSError:
            self._lost()

    def flush(self) -> None:
        """Wait until everything is sent."""
        self._socket.setblocking(True)
        try:
            self._socket.sendall(self._out)
            self._out.clear()
        except OSError:
            self._lost()

    def take(self) -> Message | None:
        """A message that is there; None where there is none, without waiting."""
        self._socket.setblocking(False)
        self._receive()
        return self._next()

    def wait(self) -> Message | None:
        """The next message; None where the session has hung up."""
        self.flush()
        while (message := self._next()) is None and not self.gone:
            self._receive()
        return message

    def _receive(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._in += data
        else:
            self._lost()

    def _next(self) -> Message | None:
        if len(self._in) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._in)
        stop = _LENGTH.size + length
        if len(self._in) < stop:
            return None
        message: Message = json.loads(bytes(self._in[_LENGTH.size : stop]))
        del self._in[:stop]
        return message

    def _lost(self) -> None:
        self.gone = True
        self._out.clear()
