"""HTTP/1.1 over own sockets: against the real server and against a scripted peer that hangs up, stalls and chunks."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from transport_use import collect

from tritonstack import AsyncClient
from tritonstack.client.call import Reply
from tritonstack.client.http_codec import HttpCodec
from tritonstack.load.request_pool import PoolEntry, RequestPool
from tritonstack.load.transport import Completion, TransportOptions
from tritonstack.load.transport.http1 import Http1Transport
from tritonstack_deploy.embedded import EmbeddedServer

Answer = Callable[[int], tuple[bytes, bool]]
"""The bytes to send for the n-th request that the peer reads, and whether it hangs up after them."""
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def pool_of(server: EmbeddedServer, model: str, *arrays: np.ndarray) -> RequestPool:
    async def entries() -> list[PoolEntry]:
        async with AsyncClient(server.http_url) as client:
            calls = [(await client.prepare(model, {"x": array})).call for array in arrays]
            return [PoolEntry(one.target, b"".join(one.body), headers=tuple(one.headers)) for one in calls]

    return RequestPool.of(asyncio.run(entries()))


def open_to(url: str, pool: RequestPool, connections: int = 4) -> Http1Transport:
    return Http1Transport(TransportOptions(kind="http", url=url, connections=connections), pool)


@pytest.mark.parametrize("connections", [1, 5])
def test_every_answer_belongs_to_its_request(load_server: EmbeddedServer, connections: int) -> None:
    pool = pool_of(load_server, "plus_one", *(np.full((1, 3), value, np.float32) for value in range(7)))
    transport = open_to(load_server.http_url, pool, connections)
    for token in range(70):
        transport.send(token, token % 7, 10.0)
    found = collect(transport, 70)
    transport.close()
    assert sorted(one.token for one in found) == list(range(70))
    for one in found:
        assert one.error is None
        assert one.sent_s <= one.first_s <= one.done_s
        headers = {} if one.head_length is None else {"inference-header-content-length": one.head_length}
        output = HttpCodec().decode_infer(Reply(one.body, headers)).outputs["y"]
        assert np.frombuffer(output.data, np.float32).tolist() == [one.token % 7 + 1] * 3  # type: ignore[arg-type]


def test_errors_of_the_server_and_deadlines_have_their_kinds(load_server: EmbeddedServer) -> None:
    array = np.zeros((1, 3), np.float32)
    transport = open_to(load_server.http_url, pool_of(load_server, "broken", array))
    transport.send(0, 0, 5.0)
    (one,) = collect(transport, 1)
    transport.close()
    assert one.error is not None and one.error[0].startswith("ServerError HTTP ")
    transport = open_to(load_server.http_url, pool_of(load_server, "sleepy", array), 1)
    transport.send(0, 0, 0.005)
    (one,) = collect(transport, 1)
    assert one.error is not None and one.error[0] == "DeadlineExceeded"
    transport.send(1, 0, 5.0)
    (one,) = collect(transport, 1)
    transport.close()
    assert one.error is None and one.token == 1, "the late answer is not taken for the next one"


@pytest.fixture
def peer() -> Iterator[Callable[[Answer], str]]:
    listeners: list[socket.socket] = []

    def start(answer: Answer) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def serve() -> None:
            number = 0
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    while connection.recv(65536):
                        data, ends = answer(number)
                        number += 1
                        connection.sendall(data)
                        if ends:
                            break

        threading.Thread(target=serve, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def ask(url: str, count: int, limit_s: float = 5.0) -> list[Completion]:
    transport = open_to(url, RequestPool.of([PoolEntry("/v2/models/m/infer", b"{}")]), 1)
    try:
        for token in range(count):
            transport.send(token, 0, limit_s)
        return collect(transport, count)
    finally:
        transport.close()


@pytest.mark.parametrize(
    "data",
    [
        OK,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\n\r\nok",
    ],
)
@pytest.mark.parametrize("ends", [False, True])
def test_answers_of_every_length_are_read(peer: Callable[[Answer], str], data: bytes, ends: bool) -> None:
    ends = ends or b"close" in data or data.startswith(b"HTTP/1.1 200 OK\r\n\r\n")
    found = ask(peer(lambda _: (data, ends)), 3)
    assert [(one.error, one.body) for one in found] == [(None, b"ok")] * 3


@pytest.mark.parametrize(
    "data", [b"", OK[:10], OK[:-1], b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\no"]
)
def test_a_server_that_hangs_up_in_the_answer_fails_that_call_only(peer: Callable[[Answer], str], data: bytes) -> None:
    found = ask(peer(lambda number: (data, True) if number == 0 else (OK, False)), 3)
    assert [one.token for one in found] == [0, 1, 2]
    first = found[0].error
    assert first is not None and first[0] == "ServerUnavailable"
    assert [one.error for one in found[1:]] == [None, None]


def test_a_half_answer_ends_at_the_deadline(peer: Callable[[Answer], str]) -> None:
    found = ask(peer(lambda _: (OK[:-1], False)), 2, 0.2)
    assert [one.error[0] for one in found if one.error] == ["DeadlineExceeded"] * 2
