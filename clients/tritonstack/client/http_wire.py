"""HTTP/1.1 as bytes: request heads, and a reply parser that never does I/O.

The parser hands out the memory to receive into, so a body of known length lands in its final place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum, auto

from tritonstack.client.call import Call, Reply
from tritonstack.client.endpoint import Endpoint
from tritonstack.errors import DeadlineExceeded, ServerError, ServerUnavailable, TritonstackError, UsageError

_SCRATCH_BYTES = 64 * 1024
_MAX_HEAD_BYTES = 64 * 1024
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_OWN_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "connection", "content-type"})


def header_lines(headers: Mapping[str, str]) -> str:
    """The caller's headers as lines; UsageError for names and values that would break or forge the head."""
    lines = []
    for name, value in headers.items():
        if not name or not set(name) <= _TOKEN:
            raise UsageError("bad header name", given=repr(name))
        if name.lower() in _OWN_HEADERS:
            raise UsageError("this header is set by the client itself", given=repr(name))
        if not value.isascii() or not value.isprintable():
            raise UsageError(f"bad value for the header {name!r}", expected="printable ASCII")
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines)


def request_head(call: Call, endpoint: Endpoint, extra_lines: str) -> bytes:
    """Request line and headers of `call`, up to and with the empty line."""
    own = "".join(f"{name}: {value}\r\n" for name, value in call.headers)
    return (
        f"{call.verb} {call.target} HTTP/1.1\r\nHost: {endpoint.authority}\r\n"
        f"Content-Length: {call.byte_size}\r\n{own}{extra_lines}\r\n"
    ).encode("ascii")


def error_of_status(status: int, body: bytes | bytearray, call: Call, endpoint: Endpoint) -> TritonstackError:
    """The error for a reply with a status of 400 or above."""
    explained = True
    try:
        details = str(json.loads(bytes(body))["error"])
    except (ValueError, KeyError, TypeError):
        explained = False
        details = bytes(body[:200]).decode("utf-8", "replace").strip() or "no explanation"
    if status == 504 or (status == 503 and "timeout expired" in details.lower()):
        return DeadlineExceeded(f"{call.what} at {endpoint} was not finished in time by the server", given=details)
    if status in (502, 503) and "restricted" not in details:
        return ServerUnavailable(f"{call.what} at {endpoint} is unavailable: {details}")
    # Triton explains its errors, except for paths it does not know.
    unknown_path = not explained or (status == 404 and details == "Not Found")
    hint = None if not unknown_path else f"is {endpoint} the address of Triton itself, without the path of a call?"
    return ServerError(f"{call.what} failed: {details}", code=f"HTTP {status}", next_step=hint)


def connection_broke(endpoint: Endpoint, call: Call, error: Exception) -> ServerUnavailable:
    """The error for a connection that ended in the middle of a call."""
    given = str(error) or "closed by the server"
    if call.safe:
        return ServerUnavailable(
            f"the connection to {endpoint} broke during {call.what}", given=given, next_step=endpoint.other_port_hint
        )
    return ServerUnavailable(
        f"the connection to {endpoint} broke during {call.what}, which may or may not have run", given=given
    )


class _State(Enum):
    HEAD = auto()
    SIZED = auto()
    CHUNK_HEAD = auto()
    CHUNK_DATA = auto()
    TRAILER = auto()
    UNTIL_CLOSE = auto()
    DONE = auto()


class ReplyParser:
    """Parses one reply: receive into `buffer()`, then tell `received(count)`, until `done`.

    `status`, `headers` (lower-case names) and `body` are valid once done. `keep_alive` says whether the connection can
    carry another request. Raises ServerError with code ``MALFORMED_REPLY`` for bytes that are not HTTP/1.x.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.keep_alive = False
        self._state = _State.HEAD
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._pending = bytearray()
        self._filled = 0
        self._chunk_left = 0

    @property
    def done(self) -> bool:
        """Whether the whole reply is there."""
        return self._state is _State.DONE

    def buffer(self) -> memoryview:
        """Where to receive the next bytes; never empty before the reply is done."""
        if self._state is _State.SIZED:
            return memoryview(self.body)[self._filled :]
        return self._scratch

    def received(self, count: int) -> bool:
        """Take `count` bytes that were received into the last `buffer()` and tell whether the reply is done.

        0 means that the peer closed the connection: EOFError unless that is how the reply ends.
        """
        if count == 0:
            if self._state is not _State.UNTIL_CLOSE:
                raise EOFError
            self._state = _State.DONE
            return True
        if self._state is _State.SIZED:
            self._filled += count
            if self._filled == len(self.body):
                self._state = _State.DONE
            return self.done
        self._pending += self._scratch[:count]
        while self._step():
            pass
        if self._state is _State.DONE and self._pending:
            self.keep_alive = False
        return self.done

    def reply(self) -> Reply:
        """The finished reply."""
        return Reply(self.body, self.headers)

    def _step(self) -> bool:
        """Parse what is pending; whether another step may be possible."""
        match self._state:
            case _State.HEAD:
                end = self._pending.find(b"\r\n\r\n")
                if end < 0:
                    if len(self._pending) > _MAX_HEAD_BYTES:
                        raise _malformed("its head is larger than 64 KiB")
                    return False
                head = bytes(self._pending[:end])
                del self._pending[: end + 4]
                self._read_head(head)
            case _State.CHUNK_HEAD:
                line = self._line()
                if line is None:
                    return False
                self._chunk_left = _hex(line.split(b";", 1)[0].strip())
                self._state = _State.CHUNK_DATA if self._chunk_left else _State.TRAILER
            case _State.CHUNK_DATA:
                # The two bytes behind a chunk are its line end.
                if len(self._pending) < self._chunk_left + 2:
                    return False
                if self._pending[self._chunk_left : self._chunk_left + 2] != b"\r\n":
                    raise _malformed("a chunk does not end where it says")
                self.body += self._pending[: self._chunk_left]
                del self._pending[: self._chunk_left + 2]
                self._state = _State.CHUNK_HEAD
            case _State.TRAILER:
                line = self._line()
                if line is None:
                    return False
                if not line:
                    self._state = _State.DONE
            case _State.UNTIL_CLOSE:
                self.body += self._pending
                self._pending.clear()
                return False
            case _State.SIZED | _State.DONE:
                return False
        return True

    def _line(self) -> bytes | None:
        end = self._pending.find(b"\r\n")
        if end < 0:
            if len(self._pending) > _MAX_HEAD_BYTES:
                raise _malformed("a line is larger than 64 KiB")
            return None
        line = bytes(self._pending[:end])
        del self._pending[: end + 2]
        return line

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        code = rest[:3]
        if not version.startswith("HTTP/1.") or not (len(code) == 3 and code.isascii() and code.isdigit()):
            raise _malformed(f"it starts with {first[:40]!r}", hint="is this really Triton's HTTP port?")
        if code[0] == "1":  # an interim reply: the real one follows
            return
        self.status = int(code)
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise _malformed(f"bad header line {line[:40]!r}")
            self.headers[name.strip().lower()] = value.strip()
        connection = self.headers.get("connection", "").lower()
        self.keep_alive = connection != "close" and (version != "HTTP/1.0" or connection == "keep-alive")
        encoding = self.headers.get("transfer-encoding", "").lower()
        length = self.headers.get("content-length")
        if self.status in (204, 304):
            self._state = _State.DONE
        elif encoding:
            if encoding != "chunked":
                raise _malformed(f"unsupported transfer encoding {encoding!r}")
            self._state = _State.CHUNK_HEAD
        elif length is not None:
            if not (length.isascii() and length.isdigit()):
                raise _malformed(f"Content-Length is {length!r}")
            self._start_sized(int(length))
        else:
            self.keep_alive = False
            self._state = _State.UNTIL_CLOSE

    def _start_sized(self, length: int) -> None:
        try:
            self.body = bytearray(length)
        except (MemoryError, OverflowError):
            raise _malformed(f"it announces a body of {length} bytes") from None
        self._filled = min(length, len(self._pending))
        self.body[: self._filled] = self._pending[: self._filled]
        del self._pending[: self._filled]
        self._state = _State.DONE if self._filled == length else _State.SIZED


def _hex(digits: bytes) -> int:
    if not digits or len(digits) > 15 or not all(c in b"0123456789abcdefABCDEF" for c in digits):
        raise _malformed(f"bad chunk size {digits[:20]!r}")
    return int(digits, 16)


def _malformed(what: str, *, hint: str | None = None) -> ServerError:
    return ServerError(f"the server's HTTP reply is malformed: {what}", code="MALFORMED_REPLY", next_step=hint)
