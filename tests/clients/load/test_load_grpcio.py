"""gRPC by grpcio as a transport of workers, against the real server and one that is gone."""

from __future__ import annotations

import numpy as np
import pytest
from misbehaving_server import KnownServer
from transport_use import collect, grpc_pool

from tritonstack.client.call import Reply
from tritonstack.client.grpc_codec import GrpcCodec
from tritonstack.load.request_pool import RequestPool, grpc_entry
from tritonstack.load.transport import TransportOptions
from tritonstack.load.transport.grpcio import GrpcioTransport
from tritonstack_deploy.embedded import EmbeddedServer


@pytest.mark.parametrize("connections", [1, 3])
def test_every_answer_belongs_to_its_request(load_server: EmbeddedServer, connections: int) -> None:
    pool = grpc_pool(load_server, "plus_one", *(np.full((1, 3), value, np.float32) for value in range(7)))
    options = TransportOptions(kind="grpcio", url=load_server.grpc_url, connections=connections)
    transport = GrpcioTransport(options, pool)
    for token in range(70):
        transport.send(token, token % 7, 10.0)
    found = collect(transport, 70)
    transport.close()
    assert sorted(one.token for one in found) == list(range(70))
    for one in found:
        assert one.error is None and one.sent_s <= one.first_s <= one.done_s
        output = GrpcCodec().decode_infer(Reply(one.body)).outputs["y"]
        assert np.frombuffer(output.data, np.float32).tolist() == [one.token % 7 + 1] * 3  # type: ignore[arg-type]


def test_errors_of_the_server_and_deadlines_have_their_kinds(load_server: EmbeddedServer) -> None:
    for model, limit_s, kind in (("broken", 5.0, "ServerError "), ("sleepy", 0.005, "DeadlineExceeded")):
        pool = grpc_pool(load_server, model, np.zeros((1, 3), np.float32))
        transport = GrpcioTransport(TransportOptions(kind="grpcio", url=load_server.grpc_url), pool)
        transport.send(0, 0, limit_s)
        (one,) = collect(transport, 1)
        transport.close()
        assert one.error is not None and one.error[0].startswith(kind)


def test_calls_to_a_server_that_is_gone_fail_by_name() -> None:
    with KnownServer() as server:
        server.kill()
        pool = RequestPool.of([grpc_entry("/inference.GRPCInferenceService/ModelInfer", b"")])
        transport = GrpcioTransport(TransportOptions(kind="grpcio", url=server.url), pool)
        transport.send(0, 0, 5.0)
        (one,) = collect(transport, 1)
        transport.close()
        assert one.error is not None and one.error[0] == "ServerUnavailable"
