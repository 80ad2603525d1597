"""What tests of the transports share: a pool of real calls, and waiting for completions."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from numpy.typing import NDArray

from tritonstack import AsyncClient
from tritonstack.load.request_pool import RequestPool, grpc_entry
from tritonstack.load.transport import Completion, Transport
from tritonstack_deploy.embedded import EmbeddedServer


def grpc_pool(server: EmbeddedServer, model: str, *arrays: NDArray[Any]) -> RequestPool:
    """One gRPC call per array, each of which is the model's input ``x``."""

    async def calls() -> list[tuple[str, bytes]]:
        async with AsyncClient(server.grpc_url) as client:
            made = [(await client.prepare(model, {"x": array})).call for array in arrays]
            return [(call.target, bytes(call.owned().body[0])) for call in made]

    return RequestPool.of(grpc_entry(target, body) for target, body in asyncio.run(calls()))


def collect(transport: Transport, count: int, limit_s: float = 10.0) -> list[Completion]:
    """The next `count` completions, or those that came within `limit_s`."""
    found: list[Completion] = []
    end_s = time.monotonic() + limit_s
    while len(found) < count and time.monotonic() < end_s:
        # Bodies are valid until the next poll.
        found += [one._replace(body=bytes(one.body)) for one in transport.poll(end_s)]
    return found
