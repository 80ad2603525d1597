"""The client against the real server: both protocols, blocking and asyncio."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import grpc
import ml_dtypes
import numpy as np
import pytest
from client_models import write_add_one
from tritonclient.grpc import service_pb2

from tritonstack import AsyncClient, Client, DeadlineExceeded, ServerError, ServerUnavailable, TensorError, TensorSpec
from tritonstack.client.call import Call, Reply
from tritonstack.client.connection import Address
from tritonstack.client.http_codec import HttpCodec
from tritonstack.errors import InputError, UsageError
from tritonstack_deploy.embedded import EmbeddedServer

ROW = np.array([[1, 2, 3]], np.float32)


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url, timeout_s=30) as client:
        yield client


def test_server_and_models(client: Client) -> None:
    assert client.is_live()
    assert client.is_ready()
    assert client.is_ready("addone")
    assert client.is_ready("addone", "3")
    assert not client.is_ready("addone", "7")
    assert not client.is_ready("nothing")
    assert client.server_metadata().version.startswith("2.")
    assert {"addone", "identity"} <= {model.name for model in client.models()}
    client.wait_ready(["addone", "slow"], 5)


def test_metadata(client: Client) -> None:
    metadata = client.metadata("addone")
    assert metadata.versions == ("1", "3")
    assert metadata.inputs == (TensorSpec("x", "FP32", (-1, 3)),)
    assert metadata.max_batch_size == 8
    assert client.metadata("optional").input("bias").optional
    with pytest.raises(KeyError, match="it has 'x'"):
        metadata.input("y")


def test_config(client: Client) -> None:
    config = client.config("addone")
    assert (config.name, config.backend, config.max_batch_size) == ("addone", "python", 8)
    assert config.parameters == {"colour": "blue"}
    assert config.dynamic_batching
    assert config.max_queue_delay_us == 100
    assert config.instance_count == 1
    assert client.config("classify").label_files == {"y": "labels.txt"}


def test_both_protocols_see_the_same(server: EmbeddedServer) -> None:
    with Client(server.grpc_url) as one, Client(server.http_url) as other:
        for model in ("addone", "identity", "optional", "pictures", "slow"):
            assert one.metadata(model) == other.metadata(model)
            assert one.config(model) == other.config(model)
            assert one.statistics(model) == other.statistics(model)
        assert one.models() == other.models()
        assert one.server_metadata() == other.server_metadata()


def test_statistics_count(client: Client) -> None:
    before = {s.version: s for s in client.statistics("addone")}["1"]
    for _ in range(3):
        client.infer("addone", {"x": np.repeat(ROW, 4, 0)}, version="1")
    after = {s.version: s for s in client.statistics("addone")}["1"]
    assert after.inference_count - before.inference_count == 12
    assert after.execution_count - before.execution_count == 3
    assert (after.success - before.success).count == 3
    assert (after.compute_infer - before.compute_infer).total_ns > 0
    assert 4 in [batch.batch_size for batch in after.batches]
    assert any(s.name == "failing" for s in client.statistics())


def test_infer(client: Client) -> None:
    result = client.infer("addone", {"x": ROW}, request_id="größe-猫", outputs=["y"])
    assert result["y"].tolist() == [[2, 3, 4]]
    assert (result.model_name, result.model_version, result.request_id) == ("addone", "3", "größe-猫")
    assert "y" in result
    assert [*result] == ["y"]
    with pytest.raises(KeyError, match="it has 'y'"):
        result["z"]
    assert client.infer("addone", {"x": ROW}, version="1").model_version == "1"


def load(server: EmbeddedServer, name: str) -> None:
    """Ask the server to load a model that was added to its repository, by Triton's repository API."""
    channel = grpc.insecure_channel(server.grpc_url.removeprefix("grpc://"))
    request = service_pb2.RepositoryModelLoadRequest(model_name=name)
    channel.unary_unary("/inference.GRPCInferenceService/RepositoryModelLoad")(request.SerializeToString(), timeout=30)
    channel.close()


def test_model_names_that_urls_treat_specially(server: EmbeddedServer, client: Client, protocol: str) -> None:
    for name in ("add+1", "add@1:b,c=d~", "add%411"):
        if not (server.repository / name).exists():
            write_add_one(server.repository, name)
            load(server, name)
        if protocol == "http" and "%" in name:
            with pytest.raises(ServerError, match="does not decode names"):
                client.infer(name, {"x": ROW[0]})
        else:
            assert client.infer(name, {"x": ROW[0]})["y"].tolist() == [2, 3, 4]


VALUES = {
    "BOOL": np.array([[True, False], [False, True]]),
    "FP16": np.array([[1.5, -65504], [np.inf, 6e-8]], np.float16),
    "FP32": np.array([[1.5, np.float32(3.4e38)], [-np.inf, 1e-45]], np.float32),
    "FP64": np.array([[1.5, 1.7e308], [-np.inf, 5e-324]]),
    "BF16": np.array([[1.5, -3e38], [np.inf, 1e-40]], ml_dtypes.bfloat16),
    "BYTES": np.array([[b"a\0\0", b""], ["größe".encode(), bytes(range(256))]], dtype=object),
    **{
        name: np.array([[np.iinfo(dtype).min, np.iinfo(dtype).max], [1, 0]], dtype)
        for name, dtype in (
            *(("UINT8", np.uint8), ("UINT16", np.uint16), ("UINT32", np.uint32), ("UINT64", np.uint64)),
            *(("INT8", np.int8), ("INT16", np.int16), ("INT32", np.int32), ("INT64", np.int64)),
        )
    },
}


@pytest.mark.parametrize("kind", sorted(VALUES))
def test_every_data_type_round_trips(client: Client, kind: str) -> None:
    value = VALUES[kind]
    output = client.infer("identity", {f"x_{kind}": value})[f"y_{kind}"]
    assert output.dtype == value.dtype
    assert output.tolist() == value.tolist()


def test_empty_tensors_round_trip(client: Client) -> None:
    result = client.infer("identity", {"x_BYTES": np.zeros((0, 2), object), "x_FP32": np.zeros((3, 0), np.float32)})
    assert result["y_BYTES"].shape == (0, 2)
    assert result["y_FP32"].shape == (3, 0)


def test_several_outputs_in_any_order(client: Client) -> None:
    inputs = {"x_INT8": VALUES["INT8"], "x_BYTES": VALUES["BYTES"], "x_FP64": VALUES["FP64"]}
    result = client.infer("identity", inputs, outputs=["y_FP64", "y_INT8", "y_BYTES"])
    for name in inputs:
        assert result[name.replace("x", "y")].tolist() == inputs[name].tolist()


def test_optional_inputs_may_be_left_out(client: Client) -> None:
    row = ROW[0]
    assert client.infer("optional", {"x": row})["y"].tolist() == [1, 2, 3]
    assert client.infer("optional", {"x": row, "bias": row})["y"].tolist() == [2, 4, 6]


def test_classification_strings(client: Client) -> None:
    result = client.infer("classify", {"x": ROW}, outputs={"y": 2})
    assert result["y"].tolist() == [["4.000000:2:größe".encode(), b"3.000000:1:tiger"]]


def test_prepared_requests_own_their_bytes(client: Client) -> None:
    x = ROW.copy()
    prepared = client.prepare("addone", {"x": x}, request_id="7")
    x[:] = 100
    for _ in range(2):
        result = client.send(prepared)
        assert result["y"].tolist() == [[2, 3, 4]]
        assert result.request_id == "7"
    assert 12 < prepared.byte_size < 500


def test_a_prepared_request_of_the_other_protocol_is_refused(server: EmbeddedServer) -> None:
    with Client(server.grpc_url) as ours, Client(server.http_url) as other:
        prepared = ours.prepare("addone", {"x": ROW})
        with pytest.raises(UsageError, match="prepared for grpc"):
            other.send(prepared)


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({"x": np.zeros(3, np.float32)}, "x[None]"),
        ({"x": np.zeros((9, 3), np.float32)}, "max_batch_size is 8"),
        ({"x": np.zeros((0, 3), np.float32)}, "batch of 0"),
        ({"x": np.zeros((2, 3))}, "cast=True"),
        ({"y": ROW}, "has no input 'y'"),
        ({}, "wants input 'x'"),
    ],
)
def test_wrong_tensors_are_refused_before_sending(client: Client, inputs: dict[str, object], text: str) -> None:
    with pytest.raises(TensorError) as caught:
        client.infer("addone", inputs)
    assert text in str(caught.value)


def test_casting_only_some_inputs(client: Client) -> None:
    with pytest.raises(TensorError, match="'bias'"):
        client.infer("optional", {"x": [1, 2, 3], "bias": [1, 2, 3]}, cast=["x"])
    assert client.infer("optional", {"x": [1, 2, 3]}, cast=True)["y"].tolist() == [1, 2, 3]
    with pytest.raises(UsageError, match="'z'"):
        client.infer("optional", {"x": [1, 2, 3]}, cast=["z"])


def test_memory_layouts_give_row_major_values(client: Client) -> None:
    for x, expected in (
        (np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)), [[1, 2, 3], [4, 5, 6]]),
        (np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2], [[1, 3, 5], [7, 9, 11]]),
        (np.arange(3, dtype=">f4").reshape(1, 3), [[1, 2, 3]]),
        (np.broadcast_to(np.float32(1), (2, 3)), [[2, 2, 2], [2, 2, 2]]),
    ):
        assert client.infer("addone", {"x": x})["y"].tolist() == expected


def test_unknown_options_and_outputs(client: Client) -> None:
    with pytest.raises(TypeError, match="did you mean 'outputs'"):
        client.infer("addone", {"x": ROW}, output=["y"])  # type: ignore[call-arg]
    with pytest.raises(TensorError, match="has no output 'q'"):
        client.infer("addone", {"x": ROW}, outputs=["q"])
    with pytest.raises(UsageError, match="single text"):
        client.infer("addone", {"x": ROW}, outputs="y")
    with pytest.raises(UsageError, match="reserved"):
        client.infer("addone", {"x": ROW}, parameters={"priority": 1})
    with pytest.raises(UsageError, match="sequence_id"):
        client.infer("addone", {"x": ROW}, sequence_start=True)


def test_custom_parameters_are_accepted(client: Client) -> None:
    parameters = {"a": 1, "b": "ö", "c": True}
    assert client.infer("addone", {"x": ROW}, parameters=parameters)["y"].tolist() == [[2, 3, 4]]


def test_an_unknown_model_lists_the_known(client: Client) -> None:
    with pytest.raises(ServerError) as caught:
        client.infer("adone", {"x": ROW})
    assert "no model 'adone'" in str(caught.value)
    assert "did you mean 'addone'" in str(caught.value)
    with pytest.raises(ServerError, match="no version '9'"):
        client.infer("addone", {"x": ROW}, version="9")


def test_the_model_s_own_error_comes_through(client: Client) -> None:
    with pytest.raises(ServerError, match="the model says no: größe"):
        client.infer("failing", {"x": ROW[0]})


def test_deadlines(client: Client) -> None:
    start = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="did not finish in time"):
        client.infer("slow", {"x": np.full((1, 3), 0.8, np.float32)}, timeout_s=0.2)
    assert time.monotonic() - start < 0.7
    assert client.infer("slow", {"x": np.zeros((1, 3), np.float32)})["y"].tolist() == [[0, 0, 0]]


def test_the_queue_timeout_is_the_server_s(client: Client) -> None:
    with ThreadPoolExecutor(2) as pool:
        busy = pool.submit(client.infer, "slow", {"x": np.full((1, 3), 0.6, np.float32)})
        time.sleep(0.2)
        with pytest.raises(DeadlineExceeded, match=r"queue timeout|in time"):
            client.infer("slow", {"x": np.zeros((1, 3), np.float32)}, queue_timeout_us=1000)
        assert busy.result()["y"].shape == (1, 3)


def test_wait_ready_names_what_is_missing(client: Client) -> None:
    with pytest.raises(ServerUnavailable, match="'nothing' is not in the server's repository"):
        client.wait_ready(["addone", "nothing"], 0.3)


def test_many_threads_share_one_client(client: Client) -> None:
    def call(i: int) -> float:
        return float(client.infer("addone", {"x": np.full((1, 3), i, np.float32)})["y"][0, 0])

    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(call, range(80))] == [i + 1 for i in range(80)]


def test_closing_waits_for_calls_in_flight(url: str) -> None:
    client = Client(url)
    client.metadata("slow")
    answers: list[list[list[float]]] = []
    x = np.full((1, 3), 0.4, np.float32)
    thread = threading.Thread(target=lambda: answers.append(client.infer("slow", {"x": x})["y"].tolist()))
    thread.start()
    time.sleep(0.15)
    client.close()
    assert not thread.is_alive() or thread.join(1) is None
    assert len(answers) == 1
    with pytest.raises(InputError, match="closed"):
        client.is_live()
    client.close()


def test_a_large_request_and_reply(client: Client) -> None:
    """Above every default limit: gRPC's 4 MiB and one socket buffer."""
    x = np.arange(3_000_000, dtype=np.float32).reshape(3, -1)
    assert np.array_equal(client.infer("identity", {"x_FP32": x})["y_FP32"], x)


def test_stale_metadata_is_fetched_again(client: Client) -> None:
    client.metadata("addone")
    right = client._flows._metadata["addone", ""]
    stricter = replace(right, inputs=(TensorSpec("x", "FP32", (-1, 5)),))
    client._flows._metadata["addone", ""] = stricter
    assert client.infer("addone", {"x": ROW})["y"].tolist() == [[2, 3, 4]]
    assert client._flows._metadata["addone", ""] == right
    laxer = replace(right, max_batch_size=100)
    client._flows._metadata["addone", ""] = laxer
    with pytest.raises(TensorError, match="max_batch_size is 8"):
        client.infer("addone", {"x": np.zeros((20, 3), np.float32)})


def test_a_forked_child_may_use_the_client(url: str) -> None:
    code = f"""
import os, sys
import numpy as np
from tritonstack import Client
client = Client({url!r}, timeout_s=20)
x = {{"x": np.ones((1, 3), np.float32)}}
assert client.infer("addone", x)["y"][0, 0] == 2
pid = os.fork()
if not pid:
    ok = client.infer("addone", x)["y"][0, 0] == 2
    client.close()
    os._exit(0 if ok else 1)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
assert client.infer("addone", x)["y"][0, 0] == 2
client.close()
sys.exit(status)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_asyncio(url: str) -> None:
    async def run() -> None:
        async with AsyncClient(url) as client:
            assert await client.is_live()
            assert await client.is_ready("addone")
            await client.wait_ready(["addone"], 5)
            assert (await client.metadata("addone")).max_batch_size == 8
            assert (await client.config("addone")).parameters == {"colour": "blue"}
            assert (await client.server_metadata()).name == "triton"
            assert "addone" in {model.name for model in await client.models()}
            assert (await client.statistics("addone"))[0].name == "addone"
            results = await asyncio.gather(
                *(client.infer("addone", {"x": np.full((1, 3), i, np.float32)}) for i in range(50))
            )
            assert [r["y"][0, 0] for r in results] == [i + 1 for i in range(50)]
            prepared = await client.prepare("addone", {"x": ROW})
            assert (await client.send(prepared))["y"].tolist() == [[2, 3, 4]]
            large = np.arange(3_000_000, dtype=np.float32).reshape(3, -1)
            assert np.array_equal((await client.infer("identity", {"x_FP32": large}))["y_FP32"], large)
            with pytest.raises(TensorError):
                await client.infer("addone", {"x": ROW[0]})
            with pytest.raises(ServerError, match="did you mean 'addone'"):
                await client.infer("adone", {"x": ROW})
            with pytest.raises(DeadlineExceeded):
                await client.infer("slow", {"x": np.full((1, 3), 0.5, np.float32)}, timeout_s=0.1)
            assert (await client.infer("addone", {"x": ROW}))["y"].tolist() == [[2, 3, 4]]

    asyncio.run(run())


def test_asyncio_close_waits_and_then_refuses(url: str) -> None:
    async def run() -> None:
        client = AsyncClient(url)
        task = asyncio.create_task(client.infer("slow", {"x": np.full((1, 3), 0.3, np.float32)}))
        await asyncio.sleep(0.15)
        await client.close()
        assert task.done()
        assert task.result()["y"].shape == (1, 3)
        with pytest.raises(InputError, match="closed"):
            await client.is_live()

    asyncio.run(run())


def test_one_async_client_in_two_loops(url: str) -> None:
    client = AsyncClient(url)

    async def call() -> list[list[float]]:
        return (await client.infer("addone", {"x": ROW}))["y"].tolist()  # type: ignore[no-any-return]

    assert asyncio.run(call()) == asyncio.run(call()) == [[2, 3, 4]]


HEAD = (
    b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","parameters":{"binary_data_size":12}}],'
    b'"parameters":{"binary_data_output":true}}'
)
DATA = ROW.tobytes()


@pytest.mark.parametrize(
    ("length", "body"),
    [
        pytest.param(None, HEAD + DATA, id="missing-header"),
        pytest.param("0", HEAD + DATA, id="zero"),
        pytest.param(str(len(HEAD + DATA) + 1), HEAD + DATA, id="too-long"),
        pytest.param(str(len(HEAD) - 1), HEAD + DATA, id="too-short"),
        pytest.param("-5", HEAD + DATA, id="negative"),
        pytest.param(str(len(HEAD)), HEAD + DATA[:8], id="size-mismatch"),
        pytest.param(str(len(HEAD)), HEAD + DATA + bytes(4), id="extra-bytes"),
    ],
)
def test_a_wrong_head_length_is_an_error_and_the_connection_stays(
    server: EmbeddedServer, length: str | None, body: bytes
) -> None:
    transport = Address(server.http_url, protocol=None, timeout_s=10, tls=None, headers=None, retries=0).transport()
    headers = (("Inference-Header-Content-Length", length),) if length is not None else ()
    try:
        with pytest.raises(ServerError) as caught:
            transport.send(Call("/v2/models/addone/infer", (body,), "a raw request", headers=headers), 10)
        assert caught.value.summary.removeprefix("a raw request failed: ")
        good = Call(
            "/v2/models/addone/infer",
            (HEAD, DATA),
            "a raw request",
            headers=(("Inference-Header-Content-Length", str(len(HEAD))),),
        )
        reply: Reply = transport.send(good, 10)
        assert HttpCodec().decode_infer(reply).model_name == "addone"
    finally:
        transport.close()
