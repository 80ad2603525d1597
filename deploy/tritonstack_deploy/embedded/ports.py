"""TCP ports of the three endpoints: chosen free, or checked to be free."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack
from dataclasses import dataclass

from tritonstack.errors import SetupError, UsageError


@dataclass(frozen=True)
class Ports:
    """Ports of the HTTP, gRPC and metrics endpoints."""

    http: int
    grpc: int
    metrics: int

    @classmethod
    def from_base(cls, host: str, base: int) -> Ports:
        """`base`, `base + 1`, `base + 2` as Triton numbers them; 0 takes three free ports.

        Raises UsageError for a base out of range and SetupError, naming the port, when one is taken.
        """
        if base == 0:
            return cls._free(host)
        if not 1 <= base <= 65533:
            raise UsageError("--port-base is out of range", given=str(base), expected="0, or 1 to 65533")
        for port, endpoint in ((base, "HTTP"), (base + 1, "gRPC"), (base + 2, "metrics")):
            _require_free(host, port, endpoint)
        return cls(base, base + 1, base + 2)

    @classmethod
    def _free(cls, host: str) -> Ports:
        # All three are held open together, so that they differ.
        with ExitStack() as stack:
            sockets = [stack.enter_context(_socket(host)) for _ in range(3)]
            for s in sockets:
                _bind(s, host, 0, "any")
            return cls(*(int(s.getsockname()[1]) for s in sockets))


def _socket(host: str) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    except socket.gaierror as error:
        raise UsageError(
            "--host cannot be resolved", given=host, expected=f"an address of this machine ({error})"
        ) from None
    return socket.socket(family, socket.SOCK_STREAM)


def _require_free(host: str, port: int, endpoint: str) -> None:
    # SO_REUSEADDR only looks past TIME_WAIT; a listener still makes bind fail, also one that set SO_REUSEPORT.
    with _socket(host) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _bind(s, host, port, endpoint)


def _bind(s: socket.socket, host: str, port: int, endpoint: str) -> None:
    try:
        s.bind((host, port))
    except OSError as error:
        match error.errno:
            case errno.EADDRINUSE:
                raise SetupError(
                    f"port {port} ({endpoint}) on {host} is in use",
                    next_step="choose another --port-base, or 0 for free ports",
                ) from None
            case errno.EACCES:
                raise SetupError(
                    f"port {port} ({endpoint}) may not be opened by this user",
                    next_step="choose a --port-base above 1023",
                ) from None
            case errno.EADDRNOTAVAIL:
                raise UsageError(
                    "--host is not an address of this machine",
                    given=host,
                    expected="127.0.0.1, or 0.0.0.0 for all",
                ) from None
            case _:
                raise
