"""gRPC by own HTTP/2 framing: against the real server, a scripted peer, and garbage."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from misbehaving_server import KnownServer
from transport_use import collect, grpc_pool

from tritonstack.client.call import Reply
from tritonstack.client.grpc_codec import GrpcCodec
from tritonstack.errors import UsageError
from tritonstack.load.request_pool import RequestPool, grpc_entry
from tritonstack.load.transport import Completion, TransportOptions
from tritonstack.load.transport import frames as h2
from tritonstack.load.transport.header_block import HeaderDecoder, grpc_timeout, request_block
from tritonstack.load.transport.http2 import Http2Transport
from tritonstack_deploy.embedded import EmbeddedServer

Peer = Callable[[socket.socket], None]
OK_HEADERS = b"\x88\x00\x0ccontent-type\x10application/grpc"
OK_TRAILERS = b"\x00\x0bgrpc-status\x010"


def small_pool(size: int = 10) -> RequestPool:
    return RequestPool.of([grpc_entry("/service/Method", bytes(size))])


@pytest.mark.parametrize("connections", [1, 3])
def test_every_answer_belongs_to_its_request(load_server: EmbeddedServer, connections: int) -> None:
    arrays = [np.full((1, 3), value, np.float32) for value in range(7)]
    pool = grpc_pool(load_server, "plus_one", *arrays)
    transport = Http2Transport(TransportOptions(kind="h2", url=load_server.grpc_url, connections=connections), pool)
    before_s = time.monotonic()
    for token in range(70):
        transport.send(token, token % 7, 10.0)
    found = collect(transport, 70)
    transport.close()
    assert sorted(one.token for one in found) == list(range(70))
    for one in found:
        assert one.error is None
        assert before_s <= one.sent_s <= one.first_s <= one.done_s
        output = GrpcCodec().decode_infer(Reply(one.body)).outputs["y"]
        assert np.frombuffer(output.data, np.float32).tolist() == [one.token % 7 + 1] * 3  # type: ignore[arg-type]


def test_large_requests_and_answers_pass_the_windows(load_server: EmbeddedServer) -> None:
    """Far above one frame and the initial window of 64 KiB, several at once."""
    values = np.random.default_rng(0).integers(0, 100, (1, 700_000), np.int64)
    pool = grpc_pool(load_server, "ids", values)
    transport = Http2Transport(TransportOptions(kind="h2", url=load_server.grpc_url), pool)
    for token in range(5):
        transport.send(token, 0, 30.0)
    found = collect(transport, 5, 30.0)
    transport.close()
    assert [one.error for one in found] == [None] * 5
    for one in found:
        output = GrpcCodec().decode_infer(Reply(one.body)).outputs["y"]
        assert np.array_equal(np.frombuffer(output.data, np.int64), values.ravel() + 1)  # type: ignore[arg-type]


def test_errors_of_the_server_and_deadlines_have_their_kinds(load_server: EmbeddedServer) -> None:
    pool = grpc_pool(load_server, "broken", np.zeros((1, 3), np.float32))
    transport = Http2Transport(TransportOptions(kind="h2", url=load_server.grpc_url), pool)
    transport.send(0, 0, 5.0)
    (one,) = collect(transport, 1)
    assert one.error is not None and one.error[0].startswith("ServerError ")
    transport.close()
    slow = grpc_pool(load_server, "sleepy", np.zeros((1, 3), np.float32))
    transport = Http2Transport(TransportOptions(kind="h2", url=load_server.grpc_url), slow)
    start_s = time.monotonic()
    transport.send(0, 0, 0.005)
    (one,) = collect(transport, 1)
    assert one.error is not None and one.error[0] == "DeadlineExceeded"
    assert time.monotonic() - start_s < 2
    transport.send(1, 0, 5.0)
    (one,) = collect(transport, 1)
    assert one.error is None and one.token == 1, "the connection goes on, and what was cancelled stays away"
    transport.close()


def test_where_nothing_listens_calls_fail_at_once_and_later_ones_are_answered() -> None:
    with KnownServer() as server:
        port = server.url
        server.kill()
        transport = Http2Transport(TransportOptions(kind="h2", url=port), small_pool())
        transport.send(0, 0, 5.0)
        start_s = time.monotonic()
        (one,) = collect(transport, 1)
        assert one.error is not None and one.error[0] == "ServerUnavailable"
        assert "no server answers" in one.error[1]
        assert time.monotonic() - start_s < 2
        transport.close()
    transport = Http2Transport(TransportOptions(kind="h2", url="no.such.name.invalid:8001"), small_pool())
    transport.send(0, 0, 5.0)
    (one,) = collect(transport, 1)
    assert one.error is not None and one.error[0] == "ServerUnavailable"
    transport.close()


def test_tls_is_not_its_business() -> None:
    with pytest.raises(UsageError, match="grpcio"):
        TransportOptions(kind="h2", url="grpcs://host:1")
    with pytest.raises(UsageError, match="speak"):
        TransportOptions(kind="h2", url="http://host:1")


# ---- a scripted peer


class ScriptedPeer:
    """Accepts connections one after the other and runs `act` on each, in a thread."""

    def __init__(self, act: Peer) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self._act = act
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                try:
                    self._act(connection)
                except (OSError, EOFError):
                    continue

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self._thread.join(5)


@pytest.fixture
def scripted() -> Iterator[Callable[[Peer], ScriptedPeer]]:
    peers: list[ScriptedPeer] = []

    def make(act: Peer) -> ScriptedPeer:
        peers.append(ScriptedPeer(act))
        return peers[-1]

    yield make
    for peer in peers:
        peer.close()


def exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def frames(connection: socket.socket) -> Iterator[tuple[int, int, int, bytes]]:
    """Kind, flags, stream and payload of everything that a client sends."""
    assert exactly(connection, len(h2.PREFACE)) == h2.PREFACE
    while True:
        word, flags, stream = h2.FRAME_HEAD.unpack(exactly(connection, 9))
        yield word & 0xFF, flags, stream, exactly(connection, word >> 8)


def answer(stream: int, body: bytes = b"ok", *, trailers: bytes = OK_TRAILERS) -> bytes:
    message = b"\0" + struct.pack(">I", len(body)) + body
    return (
        h2.frame(h2.HEADERS, h2.END_HEADERS, stream, OK_HEADERS)
        + h2.frame(h2.DATA, 0, stream, message)
        + h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, stream, trailers)
    )


def ask(url: str, count: int = 1, *, size: int = 10, limit_s: float = 5.0) -> list[Completion]:
    transport = Http2Transport(TransportOptions(kind="h2", url=url), small_pool(size))
    try:
        for token in range(count):
            transport.send(token, 0, limit_s)
        return collect(transport, count, limit_s + 2)
    finally:
        transport.close()


def answering(make: Callable[[int], bytes], *, first: bytes = b"") -> Peer:
    """A peer that answers each whole request with `make(stream)`."""

    def act(connection: socket.socket) -> None:
        connection.sendall(h2.settings({}) + first)
        for kind, flags, stream, _ in frames(connection):
            if kind == h2.DATA and flags & h2.END_STREAM:
                connection.sendall(make(stream))

    return act


def test_padding_continuations_unknown_frames_and_pings(scripted: Callable[[Peer], ScriptedPeer]) -> None:
    message = b"\0\0\0\0\x02ok"

    def make(stream: int) -> bytes:
        return (
            h2.frame(h2.PING, 0, 0, b"12345678")
            + h2.frame(0xEE, 0xFF, stream, b"of the future")
            + h2.frame(h2.HEADERS, h2.PADDED | h2.WITH_PRIORITY, stream, b"\x03" + bytes(5) + OK_HEADERS[:7] + bytes(3))
            + h2.frame(h2.CONTINUATION, h2.END_HEADERS, stream, OK_HEADERS[7:])
            + h2.frame(h2.DATA, h2.PADDED, stream, b"\x04" + message[:3] + bytes(4))
            + h2.frame(h2.DATA, 0, stream, message[3:])
            + h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, stream, OK_TRAILERS)
        )

    found = ask(scripted(answering(make)).url, 5)
    assert [(one.error, one.body) for one in found] == [(None, b"ok")] * 5


def test_answers_in_single_bytes(scripted: Callable[[Peer], ScriptedPeer]) -> None:
    def act(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in h2.settings({}):
            connection.sendall(bytes((byte,)))
        for kind, flags, stream, _ in frames(connection):
            if kind == h2.DATA and flags & h2.END_STREAM:
                for byte in answer(stream, b"a longer answer"):
                    connection.sendall(bytes((byte,)))

    found = ask(scripted(act).url, 3)
    assert [(one.error, one.body) for one in found] == [(None, b"a longer answer")] * 3


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (
            lambda s: answer(s, trailers=b"\x00\x0bgrpc-status\x0214\x00\x0cgrpc-message\x05a%20b"),
            "ServerUnavailable",
            "a b",
        ),
        (lambda s: answer(s, trailers=b"\x00\x0bgrpc-status\x013"), "ServerError INVALID_ARGUMENT", ""),
        (lambda s: answer(s, trailers=b"\x00\x0bgrpc-status\x0299"), "ServerError UNKNOWN", ""),
        (lambda s: answer(s, trailers=b"\x00\x05other\x010"), "ServerError INTERNAL", "without a status"),
        (
            lambda s: h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, s, b"\x88" + OK_TRAILERS),
            "ServerError INTERNAL",
            "no message",
        ),
        (
            lambda s: h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, s, b"\x8d"),
            "ServerError UNIMPLEMENTED",
            "HTTP status 404",
        ),
        (lambda s: h2.rst_stream(s, 7), "ServerUnavailable", "REFUSED_STREAM"),
        (lambda s: h2.rst_stream(s, 8), "ServerError CANCELLED", "CANCEL"),
        (
            lambda s: (
                h2.frame(h2.HEADERS, h2.END_HEADERS, s, OK_HEADERS) + h2.frame(h2.DATA, h2.END_STREAM, s, bytes(5))
            ),
            "ServerError INTERNAL",
            "without a status",
        ),
    ],
)  # fmt: skip
def test_failures_by_status(
    scripted: Callable[[Peer], ScriptedPeer], make: Callable[[int], bytes], kind: str, words: str
) -> None:
    found = ask(scripted(answering(make)).url, 3)
    assert len(found) == 3
    for one in found:
        assert one.error is not None
        assert one.error[0] == kind and words in one.error[1]


@pytest.mark.parametrize(
    "broken",
    [
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        h2.frame(h2.HEADERS, h2.END_HEADERS, 1, OK_HEADERS),
        h2.settings({}) + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff\xff"),
        h2.settings({}) + h2.frame(h2.HEADERS, h2.END_HEADERS, 2, OK_HEADERS),
        h2.settings({}) + h2.frame(h2.HEADERS, h2.END_HEADERS, 999, OK_HEADERS),
        h2.settings({}) + h2.frame(h2.DATA, 0, 0, b"x"),
        h2.settings({}) + h2.frame(h2.HEADERS, 0, 1, OK_HEADERS) + h2.frame(h2.PING, 0, 0, bytes(8)),
        h2.settings({}) + h2.frame(h2.CONTINUATION, h2.END_HEADERS, 1, OK_HEADERS),
        h2.settings({}) + h2.frame(h2.PUSH_PROMISE, h2.END_HEADERS, 1, bytes(4)),
        h2.settings({}) + h2.frame(h2.PING, 0, 0, b"short"),
        h2.settings({}) + h2.window_update(0, 0),
        h2.settings({}) + h2.window_update(0, 2**31 - 1) * 2,
        h2.settings({}) + h2.frame(h2.GOAWAY, 0, 0, b"x"),
        h2.settings({h2.INITIAL_WINDOW_SIZE: 2**31}),
        h2.settings({h2.MAX_FRAME_SIZE: 1}),
        h2.frame(h2.SETTINGS, 0, 0, b"short"),
        h2.settings({}) + h2.frame(h2.HEADERS, h2.PADDED | h2.END_HEADERS, 1, b"\xff"),
        h2.settings({}) + b"\xff\xff\xff\x06",
    ],
)
def test_what_breaks_the_rules_ends_the_connection_and_fails_its_calls(
    scripted: Callable[[Peer], ScriptedPeer], broken: bytes
) -> None:
    def act(connection: socket.socket) -> None:
        for kind, flags, _, _ in frames(connection):
            if kind == h2.DATA and flags & h2.END_STREAM:
                connection.sendall(broken)
                return

    found = ask(scripted(act).url, 2)
    assert len(found) == 2
    assert {one.error[0] for one in found if one.error} == {"ServerUnavailable"}


@pytest.mark.parametrize("seed", range(6))
def test_garbage_never_raises_and_every_call_ends(scripted: Callable[[Peer], ScriptedPeer], seed: int) -> None:
    """Random bytes, frames of random content, and right answers with some bits turned."""
    chance = random.Random(seed)

    def rubbish(stream: int) -> bytes:
        kind = chance.randrange(4)
        if kind == 0:
            return chance.randbytes(chance.randrange(1, 200))
        if kind == 1:
            return b"".join(
                h2.frame(chance.randrange(12), chance.randrange(256), chance.choice((0, stream, stream + 2)),
                         chance.randbytes(chance.randrange(40)))
                for _ in range(5)
            )  # fmt: skip
        whole = bytearray(answer(stream, chance.randbytes(chance.randrange(3000))))
        for _ in range(chance.randrange(4)):
            whole[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        return bytes(whole)

    def act(connection: socket.socket) -> None:
        connection.sendall(h2.settings({}))
        for number, (kind, flags, stream, _) in enumerate(frames(connection)):
            if kind == h2.DATA and flags & h2.END_STREAM:
                connection.sendall(rubbish(stream))
                if number > 20:
                    return

    peer = scripted(act)
    transport = Http2Transport(TransportOptions(kind="h2", url=peer.url), small_pool())
    ended = 0
    for token in range(120):
        transport.send(token, 0, 0.3)
        if token % 4 == 3:
            ended += len(transport.poll(time.monotonic() + 0.02))
    ended += len(collect(transport, 120 - ended, 5.0))
    transport.close()
    assert ended == 120


def test_calls_that_goaway_leaves_out_go_over_a_new_connection(scripted: Callable[[Peer], ScriptedPeer]) -> None:
    seen: list[int] = []

    def act(connection: socket.socket) -> None:
        connection.sendall(h2.settings({}))
        seen.append(0)
        for kind, flags, stream, _ in frames(connection):
            if kind != h2.DATA or not flags & h2.END_STREAM:
                continue
            seen[-1] += 1
            connection.sendall(answer(stream))
            if len(seen) == 1 and seen[0] == 2:
                connection.sendall(h2.frame(h2.GOAWAY, 0, 0, struct.pack(">II", stream, 0)))
                time.sleep(0.2)
                return

    found = ask(scripted(act).url, 6)
    assert [one.error for one in found] == [None] * 6
    assert seen == [2, 4]


def test_the_servers_limit_of_streams_is_kept(scripted: Callable[[Peer], ScriptedPeer]) -> None:
    most = [0]

    def act(connection: socket.socket) -> None:
        connection.sendall(h2.settings({h2.MAX_CONCURRENT_STREAMS: 2}))
        time.sleep(0.1)
        waiting: list[int] = []
        connection.settimeout(0.1)
        following = frames(connection)
        while True:
            try:
                kind, flags, stream, _ = next(following)
            except TimeoutError:
                for one in waiting:
                    connection.sendall(answer(one))
                waiting.clear()
                following = frames_after(connection)
                continue
            if kind == h2.DATA and flags & h2.END_STREAM:
                waiting.append(stream)
                most[0] = max(most[0], len(waiting))

    peer = scripted(act)
    transport = Http2Transport(TransportOptions(kind="h2", url=peer.url), small_pool())
    assert not transport.poll(time.monotonic() + 0.05)
    for token in range(7):
        transport.send(token, 0, 5.0)
    found = collect(transport, 7)
    transport.close()
    assert [one.error for one in found] == [None] * 7
    assert most[0] == 2


def frames_after(connection: socket.socket) -> Iterator[tuple[int, int, int, bytes]]:
    """`frames` without the preface, which has been read."""
    while True:
        word, flags, stream = h2.FRAME_HEAD.unpack(exactly(connection, 9))
        yield word & 0xFF, flags, stream, exactly(connection, word >> 8)


@pytest.mark.parametrize("initial", [0, 1, 1000, 65_535, 1_000_000])
def test_the_servers_windows_are_kept(scripted: Callable[[Peer], ScriptedPeer], initial: int) -> None:
    """100 kB in windows that open bit by bit: never more than allowed, and all of it in the end."""
    size = 100_000
    wrong: list[str] = []

    def act(connection: socket.socket) -> None:
        connection.sendall(h2.settings({h2.INITIAL_WINDOW_SIZE: initial}))
        # Until the settings are acknowledged the window is the protocol's own.
        stream_window, whole_window, acknowledged, got = 65_535, 65_535, False, 0
        for kind, flags, stream, payload in frames(connection):
            if kind == h2.SETTINGS and flags & h2.ACK and not acknowledged:
                acknowledged = True
                stream_window += initial - 65_535
                grant = h2.window_update(0, 10_000)
                whole_window += 10_000
                connection.sendall(grant)
                if got:
                    stream_window += 7000
                    connection.sendall(h2.window_update(1, 7000))
            elif kind == h2.HEADERS and acknowledged:
                stream_window += 7000
                connection.sendall(h2.window_update(stream, 7000))
            elif kind == h2.DATA:
                got += len(payload)
                stream_window -= len(payload)
                whole_window -= len(payload)
                if whole_window < 0 or (acknowledged and stream_window < 0 and initial >= 65_535):
                    wrong.append(f"{whole_window} {stream_window}")
                if flags & h2.END_STREAM:
                    if got != size + 5:
                        wrong.append(f"{got} bytes")
                    connection.sendall(answer(stream))
                elif acknowledged:
                    stream_window += 9000
                    whole_window += 9000
                    connection.sendall(h2.window_update(stream, 9000) + h2.window_update(0, 9000))

    peer = scripted(act)
    transport = Http2Transport(TransportOptions(kind="h2", url=peer.url), small_pool(size))
    assert not transport.poll(time.monotonic() + 0.1), "the settings come first"
    transport.send(0, 0, 5.0)
    (one,) = collect(transport, 1)
    transport.close()
    assert one.error is None
    assert not wrong


def test_grpc_timeouts_have_eight_digits_at_most() -> None:
    assert [grpc_timeout(s) for s in (1e-9, 0.005, 1.0, 99.9, 100.0, 30 * 86400.0)] == [
        "1u", "5000u", "1000000u", "99900000u", "100000m", "2592000S",
    ]  # fmt: skip


def test_request_headers_are_what_hpack_reads() -> None:
    from hpack import Decoder

    block = request_block("host:1", "/a/" + "b" * 300, 2.0, (("authorization", "x"),))
    fields = [(str(name), str(value)) for name, value in Decoder().decode(block)]
    assert fields[:4] == [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "host:1"),
        (":path", "/a/" + "b" * 300),
    ]
    assert ("te", "trailers") in fields and ("grpc-timeout", "2000000u") in fields
    assert fields[-1] == ("authorization", "x")


def test_blocks_that_use_a_table_are_never_remembered() -> None:
    from hpack import Encoder

    encoder, decoder = Encoder(), HeaderDecoder()
    for status in ("0", "5", "0", "5"):
        block = encoder.encode([("grpc-status", status), ("grpc-message", f"m{status}")])
        found = decoder.decode(block)
        assert found.failure == (None if status == "0" else ("NOT_FOUND", "m5"))
    assert not decoder.known
