"""The core of the backend through its C entry (c_entry.cc), for tests and benchmarks. Needs numpy only."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

PATHS = ("none", "raw", "cpu_jpeg", "cpu_png", "cpu_webp", "gpu_hardware", "gpu_hybrid")
_DTYPES = {"FP32": np.float32, "FP16": np.float16, "BF16": np.uint16, "UINT8": np.uint8}


class ImageLibrary:
    """The shared library that build_library.sh makes."""

    def __init__(self, path: Path | str) -> None:
        self.calls = ctypes.CDLL(str(path))
        self.calls.tritonstack_image_create.restype = ctypes.c_void_p
        self.calls.tritonstack_image_error.restype = ctypes.c_char_p
        self.calls.tritonstack_image_time_kernel.restype = ctypes.c_double

    def error(self) -> str:
        """Why the last call failed."""
        return str(self.calls.tritonstack_image_error().decode(errors="replace"))

    def instance(self, element: str, *, device: int, **settings: Any) -> ImageInstance:
        """An executor on a GPU, or on the CPU for -1. Raises ValueError with the core's reason."""
        return ImageInstance(self, element, device, settings)


class ImageInstance:
    """One executor. Not for several threads at a time."""

    def __init__(self, library: ImageLibrary, element: str, device: int, settings: dict[str, Any]) -> None:
        text = "".join(
            f"{name} {str(value).lower() if isinstance(value, bool) else value}\n" for name, value in settings.items()
        )
        self.library = library
        self.element = element
        self.nhwc = settings.get("layout") == "NHWC"
        self.handle = ctypes.c_void_p(
            library.calls.tritonstack_image_create(text.encode(), element.encode(), ctypes.c_int(device))
        )
        if not self.handle.value:
            raise ValueError(library.error())

    def __del__(self) -> None:
        if getattr(self, "handle", None) and self.handle.value:
            self.library.calls.tritonstack_image_destroy(self.handle)

    def shape(self, height: int, width: int) -> tuple[int, ...]:
        """Of the sample that a picture of this size becomes. Raises ValueError."""
        output = (ctypes.c_int * 2)()
        if self.library.calls.tritonstack_image_output(self.handle, height, width, output) != 0:
            raise ValueError(self.library.error())
        return (output[0], output[1], 3) if self.nhwc else (3, output[0], output[1])

    def encoded(self, files: Sequence[bytes], shape: tuple[int, ...]) -> tuple[list[np.ndarray[Any, Any]], list[str]]:
        """Samples in host memory, all of `shape`, and how each was decoded ("failed" where it was not)."""
        batch = EncodedBatch(files)
        samples = [self._empty(shape) for _ in files]
        batch.point([sample.ctypes.data for sample in samples])
        self.run_encoded(batch, -1)
        return samples, batch.decoded_by()

    def run_encoded(self, batch: EncodedBatch, output_device: int) -> int:
        """Number of pictures that failed; outputs go where the batch points. Raises RuntimeError."""
        failed: int = self.library.calls.tritonstack_image_run(
            self.handle, batch.count, batch.data, batch.sizes, None, -1, batch.outputs, output_device, batch.paths
        )
        if failed < 0:
            raise RuntimeError(self.library.error())
        return failed

    def raw(self, images: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """Samples of uint8 pictures [y, x, channel], everything in host memory. Raises RuntimeError."""
        images = [np.ascontiguousarray(image) for image in images]
        count = len(images)
        samples = [self._empty(self.shape(*image.shape[:2])) for image in images]
        data = (ctypes.c_void_p * count)(*[image.ctypes.data for image in images])
        shapes = (ctypes.c_int * (2 * count))(*[side for image in images for side in image.shape[:2]])
        outputs = (ctypes.c_void_p * count)(*[sample.ctypes.data for sample in samples])
        paths = (ctypes.c_int * count)()
        status = self.library.calls.tritonstack_image_run(
            self.handle, count, data, None, shapes, -1, outputs, -1, paths
        )
        if status != 0:
            raise RuntimeError(self.library.error())
        return samples

    def time_kernel(self, pictures: Sequence[tuple[int, int, int]], outputs: Sequence[int], repeats: int) -> float:
        """Seconds a launch over raw pictures (address on the device, height, width), without the host's part."""
        count = len(pictures)
        data = (ctypes.c_void_p * count)(*[address for address, _, _ in pictures])
        shapes = (ctypes.c_int * (2 * count))(*[side for _, height, width in pictures for side in (height, width)])
        milliseconds = self.library.calls.tritonstack_image_time_kernel(
            self.handle, count, data, shapes, (ctypes.c_void_p * count)(*outputs), repeats
        )
        if milliseconds < 0:
            raise RuntimeError(self.library.error())
        return float(milliseconds) / 1000 / repeats

    def _empty(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        # Filled with what no sample holds, so that elements nobody wrote are found.
        return (
            np.full(shape, 0xA5, np.uint8)
            if self.element == "UINT8"
            else np.full(shape, 0x7E5A if self.element == "BF16" else np.nan, _DTYPES[self.element])
        )


class EncodedBatch:
    """Encoded pictures as the C entry takes them; the bytes stay alive with it."""

    def __init__(self, files: Sequence[bytes]) -> None:
        self.files = list(files)
        self.count = len(files)
        self.data = (ctypes.c_char_p * self.count)(*files)
        self.sizes = (ctypes.c_size_t * self.count)(*[len(file) for file in files])
        self.outputs = (ctypes.c_void_p * self.count)()
        self.paths = (ctypes.c_int * self.count)()

    def point(self, addresses: Sequence[int]) -> None:
        """Where the samples go."""
        for index, address in enumerate(addresses):
            self.outputs[index] = address

    def decoded_by(self) -> list[str]:
        """How each picture was decoded in the last run."""
        return [PATHS[path] if path >= 0 else "failed" for path in self.paths]


def bfloat16(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float32 values of BF16 samples."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
