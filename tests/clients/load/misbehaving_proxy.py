"""Breaks the bytes between a load tester and a server, a real one too, in ways no healthy server can be made to."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from types import TracebackType
from typing import Literal, Self

Fault = Literal["none", "reset", "garbage", "goaway", "rst_stream", "trickle", "hang_up", "silence"]

_HEADERS, _RST_STREAM, _GOAWAY = 1, 3, 7
_INTERNAL_ERROR = 2
_GARBAGE = bytes((index * 197 + 13) % 256 for index in range(400))


class MisbehavingProxy:
    """Passes bytes on and breaks the `every`-th answer of each connection by `fault`, once it is `armed`.

    An answer is a HEADERS frame over HTTP/2 and a block of bytes over HTTP/1.1. `broken` counts the faults.
    """

    def __init__(self, port: int, fault: Fault, *, every: int = 10, http2: bool = True, armed: bool = True) -> None:
        self._target = port
        self._fault = fault
        self._every = every
        self._http2 = http2
        self.armed = armed
        self.broken = 0
        self.connections = 0
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"{'grpc' if self._http2 else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        for end in self._sockets:
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets += [client, server]
                self.connections += 1
                threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
                threading.Thread(target=self._answer, args=(server, client), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                server.sendall(data)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        """Answers of one connection, in pieces: frames of HTTP/2, blocks of HTTP/1.1."""
        answers = 0
        with contextlib.suppress(OSError, ValueError):
            file = server.makefile("rb", buffering=1 << 16)
            while piece := self._piece(server, file):
                answers += not self._http2 or piece[3] == _HEADERS
                due = self.armed and self._fault != "none" and answers and answers % self._every == 0
                if due and (not self._http2 or piece[3] == _HEADERS):
                    with self._lock:
                        self.broken += 1
                    if not self._break(client, piece):
                        break
                else:
                    client.sendall(piece)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _piece(self, server: socket.socket, file: object) -> bytes:
        if not self._http2:
            return server.recv(1 << 16)
        head: bytes = file.read(9)  # type: ignore[attr-defined]
        if len(head) < 9:
            return b""
        return head + file.read(int.from_bytes(head[:3], "big"))  # type: ignore[attr-defined, no-any-return]

    def _break(self, client: socket.socket, piece: bytes) -> bool:
        """Do it; whether the connection goes on."""
        match self._fault:
            case "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                # The other thread's blocked read would keep the connection open beyond close().
                client.shutdown(socket.SHUT_RD)
                client.close()
                return False
            case "hang_up":
                client.sendall(piece[: len(piece) // 2])
                return False
            case "garbage":
                client.sendall(_GARBAGE)
                return False
            case "silence":
                time.sleep(3600)
                return False
            case "goaway":
                stream = int.from_bytes(piece[5:9], "big")
                body = struct.pack(">II", stream, 0)
                client.sendall(len(body).to_bytes(3, "big") + bytes((_GOAWAY, 0)) + bytes(4) + body + piece)
                return True
            case "rst_stream":
                body = struct.pack(">I", _INTERNAL_ERROR)
                client.sendall(len(body).to_bytes(3, "big") + bytes((_RST_STREAM, 0)) + piece[5:9] + body)
                return True
            case _:
                for at in range(0, len(piece), 7):
                    client.sendall(piece[at : at + 7])
                    time.sleep(0.002)
                return True
