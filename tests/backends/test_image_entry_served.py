"""Pictures through the real tritonserver and the compiled backend: what it makes of them is what the client makes."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_backend_models import needs_backend
from image_kinds import counter
from PIL import Image

from tritonstack import Client
from tritonstack.errors import InputError, ServerError
from tritonstack.image import ImagePreprocessing

MODELS = Path(__file__).with_name("image_models.py")
pytestmark = needs_backend

# Model -> its preprocessing. All end at 16 × 16, which is what the model takes.
PREPROCESSINGS: dict[str, dict[str, Any]] = {
    "lite": {
        "crop_fraction": 0.875,
        "resize": {"mode": "exact", "height": 16, "width": 16},
        "interpolation": "bicubic",
        "mean": [127, 127, 127],
        "std": [128, 128, 128],
    },
    "imagenet": {
        "resize": {"mode": "shorter", "height": 18},
        "center_crop": [16, 16],
        "scale": 1 / 255,
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
    },
    "boxed": {
        "resize": {"mode": "letterbox", "height": 16, "width": 16, "pad": 114},
        "interpolation": "nearest",
        "channel_order": "BGR",
        "scale": 1 / 255,
        "exif": False,
    },
}


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def drawn(height: int, width: int) -> Image.Image:
    """Red top left, blue bottom right, a ramp elsewhere: a turned or mirrored picture differs."""
    y, x = np.mgrid[0:height, 0:width]
    planes = np.stack([255 * x / width, 255 * y / height, 255 * (x + y) / (width + height)], -1)
    planes[: height // 3, : width // 3] = (255, 0, 0)
    planes[-(height // 3) :, -(width // 3) :] = (0, 0, 255)
    return Image.fromarray(planes.astype(np.uint8))


def pictures() -> dict[str, bytes]:
    """Every kind of file that a user may send."""
    image = drawn(61, 83)
    found = {
        "baseline.jpg": encoded(image, "JPEG", quality=90),
        "progressive.jpg": encoded(image, "JPEG", progressive=True),
        "444.jpg": encoded(image, "JPEG", subsampling=0),
        "422.jpg": encoded(image, "JPEG", subsampling=1),
        "gray.jpg": encoded(image.convert("L"), "JPEG"),
        "cmyk.jpg": encoded(image.convert("CMYK"), "JPEG"),
        "plain.png": encoded(image, "PNG"),
        "palette.png": encoded(image.convert("P"), "PNG"),
        "gray.png": encoded(image.convert("L"), "PNG"),
        "bits.png": encoded(image.convert("1"), "PNG"),
        "gray16.png": encoded(Image.fromarray((np.arange(61 * 83, dtype=np.uint16) * 12).reshape(61, 83)), "PNG"),
        "lossy.webp": encoded(image, "WEBP", quality=80),
        "lossless.webp": encoded(image, "WEBP", lossless=True),
        "png_called.jpg": encoded(image, "PNG"),
        "one_pixel.jpg": encoded(image.crop((0, 0, 1, 1)), "JPEG"),
        "tall.jpg": encoded(drawn(200, 40), "JPEG"),
        "wide.jpg": encoded(drawn(40, 200), "JPEG"),
    }
    alpha = image.convert("RGBA")
    alpha.putalpha(Image.linear_gradient("L").resize(image.size))
    found["rgba.png"] = encoded(alpha, "PNG")
    found["rgba.webp"] = encoded(alpha, "WEBP", lossless=True)
    found["gray_alpha.png"] = encoded(alpha.convert("LA"), "PNG")
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        found[f"exif{orientation}.jpg"] = encoded(image, "JPEG", exif=exif)
    return found


def photos() -> list[Path]:
    found: list[Path] = []
    for package, folder, pattern in (
        ("foolbox", "data", "imagenet_*.jpg"),
        ("skimage", "data", "*.png"),
        ("sklearn", "datasets/images", "*.jpg"),
    ):
        spec = find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            found += sorted((Path(spec.submodule_search_locations[0]) / folder).glob(pattern))
    return found


def bad_pictures() -> dict[str, bytes]:
    good = encoded(drawn(61, 83), "JPEG", quality=90)
    frame = good.index(b"\xff\xc0")
    return {
        "truncated.jpg": good[: len(good) // 2],
        "empty.jpg": b"",
        "text.jpg": b"not an image",
        "huge_header.jpg": good[: frame + 5] + struct.pack(">HH", 65500, 65500) + good[frame + 9 :],
        "head_only.jpg": good[: frame + 12],
        "cut.png": encoded(drawn(61, 83), "PNG")[:-40],
        "cut.webp": encoded(drawn(61, 83), "WEBP")[:-40],
    }


@pytest.fixture(scope="module")
def pictures_at_start() -> dict[str, float]:
    """Model -> pictures that its preprocessing had been given when the server opened its ports."""
    return {}


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, start_server: Callable[..., Any], pictures_at_start: dict[str, float]
) -> Any:
    from tritonstack.command import main

    folder = tmp_path_factory.mktemp("images")
    for name, image in PREPROCESSINGS.items():
        spec = folder / f"{name}.yaml"
        spec.write_text(
            f"name: {name}\nmodel: {{factory: '{MODELS}:plain'}}\n"
            "inputs: [{name: image, dtype: float32, shape: [batch, 3, 16, 16], range: [-1, 1]}]\n"
            "outputs: [{name: logits}]\nbatch: {min: 1, opt: 4, max: 8}\n"
            "labels: {output: logits, values: [a, b, c, d, e]}\nclassification: {output: logits}\n"
            f"preprocess: {{serve: true, image: {json.dumps(image)}}}\n"
        )
        assert main(["export", str(spec), "--repository", str(folder / "models"), "--quiet"]) == 0
    server = start_server(folder / "models")
    for name in PREPROCESSINGS:
        pictures_at_start[name] = counter(server, "image_preprocess_pictures_total", model=f"{name}_preprocess")
    return server


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[Client]:
    with Client(server.grpc_url) as connected:
        yield connected


def batch_of(*pictures: bytes) -> np.ndarray[Any, Any]:
    return np.array([[picture] for picture in pictures], dtype=np.object_)


def preprocessed(client: Client, model: str, *pictures: bytes) -> np.ndarray[Any, Any]:
    return client.infer(f"{model}_preprocess", {"image_bytes": batch_of(*pictures)})["preprocessed"]


@pytest.mark.usefixtures("client")
def test_it_is_warm_before_the_first_request(pictures_at_start: dict[str, float]) -> None:
    """Each of the two instances was given the baseline picture alone and four times, and the progressive one."""
    assert pictures_at_start == dict.fromkeys(PREPROCESSINGS, 2 * (1 + 4 + 1))


@pytest.mark.parametrize("model", list(PREPROCESSINGS))
def test_every_kind_of_picture_bit_for_bit(client: Client, model: str) -> None:
    spec = ImagePreprocessing.from_dict(PREPROCESSINGS[model])
    wrong = []
    for name, data in pictures().items():
        wanted = spec.preprocess(data)
        found = preprocessed(client, model, data)[0]
        if found.tobytes() != wanted.tobytes():
            wrong.append(f"{name}: by up to {np.abs(found - wanted).max()}")
    assert wrong == []


@pytest.mark.parametrize("model", list(PREPROCESSINGS))
def test_photographs_bit_for_bit(client: Client, model: str) -> None:
    files = photos()
    assert len(files) >= 20
    spec = ImagePreprocessing.from_dict(PREPROCESSINGS[model])
    wrong = []
    for file in files:
        try:
            wanted = spec.preprocess(file)
        except InputError:
            continue
        found = preprocessed(client, model, file.read_bytes())[0]
        if found.tobytes() != wanted.tobytes():
            wrong.append(f"{file.name}: by up to {np.abs(found - wanted).max()}")
    assert wrong == []


@pytest.mark.parametrize("protocol", ["grpc_url", "http_url"])
def test_infer_gives_the_same_answers_either_way(server: Any, protocol: str, tmp_path: Path) -> None:
    """`tritonstack infer` by the client's preprocessing and by the server's: one JSON, to the last digit."""
    files = []
    for name, data in pictures().items():
        (tmp_path / name).write_bytes(data)
        files.append(str(tmp_path / name))
    answers = []
    for model in ("imagenet", "imagenet_images"):
        result = subprocess.run(
            [sys.executable, "-m", "tritonstack", "infer", model, "--url", getattr(server, protocol), "--json",
             "--image", *files],
            capture_output=True, text=True, timeout=100,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        answers.append(json.loads(result.stdout)["images"])
    assert answers[0] == answers[1]
    assert [c["label"] for c in answers[1][0]["classes"]] != [""] * 5


def test_a_batch_is_its_pictures(client: Client) -> None:
    data = list(pictures().values())[:8]
    together = preprocessed(client, "lite", *data)
    for sample, picture in zip(together, data, strict=True):
        assert sample.tobytes() == preprocessed(client, "lite", picture)[0].tobytes()


@pytest.mark.parametrize("name", list(bad_pictures()))
def test_a_bad_picture_is_refused_and_the_server_lives(client: Client, name: str) -> None:
    for model in ("lite_preprocess", "lite_images"):
        with pytest.raises(ServerError) as caught:
            client.infer(model, {"image_bytes": batch_of(bad_pictures()[name])})
        assert caught.value.code == "INVALID_ARGUMENT", str(caught.value)
    assert preprocessed(client, "lite", pictures()["baseline.jpg"]).shape == (1, 3, 16, 16)


def test_bad_pictures_do_not_spoil_the_others(server: Any, tmp_path: Path) -> None:
    good, bad = pictures(), bad_pictures()
    order = [*list(good)[:3], *bad, *list(good)[3:9]]
    files = []
    for index, name in enumerate(order):
        path = tmp_path / f"{index}_{name}"
        path.write_bytes(good[name] if name in good else bad[name])
        files.append(str(path))
    result = subprocess.run(
        [sys.executable, "-m", "tritonstack", "infer", "lite_images", "--url", server.grpc_url, "--json",
         "--image", *files],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert result.returncode == 1
    assert f"{len(bad)} of {len(order)} pictures could not be read" in result.stderr
    images = json.loads(result.stdout)["images"]
    for name, image in zip(order, images, strict=True):
        assert bool(image["classes"]) == (name in good), image
        assert ("error" in image) == (name in bad)


def test_only_the_bad_request_of_a_batch_fails(client: Client, server: Any) -> None:
    """Eight requests at once, so that the dynamic batcher may put them together."""
    from concurrent.futures import ThreadPoolExecutor

    good, bad = pictures()["baseline.jpg"], bad_pictures()["truncated.jpg"]
    wanted = preprocessed(client, "lite", good)

    def ask(index: int) -> str:
        try:
            found = preprocessed(client, "lite", bad if index == 3 else good)
        except ServerError as error:
            return error.code
        return "right" if found.tobytes() == wanted.tobytes() else "wrong"

    with ThreadPoolExecutor(8) as pool:
        for _ in range(10):
            answers = list(pool.map(ask, range(8)))
            assert answers == ["right"] * 3 + ["INVALID_ARGUMENT"] + ["right"] * 4


def test_the_ensemble_tells_what_it_takes(client: Client) -> None:
    config = client.config("lite_images")
    assert json.loads(config.parameters["tritonstack.image_bytes"]) == {"input": "image_bytes"}
    assert [step.model for step in config.steps] == ["lite_preprocess", "lite"]
    assert config.label_files == {"logits": "labels.txt"}
