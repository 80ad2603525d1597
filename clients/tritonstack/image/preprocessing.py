"""The description of an image preprocessing, as it stands in model specs and in the served model's config.

numpy and Pillow are imported only when a picture is processed, so a description can be read without them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from tritonstack.errors import UsageError, missing_package

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

ResizeMode = Literal["shorter", "exact", "letterbox", "none"]
Interpolation = Literal["bilinear", "bicubic", "nearest", "lanczos"]
ChannelOrder = Literal["RGB", "BGR"]
Layout = Literal["NCHW", "NHWC"]
PixelType = Literal["FP32", "FP16", "UINT8"]

_MAX_SIDE = 16384


@dataclass(frozen=True)
class Resize:
    """How the picture is brought to size, in pixels.

    - ``exact``: to `height` × `width`, whatever the aspect ratio.
    - ``shorter``: the shorter side becomes `height` (`width` is left out or equal), the longer one follows the aspect
      ratio, rounded down as torchvision does.
    - ``letterbox``: the largest size that fits into `height` × `width`, centred on a ground of the pixel value `pad`.
    - ``none``: left as it is.
    """

    mode: ResizeMode = "exact"
    height: int | None = None
    width: int | None = None
    pad: int = 0

    def __post_init__(self) -> None:
        _one_of("resize.mode", self.mode, get_args(ResizeMode))
        _whole("resize.pad", self.pad, 0, 255)
        for name, side in (("resize.height", self.height), ("resize.width", self.width)):
            if side is not None:
                _whole(name, side, 1, _MAX_SIDE)
        if self.mode == "none":
            if self.height is not None or self.width is not None:
                raise UsageError("resize.mode is 'none', yet a size is given", next_step="remove height and width")
        elif self.height is None:
            raise UsageError(f"resize.height is missing for the mode {self.mode!r}")
        elif self.mode == "shorter":
            if self.width not in (None, self.height):
                raise UsageError(
                    "resize.mode is 'shorter', which has one size", expected="width left out or equal to height"
                )
        elif self.width is None:
            raise UsageError(f"resize.width is missing for the mode {self.mode!r}")


@dataclass(frozen=True)
class ImagePreprocessing:
    """How a picture becomes one sample of a model's input, in this order:

    1. decode; orient by EXIF when `exif`; to 8-bit RGB (gray becomes three equal channels, alpha is dropped, CMYK is
       converted, 16-bit gray is scaled down);
    2. `crop_fraction`: cut the central square of this fraction of the shorter side;
    3. `resize` with `interpolation` (Pillow's filters, antialiased when shrinking);
    4. `center_crop`: cut the central height × width;
    5. `channel_order`; value = (pixel · `scale` − `mean`) / `std`, per channel in that order, computed in float32;
    6. `layout` and `dtype`.

    `input` names the model's input; None means its only one. Raises UsageError for values that make no sense.
    """

    input: str | None = None
    crop_fraction: float | None = None
    resize: Resize = field(default_factory=lambda: Resize("none"))
    interpolation: Interpolation = "bilinear"
    center_crop: tuple[int, int] | None = None
    channel_order: ChannelOrder = "RGB"
    scale: float = 1.0
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    layout: Layout = "NCHW"
    dtype: PixelType = "FP32"
    exif: bool = True

    def __post_init__(self) -> None:
        if self.input is not None and (not isinstance(self.input, str) or not self.input):
            raise UsageError("bad input", given=repr(self.input), expected="a tensor's name or nothing")
        if self.crop_fraction is not None:
            _number("crop_fraction", self.crop_fraction)
            if not 0 < self.crop_fraction <= 1:
                raise UsageError("bad crop_fraction", given=str(self.crop_fraction), expected="above 0, at most 1")
        _one_of("interpolation", self.interpolation, get_args(Interpolation))
        _one_of("channel_order", self.channel_order, get_args(ChannelOrder))
        _one_of("layout", self.layout, get_args(Layout))
        _one_of("dtype", self.dtype, get_args(PixelType))
        if not isinstance(self.exif, bool):
            raise UsageError("bad exif", given=repr(self.exif), expected="true or false")
        if self.center_crop is not None:
            _whole("center_crop height", self.center_crop[0], 1, _MAX_SIDE)
            _whole("center_crop width", self.center_crop[1], 1, _MAX_SIDE)
            self._check_crop_fits(*self.center_crop)
        _number("scale", self.scale)
        for name in ("mean", "std"):
            for value in getattr(self, name):
                _number(name, value)
        if self.scale == 0 or 0 in self.std:
            raise UsageError("scale and std must not be 0")
        if self.dtype == "UINT8" and (self.scale, self.mean, self.std) != (1, (0, 0, 0), (1, 1, 1)):
            raise UsageError("dtype UINT8 carries raw pixels", expected="scale 1, mean 0 and std 1")

    def _check_crop_fits(self, height: int, width: int) -> None:
        resize = self.resize
        if resize.mode == "none" or resize.height is None:
            return
        if height > resize.height or width > (resize.width or resize.height):
            raise UsageError(
                "center_crop is larger than what resize leaves",
                given=f"{height} × {width}",
                expected=f"at most {resize.height} × {resize.width or resize.height}",
            )

    @property
    def output_size(self) -> tuple[int, int] | None:
        """Height and width of every sample; None where they depend on the picture."""
        if self.center_crop is not None:
            return self.center_crop
        if self.resize.mode in ("exact", "letterbox") and self.resize.height and self.resize.width:
            return self.resize.height, self.resize.width
        return None

    def to_json(self) -> str:
        """All fields as one line of JSON with a fixed order of keys."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> ImagePreprocessing:
        """Read what `to_json` wrote; left-out keys take their defaults.

        Raises UsageError for unknown keys (with the nearest known one) and for wrong types and values.
        """
        try:
            value = json.loads(text)
        except ValueError as error:
            raise UsageError(f"the image preprocessing is not JSON: {error}") from None
        return cls.from_dict(value)

    @classmethod
    def from_dict(cls, value: Any) -> ImagePreprocessing:
        """As `from_json`, from parsed JSON or YAML."""
        known = _fields(cls, value, "")
        if "resize" in known:
            known["resize"] = Resize(**_fields(Resize, known["resize"], "resize."))
        for name, length in (("mean", 3), ("std", 3), ("center_crop", 2)):
            if known.get(name) is not None:
                known[name] = _tuple(name, known[name], length)
        return cls(**known)

    def preprocess(self, source: Path | str | bytes | Image.Image) -> np.ndarray[Any, Any]:
        """One sample from a file, encoded bytes or a Pillow image, which is left unchanged.

        The array is [channel, y, x] for NCHW and [y, x, channel] for NHWC, in `dtype`. Raises InputError naming the
        picture and the reason where it cannot be decoded or does not fit.
        """
        try:
            from tritonstack.image.pixels import preprocess
        except ImportError as error:
            raise missing_package(
                error.name or str(error), needed_for="image preprocessing", install="pip install 'tritonstack[image]'"
            ) from error
        return preprocess(self, source)


def _fields(kind: type[Any], value: Any, prefix: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        where = prefix.rstrip(".") or "the image preprocessing"
        raise UsageError(f"{where} is not a mapping", given=type(value).__name__)
    names = [entry.name for entry in fields(kind)]
    for key in value:
        if key not in names:
            close = get_close_matches(str(key), names, n=1)
            raise UsageError(
                f"unknown key {prefix}{key} in the image preprocessing",
                expected=f"one of {', '.join(names)}",
                next_step=f"did you mean {close[0]!r}?" if close else None,
            )
    # A key without a value in YAML is null and means the default, which is null itself where null is allowed.
    return {key: v for key, v in value.items() if v is not None}


def _tuple(name: str, value: Any, length: int) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != length:
        raise UsageError(f"bad {name}", given=repr(value), expected=f"a list of {length} numbers")
    return tuple(value)


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"bad {name}", given=repr(value), expected=f"one of {', '.join(allowed)}")


def _whole(name: str, value: Any, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise UsageError(f"bad {name}", given=repr(value), expected=f"a whole number from {least} to {most}")


def _number(name: str, value: Any) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise UsageError(f"bad {name}", given=repr(value), expected="a finite number")
