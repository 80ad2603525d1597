"""The Triton client: one interface, sync and asyncio, over gRPC and HTTP.

Layers, from the wire up: `http_wire` and grpcio move bytes; the four transports (`grpc_sync`, `grpc_async`,
`http_sync`, `http_async`) turn one `Call` into one `Reply` within a deadline; the two codecs translate between calls
and the dataclasses of `model`, `request` and `result` and never do I/O; `flows` holds what a method does, written once
as generators that yield calls; `blocking.Client` and `asynchronous.AsyncClient` drive them.
"""
