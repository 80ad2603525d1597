"""What only a GPU shows: where tensors lie, full memory pools, CUDA shared memory, ranges for profilers, memory of the
device over loads and unloads."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from cuda_memory import CudaRegion, Driver
from image_backend_models import INPUT, OUTPUT, ImageModel, as_batch, encoded, model_of, pixels
from image_kinds import GPU_TESTS, Kind, Servers, counter, load_module
from nvtx_ranges import build_recorder, environment, mapped_files, recorded
from odd_pictures import BAD
from PIL import Image
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tritonstack import Client, ServerError, ServerUnavailable
from tritonstack.image import ImagePreprocessing, Resize

pytestmark = pytest.mark.gpu
photos = load_module(GPU_TESTS / "photos.py", "photos")

GPU = Kind("GPU")
CPU = Kind("CPU")
SMALL = ImagePreprocessing(resize=Resize("exact", 64, 64))
FALLBACKS = "image_preprocess_output_fallbacks_total"
BATCH = 8

PROBE = f"""backend: "python"
max_batch_size: {BATCH}
input {{ name: "x" data_type: TYPE_FP32 dims: [ 3, 64, 64 ] }}
output {{ name: "on_host" data_type: TYPE_FP32 dims: [ 1 ] }}
instance_group {{ count: 1 kind: KIND_GPU }}
parameters {{ key: "FORCE_CPU_ONLY_INPUT_TENSORS" value {{ string_value: "no" }} }}
"""
PROBE_MODEL = """
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        found = [pb.get_input_tensor_by_name(request, "x") for request in requests]
        return [
            pb.InferenceResponse([pb.Tensor("on_host", np.full((t.shape()[0], 1), t.is_cpu(), np.float32))])
            for t in found
        ]
"""


def ensemble(name: str, steps: list[tuple[str, str, str]], output: str, kind: str, dims: str) -> tuple[str, str]:
    """Steps (model, its input, its output) in a row."""
    text = [
        f'name: "{name}"',
        'platform: "ensemble"',
        f"max_batch_size: {BATCH}",
        f'input {{ name: "{INPUT}" data_type: TYPE_STRING dims: [ 1 ] }}',
        f'output {{ name: "{output}" data_type: {kind} dims: [ {dims} ] }}',
        "ensemble_scheduling {",
    ]
    source = INPUT
    for index, (model, taken, given) in enumerate(steps):
        target = output if index + 1 == len(steps) else f"between_{index}"
        text.append(
            f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "{taken}" value: "{source}" }} '
            f'output_map {{ key: "{given}" value: "{target}" }} }}'
        )
        source = target
    return name, "\n".join([*text, "}"]) + "\n"


def write_ensemble(repository: Path, entry: tuple[str, str]) -> None:
    name, text = entry
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(text)


def write_models(repository: Path) -> None:
    group = GPU.group()
    model_of("small", SMALL, extra=group).write(repository)
    model_of("small_on_cpu", SMALL, extra=CPU.group()).write(repository)
    parameters = model_of("", SMALL).parameters
    ImageModel(
        "demanding", {**parameters, "on_gpu_output_unavailable": "fail"}, (3, 64, 64), batch=BATCH, extra=group
    ).write(repository)
    ImageModel("decoder", {"layout": "NHWC"}, (-1, -1, 3), "TYPE_UINT8", extra=group).write(repository)
    shrink = {"resize": "exact", "height": "64", "width": "64"}
    ImageModel("shrinker", shrink, (3, 64, 64), raw=True, extra=group).write(repository)
    ImageModel("shrinker_on_cpu", shrink, (3, 64, 64), raw=True, extra=CPU.group()).write(repository)
    (repository / "probe" / "1").mkdir(parents=True)
    (repository / "probe" / "config.pbtxt").write_text(PROBE)
    (repository / "probe" / "1" / "model.py").write_text(PROBE_MODEL)
    probe = ("probe", "x", "on_host")
    for name in ("small", "small_on_cpu", "demanding"):
        steps = [(name, INPUT, OUTPUT), probe]
        write_ensemble(repository, ensemble(f"where_{name}", steps, "on_host", "TYPE_FP32", "1"))
    for name in ("shrinker", "shrinker_on_cpu"):
        steps = [("decoder", INPUT, OUTPUT), (name, INPUT, OUTPUT)]
        write_ensemble(repository, ensemble(f"decoded_{name}", steps, OUTPUT, "TYPE_FP32", "3, 64, 64"))


@pytest.fixture(scope="module")
def log() -> list[str]:
    return []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, log: list[str]) -> Iterator[Any]:
    repository = tmp_path_factory.mktemp("gpu")
    write_models(repository)
    with ExitStack() as stack:
        yield Servers(stack).start(repository, log=log, allow=("shared-memory",))


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[Client]:
    with Client(server.grpc_url) as connected:
        yield connected


def files(count: int = BATCH) -> list[bytes]:
    sizes = [(375, 500), (333, 1022), (225, 223), (600, 700)]
    return [photos.jpeg(photos.photo(*sizes[seed % 4], seed)) for seed in range(count)]


def near(found: Any, data: bytes) -> None:
    GPU.require_near(found, SMALL.preprocess(data), levels=4)


def test_the_log_says_where_it_runs(server: Any, log: list[str]) -> None:
    said = [line for line in log if "image_preprocess: small" in line]
    assert any("runs on GPU 0, decode_threads" in line for line in said), said
    assert any("small_on_cpu" in line and "runs on the CPU, threads 1" in line for line in said), said


def decoded_by(server: Any, model: str) -> list[float]:
    """Pictures so far, by the JPEG engine, by nvJPEG otherwise, and by libjpeg."""
    paths = ("gpu_hardware", "gpu_hybrid", "cpu_jpeg")
    return [counter(server, "image_preprocess_pictures_total", model=model, path=path) for path in paths]


def test_a_gpu_decodes(client: Client, server: Any) -> None:
    """Not the CPU behind the scenes: nvJPEG was found."""
    before = decoded_by(server, "small")
    for data in files():
        near(client.infer("small", {INPUT: as_batch(data)})[OUTPUT][0], data)
    hardware, hybrid, cpu = np.subtract(decoded_by(server, "small"), before)
    assert (hardware + hybrid, cpu) == (BATCH, 0)


def test_samples_stay_on_the_gpu_for_the_next_step(client: Client, server: Any) -> None:
    data = files()
    before = counter(server, FALLBACKS)
    assert client.infer("where_small", {INPUT: as_batch(*data)})["on_host"].ravel().tolist() == [0] * BATCH
    assert client.infer("where_demanding", {INPUT: as_batch(data[0])})["on_host"].ravel().tolist() == [0]
    assert client.infer("where_small_on_cpu", {INPUT: as_batch(data[0])})["on_host"].ravel().tolist() == [1]
    assert counter(server, FALLBACKS) == before


@pytest.mark.parametrize("model", ["decoded_shrinker", "decoded_shrinker_on_cpu"])
def test_frames_between_steps(client: Client, model: str) -> None:
    """Decoded on the GPU, and shrunk from there by a GPU instance, or by a CPU instance that is handed GPU memory."""
    for data in files():
        near(client.infer(model, {INPUT: as_batch(data)})[OUTPUT][0], data)


def test_replies_over_the_wire_are_no_fallbacks(client: Client, server: Any) -> None:
    data = files(1)[0]
    before = counter(server, FALLBACKS)
    near(client.infer("demanding", {INPUT: as_batch(data)})[OUTPUT][0], data)
    with Client(server.http_url) as other:
        near(other.infer("demanding", {INPUT: as_batch(data)})[OUTPUT][0], data)
    assert counter(server, FALLBACKS) == before


@pytest.mark.parametrize("pool_bytes", [0, 64 << 10])
def test_full_pools(tmp_path: Path, pool_bytes: int) -> None:
    """No room for a batch in Triton's pools, neither on the GPU nor pinned: right answers by way of host memory."""
    write_models(tmp_path)
    pools = (f"--cuda-memory-pool-byte-size=0:{pool_bytes}", f"--pinned-memory-pool-byte-size={pool_bytes}")
    data = files()
    with ExitStack() as stack:
        server = Servers(stack).start(tmp_path, arguments=pools)
        client = stack.enter_context(Client(server.grpc_url))
        before = counter(server, FALLBACKS, model="small")
        for _ in range(3):
            found = client.infer("where_small", {INPUT: as_batch(*data)})["on_host"]
            assert found.ravel().tolist() == [1] * BATCH
        assert counter(server, FALLBACKS, model="small") - before == 3
        for model in ("decoded_shrinker", "decoded_shrinker_on_cpu"):
            for item in data[:4]:
                near(client.infer(model, {INPUT: as_batch(item)})[OUTPUT][0], item)
        assert counter(server, FALLBACKS, model="decoder") == 8
        with pytest.raises(ServerUnavailable, match="no GPU memory for the output"):
            client.infer("where_demanding", {INPUT: as_batch(*data)})
        # Frames on the wire, batches from several threads: nothing is left over from the failures.
        with ThreadPoolExecutor(6) as pool:
            answers = pool.map(lambda item: client.infer("small", {INPUT: as_batch(item)})[OUTPUT][0], data * 3)
            for item, answer in zip(data * 3, answers, strict=True):
                near(answer, item)


def infer_in_cuda_memory(
    stub: Any, model: str, shape: list[int], source: tuple[str, int], target: tuple[str, int, int]
) -> None:
    """Frames from a region (name, bytes), samples to another (name, bytes, offset)."""
    request = service_pb2.ModelInferRequest(model_name=model)
    tensor = request.inputs.add(name=INPUT, datatype="UINT8", shape=shape)
    tensor.parameters["shared_memory_region"].string_param = source[0]
    tensor.parameters["shared_memory_byte_size"].int64_param = source[1]
    output = request.outputs.add(name=OUTPUT)
    output.parameters["shared_memory_region"].string_param = target[0]
    output.parameters["shared_memory_byte_size"].int64_param = target[1]
    output.parameters["shared_memory_offset"].int64_param = target[2]
    stub.ModelInfer(request, timeout=60)


@pytest.mark.parametrize("offset", [0, 512, 1, 3])
@pytest.mark.parametrize("model", ["shrinker", "shrinker_on_cpu"])
def test_cuda_shared_memory(server: Any, model: str, offset: int) -> None:
    """Frames and samples in device memory of the client's, the samples also where nothing is aligned."""
    frames = np.stack([pixels(133, 247, seed) for seed in range(4)])
    wanted = np.stack([SMALL.preprocess(Image.fromarray(frame)) for frame in frames])
    driver = Driver()
    with (
        CudaRegion(driver, frames.nbytes) as source,
        CudaRegion(driver, wanted.nbytes + 1024) as target,
        grpc.insecure_channel(server.grpc_url.removeprefix("grpc://")) as channel,
    ):
        source.write(frames)
        target.write(np.full(wanted.nbytes + 1024, 0xA5, np.uint8))
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        regions = {"frames": source, "samples": target}
        for name, region in regions.items():
            stub.CudaSharedMemoryRegister(
                service_pb2.CudaSharedMemoryRegisterRequest(
                    name=name, raw_handle=region.handle, device_id=0, byte_size=region.byte_size
                )
            )
        try:
            infer_in_cuda_memory(
                stub, model, list(frames.shape), ("frames", frames.nbytes), ("samples", wanted.nbytes, offset)
            )
            np.testing.assert_array_equal(target.read(wanted.shape, np.float32, offset), wanted)
            behind = target.read((16,), np.uint8, offset + wanted.nbytes)
            assert (behind == 0xA5).all(), "written beyond the end"
            assert (target.read((offset,), np.uint8) == 0xA5).all(), "written before the start"
        finally:
            for name in regions:
                stub.CudaSharedMemoryUnregister(service_pb2.CudaSharedMemoryUnregisterRequest(name=name))


def test_memory_of_the_device_stays_flat(client: Client) -> None:
    """Good, bad, odd and large pictures, alone and in batches: after the first round nothing is kept."""
    driver = Driver()
    data = files()
    large = photos.jpeg(np.tile(photos.photo(540, 960, 4), (4, 4, 1)))
    gray = encoded(Image.fromarray(photos.photo(200, 300, 1)).convert("L"), "JPEG")

    def round_of_requests() -> None:
        client.infer("small", {INPUT: as_batch(large, *data[:3])})
        for index in range(150):
            batch = data[: 1 + index % BATCH]
            client.infer("where_small" if index % 3 == 0 else "small", {INPUT: as_batch(*batch)})
            client.infer("decoded_shrinker", {INPUT: as_batch(gray)})
            with pytest.raises(ServerError):
                client.infer("small", {INPUT: as_batch(BAD["truncated"][0])})

    for _ in range(2):
        round_of_requests()
    before = driver.free_bytes()
    for _ in range(3):
        round_of_requests()
    kept = before - driver.free_bytes()
    assert kept < 16 << 20, f"{kept / 1e6:.1f} MB more after 1,350 requests"


def test_memory_of_the_device_over_loads_and_unloads(tmp_path: Path) -> None:
    for index in range(2):
        model_of(f"model_{index}", SMALL, extra=GPU.group(2)).write(tmp_path)
    driver = Driver()
    data = files(4)
    free = []
    with ExitStack() as stack:
        server = Servers(stack).start(
            tmp_path, models={"model_0": tmp_path / "model_0"}, allow=("model-repository",)
        )  # fmt: skip

        def control(model: str, action: str) -> None:
            connection = http.client.HTTPConnection(server.http_url.removeprefix("http://"), timeout=100)
            connection.request("POST", f"/v2/repository/models/{model}/{action}", body="{}")
            reply = connection.getresponse()
            body = reply.read()
            connection.close()
            assert reply.status == 200, body

        for _ in range(7):
            control("model_1", "load")
            with Client(server.grpc_url) as client:
                client.wait_ready(["model_1"], 60)
                near(client.infer("model_1", {INPUT: as_batch(*data)})[OUTPUT][0], data[0])
            control("model_1", "unload")
            free.append(driver.free_bytes())
    kept = free[1] - free[-1]
    assert kept < 32 << 20, f"{kept / 1e6:.1f} MB more after five more loads; free: {free}"


def test_ranges_reach_a_profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = tmp_path / "models"
    model_of("small", SMALL, extra=GPU.group()).write(models)
    recorder, record = build_recorder(tmp_path), tmp_path / "record"
    for name, value in environment(recorder, record).items():
        monkeypatch.setenv(name, value)
    with ExitStack() as stack:
        server = Servers(stack).start(models)
        client = stack.enter_context(Client(server.grpc_url))
        client.infer("small", {INPUT: as_batch(*files(2))})
        assert server.pid and recorder.name in mapped_files(server.pid)
    names = recorded(record)
    # A batch: decoded, resized, copied to where the reply is put together. Triton and CUDA may add ranges of theirs.
    ours = [name for name in names if name in ("decode", "resize", "copy")]
    assert ours[:3] == ["decode", "resize", "copy"] and len(ours) % 3 == 0, names[:50]


def test_without_a_profiler_nothing_is_loaded(server: Any, client: Client) -> None:
    client.infer("small", {INPUT: as_batch(files(1)[0])})
    loaded = {name for name in mapped_files(server.pid) if "nvtx" in name.lower() or "injection" in name.lower()}
    assert loaded == set()
