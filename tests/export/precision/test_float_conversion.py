"""FP16 and BF16 graphs: what stays in FP32, and that outputs agree with FP32 in the arithmetic of an engine."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from float_models import MODELS, FloatModel, normal, scalar, weight
from onnx import TensorProto, helper, numpy_helper

from tritonstack.errors import GateError, InputError, UsageError
from tritonstack.terminal import Progress
from tritonstack_export.precision.low_precision import FloatConversion, convert_float
from tritonstack_export.precision.output_distance import OutputDistance, output_distance
from tritonstack_export.precision.reference_runner import reference_session
from tritonstack_export.precision.variant_gates import DEFAULT_LIMITS, judge
from tritonstack_export.spec_precision import FloatSettings
from tritonstack_export.step_record import Record

FP16, BF16, FLOAT = TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT


def record() -> Record:
    return Record(Progress())


def convert(
    model: FloatModel, folder: Path, precision: Any = "fp16", settings: FloatSettings | None = None
) -> FloatConversion:
    path = model.write(folder / "fp32.onnx")
    (folder / "out").mkdir()
    out = folder / "out" / "model.onnx"
    return convert_float(path, precision, settings or FloatSettings(), model.samples(), out, record())


def distances(model: FloatModel, fp32: Path, low: Path) -> dict[str, OutputDistance]:
    names = [value.name for value in onnx.load(fp32).graph.output]
    exact, found = reference_session(fp32, names), reference_session(low, names)
    # Other inputs than those that the conversion saw.
    random = np.random.default_rng(99)
    samples = [model.inputs(random) for _ in range(12)]
    rows = [(exact.run(sample), found.run(sample)) for sample in samples]
    return {name: output_distance([a[name] for a, _ in rows], [b[name] for _, b in rows]) for name in names}


@pytest.mark.parametrize("name", MODELS)
def test_fp16_agrees_with_fp32(tmp_path: Path, name: str) -> None:
    model = MODELS[name]
    result = convert(model, tmp_path)
    assert result.problem is None
    for output, distance in distances(model, tmp_path / "fp32.onnx", result.path).items():
        assert judge(distance, DEFAULT_LIMITS["fp16"]) is None, output
    operators = {island.operator for island in result.islands}
    assert model.islands <= operators
    if model.none:
        assert not operators
    # It is a model that can be served: the full checker and ONNX Runtime take it, and its ends are those of FP32.
    onnx.checker.check_model(str(result.path), full_check=True)
    before, after = onnx.load(tmp_path / "fp32.onnx").graph, onnx.load(result.path).graph
    for old, new in zip([*before.input, *before.output], [*after.input, *after.output], strict=True):
        assert (old.name, old.type.tensor_type.elem_type) == (new.name, new.type.tensor_type.elem_type)
    ort.InferenceSession(str(result.path), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", MODELS)
def test_bf16_agrees_with_fp32(tmp_path: Path, name: str) -> None:
    result = convert(MODELS[name], tmp_path, "bf16")
    assert result.problem is None
    for output, distance in distances(MODELS[name], tmp_path / "fp32.onnx", result.path).items():
        assert judge(distance, DEFAULT_LIMITS["bf16"]) is None, output


def test_plain_fp16_of_a_norm_is_finite_and_useless(tmp_path: Path) -> None:
    """What the islands prevent: ONNX Runtime's own CPU kernels would not show it, a test for NaN would not either."""
    from modelopt.onnx.autocast import convert_to_mixed_precision

    model = MODELS["norm_written_out"]
    fp32 = model.write(tmp_path / "fp32.onnx")
    naive = convert_to_mixed_precision(str(fp32), "fp16", data_max=float("inf"), keep_io_types=True, providers=["cpu"])
    onnx.save(naive, tmp_path / "naive.onnx")
    sample = model.samples(1)[0]
    hidden = ort.InferenceSession(str(tmp_path / "naive.onnx")).run(["y"], sample)[0]
    exact = reference_session(fp32, ["y"]).run(sample)["y"]
    shown = reference_session(tmp_path / "naive.onnx", ["y"]).run(sample)["y"]
    assert np.abs(hidden - exact).max() < 0.05
    np.testing.assert_array_equal(shown[0], model.weights["b"].astype(np.float16).astype(np.float32))
    distance = distances(model, fp32, tmp_path / "naive.onnx")["y"]
    assert distance.problem is None
    assert distance.snr_db is not None and distance.snr_db < 1
    assert "SNR" in (judge(distance, DEFAULT_LIMITS["fp16"]) or "")


def test_reasons_name_values_and_limits(tmp_path: Path) -> None:
    result = convert(MODELS["norm_written_out"], tmp_path)
    reasons = {island.operator: island.reason for island in result.islands}
    assert "reaches" in reasons["Mul"] and "65504" in reasons["Mul"]
    assert (result.low, result.total) == (1, 6)
    assert result.weight_bytes < 2 * 64 * 8 + 100


def test_casts_and_resizes_that_were_there(tmp_path: Path) -> None:
    """Scales of Resize stay FP32, and a Cast takes the type of what reads it."""
    make = helper.make_node
    graph = helper.make_graph(
        [
            make("Cast", ["idx"], ["idxf"], to=FLOAT),
            make("Mul", ["x", "k"], ["xm"]),
            make("Resize", ["xm", "", "scales"], ["up"], mode="nearest"),
            make("Add", ["up", "idxf"], ["y"]),
        ],
        "g",
        [
            helper.make_tensor_value_info("x", FLOAT, ["N", 1, 4, 4]),
            helper.make_tensor_value_info("idx", TensorProto.INT64, [1]),
        ],
        [helper.make_tensor_value_info("y", FLOAT, ["N", 1, 8, 8])],
        [
            numpy_helper.from_array(np.array([0.5], np.float32), "k"),
            numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"),
        ],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    sample = {"x": np.ones((1, 1, 4, 4), np.float32), "idx": np.array([3])}
    for precision in ("fp16", "bf16"):
        out = tmp_path / f"{precision}.onnx"
        convert_float(path, precision, FloatSettings(), [sample], out, record())
        model = onnx.load(out)
        onnx.checker.check_model(model, full_check=True)
        assert np.all(reference_session(out, ["y"]).run(sample)["y"] == 3.5)
        resize = next(node for node in model.graph.node if node.op_type == "Resize")
        scales = next(tensor for tensor in model.graph.initializer if tensor.name == resize.input[2])
        assert scales.data_type == FLOAT
        assert [value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)] == [
            FLOAT,
            TensorProto.INT64,
            FLOAT,
        ]
    assert np.all(ort.InferenceSession(str(tmp_path / "fp16.onnx")).run(["y"], sample)[0] == 3.5)


def test_range_and_shape_arithmetic_stays_exact(tmp_path: Path) -> None:
    """Positions from Range, and sizes computed from shapes, in a model of any batch size."""
    text = """g (float[N,L,8] x) => (float[N,L,8] y) {
        s = Shape (x)  l = Gather (s, one)  r = Range (zero, l, step)  f = Cast <to = 1> (r)  p = Mul (f, k)
        u = Unsqueeze (p, axes)  a = Add (x, u)  y = Reshape (a, s) }"""
    weights = {
        "one": np.array(1, np.int64), "zero": np.array(0, np.int64), "step": np.array(1, np.int64),
        "k": scalar(0.01), "axes": np.array([0, 2], np.int64),
    }  # fmt: skip
    model = FloatModel(text, normal(1, 5, 8), weights)
    result = convert(model, tmp_path)
    x = np.random.default_rng(0).standard_normal((3, 40, 8)).astype(np.float32)
    expected = x + 0.01 * np.arange(40, dtype=np.float32)[None, :, None]
    np.testing.assert_allclose(reference_session(result.path, ["y"]).run({"x": x})["y"], expected, atol=4e-3)


@pytest.mark.parametrize(("precision", "kind"), [("fp16", FP16), ("bf16", BF16)])
def test_ends_in_low_precision_where_the_spec_says_so(tmp_path: Path, precision: Any, kind: int) -> None:
    result = convert(MODELS["plain"], tmp_path, precision, FloatSettings(keep_io_types=False))
    graph = onnx.load(result.path).graph
    assert {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)} == {kind}
    assert not [node for node in graph.node if node.op_type == "Cast"]
    sample = MODELS["plain"].samples(1)[0]
    found = reference_session(result.path, ["y"]).run(sample)["y"]
    exact = reference_session(tmp_path / "fp32.onnx", ["y"]).run(sample)["y"]
    np.testing.assert_allclose(found.astype(np.float32), exact, rtol=0.1, atol=0.2)


def test_models_that_take_fp16_already(tmp_path: Path) -> None:
    text = """g (float16[N,16] x) => (float16[N,16] y) {
        f = Cast <to = 1> (x)  s = Mul (f, f)  r = MatMul (s, w)  t = Sqrt (r)  y = Cast <to = 10> (t) }"""
    model = FloatModel(
        text,
        lambda random: {"x": (random.standard_normal((1, 16)) * 400).astype(np.float16)},
        {"w": np.abs(weight(16, 16))},
    )
    result = convert(model, tmp_path)
    assert result.problem is None
    assert {"Mul", "MatMul", "Sqrt"} <= {island.operator for island in result.islands}


def test_nodes_kept_by_the_spec(tmp_path: Path) -> None:
    result = convert(MODELS["plain"], tmp_path, settings=FloatSettings(keep_fp32=["MatMul_0", "Relu"]))
    assert [(island.node, island.reason) for island in result.islands] == [
        ("MatMul_0", "precision.fp16.keep_fp32 says so"),
        ("Relu_1", "precision.fp16.keep_fp32 says so"),
    ]


@pytest.mark.parametrize(("wanted", "said"), [("MatMull", "MatMul"), ("relu_1", "Relu_1"), ("nothing like it", "Relu")])
def test_keep_fp32_that_fits_nothing(tmp_path: Path, wanted: str, said: str) -> None:
    with pytest.raises(UsageError, match=r"precision\.fp16\.keep_fp32: the graph has no node and no operator") as error:
        convert(MODELS["plain"], tmp_path, settings=FloatSettings(keep_fp32=[wanted]))
    assert said in str(error.value)


def test_names_with_special_characters_are_names_not_patterns(tmp_path: Path) -> None:
    path = MODELS["plain"].write(tmp_path / "m.onnx")
    model = onnx.load(path)
    for node, name in zip(model.graph.node, ("/a.b/MatMul", "/a+b/(Relu)", "/axb/MatMul"), strict=True):
        node.name = name
    onnx.save(model, path)
    settings = FloatSettings(keep_fp32=["/a+b/(Relu)"])
    result = convert_float(path, "fp16", settings, MODELS["plain"].samples(), tmp_path / "out.onnx", record())
    assert [island.node for island in result.islands] == ["/a+b/(Relu)"]


def test_no_samples(tmp_path: Path) -> None:
    path = MODELS["plain"].write(tmp_path / "m.onnx")
    with pytest.raises(InputError, match="fp16 needs samples"):
        convert_float(path, "fp16", FloatSettings(), [], tmp_path / "out.onnx", record())


def test_loops_with_low_precision_ends_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GateError, match="loops stay in FP32"):
        convert(MODELS["loop"], tmp_path, settings=FloatSettings(keep_io_types=False))


def test_weights_in_another_file(tmp_path: Path) -> None:
    model = FloatModel(
        "g (float[N,512] x) => (float[N,512] y) { h = MatMul (x, w)  y = Relu (h) }",
        normal(1, 512),
        {"w": weight(512, 512, scale=0.05)},
    )
    path = model.write(tmp_path / "m.onnx")
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "out").mkdir()
    out = tmp_path / "out" / "m.onnx"
    result = convert_float(path, "fp16", FloatSettings(), model.samples(), out, record())
    assert [file.name for file in result.files] == ["m.onnx"]
    assert 2 * 512 * 512 <= out.stat().st_size < 2.2 * 512 * 512
    assert sorted(entry.name for entry in (tmp_path / "out").iterdir()) == ["m.onnx"]


def test_nothing_is_printed_and_nothing_left_behind(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    (tmp_path / "work").mkdir()
    capfd.readouterr()
    convert(MODELS["norm_written_out"], tmp_path / "work")
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")
    assert not list(elsewhere.iterdir())
    assert [entry.name for entry in (tmp_path / "work" / "out").iterdir()] == ["model.onnx"]


_IN_ANOTHER_PROCESS = """
import sys
from pathlib import Path
from float_models import MODELS
from tritonstack.terminal import Progress
from tritonstack_export.precision.low_precision import convert_float
from tritonstack_export.spec_precision import FloatSettings
from tritonstack_export.step_record import Record
source, out, precision, name = sys.argv[1:]
convert_float(Path(source), precision, FloatSettings(), MODELS[name].samples(), Path(out), Record(Progress()))
"""


@pytest.mark.parametrize(("precision", "name"), [("fp16", "rms_norm"), ("bf16", "branches")])
def test_the_same_input_gives_the_same_bytes(tmp_path: Path, precision: str, name: str) -> None:
    """Also in another process, with another order of its sets, and in a folder of another name."""
    digests = []
    for seed in ("1", "2"):
        folder = tmp_path / f"folder_{seed}"
        folder.mkdir()
        source = MODELS[name].write(folder / f"source_{seed}.onnx")
        command = [sys.executable, "-c", _IN_ANOTHER_PROCESS, str(source), str(folder / "out.onnx"), precision, name]
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path})
        digests.append(hashlib.sha256((folder / "out.onnx").read_bytes()).hexdigest())
        assert str(tmp_path).encode() not in (folder / "out.onnx").read_bytes()
    assert digests[0] == digests[1]


def test_weights_that_do_not_fit_into_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As above 2 GB, with a lower limit: the FP32 graph has its weights beside it, and so has the result."""
    monkeypatch.setattr("tritonstack_export.onnx_tensors.SINGLE_FILE_LIMIT", 0)
    model = FloatModel(
        "g (float[N,256] x) => (float[N,256] y) { h = MatMul (x, w)  r = Relu (h)  y = MatMul (r, v) }",
        normal(1, 256),
        {"w": weight(256, 256, scale=0.05), "v": weight(256, 256, scale=0.05)},
    )
    path = model.write(tmp_path / "m.onnx")
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "out").mkdir()
    out = tmp_path / "out" / "model.onnx"
    result = convert_float(path, "fp16", FloatSettings(), model.samples(), out, record())
    assert result.problem is None
    for file in result.files:
        assert file.is_file()
    x = model.samples(1)[0]
    exact = reference_session(path, ["y"]).run(x)["y"]
    np.testing.assert_allclose(reference_session(out, ["y"]).run(x)["y"], exact, atol=5e-3)
    np.testing.assert_allclose(ort.InferenceSession(str(out)).run(["y"], x)[0], exact, atol=5e-3)
