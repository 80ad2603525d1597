"""Both codecs, without a server: what goes on the wire and how replies are read."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tritonstack.client.call import Reply
from tritonstack.client.grpc_codec import GrpcCodec, split_raw_outputs
from tritonstack.client.http_codec import HttpCodec
from tritonstack.client.request import InferRequest, RequestedOutput, SharedTensor, Span
from tritonstack.client.result import InferResult
from tritonstack.errors import ServerError, TensorError
from tritonstack.tensor.conform import WireTensor


def request(**changes: object) -> InferRequest:
    fields: dict[str, object] = {
        "model": "m",
        "version": "2",
        "request_id": "größe-猫",
        "inputs": (
            WireTensor("x", "FP32", (1, 3), np.arange(3, dtype=np.float32).view(np.uint8).data),
            SharedTensor("s", "INT64", (2,), Span("region", 64, 16)),
            WireTensor("t", "BYTES", (1,), b"\x01\x00\x00\x00a"),
        ),
        "outputs": (RequestedOutput("y"), RequestedOutput("c", 5), RequestedOutput("o", span=Span("region", 0, 8))),
        "parameters": {"priority": 2, "timeout": 500, "flag": True, "ratio": 0.5, "word": "ö", "negative": -1},
    }
    return InferRequest(**{**fields, **changes})  # type: ignore[arg-type]


def reference(inferred: InferRequest) -> service_pb2.ModelInferRequest:
    """The same request, put together by protobuf alone."""
    message = service_pb2.ModelInferRequest(model_name="m", model_version="2", id=inferred.request_id)
    message.parameters["priority"].uint64_param = 2
    message.parameters["timeout"].int64_param = 500
    message.parameters["flag"].bool_param = True
    message.parameters["ratio"].double_param = 0.5
    message.parameters["word"].string_param = "ö"
    message.parameters["negative"].int64_param = -1
    message.inputs.add(name="x", datatype="FP32", shape=[1, 3])
    shared = message.inputs.add(name="s", datatype="INT64", shape=[2])
    shared.parameters["shared_memory_region"].string_param = "region"
    shared.parameters["shared_memory_offset"].int64_param = 64
    shared.parameters["shared_memory_byte_size"].int64_param = 16
    message.inputs.add(name="t", datatype="BYTES", shape=[1])
    message.outputs.add(name="y")
    message.outputs.add(name="c").parameters["classification"].int64_param = 5
    output = message.outputs.add(name="o")
    output.parameters["shared_memory_region"].string_param = "region"
    output.parameters["shared_memory_byte_size"].int64_param = 8
    message.raw_input_contents.extend([np.arange(3, dtype=np.float32).tobytes(), b"\x01\x00\x00\x00a"])
    return message


def test_the_joined_grpc_request_is_what_protobuf_would_send() -> None:
    wanted = reference(request())
    (body,) = GrpcCodec().infer(request()).body
    assert service_pb2.ModelInferRequest.FromString(body) == wanted
    # Maps have no order in protobuf: compare the bytes in its deterministic form.
    again = service_pb2.ModelInferRequest.FromString(body)
    assert again.SerializeToString(deterministic=True) == wanted.SerializeToString(deterministic=True)
    assert len(body) == wanted.ByteSize()


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16383, 16384, 3_000_000])
def test_grpc_lengths_of_every_width(size: int) -> None:
    tensor = WireTensor("x", "UINT8", (size,), bytes(size))
    (body,) = GrpcCodec().infer(InferRequest("m", "", "", (tensor,), ())).body
    assert [len(raw) for raw in service_pb2.ModelInferRequest.FromString(body).raw_input_contents] == [size]


def test_grpc_replies_are_split_without_copying() -> None:
    message = service_pb2.ModelInferResponse(model_name="m", model_version="3", id="ü")
    message.parameters["n"].int64_param = 4
    message.outputs.add(name="a", datatype="FP32", shape=[2])
    message.outputs.add(name="b", datatype="BYTES", shape=[1])
    message.raw_output_contents.extend([struct.pack("<2f", 1, 2), b"\x02\x00\x00\x00hi"])
    data = message.SerializeToString()
    envelope, raw = split_raw_outputs(memoryview(data))
    assert [bytes(part) for part in raw] == [*message.raw_output_contents]
    assert all(part.obj is data for part in raw)
    del message.raw_output_contents[:]
    assert service_pb2.ModelInferResponse.FromString(envelope) == message
    result = InferResult(lambda: GrpcCodec().decode_infer(Reply(data)))
    assert result["a"].tolist() == [1, 2]
    assert result["a"].flags.writeable
    assert result["a"].flags.owndata
    assert result["b"].tolist() == [b"hi"]
    assert (result.model_version, result.request_id, dict(result.parameters)) == ("3", "ü", {"n": 4})
    assert list(result.outputs) == ["a", "b"]
    with pytest.raises(KeyError, match="it has 'a', 'b'"):
        result["A"]


def grpc_reply() -> bytes:
    message = service_pb2.ModelInferResponse(model_name="m")
    message.outputs.add(name="a", datatype="FP32", shape=[64])
    message.raw_output_contents.append(bytes(256))
    return bytes(message.SerializeToString())


@pytest.mark.parametrize("end", [1, 5, 12, 20, 30, 200])
def test_a_truncated_grpc_reply_is_a_clear_error(end: int) -> None:
    with pytest.raises(ServerError) as caught:
        InferResult(lambda: GrpcCodec().decode_infer(Reply(grpc_reply()[:end])))["a"]
    assert caught.value.code == "MALFORMED_REPLY"


def test_no_cut_of_a_grpc_reply_escapes_the_error_tree() -> None:
    data = grpc_reply()
    for end in range(len(data)):
        try:
            InferResult(lambda end=end: GrpcCodec().decode_infer(Reply(data[:end])))["a"]  # type: ignore[misc]
        except (ServerError, KeyError):  # a cut between fields may leave an answer without the output
            continue
        raise AssertionError(f"cut at {end} was not noticed")


def test_the_http_head_length_counts_bytes() -> None:
    call = HttpCodec().infer(request())
    body = b"".join(call.body)
    length = int(dict(call.headers)["Inference-Header-Content-Length"])
    head = json.loads(body[:length])
    assert body[length:] == np.arange(3, dtype=np.float32).tobytes() + b"\x01\x00\x00\x00a"
    assert length > len(body[:length].decode())  # bytes, not characters
    assert head["id"] == "größe-猫"
    assert [entry["parameters"].get("binary_data_size") for entry in head["inputs"]] == [12, None, 5]
    assert head["inputs"][1]["parameters"]["shared_memory_offset"] == 64
    assert head["outputs"][1]["parameters"] == {"binary_data": True, "classification": 5}
    assert call.target == "/v2/models/m/versions/2/infer"


def test_http_names_are_percent_encoded() -> None:
    call = HttpCodec("/gateway").infer(request(model="a/b ä?", version=""))
    assert call.target == "/gateway/v2/models/a%2Fb%20%C3%A4%3F/infer"


def http_reply(head: object, tail: bytes = b"", *, length: str | None = None) -> Reply:
    text = json.dumps(head).encode()
    return Reply(text + tail, {"inference-header-content-length": length or str(len(text))})


OUTPUT = {"name": "y", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}


def test_http_replies_are_split_by_their_own_header() -> None:
    reply = http_reply({"model_name": "m", "model_version": "1", "outputs": [OUTPUT]}, struct.pack("<2f", 1, 2))
    assert InferResult(lambda: HttpCodec().decode_infer(reply))["y"].tolist() == [1, 2]


def test_http_replies_may_be_plain_json() -> None:
    head = {
        "model_name": "m",
        "outputs": [
            {"name": "y", "datatype": "FP16", "shape": [1, 2], "data": [0.5, 2]},
            {"name": "t", "datatype": "BYTES", "shape": [2], "data": ["a", "ö"]},
        ],
    }
    result = InferResult(lambda: HttpCodec().decode_infer(Reply(json.dumps(head).encode())))
    assert result["y"].tolist() == [[0.5, 2]]
    assert result["y"].dtype == np.float16
    assert result["t"].tolist() == [b"a", "ö".encode()]


@pytest.mark.parametrize(
    "reply",
    [
        Reply(b"not json"),
        Reply(b"[]"),
        Reply(b"{}", {"inference-header-content-length": "5"}),
        Reply(b"{}", {"inference-header-content-length": "-1"}),
        Reply(b"{}", {"inference-header-content-length": "x"}),
        Reply(b'{"outputs": []}'),
        http_reply({"model_name": "m", "outputs": [OUTPUT]}, b"\0\0\0\0"),
        http_reply({"model_name": "m", "outputs": [{**OUTPUT, "parameters": {"binary_data_size": -4}}]}),
        http_reply({"model_name": "m", "outputs": [{**OUTPUT, "parameters": {"binary_data_size": "x"}}]}),
        http_reply({"model_name": "m", "outputs": [{"name": "y", "datatype": "FP32", "shape": [2]}]}),
        http_reply({"model_name": "m", "outputs": [{**OUTPUT, "shape": [3]}]}, bytes(8)),
        http_reply({"model_name": "m", "outputs": [{**OUTPUT, "shape": [-2]}]}, bytes(8)),
        http_reply({"model_name": "m", "outputs": [{"name": "y", "datatype": "INT8", "shape": [1], "data": ["x"]}]}),
        http_reply({"model_name": "m", "outputs": {"y": 1}}),
    ],
)
def test_malformed_http_replies_are_clear_errors(reply: Reply) -> None:
    with pytest.raises(ServerError) as caught:
        InferResult(lambda: HttpCodec().decode_infer(reply))["y"]
    assert caught.value.code == "MALFORMED_REPLY"


@pytest.mark.parametrize("codec", [GrpcCodec(), HttpCodec()], ids=["grpc", "http"])
def test_bodies_of_two_gib_are_refused_before_they_are_built(codec: GrpcCodec | HttpCodec) -> None:
    page = np.broadcast_to(np.zeros(1, np.uint8), (2**31,))  # no memory behind it

    class Huge(bytes):
        def __len__(self) -> int:
            return len(page)

    with pytest.raises(TensorError, match="too large for"):
        codec.infer(InferRequest("m", "", "", (WireTensor("x", "UINT8", (2**31,), Huge()),), ()))
