"""The asyncio gRPC transport."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]

from tritonstack.client.call import Call, Reply
from tritonstack.client.endpoint import Endpoint, TlsOptions
from tritonstack.client.grpc_status import (
    CHANNEL_OPTIONS,
    call_metadata,
    channel_credentials,
    error_of_status,
    target,
)


class AsyncGrpcTransport:
    """One channel of the running event loop."""

    def __init__(self, endpoint: Endpoint, *, tls: TlsOptions | None, headers: Mapping[str, str]) -> None:
        self._endpoint = endpoint
        self._metadata = call_metadata(headers)
        if endpoint.secure:
            self._channel = grpc.aio.secure_channel(target(endpoint), channel_credentials(tls), CHANNEL_OPTIONS)
        else:
            self._channel = grpc.aio.insecure_channel(target(endpoint), CHANNEL_OPTIONS)
        self._methods: dict[str, Any] = {}

    async def send(self, call: Call, timeout_s: float) -> Reply:
        """Send and wait for the answer, at most `timeout_s`."""
        method = self._methods.get(call.target)
        if method is None:
            method = self._methods[call.target] = self._channel.unary_unary(call.target)
        body = call.owned().body[0]
        try:
            return Reply(await method(body, timeout=timeout_s, metadata=self._metadata))
        except grpc.aio.AioRpcError as error:
            raise error_of_status(error.code().name, error.details() or "", call, self._endpoint) from None

    async def close(self) -> None:
        """Close the channel; calls in flight are cancelled."""
        await self._channel.close()
