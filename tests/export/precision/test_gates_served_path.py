"""What ONNX Runtime on a CPU makes of a variant, and the options that the config gets for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from float_models import MODELS
from onnx import TensorProto, helper, numpy_helper, parser

from tritonstack.terminal import Progress
from tritonstack_export.precision.low_precision import convert_float
from tritonstack_export.precision.reference_runner import reference_session
from tritonstack_export.precision.served_path import ServedPath, served_path
from tritonstack_export.spec_precision import FloatSettings
from tritonstack_export.step_record import Record

Array = np.ndarray[Any, Any]


def qdq_model(path: Path, scale_type: Any = np.float32) -> Path:
    """Three INT8 layers as TensorRT wants them: symmetric, per-channel weights, scales in FP32 or FP16."""
    random = np.random.default_rng(5)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(scale_type))
    low = kind == TensorProto.FLOAT16
    nodes, weights = [], {}
    value = "x"
    if low:
        nodes.append(helper.make_node("Cast", ["x"], ["x16"], to=kind))
        value = "x16"
    for layer in range(3):
        weight = random.standard_normal((32, 32)).astype(np.float32) / 6
        scale = np.abs(weight).max(axis=0) / 127
        weights |= {
            f"w{layer}": np.clip(np.round(weight / scale), -127, 127).astype(np.int8),
            f"ws{layer}": scale.astype(scale_type),
            f"wz{layer}": np.zeros(32, np.int8),
            f"s{layer}": np.array(4 / 127, scale_type),
            f"z{layer}": np.array(0, np.int8),
        }
        nodes += [
            helper.make_node("QuantizeLinear", [value, f"s{layer}", f"z{layer}"], [f"q{layer}"]),
            helper.make_node("DequantizeLinear", [f"q{layer}", f"s{layer}", f"z{layer}"], [f"d{layer}"]),
            helper.make_node("DequantizeLinear", [f"w{layer}", f"ws{layer}", f"wz{layer}"], [f"dw{layer}"], axis=1),
            helper.make_node("MatMul", [f"d{layer}", f"dw{layer}"], [f"m{layer}"]),
        ]
        value = f"m{layer}"
        if layer < 2:
            nodes.append(helper.make_node("Relu", [value], [f"r{layer}"]))
            value = f"r{layer}"
    nodes.append(helper.make_node("Cast", [value], ["y"], to=TensorProto.FLOAT))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 32])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


def some(count: int = 16) -> list[dict[str, Array]]:
    random = np.random.default_rng(2)
    return [{"x": random.standard_normal((1, 32)).astype(np.float32)} for _ in range(count)]


def by_hand(path: Path, x: Array) -> Array:
    """The Q/DQ graph in numpy, one rounding of activations a layer."""
    weights = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    for layer in range(3):
        scale = np.float32(weights[f"s{layer}"])
        x = np.clip(np.round(x / scale), -128, 127) * scale
        x = x @ (weights[f"w{layer}"].astype(np.float32) * weights[f"ws{layer}"].astype(np.float32))
        x = np.maximum(x, 0) if layer < 2 else x
    return x


def test_the_reference_runner_runs_qdq_in_float(tmp_path: Path) -> None:
    path = qdq_model(tmp_path / "m.onnx")
    x = np.concatenate([sample["x"] for sample in some(64)])
    found = reference_session(path, ["y"]).run({"x": x})["y"]
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    plain = ort.InferenceSession(str(path), options).run(["y"], {"x": x})[0]
    # All but the values that fall on an edge between two steps, where the order of a sum decides.
    assert np.mean(np.abs(found - plain).max(axis=1) < 1e-5) > 0.9
    assert np.mean(np.abs(found - by_hand(path, x)).max(axis=1) < 1e-5) > 0.9
    np.testing.assert_allclose(found, by_hand(path, x), atol=0.1)


def test_the_reference_runner_with_scales_in_fp16(tmp_path: Path) -> None:
    path = qdq_model(tmp_path / "m.onnx", np.float16)
    x = np.concatenate([sample["x"] for sample in some(64)])
    found = reference_session(path, ["y"]).run({"x": x})["y"]
    np.testing.assert_array_equal(found, found.astype(np.float16).astype(np.float32))
    np.testing.assert_allclose(found, by_hand(path, x), atol=0.15)


@pytest.mark.parametrize("scale_type", [np.float32, np.float16])
def test_qdq_graphs_are_served_in_float(tmp_path: Path, scale_type: Any) -> None:
    """INT8 kernels saturate on CPUs without VNNI, and the entry does not know which CPU will serve it."""
    path = qdq_model(tmp_path / "m.onnx", scale_type)
    found = served_path(path, ["y"], some())
    assert found.usable
    assert found.parameters == {"session.disable_quant_qdq": "1"}
    assert found.served_db is not None and found.served_db > 20
    assert found.default_db is not None and found.default_agreement is not None
    assert any("session.disable_quant_qdq=1" in remark for remark in found.remarks)


def test_a_default_that_is_wrong_here_is_told_with_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saturating kernels cannot be had on every machine: a session that answers as they do stands in for one."""
    from tritonstack_export.precision import served_path as module

    real: Callable[..., Any] = module._open

    class Saturated:
        def __init__(self, session: Any) -> None:
            self._session = session

        def run(self, names: list[str], feeds: dict[str, Array]) -> list[Array]:
            return [np.roll(value, 5, axis=1) * 0.3 for value in self._session.run(names, feeds)]

    def open_session(path: Path, parameters: dict[str, str], level: int | None) -> Any:
        session = real(path, parameters, level)
        return session if parameters else Saturated(session)

    monkeypatch.setattr(module, "_open", open_session)
    found = served_path(qdq_model(tmp_path / "m.onnx"), ["y"], some())
    assert found.usable and found.parameters == {"session.disable_quant_qdq": "1"}
    assert found.default_db is not None and found.default_db < 3
    assert "with ONNX Runtime's defaults this CPU would be wrong" in found.remarks[0]
    assert "% of the samples" in found.remarks[0]


def test_without_samples_options_are_set_all_the_same(tmp_path: Path) -> None:
    found = served_path(qdq_model(tmp_path / "m.onnx"), ["y"], [])
    assert found.usable and found.parameters and found.default_db is None and found.served_db is None


def low(tmp_path: Path, precision: Any, **settings: Any) -> Path:
    path = MODELS["plain"].write(tmp_path / "fp32.onnx")
    out = tmp_path / f"{precision}.onnx"
    convert_float(path, precision, FloatSettings(**settings), MODELS["plain"].samples(), out, Record(Progress()))
    return out


def test_fp32_needs_nothing(tmp_path: Path) -> None:
    found = served_path(MODELS["plain"].write(tmp_path / "m.onnx"), ["y"], MODELS["plain"].samples())
    assert (found.usable, found.parameters, found.graph_level, found.remarks) == (True, {}, None, ())


@pytest.mark.parametrize("keep_io_types", [True, False])
def test_fp16_is_right_on_a_cpu(tmp_path: Path, keep_io_types: bool) -> None:
    path = low(tmp_path, "fp16", keep_io_types=keep_io_types)
    found = served_path(path, ["y"], MODELS["plain"].samples())
    assert found.usable and not found.parameters
    assert "computes FP16 in FP32" in found.remarks[0]


def test_bf16_is_for_gpus_only(tmp_path: Path) -> None:
    found = served_path(low(tmp_path, "bf16"), ["y"], MODELS["plain"].samples())
    assert not found.usable
    assert found.reason is not None and "NOT_IMPLEMENTED" in found.reason
    assert "TensorRT engine" in found.remarks[0]


def test_operators_that_onnx_runtime_lacks(tmp_path: Path) -> None:
    graph = parser.parse_graph("g (float[N,4] x) => (float[N,4] y) { y = Relu (x) }")
    graph.node[0].domain = "somewhere.else"
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("somewhere.else", 1)], ir_version=10
    )
    onnx.save(model, tmp_path / "m.onnx")
    assert served_path(tmp_path / "m.onnx", ["y"], []) == ServedPath(
        usable=False,
        reason=served_path(tmp_path / "m.onnx", ["y"], []).reason,
        remarks=served_path(tmp_path / "m.onnx", ["y"], []).remarks,
    )
