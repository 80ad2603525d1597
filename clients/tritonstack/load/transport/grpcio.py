"""gRPC by grpcio: for TLS and whatever else the own framing leaves out, at about ten times its cost a request."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tritonstack.client.call import Call
from tritonstack.client.grpc_status import (
    CHANNEL_OPTIONS,
    call_metadata,
    channel_credentials,
    error_of_status,
    target,
)
from tritonstack.load.clock import Readiness
from tritonstack.load.failure import failure_of
from tritonstack.load.transport import Completion, TransportOptions

if TYPE_CHECKING:
    from tritonstack.load.request_pool import RequestPool


class GrpcioTransport:
    """See `Transport`. grpcio's own threads take the answers; `sent_s` and `first_s` are not to be had from it and are
    the moments of the send and of the end."""

    def __init__(self, options: TransportOptions, pool: RequestPool) -> None:
        import grpc  # type: ignore[import-untyped]

        self._endpoint = options.endpoint
        self._metadata = call_metadata(options.headers)
        self._pool = pool
        where = target(self._endpoint)
        self._channels = []
        for _ in range(options.connections):
            if self._endpoint.secure:
                credentials = channel_credentials(options.tls)
                self._channels.append(grpc.secure_channel(where, credentials, CHANNEL_OPTIONS))
            else:
                self._channels.append(grpc.insecure_channel(where, CHANNEL_OPTIONS))
        self._methods: dict[tuple[int, str], Any] = {}
        self._bodies: list[bytes | None] = [None] * len(pool)
        self._turn = 0
        self._queued: list[tuple[int, int, float]] = []
        self._ended: deque[tuple[int, float, float, Any]] = deque()
        self._calls: set[Any] = set()
        self._closing = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._readiness = Readiness()
        self._readiness.register(self._wake, select.EPOLLIN)

    def send(self, token: int, entry: int, deadline_s: float) -> None:
        self._queued.append((token, entry, time.monotonic() + deadline_s))

    def poll(self, until_s: float) -> Sequence[Completion]:
        queued, self._queued = self._queued, []
        for token, entry, deadline_s in queued:
            self._start(token, entry, deadline_s)
        if not self._ended:
            self._readiness.wait(until_s)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        done = []
        while self._ended:
            done.append(self._completion(*self._ended.popleft()))
        return done

    def close(self) -> None:
        for call in list(self._calls):
            call.cancel()
        for channel in self._channels:
            channel.close()
        self._readiness.close()
        with self._closing:
            # A callback that is still on its way must not write into whatever gets this number next.
            wake, self._wake = self._wake, -1
            os.close(wake)

    def _start(self, token: int, entry: int, deadline_s: float) -> None:
        self._turn = (self._turn + 1) % len(self._channels)
        key = self._turn, self._pool.target(entry)
        method = self._methods.get(key)
        if method is None:
            method = self._methods[key] = self._channels[key[0]].unary_unary(key[1])
        body = self._bodies[entry]
        if body is None:
            body = self._bodies[entry] = bytes(self._pool.entry(entry)[1])
        sent_s = time.monotonic()
        call = method.future(body, timeout=max(deadline_s - sent_s, 0.0), metadata=self._metadata)
        self._calls.add(call)
        call.add_done_callback(lambda ended: self._take(token, sent_s, ended))

    def _take(self, token: int, sent_s: float, call: Any) -> None:
        """In a thread of grpcio's."""
        self._ended.append((token, sent_s, time.monotonic(), call))
        with self._closing:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def _completion(self, token: int, sent_s: float, done_s: float, call: Any) -> Completion:
        self._calls.discard(call)
        code = call.code()
        if code.name == "OK":
            return Completion(token, sent_s, done_s, done_s, None, call.result())
        error = error_of_status(code.name, call.details() or "", _CALL, self._endpoint)
        return Completion(token, sent_s, done_s, done_s, failure_of(error), b"")


_CALL = Call("", (), "an inference")
