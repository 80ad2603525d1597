"""The BYTES data type: each element is a 4-byte little-endian length and that many bytes, in row-major order.

Byte-exact both ways: no element is stripped, re-encoded or guessed. Text is encoded as UTF-8.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from tritonstack.errors import ServerError, TensorError

_LENGTH = struct.Struct("<I")
_MAX_ELEMENT_BYTES = 2**32 - 1


def bytes_array(value: object, *, name: str) -> np.ndarray[Any, Any]:
    """`value` as an array of str or bytes objects (dtype object) or of numpy text (dtype U).

    Raises TensorError for numpy's fixed-width bytes (dtype S): numpy has already dropped trailing NUL bytes there, so
    the right bytes cannot be recovered.
    """
    if isinstance(value, np.ndarray):
        array = value
    elif isinstance(value, (bytes, str)):
        array = np.empty((), dtype=object)
        array[()] = value
    else:
        try:
            array = np.array(value, dtype=object)
        except ValueError as error:
            raise TensorError(f"input {name!r}: the nested lists are ragged", given=str(error)) from None
    if array.dtype.kind == "S":
        raise TensorError(
            f"input {name!r}: numpy's fixed-width bytes lose trailing NUL bytes, so the content is no longer known",
            given=f"dtype {array.dtype}",
            expected="a list of bytes or an array with dtype=object",
            next_step="build it as np.array(values, dtype=object)",
        )
    if array.dtype.kind not in "OU":
        raise TensorError(
            f"input {name!r} holds no text or bytes",
            given=f"{array.dtype} array of shape {list(array.shape)}",
            expected="BYTES: str or bytes elements",
        )
    return array


def encode_bytes_tensor(array: np.ndarray[Any, Any], *, name: str) -> bytes:
    """The wire form of an array of str/bytes elements; TensorError names the first element that is neither."""
    parts: list[bytes] = []
    pack = _LENGTH.pack
    append = parts.append
    for position, element in enumerate(array.ravel().tolist()):
        if isinstance(element, str):
            try:
                element = element.encode()
            except UnicodeEncodeError as error:
                raise _bad_element(name, array, position, f"text that is not valid Unicode ({error.reason})") from None
        elif isinstance(element, (bytearray, memoryview)):
            element = bytes(element)
        elif not isinstance(element, bytes):
            raise _bad_element(name, array, position, f"{type(element).__name__} {element!r:.60}")
        if len(element) > _MAX_ELEMENT_BYTES:
            raise _bad_element(name, array, position, f"{len(element)} bytes, more than the 32-bit length can say")
        append(pack(len(element)))
        append(element)
    return b"".join(parts)


def _bad_element(name: str, array: np.ndarray[Any, Any], position: int, given: str) -> TensorError:
    index = [int(i) for i in np.unravel_index(position, array.shape)] if array.ndim else []
    return TensorError(f"input {name!r}: element {index} cannot be sent as BYTES", given=given, expected="str or bytes")


def decode_bytes_tensor(
    data: memoryview | bytes, shape: tuple[int, ...], *, name: str, exact: bool = True
) -> np.ndarray[Any, Any]:
    """The array of bytes objects (dtype object) of `shape` that `data` holds; ServerError when it does not fit.

    `exact` also refuses bytes behind the last element.
    """
    view = memoryview(data)
    end = len(view)
    count = 1
    for dim in shape:
        count *= dim
    elements: list[bytes] = []
    unpack = _LENGTH.unpack_from
    offset = 0
    while offset < end and (exact or len(elements) < count):
        start = offset + 4
        stop = start + unpack(view, offset)[0] if start <= end else end + 1
        if stop > end:
            raise _malformed(name, f"element {len(elements)} runs past the end of its {end} bytes")
        elements.append(bytes(view[start:stop]))
        offset = stop
    if len(elements) != count:
        raise _malformed(name, f"{len(elements)} elements where shape {list(shape)} wants {count}")
    array = np.empty(count, dtype=object)
    array[:] = elements
    return array.reshape(shape)


def _malformed(name: str, what: str) -> ServerError:
    return ServerError(f"the reply's BYTES output {name!r} is malformed: {what}", code="MALFORMED_REPLY")
