"""gRPC channel options and status codes, for both the sync and the asyncio transport."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tritonstack.client.call import Call, ConnectFailed
from tritonstack.client.endpoint import Endpoint, TlsOptions
from tritonstack.errors import (
    DeadlineExceeded,
    ServerError,
    ServerUnavailable,
    SetupError,
    TritonstackError,
    UsageError,
)

# Core's texts for "the request was never sent": no subchannel could be connected, or the name did not resolve.
_NEVER_SENT = (
    "failed to connect to",
    "connections to all backends failing",
    "DNS resolution failed",
    "DNS query",
    "errors resolving",
)

CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    # The defaults refuse replies above 4 MiB; a client has no reason to be stricter than the server.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Several addresses behind one name (a headless service) share the load.
    ("grpc.lb_policy_name", "round_robin"),
    # A server that is just starting is found within a second instead of after the default back-off of up to 120 s.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Clients must not share a connection behind the caller's back: each channel opens its own.
    ("grpc.use_local_subchannel_pool", 1),
)


def target(endpoint: Endpoint) -> str:
    """grpcio's name for the server's address."""
    return f"dns:///{endpoint.authority}"


def channel_credentials(tls: TlsOptions | None) -> Any:
    """TLS credentials from PEM files; SetupError names one that cannot be read."""
    import grpc  # type: ignore[import-untyped]

    options = tls or TlsOptions()
    return grpc.ssl_channel_credentials(
        _pem(options.ca_file), private_key=_pem(options.key_file), certificate_chain=_pem(options.certificate_file)
    )


def _pem(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SetupError(f"cannot read the certificate file {str(path)!r}: {error.strerror}") from None


def call_metadata(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Headers as gRPC metadata, whose keys are lower-case ASCII."""
    metadata = tuple((name.lower(), value) for name, value in headers.items())
    for name, value in metadata:
        if not name or not all(c.isascii() and (c.isalnum() or c in "-_.") for c in name):
            raise UsageError("bad header name", given=repr(name), expected="letters, digits, '-', '_' and '.'")
        if name.startswith("grpc-") or name.endswith("-bin"):
            raise UsageError("this header name is reserved by gRPC", given=repr(name))
        if not value.isascii() or not value.isprintable():
            raise UsageError(f"bad value for the header {name!r}", expected="printable ASCII")
    return metadata


def error_of_status(name: str, details: str, call: Call, endpoint: Endpoint) -> TritonstackError:
    """The error for a failed call; `name` is the status code's name."""
    if name == "UNAVAILABLE":
        if call.safe and "Socket closed" in details:
            return ConnectFailed(
                f"what listens at {endpoint} hung up on a gRPC call", given=details, next_step=endpoint.other_port_hint
            )
        if any(text in details for text in _NEVER_SENT):
            return ConnectFailed(
                f"no server answers at {endpoint}",
                given=details,
                next_step="start one with `tritonstack serve DIR` or correct the address",
            )
        if "timeout expired" in details.lower():
            return DeadlineExceeded(f"{call.what} waited longer than its queue timeout", given=details)
        if "protocol is restricted" in details:
            return ServerError(f"{call.what} is closed at {endpoint}: {details}", code="PERMISSION_DENIED")
        return ServerUnavailable(f"{call.what} at {endpoint} is unavailable: {details}")
    if name == "DEADLINE_EXCEEDED":
        return DeadlineExceeded(f"{call.what} at {endpoint} did not finish in time", given=details)
    return ServerError(f"{call.what} failed: {details}", code=name)
