"""TLS on both protocols, with certificates that exist for these tests alone (their authority's key is gone)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from peer import Peer, reply
from tritonclient.grpc import service_pb2

from tritonstack import AsyncClient, Client, ServerUnavailable, TlsOptions
from tritonstack.errors import SetupError

FOLDER = Path(__file__).parent / "certificates"
CA, CERTIFICATE, KEY = FOLDER / "ca.pem", FOLDER / "server.pem", FOLDER / "server.key"
TRUSTING = TlsOptions(ca_file=CA)
MUTUAL = TlsOptions(ca_file=CA, certificate_file=CERTIFICATE, key_file=KEY)


class TlsPeer(Peer):
    """An HTTPS server that wants the client's certificate too when `mutual`."""

    def __init__(self, body: bytes, *, mutual: bool) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(CERTIFICATE, KEY)
        if mutual:
            self._context.load_verify_locations(CA)
            self._context.verify_mode = ssl.CERT_REQUIRED
        super().__init__([reply(body)])

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            super()._serve(self._context.wrap_socket(connection, server_side=True))


class Metadata(grpc.GenericRpcHandler):
    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        answer = service_pb2.ServerMetadataResponse(name="secured").SerializeToString()
        return grpc.unary_unary_rpc_method_handler(lambda request, context: answer)


@contextlib.contextmanager
def secured(protocol: str, *, mutual: bool) -> Iterator[str]:
    """The URL of a server that speaks TLS."""
    if protocol == "http":
        with TlsPeer(b'{"name": "secured", "padding": "%b"}' % (b"x" * 300_000), mutual=mutual) as peer:
            yield f"https://localhost:{peer.port}"
        return
    credentials = grpc.ssl_server_credentials(
        [(KEY.read_bytes(), CERTIFICATE.read_bytes())], CA.read_bytes() if mutual else None, mutual
    )
    server = grpc.server(ThreadPoolExecutor(2), handlers=(Metadata(),))
    port = server.add_secure_port("localhost:0", credentials)
    server.start()
    yield f"grpcs://localhost:{port}"
    server.stop(None)


async def ask(url: str, tls: TlsOptions | None) -> str:
    async with AsyncClient(url, tls=tls, retries=0, timeout_s=10) as client:
        return (await client.server_metadata()).name


@pytest.mark.parametrize("mutual", [False, True])
def test_trusted_servers(protocol: str, mutual: bool) -> None:
    tls = MUTUAL if mutual else TRUSTING
    with secured(protocol, mutual=mutual) as url:
        with Client(url, tls=tls, retries=0, timeout_s=10) as client:
            assert client.server_metadata().name == "secured"
            assert client.server_metadata().name == "secured"
        assert asyncio.run(ask(url, tls)) == "secured"


def test_untrusted_servers_are_refused(protocol: str) -> None:
    with secured(protocol, mutual=False) as url:
        with Client(url, retries=0, timeout_s=10) as client, pytest.raises(ServerUnavailable):
            client.server_metadata()
        with pytest.raises(ServerUnavailable):
            asyncio.run(ask(url, None))


def test_servers_that_want_a_certificate_refuse_those_without(protocol: str) -> None:
    with (
        secured(protocol, mutual=True) as url,
        Client(url, tls=TRUSTING, retries=0, timeout_s=10) as client,
        pytest.raises(ServerUnavailable),
    ):
        client.server_metadata()


def test_unreadable_certificates(protocol: str, tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("nonsense")
    for path in (tmp_path / "none.pem", tmp_path / "bad.pem"):
        with (
            Client(f"{protocol}://localhost:1", tls=TlsOptions(ca_file=path), retries=0, timeout_s=2) as client,
            pytest.raises((SetupError, ServerUnavailable)) as caught,
        ):
            client.server_metadata()
        assert path.name in str(caught.value) or protocol == "grpc"
