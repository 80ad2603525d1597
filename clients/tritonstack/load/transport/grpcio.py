"""gRPC by grpcio's asyncio API: for TLS and whatever else the own framing leaves out, at about ten times its cost.

The event loop runs inside of `poll` and stops when something was answered. It drives about twice the rate of grpcio's
futures, whose answers come through a thread each.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tritonstack.client.call import Call
from tritonstack.client.grpc_status import CHANNEL_OPTIONS, call_metadata, channel_credentials, error_of_status, target
from tritonstack.load.failure import failure_of
from tritonstack.load.transport import Completion, TransportOptions

if TYPE_CHECKING:
    from tritonstack.load.request_pool import RequestPool


class GrpcioTransport:
    """See `Transport`. grpcio does not tell when the first byte of an answer came, so `first_s` is the moment of the
    whole."""

    def __init__(self, options: TransportOptions, pool: RequestPool) -> None:
        import grpc.aio  # type: ignore[import-untyped]

        self._endpoint = options.endpoint
        self._metadata = call_metadata(options.headers)
        self._pool = pool
        self._bodies: list[bytes | None] = [None] * len(pool)
        self._rpc_error = grpc.aio.AioRpcError
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._done: list[Completion] = []
        self._polling = False
        self._turn = 0
        self._methods: dict[tuple[int, str], Any] = {}
        self._channels = self._loop.run_until_complete(self._connect(grpc.aio, options))

    async def _connect(self, aio: Any, options: TransportOptions) -> list[Any]:
        where = target(self._endpoint)
        if not self._endpoint.secure:
            return [aio.insecure_channel(where, CHANNEL_OPTIONS) for _ in range(options.connections)]
        credentials = channel_credentials(options.tls)
        return [aio.secure_channel(where, credentials, CHANNEL_OPTIONS) for _ in range(options.connections)]

    def send(self, token: int, entry: int, deadline_s: float) -> None:
        task = self._loop.create_task(self._exchange(token, entry, deadline_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def poll(self, until_s: float) -> Sequence[Completion]:
        if not self._done:
            self._polling = True
            # A moment that has passed lets the loop turn once, so that what is queued goes out.
            alarm = self._loop.call_at(until_s, self._loop.stop)
            self._loop.run_forever()
            alarm.cancel()
            self._polling = False
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        async def end() -> None:
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for channel in self._channels:
                await channel.close()

        self._loop.run_until_complete(end())
        self._loop.close()

    def _method(self, entry: int) -> Any:
        self._turn = (self._turn + 1) % len(self._channels)
        key = self._turn, self._pool.target(entry)
        method = self._methods.get(key)
        if method is None:
            method = self._methods[key] = self._channels[key[0]].unary_unary(key[1])
        return method

    async def _exchange(self, token: int, entry: int, deadline_s: float) -> None:
        body = self._bodies[entry]
        if body is None:
            body = self._bodies[entry] = bytes(self._pool.entry(entry)[1])
        sent_s = time.monotonic()
        error: tuple[str, str] | None = None
        answer = b""
        try:
            answer = await self._method(entry)(body, timeout=deadline_s, metadata=self._metadata)
        except self._rpc_error as failed:
            explained = error_of_status(failed.code().name, failed.details() or "", _CALL, self._endpoint)
            error = failure_of(explained)
        done_s = time.monotonic()
        self._done.append(Completion(token, sent_s, done_s, done_s, error, answer))
        if self._polling:
            # Ends with this turn of the loop, with all that is answered in it.
            self._loop.stop()


_CALL = Call("", (), "an inference")
"""How the encoded requests of a pool are called in errors."""
