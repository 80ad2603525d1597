"""Running `tritonstack serve` as a user does."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from serve_process import Serve


@pytest.fixture
def serve() -> Iterator[Callable[..., Serve]]:
    running: list[Serve] = []

    def start(repository: Path, *arguments: str, ready: bool = True) -> Serve:
        server = Serve([str(repository), "--port-base", "0", "--json", *arguments])
        running.append(server)
        if ready:
            server.wait_ready()
        return server

    yield start
    for server in running:
        if server.process.poll() is None:
            server.process.send_signal(signal.SIGTERM)
            try:
                server.process.wait(30)
            except subprocess.TimeoutExpired:
                server.process.kill()
        for stream in (server.process.stdout, server.process.stderr):
            if stream:
                stream.close()
