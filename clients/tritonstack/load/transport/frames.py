"""The frames of HTTP/2 (RFC 9113) as bytes: what is sent, and the small ones that are received."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from tritonstack.errors import ServerUnavailable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = range(1, 6)

DEFAULT_WINDOW = 65_535
MOST_WINDOW = 2**31 - 1
DEFAULT_FRAME = 16_384
MOST_FRAME = 2**24 - 1
LAST_STREAM = 2**31 - 1

HEAD_LENGTH = 9
FRAME_HEAD = struct.Struct(">IBI")
"""Length (24 bits) and type (8 bits) as one number, flags, stream."""

CANCEL = 8

_ERRORS = (
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY",
    "HTTP_1_1_REQUIRED",
)
_SETTING = struct.Struct(">HI")
_NUMBER = struct.Struct(">I")


class BrokenConnection(ServerUnavailable):
    """What came over a connection is no HTTP/2, or breaks its rules: the connection cannot go on."""


def error_name(code: int) -> str:
    """``REFUSED_STREAM`` for 7, the number in words where it is none of the RFC's."""
    return _ERRORS[code] if code < len(_ERRORS) else f"error {code}"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One whole frame."""
    return FRAME_HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def settings(values: Mapping[int, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(key, value) for key, value in values.items()))


def window_update(stream: int, increment: int) -> bytes:
    """A WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, 0, stream, _NUMBER.pack(increment))


def rst_stream(stream: int, code: int) -> bytes:
    """A RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream, _NUMBER.pack(code))


def read_settings(payload: bytes) -> Iterator[tuple[int, int]]:
    """The settings of a frame, checked. Raises BrokenConnection."""
    if len(payload) % _SETTING.size:
        raise BrokenConnection(f"a SETTINGS frame of {len(payload)} bytes")
    for key, value in _SETTING.iter_unpack(payload):
        if key == INITIAL_WINDOW_SIZE and value > MOST_WINDOW:
            raise BrokenConnection(f"an initial window of {value}")
        if key == MAX_FRAME_SIZE and not DEFAULT_FRAME <= value <= MOST_FRAME:
            raise BrokenConnection(f"a maximum frame size of {value}")
        yield key, value


def read_number(payload: bytes, what: str) -> int:
    """The one 32-bit number of a RST_STREAM or WINDOW_UPDATE. Raises BrokenConnection."""
    if len(payload) != _NUMBER.size:
        raise BrokenConnection(f"a {what} frame of {len(payload)} bytes")
    (value,) = _NUMBER.unpack(payload)
    return int(value)


def read_goaway(payload: bytes) -> int:
    """The last stream of a GOAWAY. Raises BrokenConnection."""
    if len(payload) < 8:
        raise BrokenConnection(f"a GOAWAY frame of {len(payload)} bytes")
    (last,) = _NUMBER.unpack_from(payload)
    return int(last) & LAST_STREAM


def without_padding(payload: bytes, flags: int, *, what: str) -> bytes:
    """The payload of a HEADERS or DATA frame without its padding and priority. Raises BrokenConnection."""
    start, stop = 0, len(payload)
    if flags & PADDED:
        if not payload:
            raise BrokenConnection(f"a padded {what} frame without a length")
        start, stop = 1, stop - payload[0]
    if what == "HEADERS" and flags & WITH_PRIORITY:
        start += 5
    if start > stop:
        raise BrokenConnection(f"a {what} frame that is shorter than its padding")
    return payload[start:stop]
