"""Rules for models of the backend image_preprocess: its parameters, and that its tensors are what they make.

The words are the backend's own, which refuses the same things when it loads the model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tritonstack_export.check.finding import FindingList, printable
from tritonstack_export.check.model_entry import ModelEntry
from tritonstack_export.check.nearest import did_you_mean
from tritonstack_export.repository.config_text import ModelConfig

BACKEND = "image_preprocess"
MAX_SIDE = 16384
_GEOMETRY = [8]
_OUTPUT_TYPES = ("TYPE_FP32", "TYPE_FP16", "TYPE_BF16", "TYPE_UINT8")
_LARGEST_FP16 = 65520.0
"""From here on a value rounds to infinity."""

_WHOLE = re.compile(r"[ \t]*(-?[0-9]+)[ \t]*")
_NUMBER = re.compile(r"[ \t]*(-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)[ \t]*")


@dataclass(frozen=True, slots=True)
class Setting:
    """One parameter: what it may be, and the test for it."""

    expected: str
    accepts: Callable[[str], bool]


def _choice(*words: str) -> Setting:
    return Setting(f"one of {', '.join(words)}", lambda text: text in words)


def _whole(least: int, most: int) -> Setting:
    def accepts(text: str) -> bool:
        match = _WHOLE.fullmatch(text)
        return match is not None and least <= int(match[1]) <= most

    return Setting(f"a whole number from {least} to {most}", accepts)


def _three(text: str) -> bool:
    parts = text.split(",")
    return len(parts) == 3 and all(_number(part) is not None for part in parts)


def _fraction(text: str) -> bool:
    value = _number(text)
    return value is not None and 0 < value <= 1


def _size(text: str) -> bool:
    return _sides(text) is not None


_SIDES = _whole(1, MAX_SIDE)
_FLAG = _choice("true", "false")
SETTINGS: dict[str, Setting] = {
    "resize": _choice("exact", "shorter", "letterbox", "none"),
    "height": _SIDES,
    "width": _SIDES,
    "pad_value": _whole(0, 255),
    "crop_fraction": Setting("a number above 0, at most 1", _fraction),
    "center_crop": Setting(f"HEIGHTxWIDTH in pixels, such as 224x224, each from 1 to {MAX_SIDE}", _size),
    "interpolation": _choice("bilinear", "bicubic", "nearest"),
    "antialias": _FLAG,
    "round_u8": _FLAG,
    "channel_order": _choice("RGB", "BGR"),
    "scale": Setting("a finite number", lambda text: _number(text) is not None),
    "mean": Setting("three finite numbers separated by commas", _three),
    "std": Setting("three finite numbers separated by commas", _three),
    "layout": _choice("NCHW", "NHWC"),
    "exif": _FLAG,
    "gray": _choice("replicate", "refuse"),
    "cmyk": _choice("convert", "refuse"),
    "alpha": _choice("drop", "refuse"),
    "max_pixels": _whole(1, 1_000_000_000),
    "max_bytes": _whole(1, 2**31 - 1),
    "threads": _whole(0, 1024),
    "decode_threads": _whole(0, 1024),
    "on_gpu_output_unavailable": _choice("fallback", "fail"),
}
"""Every parameter of the backend, in its own order."""


def check_image_preprocess(entry: ModelEntry, config: ModelConfig) -> None:
    """Parameters one by one, then with each other, then the tensors."""
    findings = entry.findings
    given = {
        name: parameter.string_value
        for name, parameter in config.parameters.items()
        if not name.startswith("tritonstack.")
    }
    sound = True
    for name, value in sorted(given.items()):
        setting = SETTINGS.get(name)
        if setting is None:
            findings.error(
                "parameter",
                f"unknown parameter {printable(name)!r}; expected one of {', '.join(SETTINGS)}",
                fix=did_you_mean(name, SETTINGS) or "remove it",
                at=_place(findings, name),
            )
        elif not setting.accepts(value):
            sound = False
            three = name in ("mean", "std") and value.count(",") != 2
            _bad(findings, name, value, "three numbers separated by commas" if three else setting.expected)
    if sound:
        _check_together(given, findings)
        _check_tensors(given, config, findings)


def _bad(findings: FindingList, name: str, value: str, expected: str) -> None:
    findings.error(
        "parameter",
        f"bad parameter {name!r}; given {printable(value)!r}; expected {expected}",
        fix="mend the value, in quotes",
        at=_place(findings, name),
    )


def _place(findings: FindingList, name: str) -> tuple[str | int, ...]:
    return findings.positions.map_entry(("parameters",), name) if findings.positions else ("parameters",)


def _check_together(given: Mapping[str, str], findings: FindingList) -> None:
    """Parameters that only make sense with each other."""
    mode = given.get("resize", "none")
    if mode == "none":
        for name in ("height", "width"):
            if name in given:
                _bad(findings, name, given[name], f"no {name} where resize is none")
        return
    for name, modes in (("height", ""), ("width", "exact or letterbox")):
        if name not in given and not (name == "width" and mode == "shorter"):
            findings.error(
                "parameter",
                f"missing parameter {name!r}; expected pixels, as resize is {modes or 'not none'}",
                fix=f"add the parameter {name!r}",
                at=_place(findings, "resize"),
            )
    if mode == "shorter" and "width" in given and given.get("height", "").strip() != given["width"].strip():
        _bad(findings, "width", given["width"], "no width, or that of height, where resize is shorter")
    crop, target = _sides(given.get("center_crop", "")), _target(given)
    if crop and target and (crop[0] > target[0] or crop[1] > target[1]):
        left = f"{target[0]} on either side" if mode == "shorter" else f"{target[0]}x{target[1]}"
        _bad(findings, "center_crop", given["center_crop"], f"at most what resize leaves, {left}")


def _check_tensors(given: Mapping[str, str], config: ModelConfig, findings: FindingList) -> None:
    inputs = [(_type_name(tensor), list(tensor.dims)) for tensor in config.input]
    if inputs and (len(inputs) > 1 or inputs[0] not in (("TYPE_STRING", [1]), ("TYPE_UINT8", [-1, -1, 3]))):
        findings.error(
            "image-input",
            f"the inputs are {', '.join(f'{kind} {dims}' for kind, dims in inputs)}; expected one, of pictures: "
            "TYPE_STRING with dims [1] for encoded ones, or TYPE_UINT8 with dims [-1, -1, 3] for pixels",
            fix="declare one of the two",
            at=("input", 0),
        )
    if not config.output:
        return
    kind, dims = _type_name(config.output[0]), list(config.output[0].dims)
    if kind not in _OUTPUT_TYPES:
        findings.error(
            "image-output",
            f"the first output is {kind}; expected one of {', '.join(_OUTPUT_TYPES)}",
            fix="declare the type that the model behind it takes",
            at=("output", 0, "data_type"),
        )
    height, width = _sides(given.get("center_crop", "")) or (
        (_target(given) or (-1, -1)) if given.get("resize") in ("exact", "letterbox") else (-1, -1)
    )
    made = [height, width, 3] if given.get("layout") == "NHWC" else [3, height, width]
    if len(dims) != 3 or any(-1 not in (has, made_) and has != made_ for has, made_ in zip(dims, made, strict=True)):
        findings.error(
            "image-output",
            f"pictures become {made} ({given.get('layout', 'NCHW')}), the first output has dims {dims}",
            fix="mend the dims, or resize, center_crop and layout",
            at=("output", 0, "dims"),
        )
    if len(config.output) > 1:
        second = (_type_name(config.output[1]), list(config.output[1].dims))
        if len(config.output) > 2 or second != ("TYPE_FP32", _GEOMETRY):
            findings.error(
                "image-output",
                f"the second output is the geometry; given {second[0]} {second[1]}; expected TYPE_FP32 {_GEOMETRY}, "
                "and no further output",
                fix="declare it TYPE_FP32 with dims: [ 8 ]",
                at=("output", 1),
            )
    _check_values(given, kind, findings)


def _check_values(given: Mapping[str, str], kind: str, findings: FindingList) -> None:
    scale = float(given.get("scale", "1"))
    mean, std = (
        [float(part) for part in given.get(name, default).split(",")]
        for name, default in (("mean", "0,0,0"), ("std", "1,1,1"))
    )
    if scale == 0:
        _bad(findings, "scale", "0", "a number that is not 0")
    if 0 in std:
        _bad(findings, "std", "0", "numbers that are not 0")
    if scale == 0 or 0 in std:
        return
    if kind == "TYPE_UINT8":
        if (scale, mean, std) != (1, [0, 0, 0], [1, 1, 1]):
            findings.error(
                "parameter",
                "an output of TYPE_UINT8 carries raw pixels; given scale, mean or std; expected scale 1, mean 0 and "
                "std 1",
                fix="remove them, or declare the output TYPE_FP32, TYPE_FP16 or TYPE_BF16",
                at=_place(findings, next(name for name in ("scale", "mean", "std") if name in given)),
            )
        return
    largest = max(((p * scale - m) / s for p in (0, 255) for m, s in zip(mean, std, strict=True)), key=abs)
    if kind == "TYPE_FP16" and abs(largest) >= _LARGEST_FP16:
        findings.error(
            "parameter",
            f"scale, mean and std overflow the output's type; given values up to {largest:.6f}; "
            "expected below 65504 for TYPE_FP16, else finite",
            fix="mend them, or declare the output TYPE_FP32",
            at=_place(findings, next(name for name in ("scale", "mean", "std") if name in given)),
        )


def _target(given: Mapping[str, str]) -> tuple[int, int] | None:
    """Height and width that resize leaves at least; None where one is missing."""
    height = given.get("height")
    width = height if given.get("resize") == "shorter" else given.get("width")
    return (int(height), int(width)) if height is not None and width is not None else None


def _sides(text: str) -> tuple[int, int] | None:
    parts = text.split("x", 1)
    if len(parts) != 2 or not all(map(_SIDES.accepts, parts)):
        return None
    return int(parts[0]), int(parts[1])


def _number(text: str) -> float | None:
    """A finite number as the backend reads it: no sign '+', no hexadecimal, finite as float32; else None."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    value = float(match[1])
    return value if math.isfinite(value) and abs(value) < 3.4028236e38 else None


def _type_name(tensor: object) -> str:
    words = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number  # type: ignore[attr-defined]
    number = tensor.data_type  # type: ignore[attr-defined]
    return str(words[number].name) if number in words else "TYPE_INVALID"
