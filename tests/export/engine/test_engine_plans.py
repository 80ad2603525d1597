"""E26 and siblings: engine files and their records, judged without TensorRT."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from engine_models import plan_bytes

from tritonstack.command import main
from tritonstack_export.check import check_repository
from tritonstack_export.engine.plan_header import parse_plan_header, read_plan_header, version_numbers
from tritonstack_export.engine.plan_record import PlanRecord, Target

CONFIG = (
    'backend: "tensorrt"\nmax_batch_size: 8\ninput [{ name: "x" data_type: TYPE_FP32 dims: [3,224,224] }]\n'
    'output [{ name: "y" data_type: TYPE_FP32 dims: [1000] }]\n'
)
RECORD = {"tensorrt": "10.14.1.48", "compute_capability": "7.5", "gpu": "Tesla T4", "driver": "535.104"}
HERE = Target("10.14.1.48", ("7.5",))


def entry(root: Path, plan: bytes, record: Any = RECORD, *, config: str = CONFIG) -> Path:
    version = root / "resnet" / "1"
    version.mkdir(parents=True)
    (version / "model.plan").write_bytes(plan)
    if record is not None:
        text = record if isinstance(record, str) else json.dumps(record)
        (version / "model.plan.json").write_text(text)
    (root / "resnet" / "config.pbtxt").write_text(config)
    return version


def test_an_engine_of_another_gpu_and_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """E26 as handed over: the record is all there is to go by, the bytes behind the magic are arbitrary."""
    entry(tmp_path, b"ftrt" + bytes(range(256)) * 8, {**RECORD, "tensorrt": "10.3.0"})
    code = main(["check", str(tmp_path), "--tensorrt", "11.2", "--compute-capability", "9.0"])
    lines = [line for line in capsys.readouterr().out.splitlines() if "engine built" in line]
    assert code == 1
    assert len(lines) == 1
    assert "engine built for sm_75 with TensorRT 10.3.0, this machine is sm_90 / 11.2: rebuild" in lines[0]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (HERE, None),
        (Target("10.14.1"), None),
        (Target(None, ("7.5",)), None),
        (Target(), None),
        (Target("10.14"), None),
        (Target("10.14.2"), "TensorRT 10.14.1.48, this machine is TensorRT 10.14.2: rebuild"),
        (Target("11.2.1"), "this machine is TensorRT 11.2.1"),
        (Target(None, ("8.6",)), "engine built for sm_75 with TensorRT 10.14.1.48, this machine is sm_86"),
        (Target("10.14.1", ("7.5", "9.0")), "this machine is sm_75 and sm_90 / 10.14.1"),
    ],
)
def test_what_fits(tmp_path: Path, target: Target, message: str | None) -> None:
    entry(tmp_path, plan_bytes())
    report = check_repository(tmp_path, target=target)
    assert [f.code for f in report.findings] == ([] if message is None else ["plan-target"])
    if message is not None:
        assert message in report.findings[0].message
        assert report.models == ()


@pytest.mark.parametrize(
    ("settings", "target", "fits"),
    [
        ({"version_compatible": True}, Target("10.16.0"), True),
        ({"version_compatible": True}, Target("11.0.0"), True),
        ({"version_compatible": True}, Target("10.13.0"), False),
        ({"version_compatible": False}, Target("10.16.0"), False),
        ({"hardware": "ampere_plus"}, Target(None, ("9.0",)), True),
        ({"hardware": "ampere_plus"}, Target(None, ("12.0",)), True),
        ({"hardware": "ampere_plus"}, Target(None, ("7.5",)), False),
        ({"hardware": "same_compute_capability"}, Target(None, ("8.6",)), True),
        ({"hardware": "same_compute_capability"}, Target(None, ("8.9",)), False),
        ({"hardware": "same"}, Target(None, ("8.9",)), False),
    ],
)
def test_compatibility_policies(settings: dict[str, Any], target: Target, fits: bool) -> None:
    record = PlanRecord("10.14.1.48", "8.6", {"settings": settings})
    assert (record.misfit(target) is None) == fits


@pytest.mark.parametrize(
    ("plan", "record", "code", "message"),
    [
        (b"", RECORD, "model-file", "1/model.plan is empty (0 bytes)"),
        (plan_bytes()[:20], RECORD, "plan-file", "is cut short (20 bytes)"),
        (plan_bytes()[:40], RECORD, "plan-file", "is cut short (40 bytes)"),
        (b"ONNX" + bytes(400), RECORD, "plan-file", "is no TensorRT engine"),
        (b"ptrt" + plan_bytes()[4:], RECORD, "plan-file", "Triton's tensorrt backend cannot load it"),
        (b"vtrt" + plan_bytes()[4:], RECORD, "plan-file", "is a TensorRT for RTX engine"),
        (
            plan_bytes(version=(10, 3, 0, 26)),
            RECORD,
            "plan-record",
            "by TensorRT 10.3.0.26, its record says 10.14.1.48",
        ),
        (plan_bytes(), None, "plan-record", "has no record of the GPU"),
        (plan_bytes(), "{}", "plan-record", "model.plan.json does not say tensorrt and compute_capability"),
        (plan_bytes(), "[]", "plan-record", "does not say tensorrt"),
        (plan_bytes(), "no", "plan-record", "model.plan.json is no JSON"),
        (plan_bytes(), {**RECORD, "compute_capability": "new"}, "plan-record", "does not say compute_capability"),
        (plan_bytes(), {**RECORD, "tensorrt": 10}, "plan-record", "does not say tensorrt"),
        (plan_bytes(), {**RECORD, "plan_bytes": 9}, "plan-file", "2080 bytes, its record says 9"),
        (plan_bytes(), {**RECORD, "plan_sha256": "0" * 64}, "plan-file", "not the engine of its record"),
    ],
)
def test_files_and_records_that_are_wrong(tmp_path: Path, plan: bytes, record: Any, code: str, message: str) -> None:
    entry(tmp_path, plan, record)
    (finding,) = check_repository(tmp_path, target=HERE).findings
    assert (finding.code, message in finding.message) == (code, True), finding.message
    assert finding.severity == ("warning" if record is None else "error")


def test_without_a_record_the_header_still_tells_the_version(tmp_path: Path) -> None:
    entry(tmp_path, plan_bytes(), None)
    (finding,) = check_repository(tmp_path, target=Target("11.2")).findings
    assert finding.message.endswith("engine built with TensorRT 10.14.1.48, this machine has 11.2")


def test_a_precision_that_is_not_what_was_asked(tmp_path: Path) -> None:
    entry(tmp_path, plan_bytes(), {**RECORD, "precision_asked": "int8", "precision": "fp16"})
    (finding,) = check_repository(tmp_path, target=HERE).findings
    assert (finding.severity, finding.code) == ("warning", "plan-precision")
    assert "was to run in int8, and most of it runs in fp16" in finding.message


def test_a_whole_record(tmp_path: Path) -> None:
    plan = plan_bytes()
    whole = {**RECORD, "plan_bytes": len(plan), "plan_sha256": hashlib.sha256(plan).hexdigest()}
    entry(tmp_path, plan, whole)
    assert check_repository(tmp_path, target=HERE).findings == ()


WHOLE = {
    **RECORD,
    "inputs": [{"name": "x", "dtype": "FLOAT", "shape": [-1, 3, 224, 224]}],
    "outputs": [{"name": "y", "dtype": "FLOAT", "shape": [-1, 1000]}],
    "settings": {"profiles": [{"x": [[1, 3, 224, 224], [4, 3, 224, 224], [8, 3, 224, 224]]}]},
}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("", "", None),
        ("max_batch_size: 8", "max_batch_size: 4", None),
        ("max_batch_size: 8", "max_batch_size: 16", "max_batch_size is 16, the profiles of the engine take up to 8"),
        ("dims: [1000]", "dims: [10]", "output 'y' has the dims [1000] in the engine, [10] in the config"),
        (
            "TYPE_FP32 dims: [3,",
            "TYPE_UINT8 dims: [3,",
            "input 'x' is TYPE_FP32 in the engine, TYPE_UINT8 in the config",
        ),
        ('name: "x"', 'name: "image"', "the engine has no input 'image' (it has x)"),
    ],
)
def test_the_config_is_compared_with_the_engine(tmp_path: Path, old: str, new: str, message: str | None) -> None:
    entry(tmp_path, plan_bytes(), WHOLE, config=CONFIG.replace(old, new) if old else CONFIG)
    said = [f.message for f in check_repository(tmp_path, target=HERE).findings if f.code == "plan-config"]
    assert said == [] if message is None else f"1/model.plan: {message}" in said


def test_one_engine_for_each_compute_capability(tmp_path: Path) -> None:
    extra = 'cc_model_filenames [ { key: "7.5" value: "t4.plan" }, { key: "8.6" value: "a10.plan" } ]\n'
    version = entry(tmp_path, plan_bytes(), config=CONFIG + extra)
    for name, capability in (("t4", "7.5"), ("a10", "8.6")):
        (version / f"{name}.plan").write_bytes(plan_bytes())
        record = {**RECORD, "compute_capability": capability}
        (version / f"{name}.plan.json").write_text(json.dumps(record))
    assert check_repository(tmp_path, target=Target("10.14.1", ("7.5", "8.6"))).findings == ()
    (version / "a10.plan.json").write_text(json.dumps(RECORD))
    (finding,) = check_repository(tmp_path, target=Target("10.14.1", ("7.5", "8.6"))).findings
    assert "a10.plan: engine built for sm_75" in finding.message


def test_headers() -> None:
    assert parse_plan_header(plan_bytes()[:32], 2000).version == (10, 14, 1, 48)
    # Another serialisation version may put other things there.
    assert parse_plan_header(b"ftrt\x01" + plan_bytes()[5:32], 2000).version is None
    assert parse_plan_header(b"ftrt" + bytes(28), 2000).version is None
    assert version_numbers("10.16.1.11+cuda13") == (10, 16, 1, 11)
    assert version_numbers("10.0.0b6") == (10, 0)
    assert version_numbers("new") is None


def test_the_header_of_a_real_rtx_engine(tmp_path: Path, rtx: Any) -> None:
    from engine_models import conv, save

    from tritonstack_export.engine.build import build
    from tritonstack_export.engine.settings import Bounds, BuildSettings

    profile = {"x": Bounds((1, 3, 8, 8), (1, 3, 8, 8), (2, 3, 8, 8))}
    path = save(conv(), tmp_path / "model.onnx")
    version = entry(tmp_path / "repository", plan_bytes())
    build(path, BuildSettings((profile,)), home=rtx, compute_capabilities=["8.6"], output=version / "model.plan")
    header = read_plan_header(version / "model.plan")
    assert (header.kind, header.version) == ("rtx", (1, 7, 1, 116))
    (finding,) = check_repository(tmp_path / "repository", target=HERE).findings
    assert "is a TensorRT for RTX engine" in finding.message


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tensorrt", "new"], "argument --tensorrt: not a version; given 'new'; expected such as 10.14.1"),
        (["--tensorrt", "10"], "argument --tensorrt: not a version"),
        (["--compute-capability", "sm_90"], "argument --compute-capability: not a compute capability; given 'sm_90'"),
        (["--compute-capability", "9.0,"], "argument --compute-capability: not a compute capability; given ''"),
    ],
)
def test_wrong_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    entry(tmp_path, plan_bytes())
    assert main(["check", str(tmp_path), *flags]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
