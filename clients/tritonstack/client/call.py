"""One request and its reply, as every transport sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tritonstack.errors import ServerUnavailable

Buffer = bytes | bytearray | memoryview


class ConnectFailed(ServerUnavailable):
    """No connection could be made, so the request certainly did not reach the server: trying again is safe."""


@dataclass(frozen=True)
class Call:
    """One unary request.

    `target` is a gRPC method (``/inference.GRPCInferenceService/ModelInfer``) or an HTTP path; `verb` and `headers` are
    used by HTTP only. `body` is sent as the concatenation of its parts. `what` names the call in errors. `safe` calls
    change nothing on the server, so they may be repeated after any failure of the connection.
    """

    target: str
    body: tuple[Buffer, ...]
    what: str
    safe: bool = False
    verb: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()

    def owned(self) -> Call:
        """The same call with its body in one bytes object, independent of the arrays it was made from."""
        if len(self.body) == 1 and isinstance(self.body[0], bytes):
            return self
        return replace(self, body=(b"".join(self.body),))

    @property
    def byte_size(self) -> int:
        """Bytes of the body."""
        return sum(len(part) for part in self.body)


@dataclass(frozen=True)
class Reply:
    """A successful answer: the body and, over HTTP, its headers with lower-case names."""

    body: Buffer
    headers: Mapping[str, str] = field(default_factory=dict)


NO_REPLY = Reply(b"")


@dataclass(frozen=True)
class Pause:
    """What a flow yields to wait: seconds, cut short by the deadline of the whole method. It is sent `NO_REPLY`."""

    seconds: float
