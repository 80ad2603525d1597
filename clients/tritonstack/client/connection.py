"""The constructor arguments of both clients, checked, and what is made from them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tritonstack.client.codec import Codec
from tritonstack.client.endpoint import Protocol, TlsOptions, parse_endpoint
from tritonstack.errors import TritonstackError, UsageError, missing_package

if TYPE_CHECKING:
    from tritonstack.client.grpc_async import AsyncGrpcTransport
    from tritonstack.client.grpc_sync import GrpcTransport
    from tritonstack.client.http_async import AsyncHttpTransport
    from tritonstack.client.http_sync import HttpTransport


class Address:
    """Endpoint, deadline, TLS and headers; makes the codec and the transports of its protocol."""

    def __init__(
        self,
        url: str,
        *,
        protocol: Protocol | None,
        timeout_s: float,
        tls: TlsOptions | None,
        headers: Mapping[str, str] | None,
        retries: int,
    ) -> None:
        self.endpoint = parse_endpoint(url, protocol=protocol, tls=tls is not None)
        self.timeout_s = self.limit(timeout_s, "timeout_s")
        self._tls = tls
        self._headers = dict(headers or {})
        if retries < 0:
            raise UsageError("bad retries", given=str(retries), expected="0 or above")

    def limit(self, timeout_s: float | None, name: str = "timeout_s") -> float:
        """The deadline to use, in seconds; UsageError for one that is not a positive number."""
        if timeout_s is None:
            return self.timeout_s
        if not 0 < timeout_s < 1e7:
            raise UsageError(f"bad {name}", given=str(timeout_s), expected="seconds above 0")
        return timeout_s

    def codec(self) -> Codec:
        """The codec of the endpoint's protocol."""
        try:
            if self.endpoint.protocol == "grpc":
                from tritonstack.client.grpc_codec import GrpcCodec

                return GrpcCodec()
            from tritonstack.client.http_codec import HttpCodec

            return HttpCodec(self.endpoint.prefix)
        except ImportError as error:
            raise missing_package(
                error.name or str(error), needed_for="the client", install="pip install 'tritonclient[grpc]'"
            ) from error

    def transport(self) -> GrpcTransport | HttpTransport:
        """A new blocking transport."""
        if self.endpoint.protocol == "grpc":
            from tritonstack.client.grpc_sync import GrpcTransport

            return GrpcTransport(self.endpoint, tls=self._tls, headers=self._headers)
        from tritonstack.client.http_sync import HttpTransport

        return HttpTransport(self.endpoint, tls=self._tls, headers=self._headers)

    def unregister_now(self, region: str) -> None:
        """Take a shared-memory region back through a connection of its own, giving up after a second.

        For the end of the process, when the client's own connections may be in any state.
        """
        with contextlib.suppress(TritonstackError):
            transport = self.transport()
            try:
                transport.send(self.codec().unregister_region(region), 1.0)
            finally:
                transport.close()

    def async_transport(self) -> AsyncGrpcTransport | AsyncHttpTransport:
        """A new asyncio transport of the running loop."""
        if self.endpoint.protocol == "grpc":
            from tritonstack.client.grpc_async import AsyncGrpcTransport

            return AsyncGrpcTransport(self.endpoint, tls=self._tls, headers=self._headers)
        from tritonstack.client.http_async import AsyncHttpTransport

        return AsyncHttpTransport(self.endpoint, tls=self._tls, headers=self._headers)
