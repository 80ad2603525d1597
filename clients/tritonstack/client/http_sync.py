"""The blocking HTTP transport: a pool of keep-alive connections over plain sockets."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Mapping

from tritonstack.client.call import Buffer, Call, ConnectFailed, Reply
from tritonstack.client.endpoint import Endpoint, TlsOptions
from tritonstack.client.http_wire import ReplyParser, connection_broke, error_of_status, header_lines, request_head
from tritonstack.client.tls import ssl_context
from tritonstack.errors import DeadlineExceeded

# Load balancers commonly drop connections that were idle for 60 s without telling; ours are dropped before.
_MAX_IDLE_S = 50.0
# At most this many buffers go to one sendmsg call (the kernel's limit is 1024).
_MAX_PARTS = 512


class HttpTransport:
    """Safe from any number of threads: each call has a connection to itself while it lasts."""

    def __init__(self, endpoint: Endpoint, *, tls: TlsOptions | None, headers: Mapping[str, str]) -> None:
        self._endpoint = endpoint
        self._lines = header_lines(headers)
        self._tls = ssl_context(tls) if endpoint.secure else None
        self._lock = threading.Lock()
        self._idle: list[tuple[socket.socket, float]] = []
        self._closed = False

    def send(self, call: Call, timeout_s: float) -> Reply:
        """Send and wait for the answer; the whole call takes at most `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        sock = self._take() or self._connect(call, deadline)
        try:
            parser = self._exchange(sock, call, deadline)
        except TimeoutError:
            sock.close()
            raise DeadlineExceeded(
                f"{call.what} at {self._endpoint} did not finish in time", given=f"{timeout_s:.3g} s"
            ) from None
        except (OSError, EOFError) as error:
            sock.close()
            raise connection_broke(self._endpoint, call, error) from None
        except BaseException:
            sock.close()
            raise
        self._give(sock, parser.keep_alive)
        if parser.status >= 400:
            raise error_of_status(parser.status, parser.body, call, self._endpoint)
        return parser.reply()

    def _exchange(self, sock: socket.socket, call: Call, deadline: float) -> ReplyParser:
        parser = ReplyParser()
        head = request_head(call, self._endpoint, self._lines)
        try:
            _send_all(sock, [head, *call.body], deadline)
        except (BrokenPipeError, ConnectionResetError):
            # A server that refuses a request early answers and hangs up before it has read the body: look for that.
            _receive(sock, parser, deadline)
            parser.keep_alive = False
            return parser
        _receive(sock, parser, deadline)
        return parser

    def _take(self) -> socket.socket | None:
        """An idle connection that is still good, or None."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                sock, since = self._idle.pop()
            # Readable means closed by the server (or stray bytes): such a connection cannot carry a request.
            poll = select.poll()
            poll.register(sock, select.POLLIN)
            if time.monotonic() - since < _MAX_IDLE_S and not poll.poll(0):
                return sock
            sock.close()

    def _give(self, sock: socket.socket, keep_alive: bool) -> None:
        with self._lock:
            if keep_alive and not self._closed:
                self._idle.append((sock, time.monotonic()))
                return
        sock.close()

    def _connect(self, call: Call, deadline: float) -> socket.socket:
        try:
            sock = socket.create_connection((self._endpoint.host, self._endpoint.port), _left(deadline))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock if self._tls is None else self._tls.wrap_socket(sock, server_hostname=self._endpoint.host)
        except TimeoutError:
            raise DeadlineExceeded(f"no connection to {self._endpoint} in time", given=call.what) from None
        except OSError as error:
            raise connect_failed(self._endpoint, error) from None

    def close(self) -> None:
        """Close the idle connections; those in use are closed when their call ends."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for sock, _ in idle:
            sock.close()


def connect_failed(endpoint: Endpoint, error: OSError) -> ConnectFailed:
    """The error for a connection that could not be made."""
    return ConnectFailed(
        f"no server answers at {endpoint}",
        given=error.strerror or str(error),
        next_step=(
            "check the certificates"
            if isinstance(error, ssl.SSLError)
            else "start one with `tritonstack serve DIR` or correct the address"
        ),
    )


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _send_all(sock: socket.socket, buffers: list[Buffer], deadline: float) -> None:
    parts = [memoryview(part) for part in buffers if len(part)]
    if isinstance(sock, ssl.SSLSocket):  # has no sendmsg
        for part in parts:
            sock.settimeout(_left(deadline))
            sock.sendall(part)
        return
    while parts:
        sock.settimeout(_left(deadline))
        sent = sock.sendmsg(parts[:_MAX_PARTS])
        while parts and sent >= len(parts[0]):
            sent -= len(parts.pop(0))
        if sent:
            parts[0] = parts[0][sent:]


def _receive(sock: socket.socket, parser: ReplyParser, deadline: float) -> None:
    while not parser.done:
        sock.settimeout(_left(deadline))
        parser.received(sock.recv_into(parser.buffer()))
