"""The backend inside the real server: bad pictures fail alone, batches, frames, memory, reloads, counters."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from image_backend_models import (
    GEOMETRY,
    INPUT,
    LIBRARY,
    OUTPUT,
    ImageModel,
    as_batch,
    colour,
    model_of,
    needs_library,
    oriented,
    pixels,
)
from image_kinds import counter
from image_serving_checks import SMALL, check_eight_ragged_frames, check_shared_memory, write_two_steps
from odd_pictures import BAD, GOOD, PNG, jpeg
from PIL import Image

from tritonstack import Client, ServerError
from tritonstack.image import ImagePreprocessing, Resize
from tritonstack_deploy.embedded.installation import find_installation
from tritonstack_deploy.embedded.staging import stage_backends

pytestmark = needs_library

EXACT = ImagePreprocessing(resize=Resize("exact", 24, 32), dtype="UINT8")
IMAGENET = ImagePreprocessing(
    resize=Resize("shorter", 40),
    center_crop=(32, 32),
    scale=1 / 255,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
)
LETTERBOX = ImagePreprocessing(resize=Resize("letterbox", 64, 64, pad=114))
GATHERING = (
    "dynamic_batching { max_queue_delay_microseconds: 400000 preferred_batch_size: [ 8 ] }\n"
    "instance_group { count: 1 kind: KIND_CPU }"
)
BOTH = "instance_group { count: 2 kind: KIND_CPU }"

MODELS: Sequence[ImageModel] = (
    model_of("exact", EXACT),
    model_of("gathering", EXACT, extra=GATHERING),
    model_of("ragged", EXACT, raw=True, extra=GATHERING),
    model_of("both", IMAGENET, extra=BOTH),
    ImageModel("threads", model_of("", IMAGENET).parameters | {"threads": "2"}, (3, 32, 32)),
    model_of("unbatched", EXACT, batch=0),
    model_of("unbatched_frame", EXACT, batch=0, raw=True),
    model_of("boxes", LETTERBOX, geometry=True),
    ImageModel("crop_boxes", {"crop_fraction": "0.8", "resize": "exact", "height": "40", "width": "40"}, geometry=True),
    ImageModel("half", model_of("", IMAGENET).parameters, (3, 32, 32), "TYPE_FP16"),
    ImageModel("brain", model_of("", IMAGENET).parameters, (3, 32, 32), "TYPE_BF16"),
    ImageModel("as_it_is", {"layout": "NHWC"}, (-1, -1, 3), "TYPE_UINT8"),
    ImageModel("small_only", {"max_pixels": "1000", "max_bytes": "3000", "layout": "NHWC"}, (-1, -1, 3)),
    ImageModel("strict", {"gray": "refuse", "cmyk": "refuse", "alpha": "refuse"}),
    ImageModel("shorter_only", {"resize": "shorter", "height": "2048"}),
    ImageModel("frames_of", {"layout": "NHWC"}, (-1, -1, 3), "TYPE_UINT8"),
    ImageModel("frames_small", {"resize": "exact", "height": "16", "width": "16"}, (3, 16, 16), raw=True),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, start_server: Callable[..., Any]) -> Any:
    repository = tmp_path_factory.mktemp("robust")
    for model in MODELS:
        model.write(repository)
    write_two_steps(repository, decoder="frames_of", shrinker="frames_small")
    return start_server(repository, allow=("shared-memory",))


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[Client]:
    with Client(server.grpc_url) as client:
        yield client


@pytest.mark.parametrize("name", GOOD)
def test_unusual_pictures_come_out_as_on_the_client(client: Client, name: str) -> None:
    answer = client.infer("exact", {INPUT: as_batch(GOOD[name])})[OUTPUT]
    np.testing.assert_array_equal(answer[0], EXACT.preprocess(GOOD[name]))


@pytest.mark.parametrize("name", BAD)
def test_bad_picture_fails_with_its_reason(client: Client, name: str) -> None:
    data, reason = BAD[name]
    with pytest.raises(ServerError, match=re.escape(reason)) as caught:
        client.infer("exact", {INPUT: as_batch(data)})
    assert caught.value.code == "INVALID_ARGUMENT"
    assert "image_preprocess: the picture is" in str(caught.value)


def test_only_the_bad_request_of_a_batch_fails(client: Client) -> None:
    """Eight requests in one batch for each bad picture: seven right answers and one reason."""
    good = [jpeg(colour(30 + i, 50 - i)) for i in range(7)]
    expected = [EXACT.preprocess(data) for data in good]

    def ask(data: bytes) -> Any:
        try:
            return client.infer("gathering", {INPUT: as_batch(data)})[OUTPUT][0]
        except ServerError as error:
            return str(error)

    before = client.statistics("gathering")[0]
    with ThreadPoolExecutor(8) as pool:
        for position, (name, (bad, reason)) in enumerate(BAD.items()):
            place = position % 8
            answers = list(pool.map(ask, [*good[:place], bad, *good[place:]]))
            assert reason in answers.pop(place), name
            for answer, wanted in zip(answers, expected, strict=True):
                np.testing.assert_array_equal(answer, wanted, err_msg=name)
    after = client.statistics("gathering")[0]
    assert after.fail.count - before.fail.count == len(BAD)
    assert after.success.count - before.success.count == 7 * len(BAD)
    assert after.inference_count - before.inference_count == 7 * len(BAD)
    # Mostly one run for each batch; a slow machine may split some.
    assert after.execution_count - before.execution_count < 3 * len(BAD)
    assert any(row.batch_size == 7 for row in after.batches)


def test_request_of_several_pictures(client: Client) -> None:
    pictures = [jpeg(colour(20 + i, 31)) for i in range(8)]
    answer = client.infer("exact", {INPUT: as_batch(*pictures)})[OUTPUT]
    np.testing.assert_array_equal(answer, np.stack([EXACT.preprocess(data) for data in pictures]))
    pictures[5] = BAD["truncated"][0]
    with pytest.raises(ServerError, match="picture 5 of 8 is cut off"):
        client.infer("exact", {INPUT: as_batch(*pictures)})


def test_pictures_of_different_sizes_need_a_request_each_where_the_output_follows_them(client: Client) -> None:
    one, other = jpeg(colour(20, 31)), jpeg(colour(21, 31))
    same = client.infer("as_it_is", {INPUT: as_batch(one, one)})[OUTPUT]
    assert same.shape == (2, 20, 31, 3)
    with pytest.raises(ServerError, match="picture 1 of 2 is of another output size"):
        client.infer("as_it_is", {INPUT: as_batch(one, other)})


def test_limits_and_policies(client: Client) -> None:
    assert client.infer("small_only", {INPUT: as_batch(jpeg())})[OUTPUT].shape == (1, 20, 40, 3)
    for data, reason in (
        (jpeg(colour(40, 40)), "expected at most 1000 (parameter max_pixels)"),
        (jpeg() + bytes(3000), "expected at most 3000 (parameter max_bytes)"),
    ):
        with pytest.raises(ServerError, match=re.escape(reason)):
            client.infer("small_only", {INPUT: as_batch(data)})
    for name, reason in (("gray", "gray, which"), ("cmyk", "CMYK, which"), ("rgba", "alpha, which")):
        with pytest.raises(ServerError, match=f"is .*{reason} this model refuses"):
            client.infer("strict", {INPUT: as_batch(GOOD[name])})
    assert client.infer("strict", {INPUT: as_batch(PNG)})[OUTPUT].shape == (1, 3, 20, 40)
    with pytest.raises(ServerError, match="too narrow to be resized by its shorter side"):
        client.infer("shorter_only", {INPUT: as_batch(jpeg(Image.new("RGB", (40000, 1))))})


def test_ragged_frames_share_a_batch(client: Client) -> None:
    frames = [pixels(20 + i, 60 - 3 * i, i) for i in range(8)]
    check_eight_ragged_frames(client, "ragged", EXACT, frames)
    several = np.stack([pixels(17, 23, seed) for seed in range(5)])
    answer = client.infer("ragged", {INPUT: several})[OUTPUT]
    np.testing.assert_array_equal(answer, np.stack([EXACT.preprocess(Image.fromarray(f)) for f in several]))
    with pytest.raises(ServerError):
        client.infer("ragged", {INPUT: np.zeros((1, 0, 5, 3), np.uint8)})


def test_models_without_batching(client: Client) -> None:
    one = np.array([jpeg()], dtype=object)
    np.testing.assert_array_equal(client.infer("unbatched", {INPUT: one})[OUTPUT], EXACT.preprocess(jpeg()))
    frame = pixels(31, 22)
    answer = client.infer("unbatched_frame", {INPUT: frame})[OUTPUT]
    np.testing.assert_array_equal(answer, EXACT.preprocess(Image.fromarray(frame)))


@pytest.mark.parametrize("height, width", [(48, 96), (100, 33), (64, 64), (7, 300)])
def test_geometry_maps_boxes_back(client: Client, height: int, width: int) -> None:
    data = jpeg(colour(height, width))
    result = client.infer("boxes", {INPUT: as_batch(data)})
    np.testing.assert_array_equal(result[OUTPUT][0], LETTERBOX.preprocess(data))
    scale_x, scale_y, left, top, was_high, was_wide, high, wide = result[GEOMETRY][0]
    assert (was_high, was_wide) == (height, width)
    factor = min(64 / height, 64 / width)
    assert (high, wide) == (max(1, round(height * factor)), max(1, round(width * factor)))
    assert (left, top) == ((64 - wide) // 2, (64 - high) // 2)
    assert (scale_x, scale_y) == (np.float32(wide / width), np.float32(high / height))
    only = client.infer("boxes", {INPUT: as_batch(data)}, outputs=[GEOMETRY])
    np.testing.assert_array_equal(only[GEOMETRY], result[GEOMETRY])


def test_geometry_of_a_crop_is_negative(client: Client) -> None:
    result = client.infer("crop_boxes", {INPUT: as_batch(oriented(colour(100, 50), 6))})
    # 50 high and 100 wide once upright; the central 40 × 40 start at row 5 and column 30.
    np.testing.assert_array_equal(result[GEOMETRY][0], np.float32([1, 1, -30, -5, 50, 100, 40, 40]))


def test_half_and_brain_floats_round_to_nearest_even(client: Client) -> None:
    data = jpeg(colour(90, 77))
    values = IMAGENET.preprocess(data)
    half = client.infer("half", {INPUT: as_batch(data)})[OUTPUT][0]
    np.testing.assert_array_equal(half, values.astype(np.float16))
    brain = np.asarray(client.infer("brain", {INPUT: as_batch(data)})[OUTPUT][0], dtype=np.float32)
    bits = values.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)
    np.testing.assert_array_equal(brain, rounded)


@pytest.mark.parametrize("model", ["both", "threads"])
def test_instances_and_threads_answer_alike(client: Client, model: str) -> None:
    pictures = [jpeg(colour(40 + i, 90 - i, i)) for i in range(24)]
    expected = [IMAGENET.preprocess(data) for data in pictures]
    with ThreadPoolExecutor(6) as pool:
        batches = [slice(start, start + 4) for start in range(0, 24, 4)] * 4
        answers = pool.map(lambda part: client.infer(model, {INPUT: as_batch(*pictures[part])})[OUTPUT], batches)
        for part, answer in zip(batches, answers, strict=True):
            np.testing.assert_array_equal(answer, np.stack(expected[part]))


def test_two_steps_of_an_ensemble(client: Client) -> None:
    data = jpeg(colour(50, 70))
    answer = client.infer("two_steps", {INPUT: as_batch(data)})[OUTPUT]
    np.testing.assert_array_equal(answer[0], SMALL.preprocess(data))
    with pytest.raises(ServerError, match="cut off") as caught:
        client.infer("two_steps", {INPUT: as_batch(BAD["truncated"][0])})
    assert caught.value.code == "INVALID_ARGUMENT"


def test_config_with_nothing_but_the_backend(tmp_path: Path) -> None:
    """Triton's own start, as on NGC images: `serve` switches the completion of configs off."""
    folder = tmp_path / "models" / "bare"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(
        'backend: "image_preprocess" instance_group { kind: KIND_CPU }\n'
        'parameters { key: "center_crop" value { string_value: "16x16" } }\n'
    )
    installation = find_installation()
    backends = stage_backends(installation, tmp_path / "backends", libraries={"image_preprocess": LIBRARY})
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = ["--http-address=127.0.0.1", "--allow-grpc=false", "--allow-metrics=false", f"--http-port={port}"]
    process = subprocess.Popen(
        [installation.server, f"--model-repository={folder.parent}", f"--backend-directory={backends}", *flags],
        env={**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, installation.library_path))},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with Client(f"http://127.0.0.1:{port}") as client:
            client.wait_ready(["bare"], 60)
            metadata = client.metadata("bare")
            assert [(tensor.name, tuple(tensor.shape)) for tensor in metadata.inputs] == [(INPUT, (-1, 1))]
            assert [(tensor.name, tuple(tensor.shape)) for tensor in metadata.outputs] == [(OUTPUT, (-1, 3, 16, 16))]
            answer = client.infer("bare", {INPUT: as_batch(PNG, PNG)})[OUTPUT]
            np.testing.assert_array_equal(answer[1], ImagePreprocessing(center_crop=(16, 16)).preprocess(PNG))
    finally:
        process.terminate()
        process.wait(30)


def test_frames_and_samples_in_shared_memory(client: Client) -> None:
    """Also where the output starts at an odd byte, so that no value of it is aligned."""
    check_shared_memory(client, "frames_small", [0, 1, 3])


def test_counters_on_the_metrics_endpoint(client: Client, server: Any) -> None:
    def counts() -> list[float]:
        return [
            counter(server, "image_preprocess_pictures_total", model="exact", path="cpu_jpeg"),
            counter(server, "image_preprocess_pictures_total", model="exact", path="cpu_png"),
            counter(server, "image_preprocess_failures_total", model="exact", reason="damaged"),
        ]

    before = counts()
    client.infer("exact", {INPUT: as_batch(jpeg(), jpeg(), PNG)})
    with pytest.raises(ServerError):
        client.infer("exact", {INPUT: as_batch(BAD["truncated"][0])})
    assert np.subtract(counts(), before).tolist() == [2, 1, 1]


def test_cancelled_requests_leave_the_others_alone(client: Client, server: Any) -> None:
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    data = jpeg()
    request = service_pb2.ModelInferRequest(model_name="gathering")
    tensor = request.inputs.add(name=INPUT, datatype="BYTES", shape=[1, 1])
    tensor.contents.bytes_contents.append(data)
    with grpc.insecure_channel(server.grpc_url.removeprefix("grpc://")) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for _ in range(5):
            calls = [stub.ModelInfer.future(request) for _ in range(6)]
            for call in calls[::2]:
                call.cancel()
            for call in calls[1::2]:
                values = np.frombuffer(call.result(timeout=10).raw_output_contents[0], np.uint8)
                np.testing.assert_array_equal(values.reshape(3, 24, 32), EXACT.preprocess(data))
    assert client.is_ready("gathering")


@pytest.mark.slow
def test_memory_stays_flat(client: Client, server: Any) -> None:
    """20,000 small requests, every tenth of them bad, and a few large pictures: no memory is kept."""
    process = psutil.Process(server.pid)
    good = client.prepare("both", {INPUT: as_batch(jpeg(colour(48, 48)))})
    bad = client.prepare("both", {INPUT: as_batch(BAD["truncated"][0])})
    large = client.prepare("both", {INPUT: as_batch(jpeg(Image.new("RGB", (6000, 4000), (1, 2, 3))))})

    def send(index: int) -> None:
        if index % 10:
            client.send(good)
            return
        with pytest.raises(ServerError):
            client.send(bad)

    def run(count: int) -> int:
        client.send(large)
        client.send(large)
        with ThreadPoolExecutor(4) as pool:
            for _ in pool.map(send, range(count)):
                pass
        return int(process.memory_info().rss)

    run(4000)
    before = run(1000)
    after = run(15000)
    assert after - before < 24 << 20, f"{(after - before) / 1e6:.1f} MB more after 15,000 requests"


CONFIG_FAULTS = {
    "unknown": ({"heigth": "3"}, "unknown parameter 'heigth'; expected one of resize, height"),
    "mode": ({"resize": "longest"}, "bad parameter 'resize'; given 'longest'; expected one of exact, shorter"),
    "number": ({"resize": "exact", "height": "12px", "width": "3"}, "bad parameter 'height'; given '12px'"),
    "missing": ({"resize": "exact", "height": "12"}, "missing parameter 'width'"),
    "too much": ({"height": "12"}, "bad parameter 'height'; given '12'; expected no height where resize is none"),
    "side": ({"resize": "shorter", "height": "0"}, "expected a whole number from 1 to 16384"),
    "crop": (
        {"resize": "exact", "height": "32", "width": "32", "center_crop": "33x32"},
        "bad parameter 'center_crop'; given '33x32'; expected at most what resize leaves, 32x32",
    ),
    "crop text": ({"center_crop": "224"}, "expected HEIGHTxWIDTH in pixels"),
    "fraction": ({"crop_fraction": "1.5"}, "bad parameter 'crop_fraction'; given '1.5'; expected a number above 0"),
    "flag": ({"antialias": "yes"}, "bad parameter 'antialias'; given 'yes'; expected one of true, false"),
    "mean": ({"mean": "0.5,0.5"}, "bad parameter 'mean'; given '0.5,0.5'; expected three numbers"),
    "infinite": ({"std": "1,inf,1"}, "bad parameter 'std'; given '1,inf,1'; expected three finite numbers"),
    "zero": ({"std": "1,0,1"}, "bad parameter 'std'; given '0'; expected numbers that are not 0"),
    "pad": ({"pad_value": "256"}, "expected a whole number from 0 to 255"),
}


def test_bad_configs_are_refused_with_words_and_models_reload(tmp_path: Path, start_server: Callable[..., Any]) -> None:
    for index, (parameters, _) in enumerate(CONFIG_FAULTS.values()):
        ImageModel(f"bad{index}", parameters).write(tmp_path)
    ImageModel("bad_type", {}, dtype="TYPE_INT32").write(tmp_path)
    ImageModel("bad_dims", {}, dims=(4, -1, -1)).write(tmp_path)
    ImageModel("bad_size", {"center_crop": "9x9"}, dims=(3, 9, 8)).write(tmp_path)
    ImageModel("bad_pixels", {"scale": "2"}, dtype="TYPE_UINT8").write(tmp_path)
    ImageModel("bad_range", {"scale": "300"}, dtype="TYPE_FP16").write(tmp_path)
    model_of("good", EXACT).write(tmp_path)
    server = start_server(tmp_path, models={"good": tmp_path / "good"}, allow=("model-repository",))

    def control(action: str, model: str) -> str:
        connection = http.client.HTTPConnection(server.http_url.removeprefix("http://"), timeout=30)
        connection.request("POST", f"/v2/repository/models/{model}/{action}", body="{}")
        reply = connection.getresponse()
        body = reply.read().decode()
        connection.close()
        return "" if reply.status == 200 else str(json.loads(body)["error"])

    for index, (name, (_, words)) in enumerate(CONFIG_FAULTS.items()):
        assert words in control("load", f"bad{index}"), name
    for name, words in {
        "bad_type": "the first output is TYPE_INT32; expected one of TYPE_FP32, TYPE_FP16, TYPE_BF16, TYPE_UINT8",
        "bad_dims": "pictures become [3, -1, -1] (NCHW), the first output has dims [4, -1, -1]",
        "bad_size": "pictures become [3, 9, 9] (NCHW), the first output has dims [3, 9, 8]",
        "bad_pixels": "an output of TYPE_UINT8 carries raw pixels",
        "bad_range": "overflow the output's type",
    }.items():
        assert words in control("load", name), name
    with Client(server.grpc_url) as client:
        for _ in range(5):
            assert control("load", "good") == ""
            answer = client.infer("good", {INPUT: as_batch(jpeg())})[OUTPUT]
            np.testing.assert_array_equal(answer[0], EXACT.preprocess(jpeg()))
            assert control("unload", "good") == ""


def test_only_tritons_entry_points_are_visible() -> None:
    """Read from the file itself: the dynamic symbols that are defined are the nine of the backend API."""
    listing = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in listing.stdout.splitlines()}
    assert names == {
        f"TRITONBACKEND_{name}"
        for name in (
            "Initialize",
            "Finalize",
            "GetBackendAttribute",
            "ModelInitialize",
            "ModelFinalize",
            "ModelInstanceInitialize",
            "ModelInstanceFinalize",
            "ModelInstanceExecute",
            "ModelInstanceReady",
        )
    }
