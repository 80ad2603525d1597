"""Small graphs that go wrong in FP16, each with inputs that show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

Array = np.ndarray[Any, Any]
Inputs = Callable[[np.random.Generator], dict[str, Array]]


@dataclass(frozen=True)
class FloatModel:
    """`text`: the graph in ONNX's text form; `weights` are added to it. `islands`: operators that have to stay in
    FP32; `none`: no island may be made at all."""

    text: str
    inputs: Inputs
    weights: dict[str, Array] = field(default_factory=dict)
    islands: frozenset[str] = frozenset()
    none: bool = False
    opset: int = 18
    build: Callable[[], onnx.GraphProto] | None = None

    def write(self, path: Path) -> Path:
        graph = self.build() if self.build is not None else parser.parse_graph(self.text)
        graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in self.weights.items())
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, path)
        return path

    def samples(self, count: int = 12) -> list[dict[str, Array]]:
        random = np.random.default_rng(7)
        return [self.inputs(random) for _ in range(count)]


def normal(*shape: int, scale: float = 1.0, shift: float = 0.0, name: str = "x") -> Inputs:
    def make(random: np.random.Generator) -> dict[str, Array]:
        return {name: (random.standard_normal(shape) * scale + shift).astype(np.float32)}

    return make


_RANDOM = np.random.default_rng(3)


def weight(*shape: int, scale: float = 1.0) -> Array:
    return (_RANDOM.standard_normal(shape) * scale).astype(np.float32)


def scalar(value: float) -> Array:
    return np.array(value, np.float32)


AXIS = np.array([-1], np.int64)


def with_mask(random: np.random.Generator) -> dict[str, Array]:
    mask = np.ones((1, 16), np.float32)
    mask[0, random.integers(4, 15) :] = 0
    return {"x": (random.standard_normal((1, 16)) * 4).astype(np.float32), "mask": mask}


def _branches() -> onnx.GraphProto:
    """If with the same weight from around it in both branches, one of which squares what is large."""

    def branch(name: str, operator: str) -> onnx.GraphProto:
        return parser.parse_graph(f"{name} () => (float[N,8] {name}_out) {{ {name}_out = {operator} (h, h) }}")

    graph = parser.parse_graph("g (float[N,8] x, bool flag) => (float[N,8] y) { h = Mul (x, w) }")
    graph.node.append(
        helper.make_node("If", ["flag"], ["p"], then_branch=branch("a", "Mul"), else_branch=branch("b", "Add"))
    )
    graph.node.append(helper.make_node("Mul", ["p", "small"], ["y"]))
    return graph


def _loop() -> onnx.GraphProto:
    body = parser.parse_graph(
        "body (int64 i, bool go, float[N,8] v) => (bool go_on, float[N,8] next) "
        "{ next = MatMul (v, w)  go_on = Identity (go) }"
    )
    graph = parser.parse_graph("g (float[N,8] x) => (float[N,8] y) { h = Relu (x) }")
    graph.node.append(helper.make_node("Loop", ["times", "", "h"], ["y"], body=body))
    return graph


def flag_and_values(random: np.random.Generator) -> dict[str, Array]:
    values = (random.standard_normal((1, 8)) * 500).astype(np.float32)
    return {"x": values, "flag": np.array(bool(random.integers(2)))}


def positions(random: np.random.Generator) -> dict[str, Array]:
    return {"x": random.integers(0, 100_000, (1, 16))}


MODELS: dict[str, FloatModel] = {
    # The norm of 64 values of 100 is 800; the sum of their squares, 640000, is infinite in FP16: x / inf is 0.
    "norm_written_out": FloatModel(
        """g (float[N,64] x) => (float[N,8] y) {
            s = Mul (x, x)  n = ReduceSum (s, axis)  r = Sqrt (n)  e = Add (r, eps)  u = Div (x, e)
            y = Gemm (u, w, b) }""",
        normal(1, 64, scale=100),
        {"axis": AXIS, "eps": scalar(1e-6), "w": weight(64, 8), "b": weight(8, scale=10)},
        frozenset({"Mul", "ReduceSum", "Sqrt", "Div"}),
    ),
    "norm_as_one_operator": FloatModel(
        """g (float[N,64] x) => (float[N,64] y) {
            n = ReduceL2 (x, axis)  e = Clip (n, eps)  y = Div (x, e) }""",
        normal(1, 64, scale=100),
        {"axis": AXIS, "eps": scalar(1e-12)},
        frozenset({"ReduceL2", "Div"}),
    ),
    "rms_norm": FloatModel(
        """g (float[N,64] x) => (float[N,64] y) {
            s = Pow (x, two)  m = ReduceMean (s, axis)  a = Add (m, eps)  r = Sqrt (a)  i = Reciprocal (r)
            u = Mul (x, i)  y = Mul (u, w) }""",
        normal(1, 64, scale=1000),
        {"axis": AXIS, "eps": scalar(1e-6), "two": scalar(2), "w": weight(64)},
        frozenset({"Pow", "ReduceMean", "Reciprocal"}),
    ),
    # Squares of 1e-5 are 1e-10, which is 0 in FP16.
    "rms_norm_of_small_values": FloatModel(
        """g (float[N,64] x) => (float[N,64] y) {
            s = Pow (x, two)  m = ReduceMean (s, axis)  a = Add (m, eps)  r = Sqrt (a)  y = Div (x, r) }""",
        normal(1, 64, scale=1e-3),
        {"axis": AXIS, "eps": scalar(1e-12), "two": scalar(2)},
        frozenset({"Pow", "ReduceMean", "Div"}),
    ),
    "layer_norm_written_out": FloatModel(
        """g (float[N,64] x) => (float[N,64] y) {
            m = ReduceMean <axes = [-1]> (x)  d = Sub (x, m)  p = Pow (d, two)  v = ReduceMean <axes = [-1]> (p)
            a = Add (v, eps)  r = Sqrt (a)  q = Div (d, r)  s = Mul (q, w)  y = Add (s, b) }""",
        normal(1, 64, scale=300),
        {"eps": scalar(1e-5), "two": scalar(2), "w": weight(64), "b": weight(64)},
        opset=17,
    ),
    "variance_near_zero": FloatModel(
        """g (float[N,4,6,6] x) => (float[N,4,6,6] y) {
            c = Conv <kernel_shape = [1, 1]> (x, w)  y = BatchNormalization <epsilon = 1e-10> (c, one, b, b, v) }""",
        normal(1, 4, 6, 6),
        {"w": weight(4, 4, 1, 1, scale=1e-4), "one": np.ones(4, np.float32), "b": np.zeros(4, np.float32),
         "v": np.full(4, 1e-8, np.float32)},
    ),
    "mask_by_where": FloatModel(
        """g (float[N,16] x, float[N,16] mask) => (float[N,16] y) {
            keep = Cast <to = 9> (mask)  s = Where (keep, x, low)  y = Softmax <axis = -1> (s) }""",
        with_mask,
        {"low": scalar(-1e9)},
        none=True,
    ),
    "mask_by_lowest_float": FloatModel(
        """g (float[N,16] x, float[N,16] mask) => (float[N,16] y) {
            inv = Sub (one, mask)  m = Mul (inv, low)  s = Add (x, m)  y = Softmax <axis = -1> (s) }""",
        with_mask,
        {"one": scalar(1), "low": scalar(np.finfo(np.float32).min)},
        none=True,
    ),
    "mask_by_large_factor": FloatModel(
        """g (float[N,16] x, float[N,16] mask) => (float[N,16] y) {
            inv = Sub (mask, one)  m = Mul (inv, high)  s = Add (x, m)  y = Softmax <axis = -1> (s) }""",
        with_mask,
        {"one": scalar(1), "high": scalar(1e9)},
        none=True,
    ),
    # A mask that is published too cannot be softened: the scores stay in FP32.
    "mask_that_is_an_output": FloatModel(
        """g (float[N,16] x, float[N,16] mask) => (float[N,16] y, float[N,16] s) {
            keep = Cast <to = 9> (mask)  s = Where (keep, x, low)  y = Softmax <axis = -1> (s) }""",
        with_mask,
        {"low": scalar(-1e9)},
        frozenset({"Where", "Softmax"}),
    ),
    "mask_of_minus_infinity": FloatModel(
        """g (float[N,16] x, float[N,16] mask) => (float[N,16] y) {
            keep = Cast <to = 9> (mask)  s = Where (keep, x, low)  y = Softmax <axis = -1> (s) }""",
        with_mask,
        {"low": scalar(-np.inf)},
        none=True,
    ),
    # A row that is masked wholly gives NaN, which the graph replaces by 0: -65504 in place of -inf gives no NaN.
    "mask_of_minus_infinity_with_a_guard": FloatModel(
        """g (float[N,16] x, float[N,16] mask) => (float[N,16] y) {
            keep = Cast <to = 9> (mask)  s = Where (keep, x, low)  p = Softmax <axis = -1> (s)
            bad = IsNaN (p)  y = Where (bad, zero, p) }""",
        lambda random: {
            "x": random.standard_normal((1, 16)).astype(np.float32),
            "mask": (np.arange(16) < random.integers(0, 3)).astype(np.float32)[None],
        },
        {"low": scalar(-np.inf), "zero": scalar(0)},
    ),
    "weights_beyond_fp16": FloatModel(
        "g (float[N,16] x) => (float[N,4] y) { h = MatMul (x, w)  y = MatMul (h, v) }",
        normal(1, 16, scale=1e-3),
        {"w": weight(16, 16, scale=1e5), "v": weight(16, 4, scale=0.1)},
        frozenset({"MatMul"}),
    ),
    "weights_below_fp16": FloatModel(
        "g (float[N,16] x) => (float[N,4] y) { h = MatMul (x, w)  y = Mul (h, k) }",
        normal(1, 16, scale=100),
        {"w": weight(16, 4, scale=1e-8), "k": scalar(1e4)},
        frozenset({"MatMul"}),
    ),
    "gelu_by_erf": FloatModel(
        """g (float[N,32] x) => (float[N,32] y) {
            d = Div (x, root)  e = Erf (d)  a = Add (e, one)  m = Mul (x, a)  y = Mul (m, half) }""",
        normal(1, 32, scale=2),
        {"root": scalar(2**0.5), "one": scalar(1), "half": scalar(0.5)},
        none=True,
    ),
    "mean_over_a_large_map": FloatModel(
        "g (float[N,3,128,128] x) => (float[N,3,1,1] y) { r = Relu (x)  y = GlobalAveragePool (r) }",
        lambda random: {
            "x": (random.standard_normal((1, 3, 128, 128)) + random.uniform(5, 20, (1, 3, 1, 1))).astype(np.float32)
        },
        islands=frozenset({"GlobalAveragePool"}),
    ),
    "scores_before_their_scale": FloatModel(
        """g (float[N,8,32] q, float[N,8,32] k) => (float[N,8,8] y) {
            t = Transpose <perm = [0, 2, 1]> (k)  s = MatMul (q, t)  c = Mul (s, scale)
            y = Softmax <axis = -1> (c) }""",
        lambda random: {
            name: (random.standard_normal((1, 8, 32)) * 100).astype(np.float32) for name in ("q", "k")
        },
        {"scale": scalar(1e-5)},
        frozenset({"MatMul", "Mul"}),
    ),
    "exponentials": FloatModel(
        """g (float[N,16] x) => (float[N,1] y) { e = Exp (x)  s = ReduceSum (e, axis)  y = Log (s) }""",
        normal(1, 16, scale=6),
        {"axis": AXIS},
        frozenset({"Exp", "ReduceSum", "Log"}),
    ),
    "exponentials_as_one_operator": FloatModel(
        "g (float[N,16] x) => (float[N,1] y) { y = ReduceLogSumExp (x, axis) }",
        normal(1, 16, scale=6),
        {"axis": AXIS},
        frozenset({"ReduceLogSumExp"}),
    ),
    # The smallest probabilities are 1e-15: FP16 makes them 0, whose logarithm is -inf.
    "logarithm_of_probabilities": FloatModel(
        "g (float[N,16] x) => (float[N,16] y) { p = Softmax <axis = -1> (x)  y = Log (p) }",
        normal(1, 16, scale=10),
        islands=frozenset({"Softmax", "Log"}),
    ),
    # All values fit, but differences of 0.01 vanish beside 1000, where FP16 counts in halves.
    "cancellation": FloatModel(
        "g (float[N,16] x) => (float[N,16] y) { a = Add (x, far)  b = Relu (a)  y = Sub (b, far) }",
        normal(1, 16, scale=0.1),
        {"far": scalar(1000)},
        frozenset({"Add", "Sub"}),
    ),
    # A detector: boxes and scores in one output. The scores vanish beside 4000, which the boxes of 300 hide.
    "scores_beside_boxes": FloatModel(
        """g (float[N,4,32] x) => (float[N,8,32] y) {
            b = Mul (x, size)  a = Add (x, far)  r = Relu (a)  d = Sub (r, far)  s = Sigmoid (d)
            y = Concat <axis = 1> (b, s) }""",
        normal(1, 4, 32),
        {"size": scalar(300), "far": scalar(4000)},
        frozenset({"Add", "Sub"}),
    ),
    "positions": FloatModel(
        "g (int64[N,16] x) => (float[N,16] y) { f = Cast <to = 1> (x)  m = Mul (f, w)  y = Sin (m) }",
        positions,
        {"w": np.geomspace(1e-4, 1, 16).astype(np.float32)},
        frozenset({"Mul"}),
    ),
    "branches": FloatModel(
        "", flag_and_values, {"w": weight(8), "small": scalar(1e-3)}, build=_branches
    ),
    "loop": FloatModel("", normal(1, 8), {"w": weight(8, 8), "times": np.array(3, np.int64)}, build=_loop),
    "outputs_of_several_types": FloatModel(
        """g (float[N,32] x) => (float[N,4] y, int64[N] best, bool[N,4] large) {
            y = MatMul (x, w)  best = ArgMax <axis = 1, keepdims = 0> (y)  large = Greater (y, zero) }""",
        normal(1, 32),
        {"w": weight(32, 4), "zero": scalar(0)},
    ),
    "plain": FloatModel(
        "g (float[N,16] x) => (float[N,4] y) { h = MatMul (x, w)  r = Relu (h)  y = MatMul (r, v) }",
        normal(1, 16),
        {"w": weight(16, 16), "v": weight(16, 4)},
        none=True,
    ),
}  # fmt: skip
