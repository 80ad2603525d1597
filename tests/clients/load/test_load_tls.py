"""Load over TLS and with headers: gRPC by the real server's own TLS, HTTPS through a proxy that ends it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tritonstack import Client, TlsOptions
from tritonstack.errors import TritonstackError
from tritonstack.load.arrival import ClosedLoop, OpenLoop
from tritonstack.load.plan import LoadPlan
from tritonstack.load.session import run_load
from tritonstack_deploy.embedded import EmbeddedServer

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tests" / "support" / "null_backend"))
from null_backend import build, write_models  # noqa: E402

FOLDER = ROOT / "tests" / "clients" / "certificates"
TRUSTING = TlsOptions(ca_file=FOLDER / "ca.pem")


class TlsProxy:
    """Ends TLS in front of a port of this host; keeps the head of the last request."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.head = b""
        self.port = 0
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> TlsProxy:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(FOLDER / "server.pem", FOLDER / "server.key")

        async def start() -> None:
            server = await asyncio.start_server(self._serve, "localhost", 0, ssl=context)
            self.port = server.sockets[0].getsockname()[1]
            self._ready.set()

        self._loop.run_until_complete(start())
        self._loop.run_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection("127.0.0.1", self._target)

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter, keep: bool) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    if keep and data.startswith(b"POST"):
                        self.head = data.split(b"\r\n\r\n")[0]
                    sink.write(data)
                    await sink.drain()
            sink.close()

        await asyncio.gather(copy(reader, outer, True), copy(inner, writer, False))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedServer, str]]:
    """The server with TLS on its gRPC port, and the address there."""
    folder = tmp_path_factory.mktemp("tls")
    write_models(folder / "models")
    arguments = [
        "--grpc-use-ssl=1",
        f"--grpc-server-cert={FOLDER / 'server.pem'}",
        f"--grpc-server-key={FOLDER / 'server.key'}",
    ]
    backends = {"null": build(folder / "built")}
    with EmbeddedServer(folder / "models", backends=backends, extra_arguments=arguments) as server:
        yield server, f"grpcs://localhost:{server.grpc_url.rpartition(':')[2]}"


def plan(url: str, **settings: object) -> LoadPlan:
    return LoadPlan(
        model="nullsmall", url=url, arrivals=[ClosedLoop(4), OpenLoop(100.0)], duration_s=None, requests=60,
        warmup_s=0.0, max_lag_s=10.0, validate="recorded", **settings,  # type: ignore[arg-type]
    )  # fmt: skip


def test_grpc(secured: tuple[EmbeddedServer, str]) -> None:
    _, url = secured
    report = run_load(plan(url, tls=TRUSTING))
    assert report.ok, [(level.problems, level.failures, level.errors) for level in report.levels]
    assert report.sending.transport == "grpcio" and report.sending.validate == "recorded"
    with pytest.raises(TritonstackError):
        run_load(plan(url))


def test_https_and_headers(secured: tuple[EmbeddedServer, str]) -> None:
    server, _ = secured
    with TlsProxy(int(server.http_url.rpartition(":")[2])) as proxy:
        url = f"https://localhost:{proxy.port}"
        with Client(url, tls=TRUSTING) as client:
            assert client.server_metadata().name == "triton"
        report = run_load(plan(url, tls=TRUSTING, headers={"X-Tenant": "blue"}, workers=2))
        assert report.ok, [(level.problems, level.failures, level.errors) for level in report.levels]
        assert b"X-Tenant: blue" in proxy.head


def test_flags(secured: tuple[EmbeddedServer, str]) -> None:
    _, url = secured
    line = [sys.executable, "-m", "tritonstack", "load", "nullsmall", "--url", url, "--concurrency", "2"]
    line += ["--requests", "20", "--warmup", "0", "--quiet"]
    good = [*line, "--ca-file", str(FOLDER / "ca.pem"), "--header", "x-tenant=blue"]
    assert subprocess.run(good, capture_output=True, timeout=60).returncode == 0
    for wrong, words in (
        (["--certificate-file", str(FOLDER / "server.pem")], "belong together"),
        (["--header", "nothing"], "NAME=VALUE"),
    ):
        done = subprocess.run([*line, *wrong], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and words in done.stderr, done.stderr
