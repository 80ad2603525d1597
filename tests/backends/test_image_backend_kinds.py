"""The backend in the real server on each kind of instance: the same tests for the CPU and, where there is one, the GPU.

What a GPU decodes is within 4 levels of libjpeg; everything else is equal bit for bit.
"""

from __future__ import annotations

import http.client
import io
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_backend_models import GEOMETRY, INPUT, OUTPUT, ImageModel, as_batch, encoded, model_of, oriented, pixels
from image_kinds import GPU_TESTS, KINDS, Kind, Servers, counter, load_module
from image_serving_checks import SMALL, check_eight_ragged_frames, check_shared_memory, write_two_steps
from odd_pictures import BAD, GOOD
from PIL import Image

from tritonstack import Client, ServerError
from tritonstack.image import ImagePreprocessing, Resize

photos = load_module(GPU_TESTS / "photos.py", "photos")

EXACT = ImagePreprocessing(resize=Resize("exact", 48, 64), dtype="UINT8")
IMAGENET = ImagePreprocessing(
    resize=Resize("shorter", 72), center_crop=(64, 64), scale=1 / 255, mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
)  # fmt: skip
LETTERBOX = ImagePreprocessing(resize=Resize("letterbox", 80, 80, pad=114), dtype="UINT8")
STEP = 1 / 255 / 0.224
"""The largest value that one level of a pixel makes with IMAGENET."""
SIZES = [(375, 500), (150, 120), (333, 1022), (160, 161), (225, 223), (600, 700), (110, 700), (480, 641)]
"""All of them shrink: the bound on what a GPU decodes is one behind a resize."""


def models(kind: Kind) -> list[ImageModel]:
    group = kind.group()
    imagenet = model_of("", IMAGENET)
    return [
        model_of("exact", EXACT, extra=group),
        model_of("gathering", EXACT, extra=kind.gathering()),
        model_of("ragged", EXACT, raw=True, extra=kind.gathering()),
        model_of("imagenet", IMAGENET, extra=group),
        model_of("several", IMAGENET, extra=kind.group(2)),
        ImageModel("half", imagenet.parameters, imagenet.dims, "TYPE_FP16", extra=group),
        ImageModel("float", {**imagenet.parameters, "round_u8": "false"}, imagenet.dims, extra=group),
        model_of("boxes", LETTERBOX, geometry=True, extra=group),
        ImageModel("decoder", {"layout": "NHWC"}, (-1, -1, 3), "TYPE_UINT8", extra=group),
        ImageModel(
            "shrinker", {"resize": "exact", "height": "16", "width": "16"}, (3, 16, 16), raw=True, extra=group
        ),
    ]  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return Kind(request.param)


@pytest.fixture(scope="module")
def server(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    repository = tmp_path_factory.mktemp(f"kind_{kind.name}")
    for model in models(kind):
        model.write(repository)
    write_two_steps(repository, decoder="decoder", shrinker="shrinker")
    with ExitStack() as stack:
        yield Servers(stack).start(repository, allow=("shared-memory",))


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[Client]:
    with Client(server.grpc_url) as connected:
        yield connected


def photographs() -> list[bytes]:
    """Of all sizes; every third progressive, so that more than one decoder has a part in a batch."""
    return [
        photos.jpeg(photos.photo(*size, seed), progressive=seed % 3 == 2) for seed, size in enumerate(SIZES)
    ]  # fmt: skip


def kinds_of_files() -> dict[str, tuple[bytes, bool]]:
    """Name -> a file, and whether nvJPEG decodes it."""
    image = photos.photo(200, 300, 1)
    picture = Image.fromarray(image)
    files = {
        "4:2:0": (photos.jpeg(image), True),
        "4:2:2": (photos.jpeg(image, subsampling="4:2:2"), True),
        "4:4:4": (photos.jpeg(image, subsampling="4:4:4"), True),
        "progressive": (photos.jpeg(image, progressive=True), True),
        "restarts": (photos.jpeg(image, restart_marker_blocks=4), True),
        "gray": (encoded(picture.convert("L"), "JPEG"), True),
        "cmyk": (encoded(picture.convert("CMYK"), "JPEG"), False),
        "rgb": (encoded(picture, "JPEG", keep_rgb=True), False),
        "png": (encoded(picture, "PNG"), False),
        "palette": (encoded(picture.quantize(16), "PNG"), False),
        "rgba": (encoded(picture.convert("RGBA"), "PNG"), False),
        "webp": (encoded(picture, "WEBP", quality=80), False),
        "lossless": (encoded(picture, "WEBP", lossless=True), False),
    }
    for orientation in range(1, 9):
        files[f"exif {orientation}"] = (oriented(picture, orientation, quality=87), True)
    return files


def test_kinds_of_files_are_those_of_pillow(kind: Kind, client: Client) -> None:
    for name, (data, decoded_by_gpu) in kinds_of_files().items():
        found = client.infer("exact", {INPUT: as_batch(data)})[OUTPUT][0]
        kind.require_near(found, EXACT.preprocess(data), levels=4 if decoded_by_gpu else 0, why=name)


def test_odd_pictures_are_read(kind: Kind, client: Client) -> None:
    """Single pixels, extreme ratios, names that lie: drawings with hard edges, so without a bound on their decoding."""
    for name, data in GOOD.items():
        found = client.infer("exact", {INPUT: as_batch(data)})[OUTPUT]
        assert found.shape == (1, 3, 48, 64), name
        if not kind.on_gpu or data[:2] != b"\xff\xd8":
            np.testing.assert_array_equal(found[0], EXACT.preprocess(data), err_msg=name)
        elif name != "taller than its data":  # which every decoder fills up in its own way
            assert np.abs(found[0].astype(int) - EXACT.preprocess(data)).mean() < 3, name


@pytest.mark.parametrize("model", ["imagenet", "half", "float", "several"])
def test_a_batch_of_mixed_sizes(kind: Kind, client: Client, model: str) -> None:
    files = photographs()
    found = client.infer(model, {INPUT: as_batch(*files)})[OUTPUT]
    assert found.dtype == (np.float16 if model == "half" else np.float32)
    wanted = np.stack([IMAGENET.preprocess(data) for data in files])
    if model == "half":
        wanted = wanted.astype(np.float16)
    if model == "float":
        # Unrounded: at most one level from Pillow on a CPU, and the decoder's share besides on a GPU.
        assert np.abs(found - wanted).max() <= (5 if kind.on_gpu else 1) * STEP + 1e-4
        return
    kind.require_near(found, wanted, levels=4.2 if model == "half" else 4, step=STEP)


def test_raw_frames_are_exact_on_every_kind(client: Client) -> None:
    for size in [(1, 1), (1, 37), (41, 1), (17, 19), (65, 66), (375, 500), (333, 1022), (7, 1500)]:
        frame = pixels(*size)
        found = client.infer("ragged", {INPUT: frame[None]})[OUTPUT][0]
        np.testing.assert_array_equal(found, EXACT.preprocess(Image.fromarray(frame)), err_msg=str(size))


def test_ragged_frames_share_a_batch(client: Client) -> None:
    frames = [pixels(20 + 13 * i, 160 - 17 * i, i) for i in range(8)]
    check_eight_ragged_frames(client, "ragged", EXACT, frames)


def test_counts_of_a_batch(client: Client) -> None:
    files = photographs()
    before = client.statistics("gathering")[0]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda data: client.infer("gathering", {INPUT: as_batch(data)}), files))
    client.infer("gathering", {INPUT: as_batch(*files[:5])})
    after = client.statistics("gathering")[0]
    assert after.success.count - before.success.count == 9
    assert after.inference_count - before.inference_count == 13
    assert 2 <= after.execution_count - before.execution_count <= 4
    assert after.compute_infer.total_ns > before.compute_infer.total_ns
    assert any(row.batch_size == 5 for row in after.batches)


def test_only_the_bad_request_of_a_batch_fails(kind: Kind, client: Client) -> None:
    good = photographs()[:7]
    expected = [EXACT.preprocess(data) for data in good]

    def ask(data: bytes) -> Any:
        try:
            return client.infer("gathering", {INPUT: as_batch(data)})[OUTPUT][0]
        except ServerError as error:
            return error

    before = client.statistics("gathering")[0]
    with ThreadPoolExecutor(8) as pool:
        for position, (name, (bad, reason)) in enumerate(BAD.items()):
            place = position % 8
            answers = list(pool.map(ask, [*good[:place], bad, *good[place:]]))
            refused = answers.pop(place)
            assert isinstance(refused, ServerError) and refused.code == "INVALID_ARGUMENT", name
            assert reason in str(refused), name
            for answer, wanted in zip(answers, expected, strict=True):
                kind.require_near(answer, wanted, levels=4, why=name)
    after = client.statistics("gathering")[0]
    assert after.fail.count - before.fail.count == len(BAD)
    assert after.success.count - before.success.count == 7 * len(BAD)
    with pytest.raises(ServerError, match="picture 3 of 8 is cut off"):
        client.infer("exact", {INPUT: as_batch(*good[:3], BAD["truncated"][0], *good[3:])})


def test_instances_answer_alike(kind: Kind, client: Client) -> None:
    """Two at a time from six threads; a sample that another batch wrote into would differ wildly."""
    files = photographs() * 3
    wanted = [IMAGENET.preprocess(data) for data in photographs()] * 3
    parts = [slice(start, start + 4) for start in range(0, 24, 4)] * 6
    with ThreadPoolExecutor(6) as pool:
        answers = pool.map(lambda part: client.infer("several", {INPUT: as_batch(*files[part])})[OUTPUT], parts)
        for part, answer in zip(parts, answers, strict=True):
            kind.require_near(answer, np.stack(wanted[part]), levels=4, step=STEP)


def test_steps_of_an_ensemble(kind: Kind, client: Client) -> None:
    for data in photographs():
        found = client.infer("two_steps", {INPUT: as_batch(data)})[OUTPUT][0]
        kind.require_near(found, SMALL.preprocess(data), levels=4)
    with pytest.raises(ServerError, match="cut off") as caught:
        client.infer("two_steps", {INPUT: as_batch(BAD["truncated"][0])})
    assert caught.value.code == "INVALID_ARGUMENT"


def test_geometry_beside_the_sample(kind: Kind, client: Client) -> None:
    data = photographs()[0]
    result = client.infer("boxes", {INPUT: as_batch(data)})
    kind.require_near(result[OUTPUT][0], LETTERBOX.preprocess(data), levels=4)
    scale = np.float32(80 / 500)
    np.testing.assert_array_equal(result[GEOMETRY][0], [scale, scale, 0, 10, 375, 500, 60, 80])
    only = client.infer("boxes", {INPUT: as_batch(data)}, outputs=[GEOMETRY])
    np.testing.assert_array_equal(only[GEOMETRY], result[GEOMETRY])


@pytest.mark.parametrize("shift", [0, 1, 3])
def test_system_shared_memory(client: Client, shift: int) -> None:
    """Frames and samples; with a shift no value of the sample is aligned."""
    check_shared_memory(client, "shrinker", [shift])


def test_cancelled_requests_leave_the_others_alone(kind: Kind, client: Client, server: Any) -> None:
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    data = photographs()[0]
    wanted = EXACT.preprocess(data)
    request = service_pb2.ModelInferRequest(model_name="gathering")
    request.inputs.add(name=INPUT, datatype="BYTES", shape=[1, 1]).contents.bytes_contents.append(data)
    with grpc.insecure_channel(server.grpc_url.removeprefix("grpc://")) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for _ in range(4):
            calls = [stub.ModelInfer.future(request) for _ in range(6)]
            for call in calls[::2]:
                call.cancel()
            for call in calls[1::2]:
                values = np.frombuffer(call.result(timeout=30).raw_output_contents[0], np.uint8)
                kind.require_near(values.reshape(3, 48, 64), wanted, levels=4)
    assert client.is_ready("gathering")


def test_counters(kind: Kind, client: Client, server: Any) -> None:
    def counts() -> list[float]:
        pictures = "image_preprocess_pictures_total"
        paths = ("cpu_jpeg", "gpu_hardware", "gpu_hybrid", "cpu_png", "raw")
        return [
            *(sum(counter(server, pictures, model=m, path=path) for m in ("exact", "ragged")) for path in paths),
            counter(server, "image_preprocess_failures_total", model="exact", reason="damaged"),
            counter(server, "image_preprocess_output_fallbacks_total", model="exact"),
        ]

    picture = Image.fromarray(photos.photo(100, 120, 3))
    before = counts()
    client.infer(
        "exact", {INPUT: as_batch(encoded(picture, "JPEG"), encoded(picture, "JPEG"), encoded(picture, "PNG"))}
    )
    client.infer("exact", {INPUT: as_batch(encoded(picture.convert("CMYK"), "JPEG"))})
    client.infer("ragged", {INPUT: pixels(9, 9)[None]})
    with pytest.raises(ServerError):
        client.infer("exact", {INPUT: as_batch(BAD["truncated"][0])})
    cpu, hardware, hybrid, png, raw, damaged, fallbacks = np.subtract(counts(), before).tolist()
    assert (cpu, hardware + hybrid) == ((1, 2) if kind.on_gpu else (3, 0))
    # A reply over the wire lies in host memory by its nature: no fallback.
    assert (png, raw, damaged, fallbacks) == (1, 1, 1, 0)


def test_models_come_and_go(kind: Kind, tmp_path: Path) -> None:
    """Loaded, used and unloaded again and again, the second time with another setting."""
    model_of("coming", EXACT, extra=kind.group(2)).write(tmp_path)
    data = photographs()[0]
    with ExitStack() as stack:
        server = Servers(stack).start(tmp_path, models={"coming": tmp_path / "coming"}, allow=("model-repository",))

        def control(action: str) -> str:
            connection = http.client.HTTPConnection(server.http_url.removeprefix("http://"), timeout=60)
            connection.request("POST", f"/v2/repository/models/coming/{action}", body="{}")
            reply = connection.getresponse()
            body = reply.read().decode()
            connection.close()
            return "" if reply.status == 200 else str(json.loads(body)["error"])

        config = tmp_path / "coming" / "config.pbtxt"
        with Client(server.grpc_url) as client:
            for height in (48, 40, 48):
                text = re.sub(r'"height" value { string_value: "\d+"', f'"height" value {{ string_value: "{height}"',
                              config.read_text())  # fmt: skip
                config.write_text(re.sub(r"dims: \[ 3, \d+,", f"dims: [ 3, {height},", text))
                assert control("load") == ""
                client.wait_ready(["coming"], 60)
                wanted = ImagePreprocessing(resize=Resize("exact", height, 64), dtype="UINT8").preprocess(data)
                with Client(server.grpc_url) as fresh:
                    kind.require_near(fresh.infer("coming", {INPUT: as_batch(data)})[OUTPUT][0], wanted, levels=4)
                assert control("unload") == ""
            config.write_text(config.read_text().replace('"exact"', '"longest"'))
            assert "bad parameter 'resize'; given 'longest'" in control("load")


def test_a_large_picture_in_between(kind: Kind, client: Client) -> None:
    """Scratch memory grows with it; what comes after is as before."""
    stream = io.BytesIO()
    Image.fromarray(photos.photo(540, 960, 4)).resize((7680, 4320)).save(stream, "JPEG", quality=80)
    data = photographs()[0]
    before = client.infer("exact", {INPUT: as_batch(data)})[OUTPUT]
    found = client.infer("exact", {INPUT: as_batch(stream.getvalue())})[OUTPUT][0]
    kind.require_near(found, EXACT.preprocess(stream.getvalue()), levels=4)
    kind.require_near(client.infer("exact", {INPUT: as_batch(data)})[OUTPUT], before, levels=4)
