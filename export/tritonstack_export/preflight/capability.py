"""Compute capabilities that TensorRT for RTX builds for."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tritonstack.errors import UsageError

CAPABILITIES = ("7.5", "8.0", "8.6", "8.9", "12.0", "12.1")
DEFAULT_CAPABILITIES = ("8.9",)

# What TensorRT builds for and TensorRT for RTX does not: the GPU, and the capability that comes nearest to it.
_DATA_CENTRE = {
    "9.0": ("H100 and H200 (Hopper)", "8.9"),
    "10.0": ("B200 (Blackwell)", "12.0"),
    "10.3": ("B300 (Blackwell)", "12.0"),
    "8.7": ("Jetson Orin", "8.6"),
    "7.0": ("V100 (Volta)", "7.5"),
}


def parse_capabilities(text: str, *, flag: str = "--compute-capability") -> tuple[str, ...]:
    """``8.0,8.9`` or ``sm_80,sm_89`` as capabilities, in order and once each.

    Raises UsageError naming `flag`, the bad value and those that are allowed.
    """
    return require_capabilities([part.strip() for part in text.split(",")], flag=flag)


def require_capabilities(values: Sequence[str], *, flag: str = "compute_capabilities") -> tuple[str, ...]:
    """`values` in order and once each. Raises UsageError as `parse_capabilities` does."""
    allowed = ", ".join(CAPABILITIES)
    found: list[str] = []
    for value in values:
        written = re.sub(r"^sm_?(\d+)(\d)a?$", r"\1.\2", value)
        if written in _DATA_CENTRE:
            gpu, nearest = _DATA_CENTRE[written]
            raise UsageError(
                f"argument {flag}: TensorRT for RTX does not build for {written}, {gpu}",
                given=repr(value),
                expected=f"one or more of {allowed}",
                next_step=f"take {nearest}, the nearest: the pre-flight is a proxy either way",
            )
        if written not in CAPABILITIES:
            raise UsageError(
                f"argument {flag}: not a compute capability that TensorRT for RTX builds for",
                given=repr(value),
                expected=f"one or more of {allowed}",
            )
        if written not in found:
            found.append(written)
    if not found:
        raise UsageError(f"argument {flag}: no compute capability", expected=f"one or more of {allowed}")
    return tuple(sorted(found, key=CAPABILITIES.index))
