"""Where a server listens and how to speak to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from tritonstack.errors import UsageError

Protocol = Literal["grpc", "http"]

_SCHEMES: dict[str, tuple[Protocol, bool]] = {
    "grpc": ("grpc", False),
    "grpcs": ("grpc", True),
    "http": ("http", False),
    "https": ("http", True),
}
_DEFAULT_PORTS = {("grpc", False): 8001, ("http", False): 8000, ("grpc", True): 443, ("http", True): 443}


@dataclass(frozen=True)
class TlsOptions:
    """Certificates in PEM files. Without `ca_file` the system's trust store is used; the client's own certificate and
    key are only needed for mutual TLS."""

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None


@dataclass(frozen=True)
class Endpoint:
    """A server address. `prefix` is the path in front of ``/v2`` behind an HTTP gateway, without a trailing slash."""

    protocol: Protocol
    host: str
    port: int
    secure: bool = False
    prefix: str = ""

    @property
    def authority(self) -> str:
        """``host:port`` with IPv6 addresses in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def other_port_hint(self) -> str:
        """What to try where something listens that does not speak the protocol."""
        if self.protocol == "grpc":
            return "is this really Triton's gRPC port (8001 by default)? For its HTTP port say http://HOST:PORT"
        return "is this really Triton's HTTP port (8000 by default)? For its gRPC port say grpc://HOST:PORT"

    def __str__(self) -> str:
        return f"{self.protocol}{'s' if self.secure else ''}://{self.authority}{self.prefix}"


def parse_endpoint(url: str, *, protocol: Protocol | None = None, tls: bool = False) -> Endpoint:
    """The endpoint that `url` names: ``host:port`` (gRPC unless `protocol` says http), ``grpc://``, ``grpcs://``,
    ``http://`` or ``https://``. A missing port is Triton's default (8001 gRPC, 8000 HTTP), 443 with TLS.

    Raises UsageError for anything else and where `protocol` contradicts the URL.
    """
    expected = "host:port, grpc://host:port or http://host:port"
    if protocol not in (None, "grpc", "http"):
        raise UsageError("unknown protocol", given=repr(protocol), expected="'grpc' or 'http'")
    scheme, separator, _ = url.partition("://")
    if separator and scheme not in _SCHEMES:
        raise UsageError("unknown scheme in the server URL", given=repr(url), expected=expected)
    try:
        parts = urlsplit(url if separator else f"//{url}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"bad server URL: {error}", given=repr(url), expected=expected) from None
    if (
        not host
        or parts.query
        or parts.fragment
        or parts.username
        or any(c.isspace() or not c.isprintable() for c in url)
    ):
        raise UsageError("bad server URL", given=repr(url), expected=expected)
    spoken, secure = _SCHEMES[scheme] if separator else (protocol or "grpc", False)
    if protocol is not None and protocol != spoken:
        raise UsageError(f"the URL says {spoken} and the protocol says {protocol}", given=repr(url))
    secure = secure or tls
    prefix = parts.path.rstrip("/")
    if prefix and spoken == "grpc":
        raise UsageError("a gRPC address has no path", given=repr(url), expected=expected)
    return Endpoint(spoken, host, _DEFAULT_PORTS[spoken, secure] if port is None else port, secure, prefix)
