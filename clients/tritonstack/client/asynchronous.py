"""The asyncio client."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from tritonstack.client.call import NO_REPLY, Pause
from tritonstack.client.connection import Address
from tritonstack.client.endpoint import Endpoint, Protocol, TlsOptions
from tritonstack.client.flows import Flow, Flows
from tritonstack.client.model import ModelConfigView, ModelMetadata, ModelStatistics, RepositoryModel, ServerMetadata
from tritonstack.client.request import PreparedRequest
from tritonstack.client.request_builder import InferOptions
from tritonstack.client.result import InferResult
from tritonstack.errors import DeadlineExceeded, InputError, TritonstackError

if TYPE_CHECKING:
    from tritonstack.client.grpc_async import AsyncGrpcTransport
    from tritonstack.client.http_async import AsyncHttpTransport
    from tritonstack.shared_memory import SharedMemoryRegion

T = TypeVar("T")


class AsyncClient:
    """An asyncio client of one Triton server, with the methods of `Client` as coroutines.

    It belongs to the event loop of its first call and opens new connections when used from another.

    `url` is ``host:port`` (gRPC), ``grpc://…``, ``http://…``, ``grpcs://…`` or ``https://…``. `timeout_s` is the
    deadline of each method unless it is given one of its own. `retries` counts the repetitions of calls that are safe
    to repeat: everything but inference after a broken connection, inference only if no connection could be made.

    Methods raise ServerUnavailable, DeadlineExceeded, ServerError, TensorError and UsageError of `tritonstack.errors`.
    Close the client when done (or use it as a context manager): closing waits for the calls in flight, because
    servers have crashed on clients that hang up.
    """

    def __init__(
        self,
        url: str = "127.0.0.1:8001",
        *,
        protocol: Protocol | None = None,
        timeout_s: float = 60.0,
        tls: TlsOptions | None = None,
        headers: Mapping[str, str] | None = None,
        retries: int = 2,
    ) -> None:
        self._address = Address(url, protocol=protocol, timeout_s=timeout_s, tls=tls, headers=headers, retries=retries)
        self._flows = Flows(self._address.codec(), retries=retries)
        self._regions: dict[str, SharedMemoryRegion] = {}
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        # Connections of another loop or of a parent process cannot be used here.
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running = 0
        self._idle: asyncio.Event | None = None
        self._transport: AsyncGrpcTransport | AsyncHttpTransport | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Where the server is."""
        return self._address.endpoint

    @property
    def timeout_s(self) -> float:
        """The deadline of each method unless it is given one, in seconds."""
        return self._address.timeout_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Refuse new calls, wait for those in flight (each ends by its own deadline) and close the connections."""
        self._closed = True
        if self._pid != os.getpid() or self._loop is not asyncio.get_running_loop():
            self._reset()
            return
        if self._running and self._idle is not None:
            await self._idle.wait()
        for region in [*self._regions.values()]:
            with contextlib.suppress(TritonstackError):  # the server may be gone
                await self._run(self._flows.unregister(region), None, closing=True)
            region.unregistered(str(self.endpoint))
        self._regions.clear()
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()

    def _enter(self, *, closing: bool) -> AsyncGrpcTransport | AsyncHttpTransport:
        if self._closed and not closing:
            raise InputError("the client is closed", next_step="make a new one")
        loop = asyncio.get_running_loop()
        if self._loop is not loop or self._pid != os.getpid():
            self._reset()
            self._loop = loop
            self._idle = asyncio.Event()
        if self._transport is None:
            self._transport = self._address.async_transport()
        self._running += 1
        return self._transport

    def _leave(self) -> None:
        self._running -= 1
        if self._closed and not self._running and self._idle is not None:
            self._idle.set()

    async def _run(self, flow: Flow[T], timeout_s: float | None, *, closing: bool = False) -> T:
        """Drive a flow to its result within its deadline."""
        limit = self._address.limit(timeout_s)
        deadline = time.monotonic() + limit
        transport = self._enter(closing=closing)
        try:
            step = next(flow)
            while True:
                left = deadline - time.monotonic()
                try:
                    if left <= 0:
                        raise DeadlineExceeded(f"no answer from {self.endpoint} in time", given=f"{limit:.3g} s")
                    if isinstance(step, Pause):
                        await asyncio.sleep(min(step.seconds, left))
                        reply = NO_REPLY
                    else:
                        reply = await transport.send(step, left)
                except TritonstackError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            self._leave()

    async def is_live(self, *, timeout_s: float | None = None) -> bool:
        """Whether the server answers at all."""
        return await self._run(self._flows.is_live(), timeout_s)

    async def is_ready(self, model: str | None = None, version: str = "", *, timeout_s: float | None = None) -> bool:
        """Whether `model` can be called; without one what the server says of itself, which is true even where it has
        no model."""
        return await self._run(self._flows.is_ready(model, version), timeout_s)

    async def wait_ready(self, models: Sequence[str], timeout_s: float) -> None:
        """Wait until every model is ready. ServerUnavailable names those that are not and the server's reason."""
        await self._run(self._flows.wait_ready(models, timeout_s), timeout_s + self.timeout_s)

    async def server_metadata(self, *, timeout_s: float | None = None) -> ServerMetadata:
        """Name, version and extensions of the server."""
        return await self._run(self._flows.server_metadata(), timeout_s)

    async def models(self, *, timeout_s: float | None = None) -> tuple[RepositoryModel, ...]:
        """The models in the server's repository, ready or not."""
        return await self._run(self._flows.models(), timeout_s)

    async def metadata(self, model: str, version: str = "", *, timeout_s: float | None = None) -> ModelMetadata:
        """Inputs and outputs of a model, fetched once and then cached."""
        return await self._run(self._flows.metadata(model, version), timeout_s)

    async def config(self, model: str, version: str = "", *, timeout_s: float | None = None) -> ModelConfigView:
        """The served configuration of a model, fetched anew each time."""
        return await self._run(self._flows.config(model, version), timeout_s)

    async def statistics(
        self, model: str | None = None, version: str = "", *, timeout_s: float | None = None
    ) -> tuple[ModelStatistics, ...]:
        """The server's counters per model version."""
        return await self._run(self._flows.statistics(model, version), timeout_s)

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, object],
        *,
        timeout_s: float | None = None,
        **options: Unpack[InferOptions],
    ) -> InferResult:
        """Run `model` on `inputs` (name → array, nested list or scalar); see InferOptions for the rest.

        Arrays must have the model's data types and shapes, including the batch dimension; nothing is converted unless
        `cast` is set. Returns when the answer is there; raises when `timeout_s` has passed.
        """
        return await self._run(self._flows.infer(model, inputs, options), timeout_s)

    async def prepare(
        self,
        model: str,
        inputs: Mapping[str, object],
        *,
        timeout_s: float | None = None,
        **options: Unpack[InferOptions],
    ) -> PreparedRequest:
        """Validate and serialise a request once, to be sent many times."""
        return await self._run(self._flows.prepare(model, inputs, options), timeout_s)

    async def send(self, prepared: PreparedRequest, *, timeout_s: float | None = None) -> InferResult:
        """Send a prepared request. The result is decoded only when it is looked at."""
        return await self._run(self._flows.send(prepared), timeout_s)

    async def register(
        self, region: SharedMemoryRegion, *, fallback: bool = False, timeout_s: float | None = None
    ) -> bool:
        """Let the server use a shared-memory region; its slots can then be inputs and outputs of `infer`.

        ServerError where it cannot, most often because client and server do not share ``/dev/shm``. With `fallback`
        that returns False instead, and the slots' tensors travel in the requests.
        """
        done = await self._run(self._flows.register(region, fallback=fallback), timeout_s)
        if done:
            region.registered(str(self.endpoint), lambda: self._take_back(region))
            self._regions[region.name] = region
        return done

    async def unregister(self, region: SharedMemoryRegion, *, timeout_s: float | None = None) -> None:
        """Take a region back from the server. Closing the client does so for all it registered."""
        await self._run(self._flows.unregister(region), timeout_s)
        self._regions.pop(region.name, None)
        region.unregistered(str(self.endpoint))

    async def clean_shared_memory(
        self, prefix: str = "tritonstack", *, timeout_s: float | None = None
    ) -> tuple[str, ...]:
        """Remove the shared-memory files of this host's processes that are gone, and unregister theirs from the server.

        Returns the names that were unregistered.
        """
        return await self._run(self._flows.clean_shared_memory(prefix), timeout_s)

    def _take_back(self, region: SharedMemoryRegion) -> None:
        """Unregister a region that is being closed, when this client's own connections may be in any state."""
        self._regions.pop(region.name, None)
        self._flows.regions.shared.discard(region.name)
        self._address.unregister_now(region.name)
