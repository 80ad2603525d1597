"""One HTTP/2 connection of the client's side that carries unary gRPC calls, any number at a time.

The socket is non-blocking; whoever owns the connection waits for it and calls `receive` and `flush`. Small requests are
joined into one write, answers that came together are read together: at many calls in flight a call costs a fraction of
a system call. Bodies of large requests are never copied here.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tritonstack.load.transport import Completion
from tritonstack.load.transport import frames as h2
from tritonstack.load.transport.addresses import Address
from tritonstack.load.transport.frames import BrokenConnection
from tritonstack.load.transport.header_block import AnswerHeaders, HeaderDecoder
from tritonstack.load.transport.sockets import begin_connection

Explain = Callable[[str, str], tuple[str, str]]
"""From a gRPC status and its message to the kind and words of a failure."""

READ_BYTES = 1 << 16
"""One read of small answers; below what malloc takes from the system anew each time."""
LARGE_READ_BYTES = 1 << 20
"""Where answers fill the small read."""
JOINED_BYTES = 1 << 16
"""Up to this size pending writes are joined; above it they are handed over piece by piece."""
MOST_PIECES = 1024
"""Linux takes no more in one sendmsg."""
CREDIT_BYTES = 1 << 29
"""The server is told that it may send more after so many bytes of answers."""
LARGEST_CONTROL_BYTES = 1 << 20
"""No frame but DATA has a reason to be larger."""
COPIED_BYTES = 4096
"""Up to this size an answer is a copy of its own; above it, a view into what was read."""

_NUMBER = struct.Struct(">I")
_RESET = {
    0: "INTERNAL",
    7: "UNAVAILABLE",
    8: "CANCELLED",
    11: "RESOURCE_EXHAUSTED",
    12: "PERMISSION_DENIED",
}


@dataclass(frozen=True, slots=True)
class WireRequest:
    """A request but for its stream: the frame head of its headers, their block, and the message with its prefix.

    `joint` is the block with the head of the one DATA frame that a small message takes, empty for a large one.
    """

    opening: bytes
    block: bytes
    joint: bytes
    message: bytes | memoryview
    size: int


def wire_request(block: bytes, message: bytes | memoryview) -> WireRequest:
    """The request whose headers are `block`."""
    size = len(message)
    opening = h2.FRAME_HEAD.pack(len(block) << 8 | h2.HEADERS, h2.END_HEADERS, 0)[:5]
    joint = b""
    if size <= h2.DEFAULT_FRAME:
        joint = block + h2.FRAME_HEAD.pack(size << 8 | h2.DATA, h2.END_STREAM, 0)[:5]
    return WireRequest(opening, block, joint, message, size)


class UnaryCall:
    """One call in flight. Moments of `time.monotonic`, 0 where not yet."""

    __slots__ = ("deadline_s", "end", "entry", "first_s", "headers", "moved", "parts", "request", "sent_s", "token")

    def __init__(self, token: int, entry: int, deadline_s: float, request: WireRequest) -> None:
        self.token = token
        self.entry = entry
        self.deadline_s = deadline_s
        self.request = request
        self.sent_s = 0.0
        self.first_s = 0.0
        self.end = 0
        self.headers: AnswerHeaders | None = None
        self.parts: list[bytes | memoryview] = []
        self.moved = False


class _Upload:
    """A message that does not go out in one frame."""

    __slots__ = ("at", "call", "view", "window")

    def __init__(self, call: UnaryCall, view: memoryview, window: int) -> None:
        self.call = call
        self.view = view
        self.window = window
        self.at = 0


class Connection:
    """A connection from its first packet to its end; never used again after `lost`.

    Raises OSError where it cannot even begin.
    """

    def __init__(self, address: Address, explain: Explain) -> None:
        self.socket = begin_connection(address)
        self.fd = self.socket.fileno()
        self.connected = False
        self.greeted = False
        """Whether the other side has shown that it speaks HTTP/2."""
        self.closing = False
        """Whether it takes no new calls any more."""
        self.streams: dict[int, UnaryCall] = {}
        self.waiting: deque[UnaryCall] = deque()
        """Calls for which the server allows no stream yet."""
        self.moved: list[UnaryCall] = []
        """Calls that the server is known not to have begun; the owner sends them elsewhere."""
        self._explain = explain
        self._decoder = HeaderDecoder()
        self._known = self._decoder.known
        self._next = 1
        self._limit = h2.LAST_STREAM
        self._window = h2.DEFAULT_WINDOW
        self._stream_window = h2.DEFAULT_WINDOW
        self._frame_bytes = h2.DEFAULT_FRAME
        self._uploads: dict[int, _Upload] = {}
        self._out: list[bytes | memoryview] = [_GREETING]
        self._queued = len(_GREETING)
        self._written = 0
        self._fresh: deque[UnaryCall] = deque()
        self._rest = b""
        self._data_left = 0
        self._data_stream = self._data_flags = 0
        self._block: list[bytes] | None = None
        self._block_stream = self._block_flags = 0
        self._read_bytes = READ_BYTES
        self._credit = 0

    @property
    def wants_write(self) -> bool:
        """Whether something waits until the socket takes more."""
        return bool(self._out) or not self.connected

    @property
    def idle(self) -> bool:
        """Whether no call is left."""
        return not self.streams and not self.waiting

    def submit(self, call: UnaryCall) -> None:
        """Queue a call. It goes out with the next `flush`, or when the server allows another stream."""
        if len(self.streams) >= self._limit:
            self.waiting.append(call)
            return
        stream = self._next
        self._next = stream + 2
        if self._next > h2.LAST_STREAM:
            self.closing = True
        self.streams[stream] = call
        request = call.request
        size = request.size
        number = _NUMBER.pack(stream)
        if request.joint and size <= self._window and size <= self._stream_window and not self._uploads:
            self._window -= size
            self._out += (request.opening, number, request.joint, number, request.message)
            self._queued += 18 + len(request.block) + size
            call.end = self._queued
            self._fresh.append(call)
            return
        self._out += (request.opening, number, request.block)
        self._queued += h2.HEAD_LENGTH + len(request.block)
        self._uploads[stream] = _Upload(call, memoryview(request.message), self._stream_window)
        self._pump()

    def cancel(self, stream: int) -> None:
        """Forget a call and tell the server so."""
        del self.streams[stream]
        self._uploads.pop(stream, None)
        self._put(h2.rst_stream(stream, h2.CANCEL))
        self._admit()

    def flush(self) -> None:
        """Write what can be written. Raises OSError where the connection is lost."""
        out = self._out
        if not out or not self.connected:
            return
        if self._queued - self._written <= JOINED_BYTES:
            data = out[0] if len(out) == 1 else b"".join(out)
            out.clear()
            try:
                count = self.socket.send(data)
            except BlockingIOError:
                count = 0
            if count < len(data):
                out.append(memoryview(data)[count:])
            self._written += count
        else:
            self._flush_pieces(out)
        fresh = self._fresh
        if fresh:
            now_s = time.monotonic()
            written = self._written
            while fresh and fresh[0].end <= written:
                fresh.popleft().sent_s = now_s

    def _flush_pieces(self, out: list[bytes | memoryview]) -> None:
        first = 0
        try:
            while first < len(out):
                pieces = out[first : first + MOST_PIECES]
                count = self.socket.sendmsg(pieces)
                self._written += count
                for piece in pieces:
                    if count < len(piece):
                        break
                    count -= len(piece)
                    first += 1
                if count:
                    out[first] = memoryview(out[first])[count:]
        except BlockingIOError:
            pass
        del out[:first]

    def receive(self, done: list[Completion]) -> None:
        """Read what is there and add the calls that ended to `done`.

        Raises OSError where the connection was closed, BrokenConnection where it cannot go on.
        """
        try:
            data = self.socket.recv(self._read_bytes)
        except (BlockingIOError, InterruptedError):
            return
        now_s = time.monotonic()
        if not data:
            raise ConnectionResetError("Socket closed")
        self._read_bytes = LARGE_READ_BYTES if len(data) >= READ_BYTES else READ_BYTES
        if self._rest:
            data = self._rest + data
            self._rest = b""
        at = 0
        if self._data_left:
            at = self._more_data(data, 0, now_s, done)
        size = len(data)
        streams, known, unpack = self.streams, self._known, h2.FRAME_HEAD.unpack_from
        while size - at >= 9:
            word, flags, stream = unpack(data, at)
            length, kind = word >> 8, word & 0xFF
            start = at + 9
            stop = start + length
            if kind == 1 and flags & 0x2C == 4 and stop <= size and self._block is None and self.greeted:
                # HEADERS, whole and without padding and priority.
                block = data[start:stop]
                headers = known.get(block)
                if headers is None:
                    self._check_stream(stream, "HEADERS")
                    headers = self._decoder.decode(block)
                call = streams.get(stream)
                if call is not None:
                    if not call.first_s:
                        call.first_s = now_s
                    if flags & 1:
                        self._ended(stream, call, headers, now_s, done)
                    else:
                        call.headers = headers
                at = stop
            elif kind == 0 and flags & 9 == 0 and stop <= size and stream in streams and self._block is None:
                # DATA, whole, of a known call, without padding and with something to follow.
                call = streams[stream]
                if not call.first_s:
                    call.first_s = now_s
                call.parts.append(data[start:stop] if length <= COPIED_BYTES else memoryview(data)[start:stop])
                self._credit += length
                at = stop
            else:
                taken = self._slow_frame(data, at, stop, kind, flags, stream & h2.LAST_STREAM, now_s, done)
                if taken == at:
                    break
                at = taken
        if at < size:
            self._rest = data[at:]
        if self._credit >= CREDIT_BYTES:
            self._put(h2.window_update(0, self._credit))
            self._credit = 0

    def lost(self) -> list[UnaryCall]:
        """The connection is over: close the socket; returns all calls that were left."""
        self.closing = True
        self.socket.close()
        left = [*self.streams.values(), *self.waiting]
        self.streams.clear()
        self.waiting.clear()
        self._uploads.clear()
        self._out.clear()
        return left

    def say_goodbye(self) -> None:
        """Tell the server that nothing more comes, where the socket takes that."""
        if self.connected and not self._out:
            try:
                self.socket.send(h2.frame(h2.GOAWAY, 0, 0, bytes(8)))
            except OSError:
                return

    def _put(self, data: bytes) -> None:
        self._out.append(data)
        self._queued += len(data)

    def _ended(
        self, stream: int, call: UnaryCall, headers: AnswerHeaders, now_s: float, done: list[Completion]
    ) -> None:
        """The stream of `call` was ended by headers."""
        del self.streams[stream]
        if self._uploads and self._uploads.pop(stream, None) is not None:
            # The answer came before the whole request had gone out; the rest of it is of no use.
            self._put(h2.rst_stream(stream, h2.CANCEL))
            call.sent_s = now_s
        if headers.final and headers.failure is None:
            parts = call.parts
            message = parts[0] if len(parts) == 1 else b"".join(parts)
            if len(message) >= 5 and message[0] == 0 and int.from_bytes(message[1:5], "big") == len(message) - 5:
                body = message[5:]
                done.append(Completion(call.token, call.sent_s, call.first_s, now_s, None, body))
            else:
                self._failed(call, ("INTERNAL", _bad_message(message)), now_s, done)
        else:
            failure = headers.failure or (call.headers.failure if call.headers else None)
            self._failed(call, failure or ("INTERNAL", "the answer ended without a status"), now_s, done)
        if self.waiting:
            self._admit()

    def _failed(self, call: UnaryCall, failure: tuple[str, str], now_s: float, done: list[Completion]) -> None:
        done.append(
            Completion(
                call.token, call.sent_s or now_s, call.first_s or now_s, now_s, self._explain(*failure), b""
            )
        )  # fmt: skip

    def _admit(self) -> None:
        while self.waiting and len(self.streams) < self._limit and not self.closing:
            self.submit(self.waiting.popleft())

    def _pump(self) -> None:
        """Put as much of the uploads into frames as the server's windows allow, the oldest first."""
        for stream in list(self._uploads):
            upload = self._uploads[stream]
            view, size = upload.view, len(upload.view)
            number = _NUMBER.pack(stream)
            while (
                upload.at < size
                and (count := min(size - upload.at, self._frame_bytes, self._window, upload.window)) > 0
            ):
                stop = upload.at + count
                head = h2.FRAME_HEAD.pack(count << 8 | h2.DATA, h2.END_STREAM if stop == size else 0, 0)[:5]
                self._out += (head + number, view[upload.at : stop])
                self._queued += h2.HEAD_LENGTH + count
                self._window -= count
                upload.window -= count
                upload.at = stop
            if upload.at == size:
                del self._uploads[stream]
                upload.call.end = self._queued
                self._fresh.append(upload.call)
            elif self._window <= 0:
                return

    def _check_stream(self, stream: int, what: str) -> None:
        if not stream & 1 or (stream & h2.LAST_STREAM) >= self._next:
            raise BrokenConnection(f"a {what} frame of stream {stream & h2.LAST_STREAM}, which was never opened")

    def _more_data(self, data: bytes, at: int, now_s: float, done: list[Completion]) -> int:
        """Take what is here of a DATA frame that began before; returns where it stops."""
        stop = min(at + self._data_left, len(data))
        self._data_left -= stop - at
        call = self.streams.get(self._data_stream)
        if call is not None:
            call.parts.append(memoryview(data)[at:stop])
        if self._data_left == 0 and self._data_flags & h2.END_STREAM and call is not None:
            self._without_status(self._data_stream, call, now_s, done)
        return stop

    def _without_status(self, stream: int, call: UnaryCall, now_s: float, done: list[Completion]) -> None:
        self._ended(stream, call, call.headers or _NO_HEADERS, now_s, done)

    def _slow_frame(
        self,
        data: bytes,
        at: int,
        stop: int,
        kind: int,
        flags: int,
        stream: int,
        now_s: float,
        done: list[Completion],
    ) -> int:
        """Any frame that is not of the two frequent forms; returns where it ends, `at` where more of it is needed."""
        if not self.greeted and (kind != h2.SETTINGS or flags & h2.ACK or stream):
            raise BrokenConnection("what listens there does not speak HTTP/2")
        if self._block is not None and (kind != h2.CONTINUATION or stream != self._block_stream):
            raise BrokenConnection("headers that are not continued")
        start = at + h2.HEAD_LENGTH
        if kind == h2.DATA:
            self._check_stream(stream, "DATA")
            if not flags & h2.PADDED:
                call = self.streams.get(stream)
                if call is not None and not call.first_s:
                    call.first_s = now_s
                self._credit += stop - start
                self._data_left, self._data_stream, self._data_flags = stop - start, stream, flags
                return self._more_data(data, start, now_s, done)
        elif stop - start > LARGEST_CONTROL_BYTES:
            raise BrokenConnection(f"a frame of type {kind} with {stop - start} bytes")
        if stop > len(data):
            return at
        self._whole_frame(data[start:stop], kind, flags, stream, now_s, done)
        return stop

    def _whole_frame(
        self, payload: bytes, kind: int, flags: int, stream: int, now_s: float, done: list[Completion]
    ) -> None:
        if kind == h2.HEADERS:
            self._check_stream(stream, "HEADERS")
            self._block_stream, self._block_flags = stream, flags
            self._continued([], h2.without_padding(payload, flags, what="HEADERS"), flags, now_s, done)
        elif kind == h2.CONTINUATION:
            if self._block is None:
                raise BrokenConnection("a CONTINUATION frame that continues nothing")
            self._continued(self._block, payload, flags, now_s, done)
        elif kind == h2.DATA:
            self._credit += len(payload)
            call = self.streams.get(stream)
            if call is not None:
                call.first_s = call.first_s or now_s
                call.parts.append(h2.without_padding(payload, flags, what="DATA"))
                if flags & h2.END_STREAM:
                    self._without_status(stream, call, now_s, done)
        elif kind == h2.SETTINGS:
            self._settings(payload, flags, stream)
        elif kind == h2.PING:
            if len(payload) != 8 or stream:
                raise BrokenConnection(f"a PING frame of {len(payload)} bytes")
            if not flags & h2.ACK:
                self._put(h2.frame(h2.PING, h2.ACK, 0, payload))
        elif kind == h2.WINDOW_UPDATE:
            self._more_window(stream, h2.read_number(payload, "WINDOW_UPDATE") & h2.MOST_WINDOW)
        elif kind == h2.RST_STREAM:
            self._reset(stream, h2.read_number(payload, "RST_STREAM"), now_s, done)
        elif kind == h2.GOAWAY:
            self._goaway(payload)
        elif kind == h2.PUSH_PROMISE:
            raise BrokenConnection("a PUSH_PROMISE frame, which was not allowed")

    def _continued(self, parts: list[bytes], fragment: bytes, flags: int, now_s: float, done: list[Completion]) -> None:
        """One more part of a header block that began with `parts`."""
        self._block = parts
        parts.append(fragment)
        if sum(map(len, parts)) > LARGEST_CONTROL_BYTES:
            raise BrokenConnection("headers without an end")
        if not flags & h2.END_HEADERS:
            return
        self._block = None
        stream = self._block_stream
        headers = self._decoder.decode(b"".join(parts))
        call = self.streams.get(stream)
        if call is None:
            return
        call.first_s = call.first_s or now_s
        if self._block_flags & h2.END_STREAM:
            self._ended(stream, call, headers, now_s, done)
        else:
            call.headers = headers

    def _settings(self, payload: bytes, flags: int, stream: int) -> None:
        if stream or (flags & h2.ACK and payload):
            raise BrokenConnection("a SETTINGS frame that is none")
        self.greeted = True
        if flags & h2.ACK:
            return
        for key, value in h2.read_settings(payload):
            if key == h2.MAX_CONCURRENT_STREAMS:
                self._limit = value
            elif key == h2.INITIAL_WINDOW_SIZE:
                for upload in self._uploads.values():
                    upload.window += value - self._stream_window
                self._stream_window = value
            elif key == h2.MAX_FRAME_SIZE:
                self._frame_bytes = value
        self._put(h2.frame(h2.SETTINGS, h2.ACK, 0))
        self._admit()
        self._pump()

    def _more_window(self, stream: int, increment: int) -> None:
        if stream == 0:
            self._window += increment
            if not increment or self._window > h2.MOST_WINDOW:
                raise BrokenConnection(f"a window of {self._window} after an increment of {increment}")
        else:
            self._check_stream(stream, "WINDOW_UPDATE")
            upload = self._uploads.get(stream)
            if upload is None:
                return
            upload.window += increment
            if not increment or upload.window > h2.MOST_WINDOW:
                raise BrokenConnection(f"a window of {upload.window} after an increment of {increment}")
        self._pump()

    def _reset(self, stream: int, code: int, now_s: float, done: list[Completion]) -> None:
        self._check_stream(stream, "RST_STREAM")
        call = self.streams.pop(stream, None)
        if call is None:
            return
        self._uploads.pop(stream, None)
        status = _RESET.get(code, "INTERNAL")
        self._failed(call, (status, f"the server reset the call: {h2.error_name(code)}"), now_s, done)
        self._admit()

    def _goaway(self, payload: bytes) -> None:
        """The server takes no more calls here; those that it has not begun go elsewhere."""
        last = h2.read_goaway(payload)
        self.closing = True
        for stream in [stream for stream in self.streams if stream > last]:
            self.moved.append(self.streams.pop(stream))
            self._uploads.pop(stream, None)
        self.moved += self.waiting
        self.waiting.clear()


def _bad_message(message: bytes | memoryview) -> str:
    if not len(message):
        return "the answer has status OK and no message"
    if message[0] == 1:
        return "the answer is compressed, which was not asked for"
    return f"the answer's {len(message)} bytes are not one message"


_NO_HEADERS = AnswerHeaders(None, False)
_GREETING = (
    h2.PREFACE
    + h2.settings(
        {
            h2.HEADER_TABLE_SIZE: 0,
            h2.ENABLE_PUSH: 0,
            h2.INITIAL_WINDOW_SIZE: h2.MOST_WINDOW,
            h2.MAX_FRAME_SIZE: h2.MOST_FRAME,
        }
    )
    + h2.window_update(0, h2.MOST_WINDOW - h2.DEFAULT_WINDOW)
)
