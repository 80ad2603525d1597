"""One server for all tests of the client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from client_models import write_repository

from tritonstack_deploy.embedded import EmbeddedServer


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server with the small models of `client_models.write_repository`, its control APIs open."""
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
