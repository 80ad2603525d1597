"""What the client does when the other side is missing, slow, rude or wrong."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from peer import Peer, reply

from tritonstack import AsyncClient, Client, DeadlineExceeded, ServerError, ServerUnavailable
from tritonstack.client.call import Call, ConnectFailed
from tritonstack.client.request import PreparedRequest
from tritonstack.errors import UsageError
from tritonstack_deploy.embedded import EmbeddedServer
from tritonstack_deploy.embedded.ports import Ports

METADATA = reply(b'{"name": "triton", "version": "2.0", "extensions": []}')
ANSWER = reply(b'{"model_name": "m", "model_version": "1", "outputs": []}')
INFERENCE = PreparedRequest("m", "", "http", Call("/v2/models/m/infer", (b"{}",), "an inference"))
GRPC_INFERENCE = PreparedRequest("m", "", "grpc", Call("/inference.GRPCInferenceService/ModelInfer", (b"",), "it"))

Run = Callable[[Callable[[Client], object], str], object]


def run_blocking(action: Callable[[Client], object], url: str, **options: float) -> object:
    with Client(url, **options) as client:  # type: ignore[arg-type]
        return action(client)


def run_async(action: Callable[[AsyncClient], object], url: str, **options: float) -> object:
    async def run() -> object:
        async with AsyncClient(url, **options) as client:  # type: ignore[arg-type]
            return await action(client)  # type: ignore[misc]

    return asyncio.run(run())


@pytest.fixture(params=[run_blocking, run_async], ids=["blocking", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    return request.param  # type: ignore[no-any-return]


def free_port() -> int:
    return Ports.from_base("127.0.0.1", 0).http


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_nobody_there(run: Run, scheme: str) -> None:
    url = f"{scheme}://127.0.0.1:{free_port()}"
    with pytest.raises(ConnectFailed) as caught:
        run(lambda c: c.server_metadata(), url)
    assert f"no server answers at {url}" in str(caught.value)
    assert "tritonstack serve" in str(caught.value)
    assert run(lambda c: c.is_live(), url) is False
    assert run(lambda c: c.is_ready("m"), url) is False
    with pytest.raises(ServerUnavailable, match=r"not ready within 0\.2 s: 'm'"):
        run(lambda c: c.wait_ready(["m"], 0.2), url)


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_an_unknown_host(run: Run, scheme: str) -> None:
    with pytest.raises((ConnectFailed, DeadlineExceeded)):
        run(lambda c: c.server_metadata(timeout_s=3), f"{scheme}://no-such-host.invalid:80")


def test_an_inference_is_retried_when_it_could_not_be_sent(run: Run) -> None:
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(run, lambda c: c.send(INFERENCE), f"http://127.0.0.1:{port}")
        time.sleep(0.05)
        with Peer([ANSWER], port=port) as peer:
            assert answer.result(5).model_version == "1"  # type: ignore[attr-defined]
            assert peer.requests == 1


def test_an_inference_is_sent_once_when_the_connection_breaks(run: Run) -> None:
    with Peer([None]) as peer:
        with pytest.raises(ServerUnavailable, match="may or may not have run") as caught:
            run(lambda c: c.send(INFERENCE), peer.url)
        assert not isinstance(caught.value, ConnectFailed)
        assert peer.requests == 1


def test_a_metadata_call_is_repeated_when_the_connection_breaks(run: Run) -> None:
    with Peer([None, None, METADATA]) as peer:
        assert run(lambda c: c.server_metadata(), peer.url).name == "triton"  # type: ignore[attr-defined]
        assert peer.requests == 3
    with Peer([None]) as peer:
        with pytest.raises(ServerUnavailable):
            run(lambda c: c.server_metadata(), peer.url)
        assert peer.requests == 3


def test_an_idle_connection_that_was_dropped_is_opened_anew(run: Run) -> None:
    with Peer([ANSWER + Peer.CLOSE]) as peer:

        def blocking(client: Client) -> None:
            for _ in range(3):
                assert client.send(INFERENCE).model_version == "1"
                time.sleep(0.05)

        async def asynchronous(client: AsyncClient) -> None:
            for _ in range(3):
                assert (await client.send(INFERENCE)).model_version == "1"
                await asyncio.sleep(0.05)

        run(blocking if run is run_blocking else asynchronous, peer.url)  # type: ignore[arg-type]
        assert (peer.connections, peer.requests) == (3, 3)


def test_connections_are_kept_and_reused(run: Run) -> None:
    with Peer([ANSWER]) as peer:

        def blocking(client: Client) -> None:
            for _ in range(5):
                client.send(INFERENCE)

        async def asynchronous(client: AsyncClient) -> None:
            for _ in range(5):
                await client.send(INFERENCE)

        run(blocking if run is run_blocking else asynchronous, peer.url)  # type: ignore[arg-type]
        assert (peer.connections, peer.requests) == (1, 5)


def test_the_deadline_holds_for_a_reply_that_drips(run: Run) -> None:
    """Each byte comes in time, the whole reply does not."""
    stop = threading.Event()

    class Drip(Peer):
        def _serve(self, connection) -> None:  # type: ignore[no-untyped-def]
            with connection:
                connection.recv(65536)
                for byte in ANSWER:
                    if stop.wait(0.05):
                        return
                    connection.sendall(bytes((byte,)))

    start = time.monotonic()
    with Drip([b""]) as peer, pytest.raises(DeadlineExceeded):
        run(lambda c: c.send(INFERENCE, timeout_s=0.4), peer.url)
    stop.set()
    assert time.monotonic() - start < 2


def test_a_chunked_reply(run: Run) -> None:
    body = b'{"model_name": "m", "model_version": "4", "outputs": []}'
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    with Peer([chunked]) as peer:
        assert run(lambda c: c.send(INFERENCE), peer.url).model_version == "4"  # type: ignore[attr-defined]


@pytest.mark.parametrize("garbage", [b"220 mail ready\r\n\r\n", b"\x00" * 70_000])
def test_a_port_that_speaks_something_else(run: Run, garbage: bytes) -> None:
    with Peer([garbage + Peer.CLOSE]) as peer, pytest.raises(ServerError) as caught:
        run(lambda c: c.server_metadata(), peer.url)
    assert caught.value.code == "MALFORMED_REPLY"


def test_the_port_of_another_protocol(run: Run, server: EmbeddedServer) -> None:
    ports = server.ports
    for url, hint in [
        (f"grpc://127.0.0.1:{ports.http}", "Triton's gRPC port"),
        (f"grpc://127.0.0.1:{ports.metrics}", "Triton's gRPC port"),
        (f"http://127.0.0.1:{ports.grpc}", "Triton's HTTP port"),
        (f"http://127.0.0.1:{ports.metrics}", "Triton's HTTP port"),
        (f"http://127.0.0.1:{ports.http}/v2", "without the path of a call"),
    ]:
        for ask in (lambda c: c.server_metadata(), lambda c: c.metadata("addone")):
            with pytest.raises((ServerUnavailable, ServerError)) as caught:
                run(ask, url)
            assert hint in str(caught.value), url


def test_a_server_that_refuses_a_large_body_early(run: Run) -> None:
    """It answers and hangs up before the body is read: its reason must come through, not a broken pipe."""

    class Strict(Peer):
        def _serve(self, connection) -> None:  # type: ignore[no-untyped-def]
            connection.recv(1024)
            connection.sendall(reply(b'{"error":"too large"}', status="400 Bad Request"))
            time.sleep(0.3)
            connection.close()

    call = Call("/v2/models/m/infer", (bytes(20_000_000),), "an inference")
    with Strict([b""]) as peer, pytest.raises((ServerError, ServerUnavailable)) as caught:
        run(lambda c: c.send(PreparedRequest("m", "", "http", call), timeout_s=5), peer.url)
    assert "too large" in str(caught.value) or isinstance(caught.value, ServerUnavailable)


class Failing(grpc.GenericRpcHandler):
    """A gRPC service whose every method fails with one status, and counts."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self.calls = 0
        self._code, self._details = code, details

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        def handle(request: bytes, context: grpc.ServicerContext) -> bytes:
            self.calls += 1
            context.abort(self._code, self._details)
            return b""

        return grpc.unary_unary_rpc_method_handler(handle)


@pytest.mark.parametrize(
    ("code", "details", "kind", "metadata_calls"),
    [
        (grpc.StatusCode.UNAVAILABLE, "the pod is going away", ServerUnavailable, 3),
        (grpc.StatusCode.UNAVAILABLE, "Request timeout expired", DeadlineExceeded, 1),
        (grpc.StatusCode.INTERNAL, "broken", ServerError, 1),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "late", DeadlineExceeded, 1),
        (grpc.StatusCode.UNAVAILABLE, "This protocol is restricted, expecting header 'x'", ServerError, 1),
    ],
)
def test_grpc_statuses(
    run: Run, code: grpc.StatusCode, details: str, kind: type[Exception], metadata_calls: int
) -> None:
    service = Failing(code, details)
    server = grpc.server(ThreadPoolExecutor(2), handlers=(service,))
    url = f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        with pytest.raises(kind, match="(?i)" + details.split(",")[0]) as caught:
            run(lambda c: c.send(GRPC_INFERENCE), url)
        assert not isinstance(caught.value, ConnectFailed)
        assert service.calls == 1  # never repeated: it may have run
        service.calls = 0
        with pytest.raises(kind):
            run(lambda c: c.server_metadata(), url)
        assert service.calls == metadata_calls
    finally:
        server.stop(None)


def test_bad_constructor_arguments() -> None:
    for options in ({"timeout_s": 0}, {"timeout_s": -1}, {"timeout_s": float("nan")}, {"retries": -1}):
        with pytest.raises(UsageError):
            Client("h:1", **options)  # type: ignore[arg-type]
    with Client("h:1") as client, pytest.raises(UsageError, match="timeout_s"):
        client.is_live(timeout_s=0)


def test_headers_reach_the_server() -> None:
    seen: list[dict[str, str]] = []

    class Echo(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            seen.append(dict(details.invocation_metadata))
            return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")

    server = grpc.server(ThreadPoolExecutor(1), handlers=(Echo(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with Client(f"127.0.0.1:{port}", headers={"Authorization": "Bearer x"}) as client:
        client.is_live()
    server.stop(None)
    assert seen[0]["authorization"] == "Bearer x"
