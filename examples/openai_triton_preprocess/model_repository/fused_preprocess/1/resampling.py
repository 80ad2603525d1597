"""Resampling tables: which source pixels, with which weights, make each output pixel. As Pillow and torchvision."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


def _bilinear(x: np.ndarray) -> np.ndarray:
    return np.maximum(0.0, 1.0 - np.abs(x))


def _bicubic(x: np.ndarray) -> np.ndarray:
    a, x = -0.5, np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


FILTERS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "bilinear": (_bilinear, 1.0),
    "bicubic": (_bicubic, 2.0),
}
"""Name -> filter and its radius in pixels."""


@dataclass(frozen=True)
class Taps:
    """Output i is the sum over k of source[first[i] + k] · weights[i, k]; weights beyond the border are 0."""

    first: np.ndarray  # int32 [output]
    weights: np.ndarray  # float32 [output, tap]


def make_taps(interpolation: str, source: int, resized: int, begin: int, count: int) -> Taps:
    """Tables for the outputs `begin` … `begin + count - 1` of a row of `source` pixels resized to `resized`."""
    weight_of, radius = FILTERS[interpolation]
    scale = source / resized
    stretch = max(scale, 1.0)  # the filter grows with the ratio when shrinking: antialias
    support = radius * stretch
    center = (np.arange(begin, begin + count) + 0.5) * scale
    first = np.maximum((center - support + 0.5).astype(np.int64), 0)
    last = np.minimum((center + support + 0.5).astype(np.int64), source)
    taps = np.arange(int((last - first).max()))
    weights = weight_of((first[:, None] + taps + 0.5 - center[:, None]) / stretch)
    weights[first[:, None] + taps >= last[:, None]] = 0.0
    weights /= weights.sum(axis=1, keepdims=True)
    return Taps(first.astype(np.int32), weights.astype(np.float32))


@dataclass(frozen=True)
class Plan:
    """How one picture is resized and cut: sizes as (height, width), `top` and `left` of the crop in resized pixels."""

    source: tuple[int, int]
    resized: tuple[int, int]
    top: int
    left: int


@dataclass(frozen=True)
class Settings:
    """What is done to a picture. `resize`: ``exact`` (to `height` × `width`) or ``shorter`` (that side to `height`)."""

    resize: str
    height: int
    width: int
    center_crop: tuple[int, int] | None
    interpolation: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    scale: float

    @property
    def output(self) -> tuple[int, int]:
        """Height and width of every sample."""
        return self.center_crop or (self.height, self.width)

    def plan(self, height: int, width: int) -> Plan:
        """Raises ValueError for a picture that the crop does not fit."""
        if min(height, width) < 1:
            raise ValueError(f"the picture has no pixels: {height} × {width}")
        resized = (self.height, self.width)
        if self.resize == "shorter":
            longer = max(1, self.height * max(height, width) // min(height, width))
            resized = (longer, self.height) if width <= height else (self.height, longer)
        out_height, out_width = self.output
        top, left = (resized[0] - out_height) // 2, (resized[1] - out_width) // 2
        if top < 0 or left < 0:
            raise ValueError(
                f"{resized[0]} × {resized[1]} pixels are smaller than the crop of {out_height} × {out_width}"
            )
        return Plan((height, width), resized, top, left)


def read_settings(parameters: dict[str, str]) -> Settings:
    """From a model's parameters, which have the names of the image_preprocess backend. Raises ValueError."""

    def numbers(name: str, default: str) -> tuple[float, float, float]:
        found = [float(part) for part in parameters.get(name, default).split(",")]
        if len(found) != 3 or not all(map(math.isfinite, found)):
            raise ValueError(f"parameter {name!r} is {parameters.get(name)!r}; expected three numbers: a,b,c")
        return found[0], found[1], found[2]

    def one_of(name: str, allowed: tuple[str, ...]) -> str:
        value = parameters.get(name, allowed[0])
        if value not in allowed:
            raise ValueError(f"parameter {name!r} is {value!r}; expected one of {', '.join(allowed)}")
        return value

    resize = one_of("resize", ("exact", "shorter"))
    height = int(parameters["height"])
    crop = parameters.get("center_crop")
    sides = [int(side) for side in crop.split("x")] if crop else []
    if crop and len(sides) != 2:
        raise ValueError(f"parameter 'center_crop' is {crop!r}; expected HxW")
    if resize == "shorter" and not sides:
        raise ValueError("resize 'shorter' leaves sizes that differ; expected the parameter 'center_crop'")
    settings = Settings(
        resize=resize,
        height=height,
        width=height if resize == "shorter" else int(parameters["width"]),
        center_crop=(sides[0], sides[1]) if sides else None,
        interpolation=one_of("interpolation", tuple(FILTERS)),
        mean=numbers("mean", "0,0,0"),
        std=numbers("std", "1,1,1"),
        scale=float(parameters.get("scale", "1")),
    )
    if min(settings.height, settings.width, *settings.output) < 1 or 0 in settings.std:
        raise ValueError("sizes must be above 0, and std must not be 0")
    return settings
