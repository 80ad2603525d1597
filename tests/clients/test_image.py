"""Image preprocessing: the arithmetic, the geometry, and files as they come."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tritonstack.errors import InputError, UsageError
from tritonstack.image import ImagePreprocessing, Resize
from tritonstack.image.decode import decode_rgb

LITE0 = ImagePreprocessing(
    crop_fraction=0.875,
    resize=Resize("exact", 224, 224),
    interpolation="bicubic",
    mean=(127.0, 127.0, 127.0),
    std=(128.0, 128.0, 128.0),
)
PLAIN = ImagePreprocessing(layout="NHWC", dtype="UINT8")


def picture() -> Image.Image:
    """40 × 20: red top left, blue bottom right, black elsewhere."""
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[:10, :20] = (255, 0, 0)
    pixels[10:, 20:] = (0, 0, 255)
    return Image.fromarray(pixels)


def encode(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def rgb(data: bytes, **changes: Any) -> np.ndarray:
    return ImagePreprocessing(layout="NHWC", dtype="UINT8", **changes).preprocess(data).astype(int)


# --- description -----------------------------------------------------------------------------------------------


def test_json_round_trip() -> None:
    for spec in (
        LITE0,
        ImagePreprocessing(),
        ImagePreprocessing(input="x", center_crop=(2, 3), resize=Resize("letterbox", 4, 5, 114), channel_order="BGR"),
    ):
        assert ImagePreprocessing.from_json(spec.to_json()) == spec
    assert json.loads(LITE0.to_json())["resize"] == {"mode": "exact", "height": 224, "width": 224, "pad": 0}


def test_left_out_and_null_keys_take_their_defaults() -> None:
    assert ImagePreprocessing.from_json("{}") == ImagePreprocessing()
    text = '{"resize": null, "mean": null, "crop_fraction": null, "scale": null}'
    assert ImagePreprocessing.from_json(text) == ImagePreprocessing()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a mapping"),
        ('{"meen": [1, 2, 3]}', "did you mean 'mean'"),
        ('{"resize": {"mode": "exact", "hight": 2, "width": 2}}', "did you mean 'height'"),
        ('{"resize": 224}', "not a mapping"),
        ('{"resize": {"mode": "bigger", "height": 2}}', "resize.mode"),
        ('{"resize": {"mode": "exact", "height": 2}}', "resize.width is missing"),
        ('{"resize": {"mode": "exact"}}', "resize.height is missing"),
        ('{"resize": {"mode": "none", "height": 2}}', "yet a size is given"),
        ('{"resize": {"mode": "shorter", "height": 2, "width": 3}}', "one size"),
        ('{"resize": {"mode": "exact", "height": 0, "width": 2}}', "resize.height"),
        ('{"resize": {"mode": "exact", "height": 2.5, "width": 2}}', "resize.height"),
        ('{"resize": {"mode": "letterbox", "height": 2, "width": 2, "pad": 256}}', "resize.pad"),
        ('{"mean": [1, 2]}', "list of 3"),
        ('{"mean": 127}', "list of 3"),
        ('{"mean": ["a", 1, 2]}', "bad mean"),
        ('{"mean": [true, 1, 2]}', "bad mean"),
        ('{"std": [0, 1, 1]}', "must not be 0"),
        ('{"scale": 0}', "must not be 0"),
        ('{"scale": NaN}', "bad scale"),
        ('{"scale": "1"}', "bad scale"),
        ('{"crop_fraction": 0}', "crop_fraction"),
        ('{"crop_fraction": 1.5}', "crop_fraction"),
        ('{"interpolation": "area"}', "one of bilinear"),
        ('{"interpolation": ["bicubic"]}', "bad interpolation"),
        ('{"channel_order": "rgb"}', "one of RGB, BGR"),
        ('{"layout": "CHW"}', "one of NCHW"),
        ('{"dtype": "float32"}', "one of FP32"),
        ('{"dtype": "UINT8", "std": [2, 2, 2]}', "raw pixels"),
        ('{"exif": 1}', "exif"),
        ('{"input": ""}', "input"),
        ('{"center_crop": [224]}', "list of 2"),
        ('{"center_crop": [300, 1], "resize": {"mode": "shorter", "height": 256}}', "larger than what resize"),
    ],
)
def test_bad_descriptions_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        ImagePreprocessing.from_json(text)
    assert message in str(caught.value)


def test_the_output_size_is_known_where_it_is_fixed() -> None:
    assert LITE0.output_size == (224, 224)
    assert ImagePreprocessing(resize=Resize("shorter", 256), center_crop=(224, 200)).output_size == (224, 200)
    assert ImagePreprocessing(resize=Resize("shorter", 256)).output_size is None


# --- arithmetic and geometry -----------------------------------------------------------------------------------


def test_lite0_equals_the_reference_steps() -> None:
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (300, 417, 3), dtype=np.uint8))
    side = int(0.875 * 300)
    top, left = (300 - side) // 2, (417 - side) // 2
    cut = image.crop((left, top, left + side, top + side)).resize((224, 224), Image.Resampling.BICUBIC)
    expected = (np.asarray(cut).astype(np.float64).transpose(2, 0, 1) - 127) / 128
    result = LITE0.preprocess(image)
    assert result.shape == (3, 224, 224)
    assert result.dtype == np.float32
    assert result.flags.c_contiguous
    assert np.abs(result - expected).max() < 1e-6


def test_imagenet_normalisation_and_layouts() -> None:
    data = encode(picture())
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    chw = ImagePreprocessing(scale=1 / 255, mean=mean, std=std).preprocess(data)
    assert chw.shape == (3, 20, 40)
    assert chw[:, 0, 0] == pytest.approx([(1 - 0.485) / 0.229, -0.456 / 0.224, -0.406 / 0.225], rel=1e-5)
    hwc = ImagePreprocessing(scale=1 / 255, mean=mean, std=std, layout="NHWC").preprocess(data)
    assert np.array_equal(hwc, chw.transpose(1, 2, 0))


def test_channel_order_comes_before_mean() -> None:
    spec = ImagePreprocessing(channel_order="BGR", mean=(1.0, 2.0, 3.0), dtype="FP16")
    result = spec.preprocess(picture())
    assert result.dtype == np.float16
    assert result[:, 0, 0].tolist() == [-1, -2, 252]
    assert result[:, 19, 39].tolist() == [254, -2, -3]


def test_fp16_overflow_is_refused() -> None:
    with pytest.raises(InputError, match="overflows FP16"):
        ImagePreprocessing(scale=1000.0, dtype="FP16").preprocess(picture())


def test_resize_modes() -> None:
    data = encode(picture())
    assert rgb(data, resize=Resize("exact", 7, 9)).shape == (7, 9, 3)
    assert rgb(data, resize=Resize("shorter", 10)).shape == (10, 20, 3)
    assert rgb(encode(picture().rotate(90, expand=True)), resize=Resize("shorter", 10)).shape == (20, 10, 3)
    assert rgb(data).shape == (20, 40, 3)
    box = rgb(data, resize=Resize("letterbox", 40, 40, 114), interpolation="nearest")
    assert box.shape == (40, 40, 3)
    assert (box[:10] == 114).all()
    assert (box[30:] == 114).all()
    assert box[10, 0].tolist() == [255, 0, 0]
    assert box[29, 39].tolist() == [0, 0, 255]


def test_center_crop() -> None:
    data = encode(picture())
    crop = rgb(data, center_crop=(2, 2))
    assert crop[0, 0].tolist() == [255, 0, 0]
    assert crop[1, 1].tolist() == [0, 0, 255]
    with pytest.raises(InputError, match="smaller than the crop"):
        rgb(data, center_crop=(21, 2))


def test_crop_fraction_is_a_central_square() -> None:
    assert rgb(encode(picture()), crop_fraction=0.5).shape == (10, 10, 3)
    assert rgb(encode(picture().crop((0, 0, 1, 1))), crop_fraction=0.1).shape == (1, 1, 3)


@pytest.mark.parametrize("name", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_interpolations_are_pillow_s(name: str) -> None:
    rng = np.random.default_rng(1)
    image = Image.fromarray(rng.integers(0, 256, (50, 60, 3), dtype=np.uint8))
    expected = np.asarray(image.resize((13, 11), Image.Resampling[name.upper()]))
    spec = ImagePreprocessing(layout="NHWC", dtype="UINT8", resize=Resize("exact", 11, 13), interpolation=name)  # type: ignore[arg-type]
    assert np.array_equal(spec.preprocess(image), expected)


def test_a_very_long_picture_by_its_shorter_side() -> None:
    with pytest.raises(InputError, match="too narrow"):
        rgb(encode(Image.new("RGB", (30000, 1))), resize=Resize("shorter", 224))
    assert rgb(encode(Image.new("RGB", (3000, 1), (9, 9, 9))), resize=Resize("exact", 8, 8)).tolist()[0][0] == [9, 9, 9]


# --- kinds of pictures -----------------------------------------------------------------------------------------


def test_gray_becomes_three_equal_channels() -> None:
    gray = picture().convert("L")
    for data in (encode(gray), encode(gray, "JPEG", quality=95), encode(gray.convert("1"))):
        result = rgb(data)
        assert (result[..., 0] == result[..., 1]).all()
        assert (result[..., 0] == result[..., 2]).all()
    assert np.array_equal(rgb(encode(gray))[..., 0], np.asarray(gray))


def test_alpha_is_dropped_and_not_blended() -> None:
    for alpha in (0, 128, 255):
        image = picture().convert("RGBA")
        image.putalpha(alpha)
        assert np.array_equal(rgb(encode(image)), np.asarray(picture()))
    gray = picture().convert("LA")
    gray.putalpha(0)
    assert np.array_equal(rgb(encode(gray))[..., 0], np.asarray(picture().convert("L")))


def test_palettes_with_transparency() -> None:
    image = picture().quantize(3)
    expected = np.asarray(image.convert("RGB"))
    assert np.array_equal(rgb(encode(image)), expected)
    assert np.array_equal(rgb(encode(image, transparency=0)), expected)
    assert np.array_equal(rgb(encode(image, transparency=b"\x00\x80\xff")), expected)
    assert np.array_equal(rgb(encode(image, "GIF", transparency=0)), expected)


def test_cmyk_has_right_colours() -> None:
    result = rgb(encode(picture().convert("CMYK"), "JPEG", quality=98))
    assert np.abs(result[3, 3] - [255, 0, 0]).max() < 12
    assert np.abs(result[16, 36] - [0, 0, 255]).max() < 12


def test_sixteen_bit_gray_is_scaled() -> None:
    values = (np.arange(800, dtype=np.uint32) * 82).astype(np.uint16).reshape(20, 40)
    for data in (encode(Image.fromarray(values)), encode(Image.fromarray(values), "TIFF")):
        assert np.array_equal(rgb(data)[..., 0], np.round(values / 257.0).astype(int))
    with pytest.raises(InputError, match="beyond 16 bits"):
        PLAIN.preprocess(Image.fromarray(np.full((2, 2), 70000, np.int32)))


def test_floating_point_pixels_are_refused() -> None:
    with pytest.raises(InputError, match="no one meaning"):
        rgb(encode(Image.fromarray(np.zeros((2, 2), np.float32)), "TIFF"))


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(orientation: int) -> None:
    turned = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: a.transpose(1, 0, 2)[:, ::-1],
        7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
        8: lambda a: a.transpose(1, 0, 2)[::-1],
    }
    data = encode(picture(), "JPEG", quality=95, exif=exif(orientation))
    stored = np.asarray(Image.open(io.BytesIO(data)))
    assert np.array_equal(rgb(data), turned[orientation](stored))
    assert np.array_equal(rgb(data, exif=False), stored)


def test_a_pillow_image_is_left_unchanged() -> None:
    image = picture().convert("RGBA")
    before = image.tobytes()
    LITE0.preprocess(image)
    assert image.mode == "RGBA"
    assert image.tobytes() == before


def test_the_ending_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "png_called.jpg"
    path.write_bytes(encode(picture()))
    assert np.array_equal(PLAIN.preprocess(path), np.asarray(picture()))
    assert np.array_equal(PLAIN.preprocess(str(path)), np.asarray(picture()))


def test_progressive_and_tiny_pictures() -> None:
    assert np.abs(rgb(encode(picture(), "JPEG", progressive=True, quality=95)) - np.asarray(picture())).mean() < 12
    assert rgb(encode(picture().crop((0, 0, 1, 1)), "JPEG"), resize=Resize("exact", 4, 4)).shape == (4, 4, 3)


def huge_header() -> bytes:
    data = encode(picture(), "JPEG")
    marker = data.find(b"\xff\xc0")
    return data[: marker + 5] + struct.pack(">HH", 65500, 65500) + data[marker + 9 :]


def quite_large() -> bytes:
    """Below Pillow's own limit and above ours."""
    data = encode(picture(), "JPEG")
    marker = data.find(b"\xff\xc0")
    return data[: marker + 5] + struct.pack(">HH", 8500, 8500) + data[marker + 9 :]


BAD = {
    "truncated.jpg": (encode(picture(), "JPEG")[:350], "damaged"),
    "truncated.png": (encode(picture())[:-30], "damaged"),
    "empty.jpg": (b"", "empty"),
    "text.jpg": (b"not an image", "not a picture"),
    "bad_chunk.png": (encode(picture()).replace(b"IDAT", b"IDXX"), ""),
    "huge_header.jpg": (huge_header(), "at most 64000000 pixels"),
    "quite_large.jpg": (quite_large(), "8500 × 8500"),
}


@pytest.mark.parametrize("name", sorted(BAD))
def test_bad_files_are_named_with_the_reason(tmp_path: Path, name: str) -> None:
    data, reason = BAD[name]
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        LITE0.preprocess(path)
    assert name in str(caught.value)
    assert reason in str(caught.value)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.jpg.*No such file"):
        LITE0.preprocess(tmp_path / "none.jpg")
    with pytest.raises(InputError, match="directory"):
        LITE0.preprocess(tmp_path)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"])
def test_no_damage_escapes_the_error_tree(kind: str) -> None:
    data = encode(picture(), kind)
    rng = np.random.default_rng(2)
    for step in range(120):
        broken = bytearray(data)
        for _ in range(1 + step % 4):
            broken[int(rng.integers(0, len(broken)))] = int(rng.integers(0, 256))
        cut = bytes(broken[: int(rng.integers(1, len(broken) + 1))]) if step % 2 else bytes(broken)
        try:
            image, _ = decode_rgb(cut, exif=True)
            assert image.mode == "RGB"
        except InputError:
            continue
