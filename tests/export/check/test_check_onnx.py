"""Configs held against ONNX graphs, and the files themselves (R01, R04, R09, E12, E13, E24, E26, E29 and siblings)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from repository_builder import IDENTITY_PY, ONNX, PYTHON, add_model, batching, identity_model, io

from tritonstack.errors import SetupError
from tritonstack_export.check import CheckReport, Finding, check_repository
from tritonstack_export.repository import manifest, render_config


def check(root: Path, config: str, model: onnx.ModelProto | bytes | None = None) -> CheckReport:
    add_model(root, "net", config, model)
    return check_repository(root)


def messages(report: CheckReport) -> list[str]:
    return [finding.message for finding in report.errors]


def the_error(report: CheckReport) -> Finding:
    assert len(report.errors) == 1, report.findings
    return report.errors[0]


def config(size: int, x: str, y: str, *, dtype: str = "TYPE_FP32", more_x: str = "", more_y: str = "") -> str:
    return f"{ONNX}max_batch_size: {size}\n" + io(x, y, dtype=dtype, more_x=more_x, more_y=more_y)


# R01
def test_a_static_batch(tmp_path: Path) -> None:
    report = check(tmp_path, config(8, "[ 3, 8, 8 ]", "[ 3, 8, 8 ]"), identity_model(batch=1, dims=(3, 8, 8)))
    assert messages(report) == [
        f"{kind}: the model fixes batch at 1 (its shape is [1, 3, 8, 8]), config allows 8"
        for kind in ("input 'x'", "output 'y'")
    ]
    assert "dynamic batch, or set max_batch_size: 0" in report.errors[0].fix and report.errors[0].line == 2


@pytest.mark.parametrize("batch", [3, 8])
def test_channels_as_batch_even_when_the_numbers_agree(tmp_path: Path, batch: int) -> None:
    report = check(tmp_path, config(batch, "[ 8, 8 ]", "[ 8, 8 ]"), identity_model(batch=batch, dims=(8, 8)))
    assert all(f"the model fixes batch at {batch}" in message for message in messages(report))
    assert len(report.errors) == 2


def test_batch_in_dims(tmp_path: Path) -> None:
    report = check(tmp_path, config(8, "[ -1, 3 ]", "[ -1, 3 ]"))
    assert messages(report) == [
        f"{kind} has 2 dims in the model, [N, 3], but 3 in the config, [batch, -1, 3]"
        for kind in ("input 'x'", "output 'y'")
    ]
    assert report.errors[0].fix == "max_batch_size 8 already adds the batch: write dims: [3]"
    assert (report.errors[0].line, report.errors[1].line) == (3, 4)


@pytest.mark.parametrize(
    ("size", "dims", "model", "words"),
    [
        (8, "[ 4 ]", identity_model(), "is [N, 3] in the model, [batch, 4] in the config"),
        (8, "[ -1 ]", identity_model(), "is [N, 3] in the model, [batch, -1] in the config"),
        (8, "[ 3, 1 ]", identity_model(), "has 2 dims in the model, [N, 3], but 3 in the config"),
        (0, "[ 3 ]", identity_model(), "has 2 dims in the model, [N, 3], but 1 in the config"),
        (0, "[ 2, 3 ]", identity_model(batch=1), "is [1, 3] in the model, [2, 3] in the config"),
        (8, "[ 6 ] reshape { shape: [ 2, 3 ] }", identity_model(dims=(3, 2)), "[batch, 2, 3] in the config"),
    ],
)
def test_dims_that_do_not_fit(tmp_path: Path, size: int, dims: str, model: onnx.ModelProto, words: str) -> None:
    report = check(tmp_path, config(size, dims, dims), model)
    assert len(report.errors) == 2 and all(words in message for message in messages(report))


@pytest.mark.parametrize(
    ("size", "dims", "model"),
    [
        (8, "[ 3 ]", identity_model()),
        (0, "[ -1, 3 ]", identity_model()),
        (0, "[ 4, 3 ]", identity_model()),
        (0, "[ 1, 3 ]", identity_model(batch=1)),
        (8, "[ -1, 5 ]", identity_model(dims=("sequence", "width"))),
        (8, "[ 6 ] reshape { shape: [ 2, 3 ] }", identity_model(dims=(2, 3))),
        # R09: one value per item
        (8, "[ 1 ] reshape { shape: [ ] }", identity_model(dims=())),
    ],
)
def test_dims_that_fit(tmp_path: Path, size: int, dims: str, model: onnx.ModelProto) -> None:
    assert check(tmp_path, config(size, dims, dims), model).findings == ()


# R04
@pytest.mark.parametrize(
    ("has", "says", "wanted"),
    [
        ("INT64", "TYPE_INT32", "TYPE_INT64"),
        ("FLOAT", "TYPE_FP16", "TYPE_FP32"),
        ("FLOAT16", "TYPE_FP32", "TYPE_FP16"),
        ("BFLOAT16", "TYPE_FP16", "TYPE_BF16"),
        ("BOOL", "TYPE_UINT8", "TYPE_BOOL"),
        ("UINT8", "TYPE_INT8", "TYPE_UINT8"),
        ("STRING", "TYPE_UINT8", "TYPE_STRING"),
        ("DOUBLE", "TYPE_FP32", "TYPE_FP64"),
    ],
)
def test_data_types(tmp_path: Path, has: str, says: str, wanted: str) -> None:
    report = check(tmp_path, config(8, "[ 3 ]", "[ 3 ]", dtype=says), identity_model(dtype=has))
    assert messages(report) == [
        f"{kind} is {has} in the model ({wanted}), {says} in the config" for kind in ("input 'x'", "output 'y'")
    ]
    assert report.errors[0].fix == f"write data_type: {wanted}"
    assert check(tmp_path, config(8, "[ 3 ]", "[ 3 ]", dtype=wanted), identity_model(dtype=has)).findings == ()


def test_a_wire_name_for_a_type(tmp_path: Path) -> None:
    error = the_error(check(tmp_path, config(8, "[ 3 ]", "[ 3 ]", dtype="FP32")))
    assert "no value named 'FP32'" in error.message and error.fix == "write TYPE_FP32"


def test_a_type_triton_does_not_have(tmp_path: Path) -> None:
    report = check(tmp_path, batching(), identity_model(dtype="COMPLEX64"))
    assert all("COMPLEX64 in the model, which Triton cannot pass" in message for message in messages(report))


# R09
@pytest.mark.parametrize(
    ("y", "more"), [("[ 1 ]", ""), ("[ 1 ]", "reshape { shape: [ ] } "), ("[ ]", ""), ("[ 5 ]", "")]
)
def test_a_scalar_output_without_batch(tmp_path: Path, y: str, more: str) -> None:
    report = check(tmp_path, config(0, "[ -1, 3 ]", y, more_y=more), identity_model(scalar=True))
    assert "output 'y' is a scalar in the model (rank 0), which Triton cannot express" in messages(report)
    assert all(finding.line == 4 for finding in report.errors)
    assert "Unsqueeze" in report.errors[-1].fix


def test_a_scalar_output_with_batch(tmp_path: Path) -> None:
    report = check(tmp_path, config(8, "[ 3 ]", "[ 1 ]", more_y="reshape { shape: [ ] } "), identity_model(scalar=True))
    assert messages(report) == ["output 'y' is a scalar in the model (rank 0), which Triton cannot express"]


# E24
def nms_model(last: str | None = None) -> onnx.ModelProto:
    nodes = [helper.make_node("NonMaxSuppression", ["boxes", "scores", "k"], ["raw"])]
    nodes.append(helper.make_node("Cast", ["raw"], ["selected"], to=TensorProto.INT64))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("boxes", TensorProto.FLOAT, ["N", 6, 4]), value("scores", TensorProto.FLOAT, ["N", 1, 6])],
        [value("selected", TensorProto.INT64, [last, 3])],
        [numpy_helper.from_array(np.array([3], np.int64), "k")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def nms_config(size: int, *dims: str) -> str:
    boxes, scores, selected = dims
    return (
        f'{ONNX}max_batch_size: {size}\ninput {{ name: "boxes" data_type: TYPE_FP32 dims: {boxes} }}\n'
        f'input {{ name: "scores" data_type: TYPE_FP32 dims: {scores} }}\n'
        f'output {{ name: "selected" data_type: TYPE_INT64 dims: {selected} }}\n'
    )


@pytest.mark.parametrize("last", [None, "selected", "N"])
def test_rows_that_depend_on_the_data_are_no_batch(tmp_path: Path, last: str | None) -> None:
    error = the_error(check(tmp_path, nms_config(8, "[ 6, 4 ]", "[ 1, 6 ]", "[ 3 ]"), nms_model(last)))
    assert "'selected' has no batch dimension: NonMaxSuppression" in error.message
    assert "max_batch_size: 0" in error.fix and error.line == 2
    report = check(tmp_path, nms_config(0, "[ -1, 6, 4 ]", "[ -1, 1, 6 ]", "[ -1, 3 ]"), nms_model(last))
    assert report.findings == ()


def test_an_output_whose_first_dim_is_another_one(tmp_path: Path) -> None:
    report = check(tmp_path, batching(), identity_model(output_batch="K"))
    assert report.ok and "first dim is 'K'" in report.warnings[0].message
    graph = helper.make_graph(
        [helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["length", "batch"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    error = the_error(check(tmp_path, config(8, "[ -1 ]", "[ -1 ]"), model))
    assert "its first dim is 'length', the batch of the inputs is 'batch'" in error.message


# Names
def two_inputs(*, default: bool) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["input_ids", "bias"], ["logits"])],
        "g",
        [
            value("input_ids", TensorProto.FLOAT, ["N", 3]),
            value("bias", TensorProto.FLOAT, [3] if default else ["N", 3]),
        ],
        [value("logits", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(np.zeros(3, np.float32), "bias")] if default else [],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_names_that_do_not_match(tmp_path: Path) -> None:
    report = check(
        tmp_path, batching().replace('"x"', '"input_id"').replace('"y"', '"probs"'), two_inputs(default=True)
    )
    assert messages(report) == [
        "the model has no input 'input_id'",
        "the model has no output 'probs'",
        "the model needs the input 'input_ids' (FLOAT [N, 3]), which the config does not declare",
    ]
    assert report.errors[0].fix == "did you mean 'input_ids'?"
    assert report.errors[1].fix == "its outputs are 'logits'"


def test_inputs_with_a_default_are_optional_and_others_are_not(tmp_path: Path) -> None:
    text = batching().replace('"x"', '"input_ids"').replace('"y"', '"logits"')
    assert check(tmp_path, text, two_inputs(default=True)).findings == ()
    assert "needs the input 'bias'" in the_error(check(tmp_path, text, two_inputs(default=False))).message
    text += 'input { name: "bias" data_type: TYPE_FP32 dims: 3 optional: true }\n'
    error = the_error(check(tmp_path, text, two_inputs(default=False)))
    assert "'bias' is optional in the config, the model needs it" in error.message and error.line == 5


def test_odd_names_are_compared_byte_for_byte(tmp_path: Path) -> None:
    """E29."""
    from tritonclient.grpc import model_config_pb2

    names = ["a/b", "onnx::Conv_1", "with space", 'quo"te', "back\\slash", "new\nline", "bild_größe", "L" * 300, "123"]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Identity", [name], [name + "_out"]) for name in names],
        "g",
        [value(name, TensorProto.FLOAT, ["N", 2]) for name in names],
        [value(name + "_out", TensorProto.FLOAT, ["N", 2]) for name in names],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    stated = model_config_pb2.ModelConfig(backend="onnxruntime", max_batch_size=8)
    for name in names:
        stated.input.add(name=name, data_type=model_config_pb2.TYPE_FP32, dims=[2])
        stated.output.add(name=name + "_out", data_type=model_config_pb2.TYPE_FP32, dims=[2])
    assert check(tmp_path, render_config(stated), model).findings == ()
    stated.input[5].name = "new\\nline"
    report = check(tmp_path, render_config(stated), model)
    assert len(report.errors) == 2 and all("\n" not in finding.message for finding in report.errors)


def test_findings_name_the_version_when_several_are_served(tmp_path: Path) -> None:
    text = batching("version_policy { all { } }\n")
    add_model(tmp_path, "net", text)
    add_model(tmp_path, "net", text, identity_model(dims=(4,)), version="2")
    assert messages(check_repository(tmp_path)) == [
        "version 2: input 'x' is [N, 4] in the model, [batch, 3] in the config",
        "version 2: output 'y' is [N, 4] in the model, [batch, 3] in the config",
    ]


def test_inputs_that_triton_supplies_need_no_declaration(tmp_path: Path) -> None:
    text = batching().replace('"x"', '"input_ids"').replace('"y"', '"logits"')
    control = "control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] }"
    text += f'sequence_batching {{ control_input {{ name: "bias" {control} }} }}\n'
    assert check(tmp_path, text, two_inputs(default=False)).findings == ()


def test_values_that_are_no_tensors(tmp_path: Path) -> None:
    model = identity_model()
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["N", 3]))
    model.graph.node[0].CopyFrom(helper.make_node("SequenceConstruct", ["x"], ["y"]))
    model.graph.output[0].type.CopyFrom(kind)
    assert "output 'y' is sequence in the model" in the_error(check(tmp_path, batching(), model)).message


# Files
def test_missing_empty_truncated_and_foreign_files(tmp_path: Path) -> None:
    data = identity_model().SerializeToString()
    for name, content in {
        "empty": b"",
        "cut": data[: len(data) // 2],
        "html": b"<html>not found</html>",
        "zeros": b"\0" * 100,
        "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    }.items():
        add_model(tmp_path, name, batching(), content)
    add_model(tmp_path, "renamed", batching(), file="net.onnx")
    (add_model(tmp_path, "folder", batching(), file="x") / "1" / "model.onnx").mkdir()
    report = check_repository(tmp_path)
    found = {finding.model: finding.message for finding in report.errors if finding.code == "model-file"}
    assert set(found) == {"empty", "cut", "html", "zeros", "pointer", "renamed", "folder"}
    assert found["empty"] == "1/model.onnx is empty (0 bytes)"
    assert found["renamed"] == "1/model.onnx is missing; the folder has net.onnx"
    assert "cannot be read as ONNX" in found["cut"]
    assert "is a folder" in found["folder"]


def test_a_file_name_of_ones_own(tmp_path: Path) -> None:
    add_model(tmp_path, "net", batching('default_model_filename: "net.onnx"\n'), file="net.onnx")
    assert check_repository(tmp_path).findings == ()


def test_an_invalid_graph(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = identity_model()
    model.graph.node[0].op_type = "NoSuchOperator"
    assert "NoSuchOperator" in the_error(check(tmp_path, batching(), model)).message
    assert capfd.readouterr() == ("", "")


def test_what_only_the_checker_minds_is_a_warning(tmp_path: Path) -> None:
    model = identity_model()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    report = check(tmp_path, batching(), model)
    assert report.ok and [finding.code for finding in report.warnings] == ["onnx-structure"]
    model = identity_model()
    model.graph.node[0].op_type, model.graph.node[0].domain = "Gelu", "com.microsoft"
    assert check(tmp_path, batching(), model).ok


def test_models_that_are_too_new_are_a_warning(tmp_path: Path) -> None:
    report = check(tmp_path, batching(), identity_model(opset=99, ir_version=99))
    assert report.ok and len(report.warnings) == 2
    assert "opset 99" in report.warnings[0].message and "IR version 99" in report.warnings[1].message


# E12
def external_model(folder: Path, location: str = "net.onnx.data") -> None:
    weights = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [value("x", TensorProto.FLOAT, ["N", 64])],
        [value("y", TensorProto.FLOAT, ["N", 64])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="net.onnx.data", size_threshold=0)
    if location != "net.onnx.data":
        model = onnx.load(folder / "model.onnx", load_external_data=False)
        for entry in model.graph.initializer[0].external_data:
            if entry.key == "location":
                entry.value = location
        (folder / "model.onnx").write_bytes(model.SerializeToString())


@pytest.fixture
def external(tmp_path: Path) -> Path:
    add_model(tmp_path, "net", config(8, "[ 64 ]", "[ 64 ]"))
    external_model(tmp_path / "net" / "1")
    assert check_repository(tmp_path).findings == ()
    return tmp_path


def test_weights_that_were_left_behind(external: Path) -> None:
    (external / "net" / "1" / "net.onnx.data").unlink()
    error = the_error(check_repository(external))
    assert error.message == "1/model.onnx takes weights from 'net.onnx.data', which is not there"


def test_weights_that_were_renamed(external: Path) -> None:
    folder = external / "net" / "1"
    (folder / "net.onnx.data").rename(folder / "model.onnx.data")
    error = the_error(check_repository(external))
    assert "model.onnx.data is there, but the name must be exactly net.onnx.data" in error.message


def test_weights_that_were_cut_short(external: Path) -> None:
    with (external / "net" / "1" / "net.onnx.data").open("r+b") as file:
        file.truncate(1000)
    error = the_error(check_repository(external))
    assert error.message == "net.onnx.data has 1000 bytes, 1/model.onnx needs 16384 of it"


@pytest.mark.parametrize(("key", "value"), [("length", "-1"), ("offset", "-4"), ("length", "x"), ("length", "8")])
def test_weights_with_broken_numbers(external: Path, key: str, value: str) -> None:
    import onnx
    import onnxruntime as ort

    path = external / "net" / "1" / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == key:
            entry.value = value
    path.write_bytes(model.SerializeToString())
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        ort.InferenceSession(str(path))
    error = the_error(check_repository(external))
    assert f"{key} {value}" in error.message.replace("'", "") and error.code == "external-data"


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "a/../../secret", "C:\\weights", "..\\secret"])
def test_weights_outside_the_folder(external: Path, location: str) -> None:
    external_model(external / "net" / "1", location)
    error = the_error(check_repository(external))
    assert "outside its own folder" in error.message and error.code == "external-data"


def test_weights_behind_links(external: Path) -> None:
    """onnxruntime follows a link to the weights only where the model file itself is a link to the same folder."""
    folder, store = external / "net" / "1", external / "store"
    folder.rename(store)
    folder.mkdir()
    (folder / "net.onnx.data").symlink_to(store / "net.onnx.data")
    (folder / "model.onnx").write_bytes((store / "model.onnx").read_bytes())
    (store / "config.pbtxt").write_bytes((external / "net" / "config.pbtxt").read_bytes())
    errors = [finding for finding in check_repository(external).errors if finding.model == "net"]
    assert len(errors) == 1 and "outside the model's folder" in errors[0].message
    (folder / "model.onnx").unlink()
    (folder / "model.onnx").symlink_to(store / "model.onnx")
    assert [finding for finding in check_repository(external).errors if finding.model == "net"] == []


def test_weights_behind_a_link_in_the_same_folder(external: Path) -> None:
    folder = external / "net" / "1"
    (folder / "net.onnx.data").rename(folder / "weights.bin")
    (folder / "net.onnx.data").symlink_to("weights.bin")
    assert check_repository(external).findings == ()


def test_weights_with_a_second_name(external: Path) -> None:
    (external / "copy").hardlink_to(external / "net" / "1" / "net.onnx.data")
    assert check_repository(external).findings == ()


# E13, at a size that costs no disk: the weights are a hole in a sparse file and must not be read
def test_more_than_two_gigabytes_of_weights_stay_on_disk(tmp_path: Path) -> None:
    import resource

    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1 << 15, 1 << 15])
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in {"location": "big.data", "offset": "0", "length": str(1 << 32)}.items():
        tensor.external_data.add(key=key, value=text)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [value("x", TensorProto.FLOAT, ["N", 1 << 15])],
        [value("y", TensorProto.FLOAT, ["N", 1 << 15])],
        [tensor],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    add_model(tmp_path, "net", config(8, "[ 32768 ]", "[ 32768 ]"), model)
    with (tmp_path / "net" / "1" / "big.data").open("wb") as file:
        file.truncate(1 << 32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert check_repository(tmp_path).findings == ()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB
    with (tmp_path / "net" / "1" / "big.data").open("wb") as file:
        file.truncate((1 << 32) - 1)
    assert "needs 4294967296 of it" in the_error(check_repository(tmp_path)).message


# E26
TENSORRT = 'backend: "tensorrt"\nmax_batch_size: 8\n' + io()


def test_engines(tmp_path: Path) -> None:
    plan = b"ftrt" + bytes(range(256)) * 8
    record = json.dumps({"tensorrt": "10.3.0", "compute_capability": "7.5"})
    for name, data in {"good": plan, "bare": plan, "cut": plan[:20], "other": b"ptrt" + plan, "none": b""}.items():
        folder = add_model(tmp_path, name, TENSORRT, data, file="model.plan") / "1"
        if name != "bare":
            (folder / "model.plan.json").write_text(record)
    folder = add_model(tmp_path, "norecord", TENSORRT, plan, file="model.plan") / "1"
    (folder / "model.plan.json").write_text("{}")
    report = check_repository(tmp_path)
    assert {finding.model: finding.code for finding in report.findings} == {
        "bare": "plan-record",
        "cut": "plan-file",
        "other": "plan-file",
        "none": "model-file",
        "norecord": "plan-record",
    }
    assert [finding.model for finding in report.warnings] == ["bare"]
    assert [model.name for model in report.models] == ["bare", "good"]


@pytest.mark.parametrize(
    ("group", "gpus", "message"),
    [
        ("instance_group { kind: KIND_CPU }\n", None, "is KIND_CPU, a TensorRT engine needs a GPU"),
        ("instance_group { }\n", 0, "is KIND_AUTO with 0 GPUs visible, a TensorRT engine needs a GPU"),
        ("", 0, "a TensorRT engine needs a GPU, but 0 GPUs visible"),
        ("instance_group { }\n", 1, None),
        ("", None, None),
    ],
)
def test_an_engine_without_a_gpu(tmp_path: Path, group: str, gpus: int | None, message: str | None) -> None:
    folder = add_model(tmp_path, "net", TENSORRT + group, b"ftrt" + bytes(200), file="model.plan") / "1"
    (folder / "model.plan.json").write_text(json.dumps({"tensorrt": "11.2", "compute_capability": "9.0"}))
    report = check_repository(tmp_path, gpus=gpus)
    assert report.findings == () if message is None else message in the_error(report).message


def test_without_the_package_onnx_the_line_that_mends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_model(tmp_path, "net", batching())
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(SetupError, match="'onnx', which is not installed"):
        check_repository(tmp_path)


# Python models
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("class TritonPythonModel\n  pass", "no valid Python, line 1"),
        ("def execute(): ...\n", "no class TritonPythonModel"),
    ],
)
def test_python_models_that_cannot_load(tmp_path: Path, source: str, message: str) -> None:
    add_model(tmp_path, "net", batching(head=PYTHON), source)
    assert message in the_error(check_repository(tmp_path)).message


@pytest.mark.parametrize(
    "source", [IDENTITY_PY, "from mine import Model as TritonPythonModel\n", "from mine import *\n"]
)
def test_python_models_that_may_load(tmp_path: Path, source: str) -> None:
    add_model(tmp_path, "net", batching(head=PYTHON), source)
    assert check_repository(tmp_path).findings == ()


# Manifests
def test_a_file_changed_after_export(tmp_path: Path) -> None:
    folder = add_model(tmp_path, "net", batching()) / "1"
    manifest.write(folder, manifest.Manifest(files=manifest.digest_version(folder)))
    assert check_repository(tmp_path).findings == ()
    (folder / "model.onnx").write_bytes(identity_model(ir_version=9).SerializeToString())
    error = the_error(check_repository(tmp_path))
    assert error.code == "manifest" and "model.onnx was changed after export" in error.message
    (folder / "manifest.json").write_text("{")
    assert "no JSON" in the_error(check_repository(tmp_path)).message
