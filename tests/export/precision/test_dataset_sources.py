"""Data sets as a spec names them, and what is said of those that do not fit."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tritonstack.errors import InputError, TritonstackError, UsageError
from tritonstack_export.precision import dataset
from tritonstack_export.precision.dataset import batches, without_leaks
from tritonstack_export.precision.dataset_sources import read_calibration, read_evaluation, spread
from tritonstack_export.signature import Dimension, ModelInput, Signature
from tritonstack_export.spec import ModelSpec

IMAGE = Signature((ModelInput("image", "float32", ("batch", 3, 8, 8)),), {"batch": Dimension("batch", 1, 2, 4)}, True)
TEXT = Signature(
    (ModelInput("ids", "int64", ("batch", "length")), ModelInput("scale", "float32", ("batch", 2))),
    {"batch": Dimension("batch", 1, 2, 4), "length": Dimension("length", 1, 4, 6)},
    True,
)
UNBATCHED = Signature((ModelInput("x", "float32", (2, 3)),), {}, False)


def spec(**parts: Any) -> ModelSpec:
    base: dict[str, Any] = {"name": "m", "model": {"onnx": "m.onnx"}}
    base["preprocess"] = {"image": {"resize": {"mode": "exact", "height": 8, "width": 8}, "std": [255, 255, 255]}}
    return ModelSpec.model_validate({**base, **parts})


def pictures(folder: Path, count: int, *, suffix: str = "png", start: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(start, start + count):
        pixels = np.random.default_rng(number).integers(0, 256, (12, 10, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(
            folder / f"{number:03}.{suffix}", **({"lossless": True} if suffix == "webp" else {})
        )
    return folder


def calibrate(folder: Path, signature: Signature = IMAGE, **source: Any) -> dataset.Dataset:
    return read_calibration(spec(calibration={"min_samples": 2, **source}), signature, folder)


def evaluate(folder: Path, signature: Signature = IMAGE, **source: Any) -> dataset.Dataset:
    found = read_evaluation(spec(evaluation=source), signature, folder, labels=["cat", "dog"])
    assert found is not None
    return found


def test_pictures_come_through_the_specs_preprocessing(tmp_path: Path) -> None:
    pictures(tmp_path / "photos" / "sub", 3)
    pictures(tmp_path / "photos", 2, suffix="jpg", start=10)
    (tmp_path / "photos" / "README.txt").write_text("not a picture")
    (tmp_path / "photos" / ".thumbs").mkdir()
    pictures(tmp_path / "photos" / ".thumbs", 1, start=20)
    found = calibrate(tmp_path, images="photos")
    assert [entry.name for entry in found.entries] == [
        "010.jpg",
        "011.jpg",
        "sub/000.png",
        "sub/001.png",
        "sub/002.png",
    ]
    for entry in found.entries:
        assert entry.inputs["image"].shape == (1, 3, 8, 8)
        assert entry.inputs["image"].dtype == np.float32
        assert 0 <= entry.inputs["image"].min() <= entry.inputs["image"].max() <= 1


def test_limit_is_spread_evenly(tmp_path: Path) -> None:
    pictures(tmp_path / "photos", 9)
    found = calibrate(tmp_path, images="photos", limit=3)
    assert [entry.name for entry in found.entries] == ["000.png", "003.png", "006.png"]
    assert spread(10, 4) == [0, 2, 5, 7]
    assert spread(3, None) == spread(3, 3) == spread(3, 9) == [0, 1, 2]


def test_the_same_pixels_under_another_name_and_format_are_one_sample(tmp_path: Path) -> None:
    pictures(tmp_path / "photos", 3)
    pictures(tmp_path / "photos" / "again", 2, suffix="webp")
    found = calibrate(tmp_path, images="photos")
    assert (len(found), found.duplicates) == (3, 2)
    assert found.remarks == ("2 of 5 samples of `calibration` repeat another one: left out",)


def test_samples_that_accuracy_is_counted_on_are_not_calibrated_with(tmp_path: Path) -> None:
    pictures(tmp_path / "photos", 6)
    pictures(tmp_path / "labelled" / "0", 2, suffix="webp", start=4)
    pictures(tmp_path / "labelled" / "1", 2, suffix="png", start=40)
    kept = without_leaks(calibrate(tmp_path, images="photos"), evaluate(tmp_path, images="labelled"))
    assert len(kept) == 4
    assert "2 samples of `calibration` are in `evaluation` too (004.png is 0/004.webp)" in kept.remarks[0]
    with pytest.raises(InputError, match="every sample of `calibration` is in `evaluation` too"):
        without_leaks(calibrate(tmp_path, images="labelled"), evaluate(tmp_path, images="labelled"))


def test_labels_from_json_folders_arrays_and_pairs(tmp_path: Path) -> None:
    pictures(tmp_path / "photos", 4)
    (tmp_path / "labels.json").write_text(json.dumps({"001.png": 7, "003.png": [1, 2]}))
    found = evaluate(tmp_path, images="photos", labels="labels.json")
    assert [(e.name, e.label) for e in found.entries] == [("001.png", 7), ("003.png", [1, 2])]
    pictures(tmp_path / "classes" / "dog", 1)
    pictures(tmp_path / "classes" / "7", 1, start=1)
    assert [e.label for e in evaluate(tmp_path, images="classes").entries] == [7, 1]
    x, y = np.random.default_rng(0).random((3, 3, 8, 8), np.float32), np.array([3, 1, 2])
    np.savez(tmp_path / "data.npz", image=x, classes=y)
    found = evaluate(tmp_path, npz="data.npz", labels="classes")
    assert found.labels == (3, 1, 2)
    assert np.array_equal(found.samples[1]["image"], x[1:2])
    write_module(tmp_path, "def pairs():\n    yield np.zeros((2, 3, 8, 8), np.float32), [4, [5, 6]]\n"
                           "    yield np.ones((3, 8, 8), np.float32), 1\n")  # fmt: skip
    found = evaluate(tmp_path, python="data.py:pairs")
    assert found.labels == (4, [5, 6], 1)
    assert "1 of 3 samples of `evaluation` repeat another one: counted each time" in found.remarks[0]


def write_module(folder: Path, text: str) -> None:
    (folder / "data.py").write_text("import numpy as np\n" + text)


def test_a_python_iterator_yields_dicts_tuples_or_tensors_in_any_batch(tmp_path: Path) -> None:
    write_module(
        tmp_path,
        "def batches(count):\n"
        "    import torch\n"
        "    rng = np.random.default_rng(0)\n"
        "    for n in range(count):\n"
        "        yield {'ids': rng.integers(0, 9, (2, 3)), 'scale': rng.random((2, 2), np.float32)}\n"
        "        yield rng.integers(0, 9, (1, 5)), rng.random((1, 2), np.float32)\n"
        "        yield torch.arange(6)[None], torch.rand(1, 2)\n"
        "        yield rng.integers(0, 9, (4,)), rng.random(2, np.float32)\n",
    )
    found = calibrate(tmp_path, TEXT, python="data.py:batches", arguments={"count": 2})
    assert [entry.inputs["ids"].shape for entry in found.entries[:5]] == [(1, 3), (1, 3), (1, 5), (1, 6), (1, 4)]
    assert len(found) == 10


def test_an_endless_iterator_ends_at_the_limit(tmp_path: Path) -> None:
    write_module(tmp_path, "def endless():\n    n = 0\n    while True:\n        n += 1\n"
                           "        yield np.full((3, 3, 8, 8), n, np.float32) * np.arange(1, 4)[:, None, None, None]"
                           ".astype(np.float32)\n")  # fmt: skip
    assert len(calibrate(tmp_path, python="data.py:endless", limit=20)) <= 20


def test_an_unbatched_model_takes_whole_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).random((5, 2, 3), np.float32))
    found = calibrate(tmp_path, UNBATCHED, npz="data.npz")
    assert [sample["x"].shape for sample in found.samples] == [(2, 3)] * 5
    indices, inputs = next(batches(found.samples, UNBATCHED, size=4))
    assert (indices, inputs["x"].shape) == ([0], (2, 3))


def test_batches_hold_samples_of_one_shape_within_the_models_bounds(tmp_path: Path) -> None:
    write_module(tmp_path, "def texts():\n    for n in range(9):\n"
                           "        yield np.full((1, 2 + n % 2), n), np.full((1, 2), n, np.float32)\n")  # fmt: skip
    data = calibrate(tmp_path, TEXT, python="data.py:texts").samples
    found = [(indices, inputs["ids"].shape) for indices, inputs in batches(data, TEXT, size=8)]
    assert found == [([0, 2, 4, 6], (4, 2)), ([8], (1, 2)), ([1, 3, 5, 7], (4, 3))]
    least = Signature(TEXT.inputs, {**TEXT.dimensions, "batch": Dimension("batch", 2, 2, 4)}, True)
    assert [i["ids"].shape[0] for _, i in batches(data, least, size=1)] == [2] * 5


ARRAY = np.random.default_rng(0).random((4, 3, 8, 8), np.float32)
NAN = ARRAY.copy()
NAN[2, 0, 0, 0] = np.nan


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"picture": ARRAY}, ["lacks 'image'", "given 'picture'", "expected 'image'"]),
        ({"image": ARRAY, "more": ARRAY}, ["inputs that the model does not take", "'more'"]),
        ({"image": ARRAY.astype(np.float64)}, ["has the dtype float64", "expected float32", ".astype('float32')"]),
        ({"image": ARRAY[:, :1]}, ["does not fit", "shape [1, 1, 8, 8]", "expected [1, 3, 8, 8]"]),
        ({"image": ARRAY[:, 0]}, ["rank 3", "expected [1, 3, 8, 8]"]),
        ({"image": NAN}, ["sample 2 of", "holds NaN"]),
        ({"image": ARRAY * np.float32(np.inf)}, ["holds infinity"]),
        ({"image": ARRAY[:0]}, ["holds no samples"]),
        ({"image": ARRAY[:1]}, ["too few samples: 1", "expected at least 2 (`calibration.min_samples`)"]),
        ({"image": np.concatenate([ARRAY[:1]] * 5)}, ["too few samples: 1 different ones (4 more repeat one of them)"]),
        ({"image": ARRAY * 0}, ["too few samples: 1"]),
        ({"image": ARRAY, "scale": ARRAY[:3]}, ["do not have one number of samples", "image 4, scale 3"]),
        ({"image": np.float32(3)}, ["do not have one number of samples", "image None"]),
        ({}, ["holds no arrays"]),
    ],
)
def test_arrays_that_do_not_fit(arrays: dict[str, Any], said: list[str], tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(InputError) as caught, np.errstate(all="ignore"):
        calibrate(tmp_path, npz="data.npz")
    assert all(text in str(caught.value) for text in said), str(caught.value)
    assert "calibration" in str(caught.value)


def test_sizes_outside_of_the_dimensions_bounds(tmp_path: Path) -> None:
    write_module(tmp_path, "def texts(length):\n    for n in range(3):\n"
                           "        yield np.full((1, length), n), np.full((1, 2), n, np.float32)\n")  # fmt: skip
    with pytest.raises(InputError, match=r"length 7, outside 1\.\.6"):
        calibrate(tmp_path, TEXT, python="data.py:texts", arguments={"length": 7})


def test_constant_inputs(tmp_path: Path) -> None:
    """Samples of different lengths can differ and yet hold one value; one constant input of several is only told."""
    write_module(tmp_path, "def same():\n    for n in range(1, 5):\n"
                           "        yield np.zeros((1, n), int), np.ones((1, 2), np.float32)\n"
                           "def half():\n    for n in range(1, 5):\n"
                           "        yield np.full((1, n), n), np.ones((1, 2), np.float32)\n")  # fmt: skip
    with pytest.raises(InputError, match="say nothing about the model's ranges: 'ids' is 0 everywhere"):
        calibrate(tmp_path, TEXT, python="data.py:same")
    assert calibrate(tmp_path, TEXT, python="data.py:half").remarks == (
        "the input 'scale' has one value in all samples of `calibration`",
    )


@pytest.mark.parametrize(
    ("source", "kind", "said"),
    [
        ({"images": "nowhere"}, UsageError, ["no such folder 'nowhere'"]),
        ({"images": "empty"}, InputError, ["no pictures in 'empty'"]),
        ({"images": "damaged"}, InputError, ["001.png", "and 1 more pictures cannot be read"]),
        ({"npz": "nowhere.npz"}, UsageError, ["no such file"]),
        ({"npz": "text.npz"}, InputError, ["cannot be read", "no pickled objects"]),
        ({"npz": "pickled.npz"}, InputError, ["cannot be read", "no pickled objects"]),
        ({"python": "data.py:missing"}, UsageError, ["calibration.python", "no 'missing'"]),
        ({"python": "data.py:number"}, UsageError, ["cannot be called"]),
        ({"python": "data.py:fails"}, InputError, ["failed at data.py:5: ValueError: broken"]),
        ({"python": "data.py:returns"}, InputError, ["returned a int", "something to iterate over"]),
        ({"python": "data.py:returns", "arguments": {"x": 1}}, InputError, ["unexpected keyword argument 'x'"]),
    ],
)
def test_sources_that_lead_nowhere(
    source: dict[str, Any], kind: type[TritonstackError], said: list[str], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    damaged = pictures(tmp_path / "damaged", 4)
    for name in ("001.png", "002.png"):
        (damaged / name).write_bytes((damaged / name).read_bytes()[:60])
    (tmp_path / "text.npz").write_text("no archive")
    np.savez(tmp_path / "pickled.npz", image=np.array([object()], dtype=object))
    write_module(tmp_path, "number = 3\ndef fails():\n    yield np.zeros((1, 3, 8, 8), np.float32)\n"
                           "    raise ValueError('broken')\ndef returns():\n    return 3\n")  # fmt: skip
    with pytest.raises(kind) as caught:
        calibrate(tmp_path, **source)
    assert all(text in str(caught.value) for text in said), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "kind", "said"),
    [
        (None, InputError, ["'000.png' lies in no folder of a class", "one folder per class"]),
        ("nowhere.json", UsageError, ["`evaluation.labels`: cannot read 'nowhere.json'"]),
        ("broken.json", InputError, ["is not JSON"]),
        ("list.json", InputError, ["holds no labels"]),
        ("more.json", InputError, ["names 1 pictures that are not there, such as 'x.png'"]),
    ],
)
def test_labels_that_do_not_fit(
    labels: str | None, kind: type[TritonstackError], said: list[str], tmp_path: Path
) -> None:
    pictures(tmp_path / "photos", 2)
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "more.json").write_text('{"000.png": 1, "x.png": 2}')
    with pytest.raises(kind) as caught:
        evaluate(tmp_path, images="photos", **({"labels": labels} if labels else {}))
    assert all(text in str(caught.value) for text in said), str(caught.value)


def test_pictures_need_one_input_and_a_preprocessing(tmp_path: Path) -> None:
    pictures(tmp_path / "photos", 2)
    with pytest.raises(UsageError, match="fills one input, and the model has 2"):
        calibrate(tmp_path, TEXT, images="photos")
    bare = ModelSpec.model_validate({"name": "m", "model": {"onnx": "m"}, "calibration": {"images": "photos"}})
    with pytest.raises(UsageError, match=r"needs `preprocess.image`"):
        read_calibration(bare, IMAGE, tmp_path)
    with pytest.raises(UsageError, match="INT8 needs `calibration`"):
        read_calibration(spec(), IMAGE, tmp_path)


def _damaged(path: Path, kind: str) -> None:
    """Write one of the files that users have called .npz."""
    sound = np.random.default_rng(0).standard_normal((16, 3, 8, 8)).astype(np.float32)
    if kind == "npy":
        with path.open("wb") as file:
            np.save(file, sound)
    elif kind in ("empty", "text"):
        path.write_text("hello" if kind == "text" else "")
    elif kind in ("no array", "bad array"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("image.npy" if kind == "bad array" else "readme.txt", b"junk")
    else:
        (np.savez_compressed if kind == "stream" else np.savez)(path, image=sound)
        content = bytearray(path.read_bytes())
        middle = len(content) // 2
        content[middle : middle + 40] = bytes(40)
        path.write_bytes(content[:middle] if kind == "cut off" else content)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("npy", "cannot be read: it is no .npz archive"),
        ("empty", "an empty file"),
        ("text", "is no .npz archive"),
        ("cut off", "or is cut off"),
        ("checksum", "cannot be read: Bad CRC-32"),
        ("stream", "cannot be read"),
        ("no array", "holds 'readme.txt', which is no array"),
        ("bad array", "no array"),
    ],
)
def test_files_that_are_no_npz(kind: str, said: str, tmp_path: Path) -> None:
    _damaged(tmp_path / "c.npz", kind)
    with pytest.raises(InputError) as caught:
        calibrate(tmp_path, npz="c.npz")
    assert said in str(caught.value) and "expected an .npz of plain arrays" in str(caught.value)


def test_an_npz_that_would_fill_the_memory_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "c.npz", image=np.zeros((64, 3, 8, 8), np.float32))
    monkeypatch.setattr("tritonstack_export.precision.npz_file.READ_LIMIT", 20_000)
    with pytest.raises(InputError, match="too large to be read whole"):
        calibrate(tmp_path, npz="c.npz")


def test_an_item_that_is_no_array_is_named(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text("def ragged():\n    yield {'image': [[1, 2], [3]]}\n")
    with pytest.raises(InputError, match=r"item 0 of data.py:ragged has an input 'image' that is no array"):
        calibrate(tmp_path, python="data.py:ragged")


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "data.npz", image=ARRAY)
    monkeypatch.setattr(dataset, "MEMORY_LIMIT", 2 * ARRAY[0].nbytes)
    with pytest.raises(InputError, match=r"set `calibration.limit` to 2 or less"):
        calibrate(tmp_path, npz="data.npz")
