"""The onnxruntime backend on a GPU: the same entry, the CUDA provider, tensors that stay on the device."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from tiny_models import TinyModel, affine, onnx_config, save_graph, value
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tritonstack.errors import RepositoryError
from tritonstack_deploy.embedded import EmbeddedServer

pytestmark = pytest.mark.gpu

ON_DEVICE = (
    'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }\n'
    'parameters { key: "gpu_outputs" value { string_value: "1" } }\n'
)


def convolution(name: str, *, extra: str = "") -> TinyModel:
    """float32 [N, 3, 32, 32] → [N, 8, 32, 32] with seeded weights."""

    def write(folder: Path) -> None:
        weights = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32)
        save_graph(
            folder / "model.onnx",
            [helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["c"], ["y"])],
            [value("x", "FLOAT", ["N", 3, 32, 32])],
            [value("y", "FLOAT", ["N", 8, 32, 32])],
            [helper.make_tensor("w", TensorProto.FLOAT, weights.shape, weights.ravel())],
        )

    config = onnx_config([("x", "TYPE_FP32", "[ 3, 32, 32 ]")], [("y", "TYPE_FP32", "[ 8, 32, 32 ]")], extra=extra)
    return TinyModel(name, config, write)


def squared(name: str, *, extra: str = "") -> TinyModel:
    """y = x² on [N, 8, 32, 32]."""

    def write(folder: Path) -> None:
        save_graph(
            folder / "model.onnx",
            [helper.make_node("Mul", ["x", "x"], ["y"])],
            [value("x", "FLOAT", ["N", 8, 32, 32])],
            [value("y", "FLOAT", ["N", 8, 32, 32])],
        )

    dims = "[ 8, 32, 32 ]"
    return TinyModel(name, onnx_config([("x", "TYPE_FP32", dims)], [("y", "TYPE_FP32", dims)], extra=extra), write)


def probe() -> TinyModel:
    """y = where its input lies: 1 in host memory, 0 on the device; float32 [N, 1]."""
    config = (
        'backend: "python"\nmax_batch_size: 8\n'
        'input { name: "x" data_type: TYPE_FP32 dims: [ 8, 32, 32 ] }\n'
        'output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }\n'
        "instance_group { count: 1 kind: KIND_GPU }\n"
        'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }\n'
    )
    source = (
        "import numpy as np\nimport triton_python_backend_utils as pb\n\n\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        found = [pb.get_input_tensor_by_name(r, 'x') for r in requests]\n"
        "        return [pb.InferenceResponse([pb.Tensor('y', np.full((t.shape()[0], 1), t.is_cpu(), np.float32))])"
        " for t in found]\n"
    )
    return TinyModel("probe", config, lambda folder: (folder / "model.py").write_text(source) and None)


def step(model: str, source: str, target: str) -> str:
    return (
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "x" value: "{source}" }} '
        f'output_map {{ key: "y" value: "{target}" }} }}'
    )


def ensemble(name: str, first: str, second: str, *, dims: str = "[ 8, 32, 32 ]") -> TinyModel:
    config = (
        'platform: "ensemble"\nmax_batch_size: 8\n'
        'input { name: "x" data_type: TYPE_FP32 dims: [ 3, 32, 32 ] }\n'
        f'output {{ name: "y" data_type: TYPE_FP32 dims: {dims} }}\n'
        f"ensemble_scheduling {{ {step(first, 'x', 'middle')} {step(second, 'middle', 'y')} }}\n"
    )
    return TinyModel(name, config, lambda folder: None)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    affine("auto", extra="instance_group { count: 1 }").add_to(root)
    convolution("conv").add_to(root)
    convolution("conv_gpu", extra=ON_DEVICE + "instance_group { count: 1 kind: KIND_GPU }").add_to(root)
    squared("squared_gpu", extra=ON_DEVICE + "instance_group { count: 1 kind: KIND_GPU }").add_to(root)
    convolution("conv_cpu", extra="instance_group { count: 1 kind: KIND_CPU }").add_to(root)
    queue = "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 1000 }\n"
    convolution("bucketed", extra=queue).add_to(root)
    off = 'parameters { key: "batch_buckets" value { string_value: "0" } }'
    legacy = "".join(
        f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}\n'
        for k, v in {
            "cudnn_conv_algo_search": "1",
            "gpu_mem_limit": "2147483648",
            "arena_extend_strategy": "1",
            "do_copy_in_default_stream": "1",
            "memory.enable_memory_arena_shrinkage": "gpu:0",
        }.items()
    )
    convolution("unbucketed", extra=queue + off + legacy).add_to(root)
    ensemble("chain", "conv_gpu", "squared_gpu").add_to(root)
    probe().add_to(root)
    ensemble("where", "conv_gpu", "probe", dims="[ 1 ]").add_to(root)
    ensemble("where_by_default", "conv", "probe", dims="[ 1 ]").add_to(root)
    return root


@pytest.fixture(scope="module")
def log() -> list[str]:
    return []


@pytest.fixture(scope="module")
def server(repository: Path, log: list[str]) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(repository, on_log=lambda line: log.append(line.message)) as running:
        yield running


@pytest.fixture(scope="module")
def stub(server: EmbeddedServer) -> Iterator[Any]:
    with grpc.insecure_channel(server.grpc_url.removeprefix("grpc://")) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def infer(stub: Any, model: str, x: np.ndarray) -> np.ndarray:
    request = service_pb2.ModelInferRequest(model_name=model)
    tensor = request.inputs.add(name="x", datatype="FP32")
    tensor.shape.extend(x.shape)
    request.raw_input_contents.append(x.tobytes())
    request.outputs.add(name="y")
    reply = stub.ModelInfer(request, timeout=60)
    return np.frombuffer(reply.raw_output_contents[0], np.float32).reshape(reply.outputs[0].shape)


def expected(repository: Path, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(repository / "conv" / "1" / "model.onnx", providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("model", ["auto", "conv", "conv_gpu", "squared_gpu"])
def test_the_cuda_provider_runs(server: EmbeddedServer, model: str) -> None:
    assert server.providers[model].providers[0] == "CUDAExecutionProvider"
    assert server.providers[model].kind == "GPU"


def test_a_cpu_model_stays_on_the_cpu(server: EmbeddedServer) -> None:
    assert server.providers["conv_cpu"].providers == ("CPUExecutionProvider",)


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("model", ["conv", "conv_gpu", "conv_cpu"])
def test_answers_match_the_cpu(stub: Any, repository: Path, model: str, batch: int) -> None:
    x = np.random.default_rng(batch).standard_normal((batch, 3, 32, 32)).astype(np.float32)
    want = expected(repository, x)
    # TF32 convolutions keep about three digits.
    np.testing.assert_allclose(infer(stub, model, x), want, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("batch", [1, 8])
def test_tensors_between_ensemble_steps_stay_on_the_device(
    stub: Any, repository: Path, log: list[str], batch: int
) -> None:
    for seed in range(5):
        x = np.random.default_rng(seed).standard_normal((batch, 3, 32, 32)).astype(np.float32)
        np.testing.assert_allclose(infer(stub, "chain", x), expected(repository, x) ** 2, atol=1e-1, rtol=4e-2)
    assert any("model=squared_gpu input=x is read on the device" in line for line in log)


@pytest.mark.parametrize("model", ["bucketed", "unbucketed"])
def test_batches_of_changing_size_answer_right(stub: Any, repository: Path, model: str) -> None:
    # One session a size, filled up with copies of the last row: every row must still be its own.
    sizes = [1, 2, 5, 8, 3, 1, 7, 4, 8, 6]
    inputs = [np.random.default_rng(n).standard_normal((n, 3, 32, 32)).astype(np.float32) for n in sizes]
    for x in inputs:
        got = infer(stub, model, x)
        assert got.shape[0] == len(x)
        np.testing.assert_allclose(got, expected(repository, x), atol=2e-2, rtol=2e-2)
    with ThreadPoolExecutor(len(inputs)) as pool:
        for x, got in zip(inputs, pool.map(lambda x: infer(stub, model, x), inputs), strict=True):
            np.testing.assert_allclose(got, expected(repository, x), atol=2e-2, rtol=2e-2)


def test_bad_bucket_sizes_are_told(tmp_path: Path) -> None:
    convolution("conv", extra='parameters { key: "batch_buckets" value { string_value: "1,99" } }').add_to(tmp_path)
    with pytest.raises(RepositoryError, match=r"batch_buckets.*1,99.*sizes from 1 to 8"):
        EmbeddedServer(tmp_path).start()


def test_outputs_lie_where_the_config_says(stub: Any) -> None:
    x = np.zeros((2, 3, 32, 32), np.float32)
    assert infer(stub, "where", x).ravel().tolist() == [0, 0], "gpu_outputs leaves them on the device"
    assert infer(stub, "where_by_default", x).ravel().tolist() == [1, 1]
