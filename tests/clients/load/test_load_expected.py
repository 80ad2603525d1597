"""Expected answers: every data type, tolerances, NaN, what is missing or malformed, and the difference in words."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tritonstack.client.call import Reply
from tritonstack.errors import InputError, ServerError, TensorError, UsageError
from tritonstack.load.expected import (
    EXACT,
    AnswerCheck,
    ExpectedAnswer,
    Tolerance,
    expected_answer,
    recorded,
)
from tritonstack.tensor.conform import conform
from tritonstack.tensor.datatype import DATATYPES
from tritonstack.tensor.tensor_spec import TensorSpec

FLOATS = ["FP16", "BF16", "FP32", "FP64"]


def grpc_answer(**outputs: tuple[str, object]) -> bytes:
    """A serialised ModelInferResponse with outputs (data type, values) by name."""
    message = service_pb2.ModelInferResponse(model_name="m", model_version="1")
    for name, (kind, values) in outputs.items():
        wire = conform(TensorSpec(name, kind, np.shape(values)), values, max_batch_size=0, cast=True)
        message.outputs.add(name=name, datatype=kind, shape=wire.shape)
        message.raw_output_contents.append(bytes(wire.data))
    return message.SerializeToString()  # type: ignore[no-any-return]


def check(expected: object, got: object, kind: str = "FP32", tolerance: Tolerance = EXACT) -> str | None:
    """What is found where `expected` is expected of output y and `got` comes."""
    spec = TensorSpec("y", kind, (-1,) * np.ndim(expected))  # type: ignore[arg-type]
    answer = expected_answer({"y": expected}, [spec], model="m", tolerance=tolerance)
    return AnswerCheck(answer.encoded(), "grpc").difference(grpc_answer(y=(kind, got)))


@pytest.mark.parametrize("kind", sorted(DATATYPES))
def test_every_data_type_is_right_when_the_same_and_wrong_when_not(kind: str) -> None:
    values: list[Any] = ["a", "größe", "", "\0"] if kind == "BYTES" else [True, False, True, False]
    other: list[Any] = [*values[:3], "x" if kind == "BYTES" else True]
    assert check(values, values, kind) is None
    found = check(values, other, kind)
    assert found is not None
    assert found.startswith("output 'y': ")
    assert "at [3]" in found


@pytest.mark.parametrize("kind", FLOATS)
def test_tolerance_is_absolute_plus_relative(kind: str) -> None:
    want = [100.0, 0.0]
    assert check(want, [101.0, 0.0], kind, Tolerance(rtol=0.011)) is None
    assert check(want, [101.0, 0.0], kind, Tolerance(rtol=0.009)) is not None
    assert check(want, [100.0, 0.0625], kind, Tolerance(rtol=0.5)) is not None, "nothing is relative to zero"
    assert check(want, [100.5, 0.5], kind, Tolerance(atol=0.5)) is None
    assert check(want, [100.5, 1.0], kind, Tolerance(atol=0.5)) is not None


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("tolerance", [EXACT, Tolerance(rtol=1e3, atol=1e30)])
def test_nan_is_right_only_where_that_was_asked_for(kind: str, tolerance: Tolerance) -> None:
    nan = float("nan")
    equal = Tolerance(tolerance.rtol, tolerance.atol, nan_equal=True)
    found = check([1.0, nan], [1.0, nan], kind, tolerance)
    assert found is not None
    assert "nan at [1] where nan is expected (NaN is right only with --nan-equal)" in found
    assert check([1.0, nan], [1.0, nan], kind, equal) is None
    assert check([1.0, nan], [1.0, 2.0], kind, equal) is not None
    assert check([1.0, 2.0], [1.0, nan], kind, equal) is not None, "no tolerance reaches NaN"


@pytest.mark.parametrize("kind", FLOATS)
def test_infinity_is_only_itself(kind: str) -> None:
    far = Tolerance(rtol=1e3, atol=1e30)
    inf = float("inf")
    assert check([inf, -inf], [inf, -inf], kind) is None
    assert check([inf], [-inf], kind, far) is not None
    assert check([inf], [1.0], kind, far) is not None
    assert check([1.0], [inf], kind, far) is not None


def test_signed_zeros_are_equal_and_integers_take_no_tolerance() -> None:
    assert check([0.0], [-0.0]) is None
    assert check([5], [6], "INT32", Tolerance(rtol=1.0, atol=10.0)) is not None
    big = 2**63 - 1
    assert check([big], [big - 1], "INT64") == f"output 'y': {big - 1} at [0] where {big} is expected"


def test_the_first_difference_says_where_and_how_many() -> None:
    want = np.zeros((2, 3), np.float32)
    got = want.copy()
    got[1, 0] = 0.5
    got[1, 2] = 9
    assert check(want, got) == "output 'y': 0.5 at [1, 0] where 0.0 is expected, and 1 more of 6"
    assert check(np.float32(1), np.float32(2)) == "output 'y': 2.0 at [] where 1.0 is expected"


def test_texts_are_shown_and_long_or_binary_ones_cut() -> None:
    assert check(["größe"], ["grösse"], "BYTES") == "output 'y': 'grösse' at [0] where 'größe' is expected"
    found = check([b"\xff" * 500], [b"\xfe"], "BYTES")
    assert found is not None
    assert "b'\\xfe'" in found and "(500 bytes)" in found and len(found) < 200
    assert check(["a", "b"], ["ab", ""], "BYTES") is not None, "the same characters cut otherwise"


def test_shape_type_and_missing_outputs_are_named() -> None:
    spec = TensorSpec("y", "FP32", (-1, 2))
    judge = AnswerCheck(expected_answer({"y": [[1, 2]]}, [spec], model="m"), "grpc")
    assert judge.difference(grpc_answer(y=("FP32", [[1.0, 2.0]]))) is None
    assert judge.difference(grpc_answer(y=("FP32", [[1.0], [2.0]]))) == (
        "output 'y': shape [2, 1] where [1, 2] is expected"
    )
    assert judge.difference(grpc_answer(y=("INT32", [[1, 2]]))) == "output 'y': data type INT32 where FP32 is expected"
    assert judge.difference(grpc_answer(z=("FP32", [[1.0, 2.0]]))) == "output 'y' is missing (the answer has 'z')"
    assert judge.difference(grpc_answer()) == "output 'y' is missing (the answer has none)"
    assert judge.difference(grpc_answer(y=("FP32", [[1.0, 2.0]]), z=("FP32", [7.0]))) is None, "others may be there"


def test_an_answer_is_looked_at_again_when_its_bytes_change() -> None:
    judge = AnswerCheck(expected_answer({"y": [1.0]}, [TensorSpec("y", "FP32", (-1,))], model="m"), "grpc")
    right, wrong = grpc_answer(y=("FP32", [1.0])), grpc_answer(y=("FP32", [2.0]))
    for _ in range(2):
        assert judge.difference(right) is None
        assert judge.difference(wrong) is not None
    assert judge.difference(memoryview(right)) is None


@pytest.mark.parametrize("body", [b"", b"\xff", b"\x0a\x05ab", bytes(range(256))])
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_garbage_is_a_difference_and_never_an_exception(body: bytes, protocol: Any) -> None:
    judge = AnswerCheck(expected_answer({"y": [1.0]}, [TensorSpec("y", "FP32", (-1,))], model="m"), protocol)
    for cut in range(len(body) + 1):
        assert judge.difference(body[:cut]) is not None


def test_damaged_answers_are_differences_and_never_exceptions() -> None:
    generator = np.random.default_rng(7)
    head = {"model_name": "m", "outputs": [{"name": "y", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0]}]}
    bodies = {"grpc": grpc_answer(y=("FP32", [1.0, 2.0]), t=("BYTES", ["ab"])), "http": json.dumps(head).encode()}
    for protocol, body in bodies.items():
        expected = recorded(Reply(body), protocol)  # type: ignore[arg-type]
        for _ in range(3000):
            damaged = bytearray(body)
            for at in generator.integers(0, len(body), generator.integers(1, 4)):
                damaged[at] = generator.integers(0, 256)
            found = AnswerCheck(expected, protocol).difference(bytes(damaged))  # type: ignore[arg-type]
            assert found is None or isinstance(found, str)


@pytest.mark.parametrize("kind", ["FP32", "BYTES"])
def test_tensor_bytes_cut_short_are_named(kind: str) -> None:
    message = service_pb2.ModelInferResponse(model_name="m")
    message.outputs.add(name="y", datatype=kind, shape=[2])
    message.raw_output_contents.append(b"\x01\x00\x00\x00a")
    values: list[Any] = ["a", "b"] if kind == "BYTES" else [1.0, 2.0]
    judge = AnswerCheck(expected_answer({"y": values}, [TensorSpec("y", kind, (2,))], model="m"), "grpc")
    found = judge.difference(message.SerializeToString())
    assert found is not None
    assert "y" in found


def test_http_answers_raw_and_as_json() -> None:
    spec = TensorSpec("y", "FP32", (-1,))
    judge = AnswerCheck(expected_answer({"y": [1.5, 2.0]}, [spec], model="m"), "http")
    head = {"model_name": "m", "outputs": [{"name": "y", "datatype": "FP32", "shape": [2]}]}
    as_json = json.loads(json.dumps(head))
    as_json["outputs"][0]["data"] = [1.5, 2]
    assert judge.difference(json.dumps(as_json).encode()) is None
    as_json["outputs"][0]["data"] = [1.5, "a"]
    found = judge.difference(json.dumps(as_json).encode())
    assert found is not None and "cannot be read from JSON" in found
    head["outputs"][0]["parameters"] = {"binary_data_size": 8}  # type: ignore[index]
    text = json.dumps(head).encode()
    data = np.array([1.5, 2.0], np.float32).tobytes()
    assert judge.difference(text + data, str(len(text))) is None
    assert judge.difference(text + data, "7") is not None
    assert judge.difference(text + data[:-1], str(len(text))) is not None


def test_a_recorded_answer_is_expected_from_then_on() -> None:
    body = grpc_answer(y=("FP32", [1.0, 2.0]), text=("BYTES", ["größe"]))
    answer = recorded(Reply(body), "grpc", tolerance=Tolerance(rtol=0.1))
    again = ExpectedAnswer.decoded(answer.encoded())
    assert again == answer
    judge = AnswerCheck(again, "grpc")
    assert judge.difference(body) is None
    assert judge.difference(grpc_answer(y=("FP32", [1.05, 2.0]), text=("BYTES", ["größe"]))) is None
    assert judge.difference(grpc_answer(y=("FP32", [1.0, 2.0]))) is not None
    assert [t.name for t in recorded(Reply(body), "grpc", outputs=["text"]).tensors] == ["text"]
    with pytest.raises(ServerError, match="malformed"):
        recorded(Reply(b"\xff\xff"), "grpc")


def test_what_an_output_cannot_be_is_refused_by_name() -> None:
    spec = TensorSpec("y", "INT32", (-1, 2))
    with pytest.raises(TensorError, match=r"no output 'z'"):
        expected_answer({"z": [1]}, [spec], model="m")
    with pytest.raises(TensorError, match=r"expected output 'y' has 1 dimension where the model returns 2"):
        expected_answer({"y": [1]}, [spec], model="m")
    with pytest.raises(TensorError, match=r"expected output 'y'.*does not survive"):
        expected_answer({"y": [[1.5, 2]]}, [spec], model="m")


@pytest.mark.parametrize("values", [{"rtol": -1.0}, {"atol": float("nan")}, {"rtol": float("inf")}])
def test_tolerances_without_meaning_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="0 or above"):
        Tolerance(**values)  # type: ignore[arg-type]


def test_other_bytes_are_no_expected_answer() -> None:
    good = expected_answer({"y": [1.0]}, [TensorSpec("y", "FP32", (-1,))], model="m").encoded()
    for bad in (b"", b"\1", good[:-1], good + b"x", good[:6], b"\xff" * 40):
        with pytest.raises(InputError, match="not an expected answer"):
            ExpectedAnswer.decoded(bad)
