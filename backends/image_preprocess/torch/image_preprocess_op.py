"""`torch.ops.tritonstack.image_preprocess`: the serving backend's preprocessing as a PyTorch operator.

Training and serving then share one definition: the C++ core and the CUDA kernel of the Triton backend. The operator
works in eager mode, under `torch.compile` and in `torch.export`; it has no gradient, since its input are pixels.

    import image_preprocess_op  # registers the operator; TRITONSTACK_IMAGE_OP names the library where it lies elsewhere
    x = image_preprocess_op.image_preprocess(pixels, resize="shorter", height=256, center_crop=[224, 224], ...)
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

LIBRARY_NAME = "libtritonstack_image_op.so"
LIBRARY_VARIABLE = "TRITONSTACK_IMAGE_OP"
_ROOT = Path(__file__).resolve().parents[3]
_PLACES = (_ROOT / "build" / "backends" / "image_preprocess", _ROOT / "build" / "torch")
_VERSION = 1
_ELEMENTS = {torch.uint8: 0, torch.float16: 1, torch.bfloat16: 2, torch.float32: 3}
_ERROR_BYTES = 1024
_PROCESSORS_KEPT = 64


class _Picture(ctypes.Structure):
    _fields_ = (
        ("pixels", ctypes.c_void_p),
        ("height", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("row_bytes", ctypes.c_size_t),
        ("pixels_device", ctypes.c_int32),
        ("output_device", ctypes.c_int32),
        ("output", ctypes.c_void_p),
    )


@torch.library.custom_op("tritonstack::image_preprocess", mutates_args=())
def image_preprocess(
    image: Tensor,
    *,
    resize: str = "none",
    height: int | None = None,
    width: int | None = None,
    pad_value: int = 0,
    crop_fraction: float | None = None,
    center_crop: Sequence[int] | None = None,
    interpolation: str = "bilinear",
    antialias: bool = True,
    round_u8: bool = True,
    channel_order: str = "RGB",
    scale: float = 1.0,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    layout: str = "NCHW",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Pixels to a model's input, as the backend image_preprocess does it; parameters are those of its config.pbtxt.

    `image`: uint8 [y, x, channel] or [picture, y, x, channel], RGB, on a CPU or a GPU. Returns [channel, y, x] (or
    [y, x, channel] for NHWC) with the leading dimension of `image`, of `dtype` (float32, float16, bfloat16, uint8), on
    the same device. Waits for the work to be done. Raises ValueError for settings and pictures that do not fit.
    """
    _require_pixels(image)
    given = {
        "resize": resize,
        "height": height,
        "width": width,
        "pad_value": pad_value,
        "crop_fraction": crop_fraction,
        "center_crop": None if center_crop is None else "x".join(map(str, center_crop)),
        "interpolation": interpolation,
        "antialias": antialias,
        "round_u8": round_u8,
        "channel_order": channel_order,
        "scale": scale,
        "mean": None if mean is None else ",".join(map(repr, map(float, mean))),
        "std": None if std is None else ",".join(map(repr, map(float, std))),
        "layout": layout,
    }
    settings = tuple((name, _text(value)) for name, value in given.items() if value is not None)
    device = -1 if image.device.type == "cpu" else image.device.index
    return _processor(settings, dtype, device).run(image)


@image_preprocess.register_fake
def _shape(
    image: Tensor,
    *,
    resize: str = "none",
    height: int | None = None,
    width: int | None = None,
    pad_value: int = 0,
    crop_fraction: float | None = None,
    center_crop: Sequence[int] | None = None,
    interpolation: str = "bilinear",
    antialias: bool = True,
    round_u8: bool = True,
    channel_order: str = "RGB",
    scale: float = 1.0,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    layout: str = "NCHW",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The result's shape alone, for tracing; sizes may be symbols."""
    _require_pixels(image)
    rows, columns = image.shape[-3], image.shape[-2]
    if center_crop is not None:
        rows, columns = center_crop
    elif resize in ("exact", "letterbox"):
        if height is None or width is None:
            raise ValueError(f"resize {resize!r} needs height and width")
        rows, columns = height, width
    else:
        if crop_fraction is not None:
            side = torch.sym_max(1, torch.sym_int(crop_fraction * torch.sym_min(rows, columns)))
            rows = columns = side
        if resize == "shorter":
            if height is None:
                raise ValueError("resize 'shorter' needs height")
            shorter = torch.sym_min(rows, columns)
            rows, columns = height * rows // shorter, height * columns // shorter
    sample = (3, rows, columns) if layout == "NCHW" else (rows, columns, 3)
    return image.new_empty((*image.shape[:-3], *sample), dtype=dtype)


def _require_pixels(image: Tensor) -> None:
    if image.dtype != torch.uint8 or image.ndim not in (3, 4) or image.shape[-1] != 3:
        raise ValueError(
            f"the picture is {image.dtype} {list(image.shape)}; expected uint8 [y, x, 3] or [picture, y, x, 3]"
        )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class _Processor:
    """The core with one set of settings. One call at a time; others wait."""

    def __init__(self, settings: tuple[tuple[str, str], ...], dtype: torch.dtype, device: int) -> None:
        if dtype not in _ELEMENTS:
            raise ValueError(f"dtype is {dtype}; expected one of {', '.join(map(str, _ELEMENTS))}")
        self._library = library()
        self._lock = threading.Lock()
        self._dtype = dtype
        self._device = device
        self._channels_last = dict(settings).get("layout") == "NHWC"
        names = (ctypes.c_char_p * len(settings))(*(name.encode() for name, _ in settings))
        values = (ctypes.c_char_p * len(settings))(*(value.encode() for _, value in settings))
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        self._handle = self._library.tsimage_new(
            names, values, len(settings), _ELEMENTS[dtype], device, error, _ERROR_BYTES
        )
        if not self._handle:
            raise ValueError(error.value.decode("utf-8", "replace"))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.tsimage_delete(self._handle)

    def run(self, image: Tensor) -> Tensor:
        if image.stride()[-2:] != (3, 1) or image.stride(-3) < 3 * image.shape[-2]:
            image = image.contiguous()
        rows, columns = self._output_size(image.shape[-3], image.shape[-2])
        sample = (rows, columns, 3) if self._channels_last else (3, rows, columns)
        output = torch.empty((*image.shape[:-3], *sample), dtype=self._dtype, device=image.device)
        pictures, outputs = (image[None], output[None]) if image.ndim == 3 else (image, output)
        described = (_Picture * len(pictures))(
            *(
                _Picture(
                    pixels.data_ptr(), image.shape[-3], image.shape[-2], image.stride(-3),
                    self._device, self._device, target.data_ptr(),
                )
                for pixels, target in zip(pictures, outputs, strict=True)
            )
        )  # fmt: skip
        if self._device >= 0:
            # The core has a stream of its own: what made the pixels has to be done, and the output's memory free.
            torch.cuda.current_stream(image.device).synchronize()
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        with self._lock:
            code = self._library.tsimage_run(self._handle, described, len(described), error, _ERROR_BYTES)
        if code:
            raise ValueError(error.value.decode("utf-8", "replace"))
        return output

    def _output_size(self, height: int, width: int) -> tuple[int, int]:
        rows, columns = ctypes.c_int32(), ctypes.c_int32()
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        if self._library.tsimage_output_size(
            self._handle, height, width, ctypes.byref(rows), ctypes.byref(columns), error, _ERROR_BYTES
        ):
            raise ValueError(error.value.decode("utf-8", "replace"))
        return rows.value, columns.value


@lru_cache(maxsize=_PROCESSORS_KEPT)
def _processor(settings: tuple[tuple[str, str], ...], dtype: torch.dtype, device: int) -> _Processor:
    return _Processor(settings, dtype, device)


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """The core's library, loaded once. Raises FileNotFoundError with what builds it."""
    named = os.environ.get(LIBRARY_VARIABLE)
    places = [Path(named)] if named else [folder / LIBRARY_NAME for folder in _PLACES]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise FileNotFoundError(
            f"{LIBRARY_NAME} is in none of {', '.join(map(str, places))}; build it with "
            f"backends/image_preprocess/torch/build.sh, or name it in {LIBRARY_VARIABLE}"
        )
    loaded = ctypes.CDLL(str(path))
    loaded.tsimage_new.restype = ctypes.c_void_p
    text = ctypes.POINTER(ctypes.c_char_p)
    loaded.tsimage_new.argtypes = (
        text, text, ctypes.c_size_t, ctypes.c_int32, ctypes.c_int32, ctypes.c_char_p, ctypes.c_size_t,
    )  # fmt: skip
    loaded.tsimage_delete.argtypes = (ctypes.c_void_p,)
    loaded.tsimage_delete.restype = None
    size = ctypes.POINTER(ctypes.c_int32)
    loaded.tsimage_output_size.argtypes = (
        ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, size, size, ctypes.c_char_p, ctypes.c_size_t,
    )  # fmt: skip
    loaded.tsimage_run.argtypes = (
        ctypes.c_void_p, ctypes.POINTER(_Picture), ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t,
    )  # fmt: skip
    if loaded.tsimage_version() != _VERSION:
        raise RuntimeError(f"{path} has version {loaded.tsimage_version()} of the interface; expected {_VERSION}")
    return loaded
