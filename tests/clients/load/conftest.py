"""A real tritonserver with models made for load tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from load_models import make_repository

from tritonstack_deploy.embedded import EmbeddedServer


@pytest.fixture(scope="session")
def load_server(
    tmp_path_factory: pytest.TempPathFactory, start_server: Callable[..., EmbeddedServer]
) -> EmbeddedServer:
    repository = make_repository(tmp_path_factory.mktemp("load_repository"))
    return start_server(repository, response_cache_bytes=1 << 20)
