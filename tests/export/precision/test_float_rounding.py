"""The reference runner against numpy's float16 and ml_dtypes' bfloat16, node by node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tritonstack_export.precision.reference_runner import reference_session

LOW = {
    "fp16": (TensorProto.FLOAT16, np.dtype(np.float16)),
    "bf16": (TensorProto.BFLOAT16, np.dtype(ml_dtypes.bfloat16)),
}
make = helper.make_node


def write(
    path: Path,
    nodes: list[Any],
    inputs: dict[str, tuple[int, list[Any]]],
    outputs: dict[str, tuple[int, list[Any]]],
    weights: dict[str, np.ndarray[Any, Any]] | None = None,
    *,
    opset: int = 20,
) -> Path:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, *what) for name, what in inputs.items()],
        [helper.make_tensor_value_info(name, *what) for name, what in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.save(model, path)
    return path


def rounded(values: np.ndarray[Any, Any], low: np.dtype[Any]) -> np.ndarray[Any, Any]:
    with np.errstate(all="ignore"):
        return values.astype(low).astype(np.float32)


def awkward() -> np.ndarray[Any, Any]:
    """All magnitudes, and the ends of both types: FP16 is 0 below 2^-25 and infinite from 65520 on."""
    random = np.random.default_rng(0)
    spread = random.standard_normal(4000) * 10.0 ** random.uniform(-12, 8, 4000)
    ends = [
        2.0**-25,
        2.0**-24,
        3e-8,
        6e-8,
        6.1e-5,
        65504,
        65519,
        65520,
        7e4,
        3.39e38,
        np.inf,
        -np.inf,
        np.nan,
        0.0,
        -0.0,
    ]
    return np.concatenate([spread, ends]).astype(np.float32)


OPERATORS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "Mul": ("Mul", lambda a, r: r(a * a)),
    "Add": ("Add", lambda a, r: r(a + a)),
    "Div": ("Div", lambda a, r: r(a / a)),
    "Max": ("Max", lambda a, r: a),
}


@pytest.mark.parametrize("precision", LOW)
@pytest.mark.parametrize("operator", OPERATORS)
def test_a_node_gives_what_numpy_gives(tmp_path: Path, precision: str, operator: str) -> None:
    kind, low = LOW[precision]
    name, expected = OPERATORS[operator]
    nodes = [
        make("Cast", ["x"], ["h"], to=kind),
        make(name, ["h", "h"], ["p"]),
        make("Cast", ["p"], ["y"], to=TensorProto.FLOAT),
    ]
    path = write(tmp_path / "m.onnx", nodes, {"x": (1, ["n"])}, {"y": (1, ["n"])})
    x = awkward()
    found = reference_session(path, ["y"]).run({"x": x})["y"]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, expected(rounded(x, low), lambda v: rounded(v, low)))


@pytest.mark.parametrize("precision", LOW)
def test_inputs_and_outputs_of_a_low_type(tmp_path: Path, precision: str) -> None:
    kind, low = LOW[precision]
    path = write(tmp_path / "m.onnx", [make("Mul", ["x", "x"], ["y"])], {"x": (kind, ["n"])}, {"y": (kind, ["n"])})
    session = reference_session(path, ["y"])
    x = np.array([1.0001, 300.0, 1e-5], np.float32)
    found = session.run({"x": x})["y"]
    assert found.dtype == low
    with np.errstate(over="ignore"):
        expected = rounded(rounded(x, low) ** 2, low)
    np.testing.assert_array_equal(found.astype(np.float32), expected)
    np.testing.assert_array_equal(session.run({"x": x.astype(low)})["y"], found)


@pytest.mark.parametrize("opset", [12, 17, 20])
@pytest.mark.parametrize("operator", ["ReduceL2", "ReduceSumSquare", "ReduceL1", "ReduceLogSumExp"])
def test_compound_reductions_overflow_inside(tmp_path: Path, operator: str, opset: int) -> None:
    """TensorRT squares and sums in FP16: the norm of 64 values of 100 is 800, its square does not fit."""
    axes = {"axes": [1]} if opset < 18 else {}
    nodes = [
        make("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        make(operator, ["h"] if axes else ["h", "axes"], ["p"], keepdims=0, **axes),
        make("Cast", ["p"], ["y"], to=1),
    ]
    weights = {} if axes else {"axes": np.array([1], np.int64)}
    path = write(tmp_path / "m.onnx", nodes, {"x": (1, ["n", 64])}, {"y": (1, ["n"])}, weights, opset=opset)
    session = reference_session(path, ["y"])
    small = np.full((2, 64), 0.5, np.float32)
    exact = {
        "ReduceL2": 4.0,
        "ReduceSumSquare": 16.0,
        "ReduceL1": 32.0,
        "ReduceLogSumExp": 0.5 + np.log(64),
    }[operator]
    np.testing.assert_allclose(session.run({"x": small})["y"], exact, rtol=1e-3)
    large = {"ReduceL1": 2000, "ReduceLogSumExp": 12}.get(operator, 100)
    assert np.isinf(session.run({"x": small * 2 * large})["y"]).all()


def test_weights_and_constants_are_rounded_once(tmp_path: Path) -> None:
    weight = np.array([1e-8, 3e-8, 1.0001, 65504], np.float16)
    nodes = [
        make("Constant", [], ["c"], value=numpy_helper.from_array(np.array([0.1], np.float16))),
        make("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        make("Mul", ["h", "w"], ["p"]),
        make("Add", ["p", "c"], ["q"]),
        make("Cast", ["q"], ["y"], to=1),
    ]
    path = write(tmp_path / "m.onnx", nodes, {"x": (1, [4])}, {"y": (1, [4])}, {"w": weight})
    x = np.array([1, 1, 1, 1], np.float32)
    found = reference_session(path, ["y"]).run({"x": x})["y"]
    np.testing.assert_array_equal(found, (x.astype(np.float16) * weight + np.float16(0.1)).astype(np.float32))


def test_subgraphs_are_rounded_too(tmp_path: Path) -> None:
    """Values of a branch that come from around it, and weights within it."""
    low = TensorProto.FLOAT16

    def branch(name: str, factor: float) -> Any:
        return helper.make_graph(
            [make("Mul", ["h", f"w_{name}"], [f"m_{name}"]), make("Mul", [f"m_{name}", "h"], [f"out_{name}"])],
            name,
            [],
            [helper.make_tensor_value_info(f"out_{name}", low, ["n"])],
            [numpy_helper.from_array(np.array([factor], np.float16), f"w_{name}")],
        )

    nodes = [
        make("Cast", ["x"], ["h"], to=low),
        make("If", ["flag"], ["p"], then_branch=branch("a", 300.0), else_branch=branch("b", 1.0)),
        make("Cast", ["p"], ["y"], to=1),
    ]
    path = write(tmp_path / "m.onnx", nodes, {"x": (1, ["n"]), "flag": (TensorProto.BOOL, [])}, {"y": (1, ["n"])})
    session = reference_session(path, ["y"])
    x = np.array([250.0, 1.25], np.float32)
    assert session.run({"x": x, "flag": np.array(True)})["y"].tolist() == [np.inf, 468.75]
    assert session.run({"x": x, "flag": np.array(False)})["y"].tolist() == [62496.0, 1.5625]


def test_loop_bodies_are_rounded_too(tmp_path: Path) -> None:
    low = TensorProto.FLOAT16
    body = helper.make_graph(
        [make("Mul", ["v", "v"], ["next"]), make("Identity", ["go"], ["go_on"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", low, [1]),
        ],
        [helper.make_tensor_value_info("go_on", TensorProto.BOOL, []), helper.make_tensor_value_info("next", low, [1])],
    )
    nodes = [
        make("Cast", ["x"], ["h"], to=low),
        make("Loop", ["times", "", "h"], ["p"], body=body),
        make("Cast", ["p"], ["y"], to=1),
    ]
    weights = {"times": np.array(3, np.int64)}
    path = write(tmp_path / "m.onnx", nodes, {"x": (1, [1])}, {"y": (1, [1])}, weights)
    session = reference_session(path, ["y"])
    expected = np.float16(1.1)
    for _ in range(3):
        expected = expected * expected
    assert session.run({"x": np.array([1.1], np.float32)})["y"].tolist() == [float(expected)]
    assert np.isinf(session.run({"x": np.array([5], np.float32)})["y"]).all()


def test_convolutions_sum_in_fp32_and_round_once(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    weight = random.standard_normal((8, 3, 3, 3)).astype(np.float16)
    nodes = [
        make("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        make("Conv", ["h", "w"], ["p"], pads=[1, 1, 1, 1]),
        make("Relu", ["p"], ["r"]),
        make("Cast", ["r"], ["y"], to=1),
    ]
    path = write(tmp_path / "m.onnx", nodes, {"x": (1, [1, 3, 8, 8])}, {"y": (1, [1, 8, 8, 8])}, {"w": weight})
    plain = write(
        tmp_path / "p.onnx",
        [make("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
        {"x": (1, [1, 3, 8, 8])},
        {"y": (1, [1, 8, 8, 8])},
        {"w": weight.astype(np.float32)},
    )
    x = random.standard_normal((1, 3, 8, 8)).astype(np.float32)
    exact = reference_session(plain, ["y"]).run({"x": x.astype(np.float16).astype(np.float32)})["y"]
    found = reference_session(path, ["y"]).run({"x": x})["y"]
    wanted = np.maximum(exact, 0).astype(np.float16).astype(np.float32)
    # The order of the sums may move a value over the edge between two neighbours of the grid.
    assert np.count_nonzero(found != wanted) <= 2
    np.testing.assert_allclose(found, wanted, rtol=2**-10, atol=2e-6)
