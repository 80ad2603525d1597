"""A peer that speaks HTTP badly on purpose: what no healthy server can be made to do."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self


class Peer:
    """Accepts connections and answers the n-th request with the n-th script: bytes to send; None hangs up; the last
    script repeats. A trailing `CLOSE` on a reply hangs up after it."""

    CLOSE = b"\0close\0"

    def __init__(self, scripts: Sequence[bytes | None], *, port: int = 0) -> None:
        self._scripts = [*scripts]
        self.requests = 0
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            while _read_request(connection):
                script = self._scripts[min(self.requests, len(self._scripts) - 1)]
                self.requests += 1
                if script is None:
                    return
                connection.sendall(script.removesuffix(self.CLOSE))
                if script.endswith(self.CLOSE):
                    return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        for connection in self._open:
            connection.close()


def _read_request(connection: socket.socket) -> bool:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return False
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        piece = connection.recv(65536)
        if not piece:
            return False
        body += piece
    return True


def reply(body: bytes, *, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body
