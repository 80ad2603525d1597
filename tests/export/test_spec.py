"""Specs and flags that are wrong: exit code 2, one line that says where, what was given and what is allowed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Export = Callable[..., Any]
Write = Callable[..., Path]
BASE = "name: net\nmodel: {factory: 'MODELS:linear'}\n"


def refused(outcome: Any, *needles: str, code: int = 2) -> None:
    assert outcome.code == code, outcome.out + outcome.err
    lines = [line for line in outcome.err.splitlines() if line.strip() and not line.startswith("  ")]
    assert len(lines) == 1, outcome.err
    for needle in needles:
        assert needle in lines[0], lines[0]
    assert not outcome.repository.exists()


@pytest.mark.parametrize(
    ("text", "needles"),
    [
        ("", ["the spec is empty"]),
        ("- a\n", [":1:1", "not a mapping"]),
        ("name: [\n", [":2:1", "not valid YAML"]),
        ("name: net\n\tmodel: 1\n", [":2:1", "not valid YAML"]),
        ("name: a\nname: b\n", [":2:1", "'name' is given twice"]),
        ("name: net\n", ["the key 'model' is missing"]),
        (BASE + "inpts: []\n", [":3:1", "unknown key 'inpts'", "did you mean 'inputs'"]),
        (BASE + "serving: {dynamic_batchin: false}\n", [":3:11", "did you mean 'dynamic_batching'"]),
        (BASE + "serving: {instance_group: {cont: 1}}\n", [":3:28", "did you mean 'count'"]),
        (BASE + "batch: {maximum: 4}\n", [":3:9", "unknown key 'batch.maximum'", "'max'"]),
        (BASE + "batch: true\n", [":3:1", "expected false or"]),
        (BASE + "batch: {min: 8, max: 4}\n", [":3:1", "min <= opt <= max"]),
        (BASE + "batch: {min: 0}\n", [":3:9", "batch.min 0", "greater than or equal to 1"]),
        (BASE + "opset: 99\n", [":3:1", "opset 99", "23"]),
        (BASE + "inputs: [{name: x, dtype: float31, shape: [batch, 8]}]\n", [":3:20", "float31", "float32"]),
        (BASE + "inputs: [{name: x, dtype: float32, shape: [batch, -1]}]\n", [":3:51", "inputs.0.shape.1 -1"]),
        (BASE + "inputs: [{name: x}, {name: x}]\n", ["'x' is given twice"]),
        (BASE + "inputs: [{name: x, dtype: float32, shape: [batch, 8], range: [1, -1]}]\n", ["low <= high"]),
        (BASE + "inputs: [{name: x, dtype: uint8, shape: [batch, 8], range: [-1, 1]}]\n", ["uint8 (0 to 255)"]),
        (BASE + "inputs: [{name: x, dtype: int64, shape: [batch, 8], range: [0.5, 1]}]\n", ["does not fit int64"]),
        (BASE + "inputs: [{name: x, dtype: float32, shape: [batch, 8], range: [0, .inf]}]\n", ["finite"]),
        (BASE + "dimensions: {tokens: {min: 1, max: 4}}\n", ["no input has a dimension 'tokens'"]),
        (BASE + "dimensions: {tokens: {mx: 4}}\n", [":3:23", "did you mean 'max'"]),
        (BASE + "serving: {dynamic_batching: {preferred: [64]}}\n", ["preferred batch size 64 is above batch.max 32"]),
        (BASE + "parity: {batches: [64]}\n", ["parity batch 64 is outside batch 1..32"]),
        (BASE + "parity: {rtol: -1}\n", [":3:10", "parity.rtol -1"]),
        (BASE + "labels: {output: logits}\n", ["exactly one of `file`, `package` and `values`"]),
        (BASE + "classification: {output: nothing}\n", ["classification.output", "'nothing'", "one of output"]),
        (BASE + "outputs: [{name: a}, {name: b}]\n", ["2 names for 1 outputs"]),
        ("name: ../evil\nmodel: {factory: 'MODELS:linear'}\n", [":1:1", "../evil", "letters, digits"]),
        ("name: net\nmodel: {}\n", [":2:1", "exactly one of `factory` and `onnx`"]),
        ("name: net\nmodel: {factory: models.py}\n", ["file.py:callable"]),
        ("name: net\nmodel: {factory: 'nowhere.py:build'}\n", ["no such file 'nowhere.py'"]),
        ("name: net\nmodel: {factory: 'no_such_package:build'}\n", ["cannot import 'no_such_package'"]),
        ("name: net\nmodel: {factory: 'MODELS:lineal'}\n", ["has no 'lineal'"]),
        (
            "name: net\nmodel: {factory: 'MODELS:linear', checkpoint: {path: nowhere.pt}}\n",
            ["no such file", "nowhere.pt"],
        ),
        (
            "name: net\nmodel: {factory: 'MODELS:linear', checkpoint: {path: 'package:no_such/x.pt'}}\n",
            ["'no_such' is not installed"],
        ),
        (BASE + "serving: {parameters: {tritonstack.image: '{}'}}\n", ["written by export itself"]),
    ],
)
def test_wrong_specs(export: Export, write_spec: Write, text: str, needles: list[str]) -> None:
    refused(export(write_spec(text)), *needles)


def test_yaml_core_words_stay_text(export: Export, write_spec: Write) -> None:
    """`no`, `on` and `1:30` are labels, not booleans and base-60 numbers; `1e-3` is a number."""
    text = BASE + "labels: {output: output, values: [no, on, 1:30, y]}\nparity: {rtol: 1e-3}\n"
    outcome = export(write_spec(text))
    assert outcome.code == 0, outcome.err
    assert (outcome.repository / "net" / "labels.txt").read_text() == "no\non\n1:30\ny\n"


@pytest.mark.parametrize(
    ("flags", "needles"),
    [
        (["--min-batch", "8", "--opt-batch", "4", "--max-batch", "2"], ["--min-batch 8", "--opt-batch 4"]),
        (["--min-batch", "0", "--max-batch", "8"], ["--min-batch 0", "1 or more"]),
        (["--opt-batch", "64"], ["--opt-batch 64", "min <= opt <= max"]),
        (["--dynamic", "X:0"], ["--dynamic X:0", "no input 'X'", "one of x"]),
        (["--dynamic", "x:7"], ["--dynamic x:7", "no axis 7", "0 to 3"]),
        (["--dynamic", "x:-1"], ["--dynamic", "x:-1", "counted from 0"]),
        (["--dynamic", "x"], ["--dynamic", "'x'", "NAME:AXIS"]),
        (["--dynamic", "x:2=height"], ["'height'", "no bounds", "dimensions"]),
        (["--dynamic", "x:2"], ["--dynamic x:2", "x:2=DIMENSION"]),
        (["--dynamic", "x:0", "--max-batch", "0"], ["--max-batch 0", "1 or more"]),
        (["--shapes", "x:1x3x8x8,x:2x3x8x8"], ["--shapes x:1x3x8x8,x:2x3x8x8", "--dynamic"]),
        (["--precision", "fp61"], ["--precision fp61", "'fp61'", "fp32, fp16, bf16, int8"]),
        (["--precision", "fp16,fp16"], ["--precision", "'fp16' is given twice"]),
        (["--precision", "FP16"], ["--precision FP16", "'FP16'", "fp32, fp16, bf16, int8"]),
        (["--precision", ""], ["--precision", "empty name"]),
        (["--default-precision", "fp8"], ["--default-precision", "'fp8'", "bf16"]),
        (["--allow-drop", "int8"], ["--allow-drop int8", "PRECISION=POINTS"]),
        (["--allow-drop", "fp32=1"], ["--allow-drop fp32=1", "other than fp32"]),
        (["--allow-drop", "int8=-1"], ["--allow-drop int8=-1", "0 to 100"]),
        (["--allow-drop", "int8=nan"], ["--allow-drop int8=nan", "0 to 100"]),
        (["--report", "report.pdf"], ["--report report.pdf", "'.pdf'", "*.html or *.json"]),
        (["--report", "no/such/folder/report.html"], ["--report", "no such folder"]),
        (["--junit", "report.html"], ["--junit report.html", "*.xml"]),
        (["--compute-capability", "8.9"], ["--compute-capability", "--preflight"]),
        (["--max-bach", "4"], ["--max-bach 4", "--max-batch?"]),
        (["--opset", "6"], ["--opset 6", "16 to 23"]),
        (["--opset", "15"], ["--opset 15", "16 to 23"]),
        (["--opset", "99"], ["--opset 99", "16 to 23"]),
        (["--opset", "twenty"], ["--opset", "'twenty'"]),
        (["--model-name", "../evil"], ["--name '../evil'", "letters, digits"]),
        (["--model-name", "my model/ü"], ["--name 'my model/ü'", "letters, digits"]),
        (["--name", ""], ["--name ''"]),
        (["--version", "0"], ["--version", "'0'", "from 1"]),
        (["--version", "99999999999999999999"], ["--version", "from 1"]),
        (["--output-names", "a,b"], ["--output-names", "2 names for 1 outputs"]),
        (["--output-names", "a,a,a"], ["--output-names", "'a' is given twice"]),
        (["--output-names", "a,,b"], ["--output-names", "empty name"]),
        (["--input-names", "a,b"], ["--input-names", "2 names for 1 inputs", "for x"]),
        (["--no-batch", "--max-batch", "4"], ["--max-batch 4", "--no-batch"]),
        (["another"], ["'another'", "one SPEC"]),
    ],
)
def test_wrong_flags(export: Export, flags: list[str], needles: list[str]) -> None:
    refused(export("picture", *flags), *needles)


def test_one_name_too_few(export: Export) -> None:
    refused(export("int64_ids", "--output-names", "a"), "--output-names", "1 name for 2 outputs", "output_0, output_1")


def test_a_name_that_is_no_key(export: Export) -> None:
    refused(export("dict_outputs", "--output-names", "a,b"), "--output-names", "no output 'a'", "scores, boxes")
    refused(export("nested_outputs", "--output-names", "a"), "--output-names", "no output 'a'", "output_1_1_aux")


def test_missing_arguments(export: Export, tmp_path: Path) -> None:
    from tritonstack.command import main

    assert main(["export"]) == 2
    assert main(["export", "spec.yaml"]) == 2
    refused(export(tmp_path / "nowhere.yaml"), "no such spec file")
    refused(export(tmp_path), "is a directory")


def test_flags_override_the_spec(export: Export, write_spec: Write) -> None:
    spec = write_spec(BASE + "batch: {min: 2, opt: 3, max: 4}\nopset: 18\noutputs: [{name: a}]\n")
    outcome = export(
        spec, "--name", "other", "--max-batch", "9", "--opset", "21", "--output-names", "b", "--input-names", "in"
    )
    assert outcome.code == 0, outcome.err
    config = outcome.config("other")
    assert (config.max_batch_size, config.output[0].name, config.input[0].name) == (9, "b", "in")
    assert outcome.proto("other").opset_import[0].version == 21


def test_the_flags_know_the_same_opsets_as_the_spec() -> None:
    from tritonstack_export.spec import OPSETS
    from tritonstack_export.spec_flags import OPSET_MAX, OPSET_MIN

    assert (OPSETS.start, OPSETS.stop - 1) == (OPSET_MIN, OPSET_MAX)


def test_the_flags_know_the_same_precisions_as_the_spec() -> None:
    from typing import get_args

    from tritonstack_export.precision_names import PRECISIONS
    from tritonstack_export.spec_precision import PrecisionName

    assert get_args(PrecisionName) == PRECISIONS


def test_help_is_one_screen_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom tritonstack.command import main\n"
        "try: main(['export', '--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'onnx', 'onnxruntime', 'numpy', 'yaml', 'pydantic', 'tritonclient', 'grpc'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr.strip() == "[]"
    lines = result.stdout.splitlines()
    assert len(lines) <= 40
    assert all(len(line) <= 120 for line in lines)


def test_picture_settings_have_to_fit_the_input(export: Export, write_spec: Write) -> None:
    base = (
        "name: net\nmodel: {factory: 'MODELS:picture'}\n"
        "preprocess: {image: {resize: {mode: exact, height: 8, width: %s}%s}}\n"
    )
    assert export(write_spec(base % (8, ""))).code == 0
    wrong = [(9, "", "[3, 8, 9]"), (8, ", layout: NHWC", "[8, 8, 3]"), (8, ", dtype: UINT8", "UINT8")]
    for width, more, needle in [*wrong, (8, ", men: 1", "men")]:
        outcome = export(write_spec(base % (width, more)), "--name", "other")
        assert outcome.code == 2 and needle in outcome.err
        assert not (outcome.repository / "other").exists()


def test_a_union_reports_a_value_once(export: Export, write_spec: Callable[..., Path]) -> None:
    outcome = export(write_spec(BASE + "inputs: [{name: x, dtype: float32, shape: [batch, -1]}]\n"))
    assert outcome.err.count("inputs.0.shape.1") == 1, outcome.err


def test_a_python_file_without_its_factory(export: Export, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("")
    outcome = export(tmp_path / "net.py")
    assert (outcome.code, f"{tmp_path}/net.py:CALLABLE" in outcome.err) == (2, True)
