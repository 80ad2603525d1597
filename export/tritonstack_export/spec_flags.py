"""Flags of `tritonstack export` that change the spec: parsed, checked one by one, laid over the YAML values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tritonstack.errors import UsageError
from tritonstack_export.precision_names import PRECISIONS
from tritonstack_export.spec_text import KeyPath, SpecText

if TYPE_CHECKING:
    from tritonstack_export.signature import AxisFlag

# Kept here as plain numbers and checked against the spec by a test: parsing flags must not import pydantic.
OPSET_MIN, OPSET_MAX = 16, 23


@dataclass(frozen=True)
class SpecFlags:
    """The flags as given; None where absent."""

    name: str | None = None
    opset: int | None = None
    min_batch: int | None = None
    opt_batch: int | None = None
    max_batch: int | None = None
    no_batch: bool = False
    input_names: tuple[str, ...] | None = None
    output_names: tuple[str, ...] | None = None
    precisions: tuple[str, ...] | None = None
    default_precision: str | None = None


def parse_precisions(text: str) -> tuple[str, ...]:
    """``fp32,fp16`` -> precisions, each once. Raises UsageError naming the one that is not known."""
    names = parse_names("--precision", text)
    for name in names:
        if name not in PRECISIONS:
            raise UsageError(
                f"--precision {text}: no such precision {name!r}", expected=f"one or more of {', '.join(PRECISIONS)}"
            )
    return names


def parse_allowed_drop(text: str) -> tuple[str, float]:
    """``int8=2.5`` -> (precision, points). Raises UsageError."""
    name, equals, number = text.partition("=")
    expected = "PRECISION=POINTS, such as int8=2 (points of the metric, 0 to 100)"
    if not equals or name not in PRECISIONS[1:]:
        raise UsageError(
            f"--allow-drop {text}: not a precision other than fp32", expected=f"{expected}; {', '.join(PRECISIONS[1:])}"
        )
    try:
        points = float(number)
    except ValueError:
        points = -1.0
    if not 0 <= points <= 100:
        raise UsageError(f"--allow-drop {text}: not a number of points", expected=expected)
    return name, points


def parse_names(flag: str, text: str) -> tuple[str, ...]:
    """``a,b`` -> names. Raises UsageError for empty and repeated ones."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise UsageError(f"{flag}: an empty name", given=repr(text), expected="different names, separated by commas")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(
            f"{flag}: the name {twice!r} is given twice", given=repr(text), expected="different names, one per tensor"
        )
    return names


def parse_dynamic(text: str) -> AxisFlag:
    """``NAME:AXIS`` or ``NAME:AXIS=DIMENSION`` (axis 0 is ``batch`` by default). Names may hold any character."""
    from tritonstack_export.signature import AxisFlag

    match = re.fullmatch(r"(?P<name>.+):(?P<axis>-?\d+)(?:=(?P<dim>[A-Za-z_][A-Za-z0-9_]*))?", text, re.DOTALL)
    if match is None:
        raise UsageError(
            "--dynamic: cannot read the value", given=repr(text), expected="NAME:AXIS or NAME:AXIS=DIMENSION"
        )
    axis = int(match["axis"])
    if axis < 0:
        raise UsageError("--dynamic: a negative axis", given=repr(text), expected="an axis counted from 0")
    return AxisFlag(text, match["name"], axis, match["dim"] or ("batch" if axis == 0 else None))


def require_batch_order(flags: SpecFlags) -> None:
    """The batch flags fit each other. Raises UsageError naming the flag."""
    given = [
        (flag, value)
        for flag, value in (
            ("--min-batch", flags.min_batch),
            ("--opt-batch", flags.opt_batch),
            ("--max-batch", flags.max_batch),
        )
        if value is not None
    ]
    if flags.no_batch and given:
        raise UsageError(f"{given[0][0]} {given[0][1]} contradicts --no-batch", expected="one of the two")
    for flag, value in given:
        if value < 1:
            raise UsageError(f"{flag} {value}: too small", expected="1 or more (--no-batch serves without a batch)")
        if value > 2**31 - 1:
            raise UsageError(f"{flag} {value}: too large", expected="at most 2147483647")
    for (first, low), (second, high) in pairwise(given):
        if low > high:
            raise UsageError(
                f"{first} {low} is above {second} {high}", expected="--min-batch <= --opt-batch <= --max-batch"
            )


def apply(text: SpecText, flags: SpecFlags) -> dict[KeyPath, str]:
    """Lay the flags over the values of `text` in place; returns which flag set which key."""
    values = text.values
    said: dict[KeyPath, str] = {}
    if flags.name is not None:
        values["name"] = flags.name
        said[("name",)] = f"--name {flags.name!r}"
    if flags.opset is not None:
        values["opset"] = flags.opset
        said[("opset",)] = f"--opset {flags.opset}"
    if flags.no_batch:
        values["batch"] = False
        said[("batch",)] = "--no-batch"
    sizes = {"min": flags.min_batch, "opt": flags.opt_batch, "max": flags.max_batch}
    if any(size is not None for size in sizes.values()):
        batch: dict[str, Any] = dict(values["batch"]) if isinstance(values.get("batch"), dict) else {}
        batch.update({key: size for key, size in sizes.items() if size is not None})
        values["batch"] = batch
        said[("batch",)] = " ".join(f"--{key}-batch {size}" for key, size in sizes.items() if size is not None)
    _apply_precision(values, said, flags)
    if flags.output_names is not None:
        values["outputs"] = _renamed_outputs(flags.output_names)
        said[("outputs",)] = f"--output-names {','.join(flags.output_names)}"
    return said


def _renamed_outputs(names: Sequence[str]) -> list[dict[str, str]]:
    return [{"name": name} for name in names]


def _apply_precision(values: dict[str, Any], said: dict[KeyPath, str], flags: SpecFlags) -> None:
    if flags.precisions is None and flags.default_precision is None:
        return
    given = values.get("precision")
    precision = dict(given) if isinstance(given, dict) else {} if given is None else {"variants": given}
    words = []
    if flags.precisions is not None:
        own = precision.get("variants")
        if "default" not in precision and isinstance(own, list) and own:
            # Names stay those of the spec, whichever of its variants are made this time.
            precision["default"] = "fp32" if "fp32" in own else own[0]
        precision["variants"] = list(flags.precisions)
        words.append(f"--precision {','.join(flags.precisions)}")
    if flags.default_precision is not None:
        precision["default"] = flags.default_precision
        words.append(f"--default-precision {flags.default_precision}")
    values["precision"] = precision
    said[("precision",)] = " ".join(words)
