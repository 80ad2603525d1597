"""Header blocks of gRPC over HTTP/2: those of requests, made once, and those of answers, decoded once.

Requests are written as literals that touch no table (RFC 7541, 6.2.2), so the same bytes serve any stream of any
connection. Answers are told to do without a table too (SETTINGS_HEADER_TABLE_SIZE 0): then the same bytes always mean
the same, and nearly every block of a run is known after the first answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any
from urllib.parse import unquote

from tritonstack.errors import missing_package
from tritonstack.load.transport.frames import BrokenConnection

REMEMBERED = 1024
"""Blocks of one connection that are kept; error messages may make any number of different ones."""
_MOST_TIMEOUT = 10**8 - 1
_STATUS = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)
# What gRPC makes of an HTTP status where there is no grpc-status (grpc/doc/http-grpc-status-mapping.md).
_STATUS_OF_HTTP = {
    400: "INTERNAL",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "UNIMPLEMENTED",
    429: "UNAVAILABLE",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "UNAVAILABLE",
}


@dataclass(frozen=True, slots=True)
class AnswerHeaders:
    """What one block says: `failure` is the gRPC status that it already decides (None: none or OK) and its message;
    `final` whether it holds a grpc-status."""

    failure: tuple[str, str] | None
    final: bool


def request_block(authority: str, target: str, timeout_s: float, headers: Iterable[tuple[str, str]] = ()) -> bytes:
    """The header block of a unary call; `timeout_s` goes along as grpc-timeout."""
    fields = [
        (":authority", authority),
        (":path", target),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "tritonstack-load"),
        ("grpc-timeout", grpc_timeout(timeout_s)),
        *headers,
    ]
    # 0x83 is ":method POST", 0x86 ":scheme http" of the static table.
    return b"\x83\x86" + b"".join(_literal(name) + _literal(value, first=b"") for name, value in fields)


def _literal(text: str, *, first: bytes = b"\0") -> bytes:
    """A string without Huffman coding; `first` opens a field without indexing whose name follows."""
    raw = text.encode()
    return first + _integer(len(raw), 7) + raw


def _integer(value: int, bits: int) -> bytes:
    """RFC 7541, 5.1."""
    most = (1 << bits) - 1
    if value < most:
        return bytes((value,))
    out = bytearray((most,))
    value -= most
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def grpc_timeout(seconds: float) -> str:
    """The finest unit whose number has eight digits at most, rounded up."""
    for unit, factor in (("u", 1e6), ("m", 1e3), ("S", 1.0), ("M", 1 / 60)):
        value = max(ceil(seconds * factor - 1e-6), 1)
        if value <= _MOST_TIMEOUT:
            return f"{value}{unit}"
    return f"{_MOST_TIMEOUT}H"


class HeaderDecoder:
    """The blocks of one connection, in the order in which they come."""

    def __init__(self) -> None:
        try:
            from hpack import Decoder
        except ImportError:
            raise missing_package(
                "hpack", needed_for="tritonstack load", install="pip install 'tritonstack[load]'"
            ) from None
        self._decoder: Any = Decoder()
        self._table_size = self._decoder.header_table_size
        self.known: dict[bytes, AnswerHeaders] = {}
        """Blocks that were seen and mean the same wherever they stand."""

    def decode(self, block: bytes) -> AnswerHeaders:
        """What `block` says. Raises BrokenConnection where it cannot be decoded: from then on nothing can."""
        known = self.known.get(block)
        if known is not None:
            return known
        try:
            fields = self._decoder.decode(block, raw=True)
        except Exception as error:
            # hpack promises HPACKError, but meets some malformed blocks with other errors.
            raise BrokenConnection(f"headers that cannot be decoded: {type(error).__name__} {error}") from None
        headers = _read({bytes(name): bytes(value) for name, value in fields})
        table = self._decoder.header_table
        if self._decoder.header_table_size != self._table_size:
            self._table_size = self._decoder.header_table_size
            self.known.clear()
        elif not table.dynamic_entries and len(self.known) < REMEMBERED:
            # It put nothing into the table and took nothing from it.
            self.known[block] = headers
        return headers


def _read(fields: Mapping[bytes, bytes]) -> AnswerHeaders:
    http = _number(fields.get(b":status"))
    status = _number(fields.get(b"grpc-status"))
    if status is not None:
        if status == 0:
            return AnswerHeaders(None, True)
        message = unquote(fields.get(b"grpc-message", b"").decode("latin-1"))
        return AnswerHeaders((_STATUS[status] if 0 < status < len(_STATUS) else "UNKNOWN", message), True)
    if http is not None and http != 200:
        return AnswerHeaders((_STATUS_OF_HTTP.get(http, "UNKNOWN"), f"HTTP status {http}"), False)
    return AnswerHeaders(None, False)


def _number(value: bytes | None) -> int | None:
    return int(value) if value is not None and value.isdigit() and len(value) < 10 else None
