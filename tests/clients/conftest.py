"""One server for all tests of the client."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tritonstack_deploy.embedded import EmbeddedServer

sys.path.insert(0, str(Path(__file__).parent))

from models import write_repository


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server with the small models of `models.write_repository`, its control APIs open."""
    repository = tmp_path_factory.mktemp("client-server") / "models"
    write_repository(repository)
    with EmbeddedServer(repository, allow=("shared-memory", "model-repository")) as running:
        yield running


@pytest.fixture(params=["grpc", "http"])
def protocol(request: pytest.FixtureRequest) -> str:
    """Each protocol in turn."""
    return str(request.param)


@pytest.fixture
def url(server: EmbeddedServer, protocol: str) -> str:
    """The server's address for `protocol`."""
    return server.grpc_url if protocol == "grpc" else server.http_url
