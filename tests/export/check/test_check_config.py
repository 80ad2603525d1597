"""Rules on the config alone (R07, R10, R13, R19 and their siblings)."""

from __future__ import annotations

from pathlib import Path

import pytest
from repository_builder import IDENTITY_PY, ONNX, PYTHON, add_model, batching, identity_model, io

from tritonstack_export.check import CheckReport, Finding, check_repository


def check(root: Path, config: str, *, gpus: int | None = None, python: bool = False) -> CheckReport:
    add_model(root, "net", config, IDENTITY_PY if python else None)
    return check_repository(root, gpus=gpus)


def the_error(report: CheckReport) -> Finding:
    assert len(report.errors) == 1, report.findings
    return report.errors[0]


# R07
@pytest.mark.parametrize(
    ("group", "gpus", "message"),
    [
        ("count: 1 kind: KIND_GPU", 0, "instance_group 1 is KIND_GPU but 0 GPUs visible"),
        ("count: 1 kind: KIND_GPU gpus: [ 6 ]", 0, "instance_group 1 is KIND_GPU but 0 GPUs visible"),
        ("count: 1 kind: KIND_GPU gpus: [ 0, 6 ]", 4, "lists gpus [6], but 4 GPUs visible"),
        ("count: 1 kind: KIND_GPU gpus: [ 1 ]", 1, "lists gpus [1], but 1 GPU visible (index 0)"),
        ("count: 1 kind: KIND_AUTO gpus: [ 0 ]", 0, "lists gpus [0], but 0 GPUs visible"),
        ("count: 1 gpus: [ -1 ]", None, "lists gpu -1"),
        ("count: 0 kind: KIND_CPU", None, "instance_group 1 has count 0"),
        ("count: -2", None, "instance_group 1 has count -2"),
        ("kind: KIND_CPU gpus: [ 0 ]", None, "is KIND_CPU but lists gpus [0]"),
        ("kind: KIND_MODEL gpus: [ 0 ]", None, "is KIND_MODEL but lists gpus [0]"),
        ('profile: "0"', None, "only TensorRT models have"),
        ("passive: true", None, "all instance groups are passive"),
    ],
)
def test_placement(tmp_path: Path, group: str, gpus: int | None, message: str) -> None:
    error = the_error(check(tmp_path, batching(f"instance_group [ {{ {group} }} ]\n"), gpus=gpus))
    assert message in error.message and error.line == 5


@pytest.mark.parametrize(
    ("group", "gpus"),
    [
        ("kind: KIND_GPU", None),
        ("kind: KIND_GPU gpus: [ 6 ]", None),
        ("kind: KIND_GPU gpus: [ 0, 1 ]", 2),
        ("kind: KIND_AUTO", 0),
        ("kind: KIND_CPU", 0),
        ("count: 2", 0),
    ],
)
def test_placement_that_fits(tmp_path: Path, group: str, gpus: int | None) -> None:
    assert check(tmp_path, batching(f"instance_group [ {{ {group} }} ]\n"), gpus=gpus).findings == ()


# R10
@pytest.mark.parametrize(
    ("size", "block", "message"),
    [
        (8, "preferred_batch_size: [ 16 ]", "preferred_batch_size holds 16, but max_batch_size is 8"),
        (8, "preferred_batch_size: [ 0, 4 ]", "preferred_batch_size holds 0"),
        (8, "preferred_batch_size: [ -4 ]", "preferred_batch_size holds -4"),
        (0, "preferred_batch_size: [ 4 ]", "holds 4, but max_batch_size is 0: the model does not batch"),
        (8, "max_queue_delay_microseconds: -5", "the number -5 must not be negative"),
        (8, "priority_levels: 2", "default_priority_level is 0, priority_levels is 2"),
        (8, "priority_levels: 2 default_priority_level: 3", "default_priority_level is 3"),
        (8, "priority_levels: 1 default_priority_level: 1 priority_queue_policy { key: 2 value { } }", "for level 2"),
        (8, "priority_levels: 2 default_priority_level: 1 preserve_ordering: true", "2 priority levels"),
        (
            8,
            "preserve_ordering: true default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 }",
            "timeout action DELAY",
        ),
    ],
)
def test_dynamic_batching(tmp_path: Path, size: int, block: str, message: str) -> None:
    dims = "[ 3 ]" if size else "[ -1, 3 ]"
    config = f"{ONNX}max_batch_size: {size}\n{io(dims, dims)}dynamic_batching {{ {block} }}\n"
    error = the_error(check(tmp_path, config))
    assert message in error.message and error.line == 5


def test_a_long_queue_delay_is_a_warning(tmp_path: Path) -> None:
    report = check(tmp_path, batching("dynamic_batching { max_queue_delay_microseconds: 10000000 }\n"))
    assert report.ok and "10 s" in report.warnings[0].message
    report = check(tmp_path, batching("dynamic_batching { max_queue_delay_microseconds: 999999 }\n"))
    assert report.findings == ()


def test_batching_that_cannot_happen_is_a_warning(tmp_path: Path) -> None:
    report = check(tmp_path, f"{ONNX}max_batch_size: 0\n{io('[ -1, 3 ]', '[ -1, 3 ]')}dynamic_batching {{ }}\n")
    assert report.ok and report.warnings[0].code == "dynamic-batching"


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("sequence_batching { } response_cache { enable: true }", "response_cache does not work with sequences"),
        ("sequence_batching { direct { minimum_slot_utilization: 2 } }", "minimum_slot_utilization is 2"),
        ("sequence_batching { oldest { max_candidate_sequences: 4 preferred_batch_size: [ 9 ] } }", "holds 9"),
        ("sequence_batching { oldest { } }", "max_candidate_sequences is 0"),
        ("dynamic_batching { } sequence_batching { }", "exclude each other"),
        ("model_transaction_policy { decoupled: true }", "answers each request once"),
    ],
)
def test_schedulers(tmp_path: Path, block: str, message: str) -> None:
    assert message in the_error(check(tmp_path, batching(block))).message


def test_a_cache_does_not_hold_decoupled_answers(tmp_path: Path) -> None:
    config = batching("model_transaction_policy { decoupled: true } response_cache { enable: true }", head=PYTHON)
    assert "decoupled answers" in the_error(check(tmp_path, config, python=True)).message


# R13
def warmup(
    batch: int = 1, key: str = "x", dtype: str = "TYPE_FP32", dims: str = "[ 3 ]", data: str = "zero_data: true"
):
    return (
        f'model_warmup [ {{ name: "w" batch_size: {batch} '
        f'inputs {{ key: "{key}" value {{ data_type: {dtype} dims: {dims} {data} }} }} }} ]\n'
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (warmup(dims="[ 4 ]"), "input 'x' has dims [3], the warm-up feeds [4]"),
        (warmup(dims="[ 1, 3 ]"), "the warm-up feeds [1, 3]"),
        (warmup(dims="[ -1 ]"), "the warm-up feeds [-1]"),
        (warmup(dtype="TYPE_INT8"), "input 'x' is TYPE_FP32, the warm-up feeds TYPE_INT8"),
        (warmup(64), "batch_size 64, max_batch_size is 8"),
        (warmup(0), "batch_size 0: nothing would be warmed up"),
        (warmup(data=""), "input 'x' has no data"),
        (warmup(data='input_data_file: "x.raw"'), "warmup/x.raw: No such file"),
        ('model_warmup { name: "w" batch_size: 1 }', "does not feed the input 'x'"),
    ],
)
def test_a_warm_up_that_does_not_fit(tmp_path: Path, text: str, message: str) -> None:
    error = the_error(check(tmp_path, batching(text)))
    assert message in error.message and error.line == 5


def test_a_warm_up_of_an_unknown_input_names_both_sides(tmp_path: Path) -> None:
    report = check(tmp_path, batching(warmup(key="input")))
    assert [finding.message for finding in report.errors] == [
        "warm-up 'w' feeds the input 'input', which the model does not have",
        "warm-up 'w' does not feed the input 'x'",
    ]


def test_warm_ups_that_fit(tmp_path: Path) -> None:
    assert check(tmp_path, batching(warmup(2) + warmup(8))).findings == ()
    folder = tmp_path / "net" / "warmup"
    folder.mkdir()
    (folder / "x.raw").write_bytes(b"\0" * 12)
    assert check(tmp_path, batching(warmup(2, data='input_data_file: "x.raw"'))).findings == ()
    (folder / "x.raw").write_bytes(b"\0" * 8)
    assert "has 8 bytes, input 'x' needs 12" in the_error(check_repository(tmp_path)).message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\3\0\0\0abc", None),
        (b"\0\0\0\0", None),
        (b"abc", "input 'x' needs 1 string, warmup/x.bytes is not cut into strings"),
        (b"\xff\xd8\xff\xe0 a picture without its length", "warmup/x.bytes is not cut into strings"),
        (b"\3\0\0\0ab", "is not cut into strings"),
        (b"", "needs 1 string, warmup/x.bytes has 0"),
        (b"\1\0\0\0a" * 2, "needs 1 string, warmup/x.bytes has 2"),
    ],
)
def test_strings_of_a_warm_up(tmp_path: Path, content: bytes, message: str | None) -> None:
    """Triton 2.51 ends with SIGSEGV on a file that is cut otherwise, also for a batch of several."""
    text = batching(warmup(4, dtype="TYPE_STRING", dims="[ 1 ]", data='input_data_file: "x.bytes"'), head=PYTHON)
    text = text.replace("TYPE_FP32", "TYPE_STRING", 1).replace("[ 3 ]", "[ 1 ]", 1)
    folder = tmp_path / "net" / "warmup"
    folder.mkdir(parents=True)
    (folder / "x.bytes").write_bytes(content)
    errors = check(tmp_path, text, python=True).errors
    assert [message in error.message for error in errors] == [True] if message else not errors, errors


# R19 beyond syntax, which test_config_text.py covers
def test_crlf_is_fine(tmp_path: Path) -> None:
    assert check(tmp_path, batching().replace("\n", "\r\n")).findings == ()


def test_syntax_errors_point_into_the_file(tmp_path: Path) -> None:
    error = the_error(check(tmp_path, batching().replace("max_batch_size", "max_batchsize")))
    assert (error.path, error.line, error.column) == (tmp_path / "net" / "config.pbtxt", 2, 1)
    assert "max_batchsize: 8" in error.message and "'max_batch_size'" in error.fix
    assert error.place.endswith("net/config.pbtxt:2:1")


def test_an_empty_config(tmp_path: Path) -> None:
    for text in ("", "\n  \n"):
        assert the_error(check(tmp_path, text)).code == "config-empty"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (batching('input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]\n'), "input 'x' is declared twice"),
        (batching('output { name: "y" data_type: TYPE_FP32 dims: 3 }'), "output 'y' is declared twice"),
        (batching().replace(ONNX, ""), "neither backend nor platform"),
        (batching().replace(ONNX, 'platform: "onnx"\n'), "unknown platform 'onnx'"),
        (batching('platform: "tensorrt_plan"'), "platform 'tensorrt_plan' does not belong to backend 'onnxruntime'"),
        (batching("ensemble_scheduling { }"), "ensemble_scheduling in a model with backend"),
        (batching(size=-1), "max_batch_size is -1"),
        (batching('default_model_filename: "../other/1/model.onnx"'), "leads out of the version folder"),
        (batching('parameters { key: "intra_op_thread_count" value { string_value: "two" } }'), "is 'two'"),
        (batching('parameters { key: "execution_mode" value { string_value: "2" } }'), "is '2'"),
        (batching('parameters { key: "a" value { string_value: "${THREADS}" } }'), "placeholder ${THREADS}"),
        (batching('parameters { key: "a" value { } } parameters { key: "a" value { } }'), "written twice"),
        (batching('parameters { key: "tritonstack.image" value { string_value: "{" } }'), "not JSON"),
        (batching('metric_tags { key: "a b" value: "1" }'), "metric tag 'a b'"),
        (batching('batch_input { kind: BATCH_ELEMENT_COUNT source_input: "z" }'), "unknown tensor 'z'"),
    ],
)
def test_configs_that_parse_and_are_wrong(tmp_path: Path, config: str, message: str) -> None:
    assert message in the_error(check(tmp_path, config)).message


def test_an_unknown_backend_is_a_warning_with_the_nearest_name(tmp_path: Path) -> None:
    report = check(tmp_path, batching().replace("onnxruntime", "onnx_runtime"))
    assert report.ok and report.warnings[0].fix == "did you mean 'onnxruntime'?"


def test_a_mistyped_session_option_is_a_warning(tmp_path: Path) -> None:
    report = check(tmp_path, batching('parameters { key: "intra_op_threads_count" value { string_value: "2" } }'))
    assert report.ok and "'intra_op_thread_count'" in report.warnings[0].fix
    options = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in {"intra_op_thread_count": "2", "execution_mode": "1", "session.x": "y", "mine": "?"}.items()
    )
    assert check(tmp_path, batching(options)).findings == ()


def image_config(image: str, *, dims: str = "[ 3, 8, 8 ]", name: str = "tritonstack.image") -> str:
    text = image.replace('"', '\\"')
    return (
        f'{ONNX}max_batch_size: 8\n{io(dims, dims)}parameters {{ key: "{name}" value {{ string_value: "{text}" }} }}\n'
    )


EXACT = '{"resize": {"mode": "exact", "height": 8, "width": 8}}'


@pytest.mark.parametrize(
    ("image", "dims", "message"),
    [
        (EXACT, "[ 3, 8, 8 ]", None),
        (EXACT, "[ 3, -1, -1 ]", None),
        ('{"input": "x"}', "[ 3, -1, -1 ]", None),
        (EXACT, "[ 3, 8, 9 ]", "pictures become [3, 8, 8] (NCHW), input 'x' takes [3, 8, 9]"),
        (EXACT, "[ 8, 8, 3 ]", "pictures become [3, 8, 8] (NCHW)"),
        ('{"input": "y"}', "[ 3, 8, 8 ]", "the model has no input 'y'"),
        ('{"dtype": "UINT8"}', "[ 3, 8, 8 ]", "pictures become UINT8, input 'x' is TYPE_FP32"),
        ('{"meen": [0, 0, 0]}', "[ 3, 8, 8 ]", "meen"),
        ("{", "[ 3, 8, 8 ]", "JSON"),
    ],
)
def test_the_image_parameter_fits_the_input(tmp_path: Path, image: str, dims: str, message: str | None) -> None:
    size = tuple(8 if part == "-1" else int(part) for part in dims.strip("[ ]").split(", "))
    model = identity_model(dims=("c", "h", "w") if "-1" in dims else size)
    add_model(tmp_path, "net", image_config(image, dims=dims), model)
    if "-1" in dims:
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 3
        model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 3
        add_model(tmp_path, "net", image_config(image, dims=dims), model)
    report = check_repository(tmp_path)
    if message is None:
        assert report.findings == ()
    else:
        assert message in the_error(report).message and report.errors[0].line == 5


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ('{"output": "y", "activation": "softmax"}', None),
        ('{"output": "z", "activation": "softmax"}', "the model has no output 'z'"),
        ('{"output": "y", "activation": "sigmoid"}', "activation is 'sigmoid'"),
        ('{"activation": "none"}', "it names no output"),
        ("[]", "no JSON object"),
    ],
)
def test_the_classification_parameter(tmp_path: Path, value: str, message: str | None) -> None:
    text = image_config(value, dims="[ 3 ]", name="tritonstack.classification")
    report = check(tmp_path, text)
    assert report.findings == () if message is None else message in the_error(report).message


def test_a_client_parameter_nobody_reads(tmp_path: Path) -> None:
    report = check(tmp_path, image_config("{}", dims="[ 3 ]", name="tritonstack.imgae"))
    assert report.ok and report.warnings[0].fix == "did you mean 'tritonstack.image'?"


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ('name: "x" data_type: TYPE_FP32 dims: [ 0 ]', "has the dim 0"),
        ('name: "x" data_type: TYPE_FP32 dims: [ -2 ]', "has the dim -2"),
        ('name: "x" data_type: TYPE_FP32', "has no dims"),
        ('name: "x" dims: [ 3 ]', "has no valid data_type"),
        ("data_type: TYPE_FP32 dims: [ 3 ]", "has no name"),
        ('name: "x" data_type: TYPE_FP32 dims: [ 3 ] reshape { shape: [ 4 ] }', "does not hold as many elements"),
        ('name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] reshape { shape: [ 2, -1, 2 ] }', "as many elements"),
        ('name: "x" data_type: TYPE_FP32 dims: [ 3 ] reshape { shape: [ ] }', "as many elements"),
        ('name: "x" data_type: TYPE_FP32 dims: [ 3 ] format: FORMAT_NCHW', "FORMAT_NCHW but has 1 dims"),
        ('name: "x" data_type: TYPE_FP32 dims: [ 3 ] is_shape_tensor: true', "only TensorRT models have"),
    ],
)
def test_tensors(tmp_path: Path, tensor: str, message: str) -> None:
    y = 'name: "y" data_type: TYPE_FP32 dims: 1'
    config = f"{PYTHON}max_batch_size: 8\ninput [ {{ {tensor} }} ]\noutput [ {{ {y} }} ]\n"
    error = the_error(check(tmp_path, config, python=True))
    assert message in error.message and error.line == 3


@pytest.mark.parametrize("shape", ["[ 2, 2 ]", "[ 4 ]", "[ 1, 4, 1 ]"])
def test_reshapes_that_fit(tmp_path: Path, shape: str) -> None:
    config = batching(head=PYTHON).replace("dims: [ 3 ]", f"dims: [ 4 ] reshape {{ shape: {shape} }}")
    assert check(tmp_path, config, python=True).findings == ()


# Label files
def labels(root: Path, data: bytes, *, classes: int = 3) -> CheckReport:
    dims = f"[ {classes} ]"
    config = f"{ONNX}max_batch_size: 8\n" + io(dims, dims, more_y='label_filename: "labels.txt" ')
    folder = add_model(root, "net", config, identity_model(dims=(classes,)))
    (folder / "labels.txt").write_bytes(data)
    return check_repository(root)


@pytest.mark.parametrize(
    ("data", "code", "line"),
    [
        (b"a\nb\n", "labels-count", 4),
        (b"a\nb\nc\nd\n", "labels-count", 4),
        (b"\xef\xbb\xbfa\nb\nc\n", "labels-bom", 1),
        (b"a\r\nb\r\nc\r\n", "labels-crlf", 1),
        (b"a\n\nc\n", "labels-empty-line", 2),
        (b"a\nb\xff\nc\n", "labels", 2),
    ],
)
def test_label_files_that_are_wrong(tmp_path: Path, data: bytes, code: str, line: int) -> None:
    error = the_error(labels(tmp_path, data))
    assert (error.code, error.line) == (code, line)


def test_label_files_that_fit(tmp_path: Path) -> None:
    assert labels(tmp_path, b"a\nb\nc\n").findings == ()
    assert labels(tmp_path, "ä: x\nb, y\nc".encode()).findings == ()
    report = labels(tmp_path, b"crane\nx\ncrane\n")
    assert report.ok and report.warnings[0].code == "labels-duplicate"


def test_a_label_file_that_is_not_there(tmp_path: Path) -> None:
    for name in ("labels.txt", "../labels.txt", "/etc/hostname"):
        config = f"{ONNX}max_batch_size: 8\n" + io(more_y=f'label_filename: "{name}" ')
        error = the_error(check(tmp_path, config))
        assert error.code == "labels" and error.line == 4
