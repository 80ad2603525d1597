"""The python-based onnxruntime backend inside the real server gives what onnxruntime gives."""

from __future__ import annotations

import http.client
import json
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from onnx import helper
from tiny_models import DTYPES, TinyModel, affine, identity, onnx_config, save_graph, value
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tritonstack_deploy.embedded import EmbeddedServer

RAGGED = "ragged"


def scalar_item() -> TinyModel:
    """y = -x where the model's tensors are [N] and the wire's [N, 1] (reshape to no axis)."""

    def write(folder: Path) -> None:
        save_graph(
            folder / "model.onnx",
            [helper.make_node("Neg", ["x"], ["y"])],
            [value("x", "FLOAT", ["N"])],
            [value("y", "FLOAT", ["N"])],
        )

    dims = "[ 1 ] reshape { shape: [ ] }"
    return TinyModel("scalar_item", onnx_config([("x", "TYPE_FP32", dims)], [("y", "TYPE_FP32", dims)]), write)


def unbatched() -> TinyModel:
    """y = x of any length, no batching."""

    def write(folder: Path) -> None:
        save_graph(
            folder / "model.onnx",
            [helper.make_node("Identity", ["x"], ["y"])],
            [value("x", "FLOAT", ["K"])],
            [value("y", "FLOAT", ["K"])],
        )

    config = onnx_config([("x", "TYPE_FP32", "[ -1 ]")], [("y", "TYPE_FP32", "[ -1 ]")], batch=0)
    return TinyModel("unbatched", config, write)


def gather() -> TinyModel:
    """y = table[i]: fails for an index of 4 or more, so a bad request can be made."""

    def write(folder: Path) -> None:
        table = helper.make_tensor("table", 1, [4], [0.0, 10.0, 20.0, 30.0])
        save_graph(
            folder / "model.onnx",
            [helper.make_node("Gather", ["table", "x"], ["y"])],
            [value("x", "INT64", ["N", 1])],
            [value("y", "FLOAT", ["N", 1])],
            [table],
        )

    extra = "dynamic_batching { max_queue_delay_microseconds: 200000 preferred_batch_size: [ 3 ] }\n"
    return TinyModel(
        "gather",
        onnx_config(
            [("x", "TYPE_INT64", "[ 1 ]")], [("y", "TYPE_FP32", "[ 1 ]")], extra=extra + "instance_group { count: 1 }"
        ),
        write,
    )


def split_rows() -> TinyModel:
    """Two rows of y for each row of x, although the file says one: only running it shows."""

    def write(folder: Path) -> None:
        save_graph(
            folder / "model.onnx",
            [helper.make_node("Reshape", ["x", "shape"], ["y"])],
            [value("x", "FLOAT", ["N", 4])],
            [value("y", "FLOAT", ["N", 2])],
            [helper.make_tensor("shape", 7, [2], [-1, 2])],
        )

    extra = "dynamic_batching { max_queue_delay_microseconds: 100000 }\ninstance_group { count: 1 }"
    config = onnx_config([("x", "TYPE_FP32", "[ 4 ]")], [("y", "TYPE_FP32", "[ 2 ]")], extra=extra)
    return TinyModel("split_rows", config, write)


def batch_sum() -> TinyModel:
    """y = the sum over the batch, [1, 3] whatever the batch is: right for one row, wrong for more."""

    def write(folder: Path) -> None:
        save_graph(
            folder / "model.onnx",
            [helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=1)],
            [value("x", "FLOAT", ["N", 3])],
            [value("y", "FLOAT", ["M", 3])],
            [helper.make_tensor("axes", 7, [1], [0])],
        )

    return TinyModel("batch_sum", onnx_config([("x", "TYPE_FP32", "[ 3 ]")], [("y", "TYPE_FP32", "[ 3 ]")]), write)


SESSION = "".join(
    f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}\n'
    for k, v in {
        "intra_op_thread_count": "1",
        "inter_op_thread_count": "1",
        "execution_mode": "1",
        "enable_mem_arena": "0",
        "enable_mem_pattern": "0",
        "session.intra_op.allow_spinning": "0",
        "batch_buckets": "1,8",
        "cudnn_conv_algo_search": "1",
        "gpu_mem_limit": "1073741824",
    }.items()
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    repository = tmp_path_factory.mktemp("models")
    for dtype in DTYPES:
        identity(f"identity_{dtype}", dtype).add_to(repository)
    identity("strings", "STRING").add_to(repository)
    delay = "dynamic_batching { max_queue_delay_microseconds: 100000 }\ninstance_group { count: 1 }"
    identity(RAGGED, dims="[ -1 ]", extra=delay).add_to(repository)
    affine("batched", extra=delay).add_to(repository)
    affine("options", extra=SESSION + "optimization { graph { level: -1 } }").add_to(repository)
    shrink = 'parameters { key: "memory.enable_memory_arena_shrinkage" value { string_value: "cpu:0" } }'
    affine("shrinking", extra=shrink).add_to(repository)
    for model in (scalar_item(), unbatched(), gather(), split_rows(), batch_sum()):
        model.add_to(repository)
    with EmbeddedServer(repository) as running:
        yield running


@pytest.fixture(scope="module")
def stub(server: EmbeddedServer) -> Iterator[Any]:
    with grpc.insecure_channel(server.grpc_url.removeprefix("grpc://")) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def infer(stub: Any, model: str, dtype: str, shape: list[int], data: bytes, outputs: tuple[str, ...] = ()) -> Any:
    request = service_pb2.ModelInferRequest(model_name=model)
    tensor = request.inputs.add(name="x", datatype=dtype)
    tensor.shape.extend(shape)
    request.raw_input_contents.append(data)
    for name in outputs:
        request.outputs.add(name=name)
    return stub.ModelInfer(request, timeout=30)


def floats(reply: Any, index: int = 0) -> list[float]:
    return np.frombuffer(reply.raw_output_contents[index], np.float32).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back_bit_for_bit(stub: Any, dtype: str) -> None:
    word, numpy_dtype = DTYPES[dtype]
    data = np.random.default_rng(3).integers(0, 2 if dtype == "BOOL" else 120, (2, 3)).astype(numpy_dtype)
    reply = infer(stub, f"identity_{dtype}", word.removeprefix("TYPE_"), [2, 3], data.tobytes())
    assert reply.raw_output_contents[0] == data.tobytes()
    assert list(reply.outputs[0].shape) == [2, 3]


def test_strings_are_utf8(stub: Any) -> None:
    texts = ["", "größe", "猫"]
    data = b"".join(struct.pack("<I", len(t.encode())) + t.encode() for t in texts)
    assert infer(stub, "strings", "BYTES", [1, 3], data).raw_output_contents[0] == data


def test_only_requested_outputs_come_back(stub: Any) -> None:
    x = np.array([[1, 2, 3]], np.float32)
    reply = infer(stub, "batched", "FP32", [1, 3], x.tobytes(), outputs=("total",))
    assert [o.name for o in reply.outputs] == ["total"]
    assert floats(reply) == [6]


def test_requests_are_batched_and_split_again(server: EmbeddedServer, stub: Any) -> None:
    rows = [np.full((1 + i % 3, 3), i, np.float32) for i in range(8)]
    before = executions(server, "batched")
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda x: infer(stub, "batched", "FP32", list(x.shape), x.tobytes()), rows))
    for x, reply in zip(rows, replies, strict=True):
        assert floats(reply) == (2 * x + 1).ravel().tolist()
        assert floats(reply, 1) == x.sum(1).tolist()
    assert executions(server, "batched") - before < 8, "no two requests shared an execution"


def executions(server: EmbeddedServer, model: str) -> int:
    connection = http.client.HTTPConnection(server.http_url.removeprefix("http://"), timeout=10)
    try:
        connection.request("GET", f"/v2/models/{model}/stats")
        return int(json.loads(connection.getresponse().read())["model_stats"][0]["execution_count"])
    finally:
        connection.close()


def test_requests_of_different_lengths_in_one_batch(stub: Any) -> None:
    rows = [np.arange(3 + i % 2, dtype=np.float32)[None] for i in range(6)]
    with ThreadPoolExecutor(6) as pool:
        replies = list(pool.map(lambda x: infer(stub, RAGGED, "FP32", list(x.shape), x.tobytes()), rows))
    assert [floats(r) for r in replies] == [x.ravel().tolist() for x in rows]


def test_a_bad_request_fails_alone(stub: Any) -> None:
    def one(index: int) -> Any:
        try:
            return floats(infer(stub, "gather", "INT64", [1, 1], np.int64(index).tobytes()))
        except grpc.RpcError as error:
            return error

    with ThreadPoolExecutor(3) as pool:
        first, bad, last = pool.map(one, [1, 9, 3])
    assert (first, last) == ([10], [30])
    assert "out of" in bad.details().lower()
    assert "Traceback" not in bad.details()


@pytest.mark.parametrize("callers", [1, 4])
def test_rows_that_do_not_follow_the_batch_are_refused(stub: Any, callers: int) -> None:
    # Split by position, caller 2 would get the second half of caller 1's answer.
    def one(index: int) -> Any:
        try:
            return floats(infer(stub, "split_rows", "FP32", [1, 4], np.full(4, index, np.float32).tobytes()))
        except grpc.RpcError as error:
            return error.details()

    with ThreadPoolExecutor(callers) as pool:
        answers = list(pool.map(one, range(callers)))
    wanted = "output 'y' has shape [2, 2] for a batch of 1"
    assert all(isinstance(answer, str) and wanted in answer for answer in answers), answers


def test_fewer_rows_than_the_batch_are_refused(stub: Any) -> None:
    assert floats(infer(stub, "batch_sum", "FP32", [1, 3], np.ones(3, np.float32).tobytes())) == [1, 1, 1]
    with pytest.raises(grpc.RpcError, match=r"has shape \[1, 3\] for a batch of 2"):
        infer(stub, "batch_sum", "FP32", [2, 3], np.ones(6, np.float32).tobytes())


def test_per_item_scalars(stub: Any) -> None:
    x = np.array([[1], [2]], np.float32)
    reply = infer(stub, "scalar_item", "FP32", [2, 1], x.tobytes())
    assert list(reply.outputs[0].shape) == [2, 1]
    assert floats(reply) == [-1, -2]


@pytest.mark.parametrize("length", [1, 5])
def test_without_batching_the_shape_is_the_models(stub: Any, length: int) -> None:
    x = np.arange(length, dtype=np.float32)
    reply = infer(stub, "unbatched", "FP32", [length], x.tobytes())
    assert floats(reply) == x.tolist()


@pytest.mark.parametrize("model", ["options", "shrinking"])
def test_session_and_run_options_are_accepted(stub: Any, model: str) -> None:
    x = np.array([[1, 2, 3]], np.float32)
    assert floats(infer(stub, model, "FP32", [1, 3], x.tobytes())) == [3, 5, 7]


def test_providers_are_reported(server: EmbeddedServer) -> None:
    assert server.providers["batched"].providers == ("CPUExecutionProvider",)
