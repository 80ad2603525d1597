"""The HTTP reply parser, fed in every way a network can cut a reply."""

from __future__ import annotations

import pytest

from tritonstack.client.call import Call
from tritonstack.client.endpoint import Endpoint
from tritonstack.client.http_wire import ReplyParser, error_of_status, header_lines, request_head
from tritonstack.errors import DeadlineExceeded, ServerError, ServerUnavailable, UsageError

SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\nX-Thing: a b\r\n\r\nhello world"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n6;extension=1\r\n world\r\n0\r\nTrailer: 1\r\n\r\n"
)
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED
UNTIL_CLOSE = b"HTTP/1.0 200 OK\r\n\r\nhello world"


def parse(data: bytes, step: int) -> ReplyParser:
    parser = ReplyParser()
    offset = 0
    while not parser.done:
        buffer = parser.buffer()
        piece = data[offset : offset + min(step, len(buffer))]
        buffer[: len(piece)] = piece
        parser.received(len(piece))
        offset += len(piece)
    assert offset == len(data)
    return parser


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64, 10_000])
@pytest.mark.parametrize(
    ("data", "keep_alive"), [(SIZED, True), (CHUNKED, True), (INTERIM, True), (UNTIL_CLOSE, False)]
)
def test_replies_in_pieces(data: bytes, keep_alive: bool, step: int) -> None:
    parser = parse(data, step)
    assert parser.status == 200
    assert bytes(parser.body) == b"hello world"
    assert parser.keep_alive is keep_alive


def test_a_large_body_and_large_chunks() -> None:
    body = bytes(range(256)) * 4000
    sized = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    chunk = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
    assert bytes(parse(sized, 100_000).body) == body
    assert bytes(parse(chunk, 50_000).body) == body


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_empty_bodies(data: bytes) -> None:
    assert bytes(parse(data, 5).body) == b""


def test_connection_close_is_heard() -> None:
    assert not parse(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 9).keep_alive


def test_bytes_behind_the_reply_end_the_connection() -> None:
    parser = ReplyParser()
    data = SIZED + b"HTTP/1.1 200 OK\r\n"
    parser.buffer()[: len(data)] = data
    assert parser.received(len(data))
    assert bytes(parser.body) == b"hello world"
    assert not parser.keep_alive


@pytest.mark.parametrize("end", [0, 10, 30, len(SIZED) - 1])
def test_a_reply_cut_short(end: int) -> None:
    with pytest.raises(EOFError):
        parse(SIZED[:end], 4)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x18\x04\x00\x00\x00\x00\x00\r\n\r\n",  # HTTP/2: a gRPC port
        b"SSH-2.0-OpenSSH_9\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabcd\r\n",
        b"x" * 70_000,
    ],
)
def test_what_is_not_http_is_refused(data: bytes) -> None:
    with pytest.raises(ServerError) as caught:
        parse(data, 40_000)
    assert caught.value.code == "MALFORMED_REPLY"


def test_the_request_head() -> None:
    call = Call("/v2/x", (b"ab", memoryview(b"cde")), "x", headers=(("A", "b"),))
    head = request_head(call, Endpoint("http", "::1", 8000), header_lines({"Authorization": "Bearer x"}))
    assert head == (
        b"POST /v2/x HTTP/1.1\r\nHost: [::1]:8000\r\nContent-Length: 5\r\nA: b\r\nAuthorization: Bearer x\r\n\r\n"
    )


@pytest.mark.parametrize("headers", [{"A\r\nB": "c"}, {"A": "b\r\nC: d"}, {"": "x"}, {"Host": "x"}, {"A": "ö"}])
def test_headers_cannot_break_the_head(headers: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        header_lines(headers)


@pytest.mark.parametrize(
    ("status", "body", "kind", "text"),
    [
        (400, b'{"error":"bad shape"}', ServerError, "bad shape"),
        (500, b"<html>oops</html>", ServerError, "oops"),
        (404, b"", ServerError, "no explanation"),
        (503, b'{"error":"Exceeds maximum queue size"}', ServerUnavailable, "queue size"),
        (503, b'{"error":"Request timeout expired"}', DeadlineExceeded, "timeout expired"),
        (504, b"[1]", DeadlineExceeded, "[1]"),
        (502, b"\xff\xfe", ServerUnavailable, "unavailable"),
    ],
)
def test_error_replies(status: int, body: bytes, kind: type[Exception], text: str) -> None:
    error = error_of_status(status, body, Call("/", (), "a call"), Endpoint("http", "h", 1))
    assert type(error) is kind
    assert text in str(error)
