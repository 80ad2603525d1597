"""What the INT8 graph looks like: the form that TensorRT reads as INT8, the same bytes each time, nothing lost."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from int8_graphs import IMAGES, counts, image_net, model, random, run, samples, save, vectors
from onnx import helper, numpy_helper

from tritonstack.errors import InputError, UsageError
from tritonstack.terminal import Progress
from tritonstack_export.precision.dataset import collect
from tritonstack_export.precision.int8_model import Int8Result, make_int8
from tritonstack_export.precision.layer_fallback import Verdict
from tritonstack_export.precision.quantization import quantize_weight
from tritonstack_export.signature import Dimension, ModelInput, Signature
from tritonstack_export.spec_precision import Int8Settings
from tritonstack_export.step_record import Record


def quantize(
    proto: onnx.ModelProto, folder: Path, signature: Signature, half: Path | None = None, **settings: Any
) -> Int8Result:
    return make_int8(
        save(proto, folder),
        samples(signature),
        signature,
        Int8Settings(**settings),
        passes=lambda _: Verdict(True),
        out=folder / "int8.onnx",
        record=Record(Progress(quiet=True)),
        half=half,
    )


def require_tensorrt_form(path: Path) -> None:
    """Zero points 0 and INT8, scales above 0, no INT32 codes, no operator that TensorRT does not know."""
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    values = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    assert not {"QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear"} & set(
        counts(path)
    )
    for node in proto.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            scale, zero = values[node.input[1]], values[node.input[2]]
            assert (scale > 0).all()
            assert np.isfinite(scale).all()
            assert zero.dtype == np.int8
            assert not zero.any()
            if node.input[0] in values:
                assert values[node.input[0]].dtype == np.int8
                assert values[node.input[0]].min() >= -127


def test_every_layer_gets_scales_and_int8_weights(tmp_path: Path) -> None:
    result = quantize(image_net(), tmp_path, IMAGES)
    assert (result.quantized, result.total, result.excluded) == (4, 4, ())
    require_tensorrt_form(result.path)
    found = counts(result.path)
    assert (found["QuantizeLinear"], found["DequantizeLinear"]) == (4, 8)
    proto = onnx.load(result.path)
    floats = [t.name for t in proto.graph.initializer if t.data_type == onnx.TensorProto.FLOAT and len(t.dims) > 1]
    assert floats == []
    image = {"image": random(4, 3, 16, 16, seed=9)}
    reference, quantized = run(tmp_path / "fp32.onnx", image)["logits"], run(result.path, image)["logits"]
    assert 0 < np.abs(reference - quantized).max() < 0.05 * np.abs(reference).max()
    # The optimisations that the gates run with change the rounding of a code here and there, not more.
    assert np.abs(run(result.path, image, plain=True)["logits"] - quantized).max() < 0.02 * np.abs(reference).max()


def test_weights_are_a_quarter_of_the_size(tmp_path: Path) -> None:
    weights = {"w": random(512, 512)}
    proto = model([helper.make_node("MatMul", ["x", "w"], ["y"], name="m")], weights, {"x": ["batch", 512]},
                  {"y": ["batch", 512]})  # fmt: skip
    result = quantize(proto, tmp_path, vectors(512))
    assert result.path.stat().st_size < 0.27 * (tmp_path / "fp32.onnx").stat().st_size


def test_same_input_gives_same_bytes_in_two_processes(tmp_path: Path) -> None:
    script = (
        "import sys, hashlib; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from test_int8_graph import *\n"
        "result = quantize(image_net(), Path(sys.argv[2]), IMAGES)\n"
        "print(hashlib.sha256(result.path.read_bytes()).hexdigest(), result.calibration_sha256)\n"
    )
    printed = []
    for name, seed in (("a", "1"), ("b", "2")):
        (tmp_path / name).mkdir()
        command = [sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path / name)]
        printed.append(
            subprocess.run(command, check=True, capture_output=True, text=True, env={"PYTHONHASHSEED": seed}).stdout
        )
    assert printed[0] == printed[1]


def test_scales_and_codes_are_those_of_onnxruntimes_quantizer(tmp_path: Path) -> None:
    """With the same ranges, ONNX Runtime's own quantizer makes the same weights, and scales within its last digits."""
    import logging

    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.calibrate import CalibrationMethod, TensorData, TensorsData
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    result = quantize(image_net(), tmp_path, IMAGES, method="max")
    mine = {t.name: numpy_helper.to_array(t) for t in onnx.load(result.path).graph.initializer}
    activations = {"stem": "image", "depthwise": "r1", "project": "c2", "head": "f"}
    ranges = {name: float(mine[f"{name}_int8_scale"]) * 127 for name in activations.values()}
    every = [*ranges, "c1", "c3", "r3", "g", "logits"]
    data = {n: TensorData(lowest=np.float32(-ranges.get(n, 1)), highest=np.float32(ranges.get(n, 1))) for n in every}
    logging.disable(logging.WARNING)
    quantizer = QDQQuantizer(
        onnx.shape_inference.infer_shapes(image_net()), True, False, QuantType.QInt8, QuantType.QInt8,
        TensorsData(CalibrationMethod.MinMax, data), [], [], ["Conv", "Gemm"],
        {"QuantizeBias": False, "ActivationSymmetric": True, "WeightSymmetric": True,
         "QDQDisableWeightAdjustForInt32Bias": True,
         "OpTypesToExcludeOutputQuantization": ["Conv", "Gemm"]},
    )  # fmt: skip
    quantizer.quantize_model()
    logging.disable(logging.NOTSET)
    theirs = {t.name: numpy_helper.to_array(t) for t in quantizer.model.model.graph.initializer}
    for name in ("w1", "w2", "w3", "w4"):
        scales = theirs[f"{name}_scale"]
        # ONNX Runtime divides the range of 2 · max by 254 or 255 steps, depending on its version.
        assert np.allclose(mine[f"{name}_int8_scale"], scales, rtol=0.005)
        assert np.abs(mine[f"{name}_int8"].astype(int) - theirs[f"{name}_quantized"].astype(int)).max() <= 1
    for name in activations.values():
        assert np.allclose(mine[f"{name}_int8_scale"], theirs[f"{name}_scale"], rtol=0.005)


def test_channels_lie_along_the_right_axis(tmp_path: Path) -> None:
    """Channels of very different size in every kind of layer: a scale along a wrong axis loses the small ones."""
    growth = np.float32(10.0) ** np.arange(-3, 3, dtype=np.float32)
    weights = {
        "conv": random(6, 2, 3, 3, seed=1) * growth[:, None, None, None],
        "transposed_conv": random(6, 6, 2, 2, seed=2) / growth[:, None, None, None] * growth[None, :, None, None],
        "gemm_t": random(6, 24, seed=3) * growth[:, None] / 100,
        "gemm": random(6, 6, seed=4) / growth[:, None] * growth[None, :],
        "matmul": random(6, 6, seed=5) / growth[:, None] * growth[None, :],
        "left": random(6, 6, seed=6) * growth[:, None],
    }
    make = helper.make_node
    nodes = [
        make("Conv", ["image", "conv"], ["a"], name="conv_1"),
        make("ConvTranspose", ["a", "transposed_conv"], ["b"], name="conv_2", strides=[2, 2]),
        make("Slice", ["b", "from", "to", "axes"], ["c"], name="cut"),
        make("Flatten", ["c"], ["d"], name="flat"),
        make("Gemm", ["d", "gemm_t"], ["e"], name="gemm_1", transB=1),
        make("Gemm", ["e", "gemm"], ["g"], name="gemm_2"),
        make("MatMul", ["g", "matmul"], ["h"], name="matmul_1"),
        make("Unsqueeze", ["h", "axes_2"], ["i"], name="column"),
        make("MatMul", ["left", "i"], ["j"], name="matmul_2"),
    ]
    weights |= {"from": np.array([0, 0]), "to": np.array([2, 2]), "axes": np.array([2, 3]), "axes_2": np.array([2])}
    outputs = {"a": ["batch", 6, 4, 4], "b": ["batch", 6, 8, 8], "e": ["batch", 6], "h": ["batch", 6]}
    proto = model(nodes, weights, {"image": ["batch", 2, 6, 6]}, {**outputs, "j": ["batch", 6, 1]})
    signature = Signature((ModelInput("image", "float32", ("batch", 2, 6, 6)),), IMAGES.dimensions, True)
    result = quantize(proto, tmp_path, signature, op_types=["Conv", "ConvTranspose", "Gemm", "MatMul"], method="max")
    assert result.quantized == 6
    require_tensorrt_form(result.path)
    values = {t.name: numpy_helper.to_array(t) for t in onnx.load(result.path).graph.initializer}
    axes = {"conv": 0, "transposed_conv": 1, "gemm_t": 0, "gemm": 1, "matmul": 1, "left": 0}
    for name, axis in axes.items():
        shape = [-1 if a == axis else 1 for a in range(weights[name].ndim)]
        back = values[f"{name}_int8"].astype(np.float32) * values[f"{name}_int8_scale"].reshape(shape)
        step = np.broadcast_to(values[f"{name}_int8_scale"].reshape(shape), back.shape)
        assert (np.abs(back - weights[name]) <= 0.5001 * step).all(), name
        # Each channel uses the whole range of codes.
        others = tuple(a for a in range(back.ndim) if a != axis)
        assert (np.abs(values[f"{name}_int8"]).max(axis=others) == 127).all(), name


def test_constants_behind_transposes_count_as_weights(tmp_path: Path) -> None:
    weight = random(4, 6, seed=1)
    nodes = [
        helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(random(4, 4, seed=2))),
        helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "wt"], ["a"]),
        helper.make_node("Identity", ["k"], ["ki"]),
        helper.make_node("MatMul", ["a", "ki"], ["y"]),
    ]
    proto = model(nodes, {"w": weight}, {"x": ["batch", 6]}, {"y": ["batch", 4]})
    result = quantize(proto, tmp_path, vectors(6))
    assert result.quantized == 2
    assert counts(result.path) == {"MatMul": 2, "QuantizeLinear": 2, "DequantizeLinear": 4}
    inputs = {"x": random(3, 6)}
    assert np.allclose(run(result.path, inputs)["y"], run(tmp_path / "fp32.onnx", inputs)["y"], atol=0.3)
    names = [node.name for node in onnx.load(result.path).graph.node]
    assert all(names)
    assert len(set(names)) == len(names)


def test_shared_weights_and_activations_are_quantized_once(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("MatMul", ["x", "w"], ["b"], name="second"),
        helper.make_node("Add", ["a", "b"], ["y"], name="sum"),
    ]
    proto = model(nodes, {"w": random(6, 6)}, {"x": ["batch", 6]}, {"y": ["batch", 6]})
    result = quantize(proto, tmp_path, vectors(6))
    assert counts(result.path) == {"QuantizeLinear": 1, "DequantizeLinear": 2, "MatMul": 2, "Add": 1}


def test_an_excluded_layer_reads_unrounded_values_beside_a_quantized_one(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("MatMul", ["x", "w"], ["b"], name="second"),
    ]
    proto = model(nodes, {"w": random(6, 6)}, {"x": ["batch", 6]}, {"a": ["batch", 6], "b": ["batch", 6]})
    result = quantize(proto, tmp_path, vectors(6), exclude=["second"])
    inputs = {"x": random(3, 6)}
    reference, found = run(tmp_path / "fp32.onnx", inputs), run(result.path, inputs)
    assert np.array_equal(reference["b"], found["b"])
    assert not np.array_equal(reference["a"], found["a"])
    assert [(e.name, e.reason, e.sensitivity_db) for e in result.excluded] == [("second", "excluded by the spec", None)]
    assert (result.macs_share, result.bytes_share) == (0.5, 0.5)


def test_products_of_two_activations_are_left_alone(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="projection"),
        helper.make_node("Transpose", ["a"], ["t"], name="turn", perm=[1, 0]),
        helper.make_node("MatMul", ["a", "t"], ["y"], name="attention"),
    ]
    proto = model(nodes, {"w": random(6, 6)}, {"x": ["batch", 6]}, {"y": ["batch", "batch"]})
    assert quantize(proto, tmp_path, vectors(6)).total == 1


def test_zero_and_tiny_channels_have_sound_scales() -> None:
    weight = np.zeros((3, 4), np.float32)
    weight[1] = 1e-42
    weight[2] = [1, -2, 3, -4]
    made = quantize_weight(weight, 0)
    assert (made.scale > 0).all()
    assert made.scale.min() >= np.finfo(np.float32).smallest_normal
    assert not made.codes[:2].any()
    assert made.codes[2].tolist() == [32, -64, 95, -127]
    half = quantize_weight(np.array([[1e-7, 0], [1, 2]], np.float16), 0)
    assert half.scale.dtype == np.float16
    assert half.scale.min() >= np.finfo(np.float16).smallest_normal


def test_fp16_around_int8(tmp_path: Path) -> None:
    from tritonstack_export.precision.low_precision import convert_float
    from tritonstack_export.precision.reference_runner import reference_session
    from tritonstack_export.spec_precision import FloatSettings

    path = save(image_net(), tmp_path)
    data, half = samples(IMAGES), tmp_path / "fp16.onnx"
    convert_float(path, "fp16", FloatSettings(), data.samples, half, Record(Progress(quiet=True)))
    result = quantize(image_net(), tmp_path, IMAGES, half, rest="fp16")
    require_tensorrt_form(result.path)
    scales = {t.data_type for t in onnx.load(result.path).graph.initializer if t.name.endswith("_scale")}
    assert scales == {onnx.TensorProto.FLOAT16}
    image = {"image": random(4, 3, 16, 16, seed=9)}
    reference = run(path, image)["logits"]
    found = reference_session(result.path, ["logits"]).run(image)["logits"]
    assert 0 < np.abs(reference - found).max() < 0.05 * np.abs(reference).max()


def test_external_weights(tmp_path: Path) -> None:
    proto = model([helper.make_node("MatMul", ["x", "w"], ["y"], name="m")], {"w": random(64, 64)},
                  {"x": ["batch", 64]}, {"y": ["batch", 64]})  # fmt: skip
    path = tmp_path / "fp32.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    result = make_int8(path, samples(vectors(64)), vectors(64), Int8Settings(), passes=lambda _: Verdict(True),
                       out=tmp_path / "int8.onnx", record=Record(Progress(quiet=True)))  # fmt: skip
    inputs = {"x": random(2, 64)}
    assert np.allclose(run(path, inputs)["y"], run(result.path, inputs)["y"], atol=1.0)
    assert not result.path.with_name("int8.onnx.data").exists()


def test_a_model_that_is_fp16_already(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], name="in", to=onnx.TensorProto.FLOAT16),
        helper.make_node("MatMul", ["h", "w"], ["a"], name="first"),
        helper.make_node("MatMul", ["a", "v"], ["b"], name="second"),
        helper.make_node("Cast", ["b"], ["y"], name="out", to=onnx.TensorProto.FLOAT),
    ]
    weights = {"w": random(32, 32, scale=50).astype(np.float16), "v": random(32, 32, scale=1e-3).astype(np.float16)}
    result = quantize(model(nodes, weights, {"x": ["batch", 32]}, {"y": ["batch", 32]}), tmp_path, vectors(32))
    require_tensorrt_form(result.path)
    inputs = {"x": random(3, 32)}
    reference = run(tmp_path / "fp32.onnx", inputs)["y"]
    assert np.abs(run(result.path, inputs)["y"] - reference).max() < 0.05 * np.abs(reference).max()


@pytest.mark.parametrize("batch", [None, 3])
def test_models_without_a_batch_or_with_a_fixed_one(batch: int | None, tmp_path: Path) -> None:
    shape = [2, 8] if batch is None else [batch, 8]
    proto = model([helper.make_node("MatMul", ["x", "w"], ["y"], name="m")], {"w": random(8, 8)},
                  {"x": shape}, {"y": shape})  # fmt: skip
    bounds = {} if batch is None else {"batch": Dimension("batch", batch, batch, batch)}
    axes = tuple(shape) if batch is None else ("batch", 8)
    signature = Signature((ModelInput("x", "float32", axes),), bounds, batch is not None)
    one = [2, 8] if batch is None else [1, 8]
    made = [(str(i), {"x": random(*one, seed=i)}, None) for i in range(20)]
    data = collect("calibration", "made", made, signature, keep_repeats=False)
    verdicts = iter([Verdict(False, "once"), Verdict(True)])
    result = make_int8(
        save(proto, tmp_path), data, signature, Int8Settings(fallback={"max_share": 1}),
        passes=lambda _: next(verdicts), out=tmp_path / "int8.onnx", record=Record(Progress(quiet=True)),
    )  # fmt: skip
    assert [layer.name for layer in result.excluded] == ["m"]
    assert counts(result.path) == {"MatMul": 1}


@pytest.mark.parametrize(
    ("proto", "settings", "said"),
    [
        (image_net(opset=12), {}, ["opset 13", "opset 12"]),
        (image_net(), {"op_types": ["ConvTranspose"]}, ["no layer that INT8 could run", "ConvTranspose"]),
        (image_net(), {"exclude": ["stem", "depthwise", "project", "head"]}, ["leaves no layer"]),
        (image_net(), {"rest": "fp16"}, ["rest is fp16"]),
    ],
)
def test_models_that_cannot_be_quantized(
    proto: onnx.ModelProto, settings: dict[str, Any], said: list[str], tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        quantize(proto, tmp_path, IMAGES, **settings)
    assert all(text in str(caught.value) for text in said), str(caught.value)
    assert not (tmp_path / "int8.onnx").exists()


def test_a_name_in_exclude_that_is_no_layer(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no quantizable layer 'steam'.*such as stem"):
        quantize(image_net(), tmp_path, IMAGES, exclude=["steam"])


def test_a_quantized_model_is_refused(tmp_path: Path) -> None:
    path = quantize(image_net(), tmp_path, IMAGES).path
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(InputError, match="quantized already: 12 nodes"):
        quantize(onnx.load(path), tmp_path, IMAGES)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
