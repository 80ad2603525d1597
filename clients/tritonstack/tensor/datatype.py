"""Triton's tensor data types and what each is in numpy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tritonstack.errors import TensorError


@dataclass(frozen=True)
class Datatype:
    """One data type of the KServe v2 protocol.

    `numpy_dtype` is the little-endian dtype that holds its values; None for BYTES (objects) and for BF16, which numpy
    itself does not know. `byte_size` is the size of one element, 0 for BYTES, whose elements vary.
    """

    name: str
    numpy_dtype: np.dtype[Any] | None
    byte_size: int


def _fixed(name: str, code: str) -> Datatype:
    dtype = np.dtype(code)
    return Datatype(name, dtype, dtype.itemsize)


DATATYPES = {
    datatype.name: datatype
    for datatype in (
        _fixed("BOOL", "?"),
        _fixed("UINT8", "u1"),
        _fixed("UINT16", "<u2"),
        _fixed("UINT32", "<u4"),
        _fixed("UINT64", "<u8"),
        _fixed("INT8", "i1"),
        _fixed("INT16", "<i2"),
        _fixed("INT32", "<i4"),
        _fixed("INT64", "<i8"),
        _fixed("FP16", "<f2"),
        _fixed("FP32", "<f4"),
        _fixed("FP64", "<f8"),
        Datatype("BF16", None, 2),
        Datatype("BYTES", None, 0),
    )
}

_BY_NUMPY = {d.numpy_dtype: d.name for d in DATATYPES.values() if d.numpy_dtype is not None}


def datatype(name: str) -> Datatype:
    """The data type called `name`, with or without the ``TYPE_`` that config.pbtxt puts before it."""
    short = name.removeprefix("TYPE_")
    short = "BYTES" if short == "STRING" else short
    try:
        return DATATYPES[short]
    except KeyError:
        raise TensorError(f"unknown tensor data type {name!r}", expected=f"one of {', '.join(DATATYPES)}") from None


@lru_cache(maxsize=1)
def bfloat16_dtype() -> np.dtype[Any] | None:
    """The dtype ``ml_dtypes.bfloat16``, or None where that package is not installed."""
    try:
        import ml_dtypes
    except ImportError:
        return None
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def datatype_name_of(dtype: np.dtype[Any]) -> str | None:
    """The Triton name of a numpy dtype in any byte order; None for a dtype Triton has no word for."""
    if dtype.kind in "OU":
        return "BYTES"
    if dtype.name == "bfloat16":
        return "BF16"
    if dtype.kind in "biuf":
        return _BY_NUMPY.get(dtype.newbyteorder("<"))
    return None


def bfloat16_bits(values: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """float32 values as bfloat16 bit patterns, rounded to nearest even; NaN stays NaN, infinity stays infinity.

    A finite value above the largest bfloat16 (3.39e38) rounds to infinity; the caller checks for that.
    """
    wide = np.asarray(values, dtype="<f4", order="C")
    bits = wide.view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")
    # Rounding could carry a NaN's payload into the sign or down to infinity: keep it a quiet NaN of its sign.
    nan = ((bits >> np.uint32(16)) | np.uint32(0x0040)).astype("<u2")
    return np.where(np.isnan(wide), nan, rounded).astype("<u2")


def float32_from_bfloat16_bits(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """bfloat16 bit patterns as float32, which holds every bfloat16 exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
