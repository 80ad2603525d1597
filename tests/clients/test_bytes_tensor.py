"""The BYTES encoding, byte for byte."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from tritonstack.errors import ServerError, TensorError
from tritonstack.tensor.bytes_tensor import bytes_array, decode_bytes_tensor, encode_bytes_tensor


def encode(value: object) -> tuple[bytes, tuple[int, ...]]:
    array = bytes_array(value, name="x")
    return encode_bytes_tensor(array, name="x"), array.shape


def objects(*values: Any) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        pytest.param(objects(b"ab\x00\x00", b"c"), "04000000616200000100000063", id="trailing-nul"),
        pytest.param(objects("a\x00b", "猫ö", ""), "0300000061006205000000e78cabc3b600000000", id="embedded-nul"),
        pytest.param(objects(b"\xff\xd8\xff\xe0\x00"), "05000000ffd8ffe000", id="jpeg-head"),
        pytest.param(
            np.array([["x", "yy"], ["", "zzz"]], dtype=object),
            "010000007802000000797900000000030000007a7a7a",
            id="two-dimensions",
        ),
        pytest.param(np.array([], dtype=object), "", id="no-elements"),
        pytest.param(np.array(["ä", "bc"]), "02000000c3a4020000006263", id="numpy-text"),
        pytest.param([b"ab\x00", "c"], "030000006162000100000063", id="list"),
        pytest.param(b"one", "030000006f6e65", id="scalar"),
        pytest.param(objects(bytearray(b"\x00"), memoryview(b"\x01")), "01000000000100000001", id="bytes-like"),
        pytest.param(
            np.array([["a", "b"], ["c", "d"]], dtype=object).T,
            "0100000061010000006301000000620100000064",
            id="transposed-view-is-sent-row-major",
        ),
    ],
)
def test_encoding_and_back(value: object, wire: str) -> None:
    data, shape = encode(value)
    assert data.hex() == wire
    back = decode_bytes_tensor(data, shape, name="y")
    sent = bytes_array(value, name="x").ravel().tolist()
    assert back.ravel().tolist() == [v.encode() if isinstance(v, str) else bytes(v) for v in sent]
    assert back.shape == shape


def test_fixed_width_bytes_are_refused_because_nuls_are_already_lost() -> None:
    with pytest.raises(TensorError, match="trailing NUL"):
        encode(np.array([b"ab\x00\x00"]))


@pytest.mark.parametrize(
    ("value", "element"),
    [
        (objects(1, 2), "[0]"),
        (objects("a", None), "[1]"),
        (objects("a", "\ud800"), "[1]"),
        (np.array([["a", "b"], ["c", 3.5]], dtype=object), "[1, 1]"),
        (objects("a", ["b"]), "[1]"),
        (objects(True), "[0]"),
    ],
)
def test_an_element_that_is_no_text_is_named(value: object, element: str) -> None:
    with pytest.raises(TensorError) as caught:
        encode(value)
    assert f"input 'x': element {element}" in str(caught.value)


@pytest.mark.parametrize("value", [np.zeros(2, np.uint8), np.zeros((2, 2))])
def test_numbers_are_not_text(value: object) -> None:
    with pytest.raises(TensorError, match="no text or bytes"):
        encode(value)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack("<I", 3) + b"ab", id="element-cut-short"),
        pytest.param(struct.pack("<I", 2) + b"ab\x01\x00", id="length-cut-short"),
        pytest.param(struct.pack("<I", 2**32 - 1) + b"ab", id="absurd-length"),
        pytest.param(b"", id="missing"),
        pytest.param((struct.pack("<I", 1) + b"a") * 2, id="too-many"),
    ],
)
def test_a_malformed_reply_is_a_clear_error(data: bytes) -> None:
    with pytest.raises(ServerError, match="malformed") as caught:
        decode_bytes_tensor(data, (1,), name="y")
    assert caught.value.code == "MALFORMED_REPLY"


def test_a_huge_announced_shape_allocates_nothing() -> None:
    with pytest.raises(ServerError):
        decode_bytes_tensor(b"", (2**40,), name="y")
