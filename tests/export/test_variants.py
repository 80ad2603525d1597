"""One spec, several variants: names, configs, manifests, gates, and that all are published or none."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Export = Callable[..., Any]
Listing = Callable[[Path], dict[str, str]]
GOLDEN = Path(__file__).with_name("golden")
VARIANT_MODELS = Path(__file__).with_name("variant_models.py")

SPEC = """
name: net
model: {factory: 'MODEL'}
inputs: [{name: image, dtype: float32, shape: [batch, 3, 16, 16], range: [-1, 1]}]
outputs: [{name: logits}]
batch: {min: 1, opt: 4, max: 8}
labels: {output: logits, values: [a, b, c, d, e, f, g, h, i, j]}
classification: {output: logits}
calibration: {npz: calibration.npz}
evaluation: {npz: evaluation.npz, labels: label}
"""


@pytest.fixture
def spec(tmp_path: Path, export: Export) -> Callable[..., Path]:
    """`spec("sound", "precision: …")`: a spec beside its data; labels are what FP32 itself says."""

    def write(model: str, more: str = "", *, base: str = SPEC) -> Path:
        random = np.random.default_rng(7)
        # A colour for each picture, so that classes differ.
        images = 0.3 * random.uniform(-1, 1, (96, 3, 16, 16)) + 0.7 * random.uniform(-1, 1, (96, 3, 1, 1))
        images = images.astype(np.float32)
        np.savez(tmp_path / "calibration.npz", image=images[:32])
        path = tmp_path / f"{model}.yaml"
        path.write_text(base.replace("MODEL", f"{VARIANT_MODELS}:{model}") + more)
        if not (tmp_path / "evaluation.npz").exists():
            np.savez(tmp_path / "evaluation.npz", image=images[32:], label=np.zeros(64, np.int64))
            first = export(
                path, "--precision", "fp32", "--default-precision", "fp32", repository=tmp_path / "labelling"
            )
            assert first.code == 0, first.err
            logits = first.run_onnx("net", {"image": images[32:]})["logits"]
            assert len(set(logits.argmax(1).tolist())) >= 3
            np.savez(tmp_path / "evaluation.npz", image=images[32:], label=logits.argmax(1))
        return path

    return write


def manifest(repository: Path, name: str, version: int = 1) -> dict[str, Any]:
    return json.loads((repository / name / str(version) / "manifest.json").read_text())  # type: ignore[no-any-return]


def test_every_variant_is_an_entry_of_its_own(spec: Callable[..., Path], export: Export) -> None:
    outcome = export(spec("sound", "precision: [int8, fp32, bf16, fp16]\n"), "--json")
    assert outcome.code == 0, outcome.err
    names = ["net", "net_fp16", "net_bf16", "net_int8"]
    assert [v["name"] for v in outcome.json["variants"]] == names
    assert sorted(p.name for p in outcome.repository.iterdir()) == sorted(names)
    base = manifest(outcome.repository, "net")
    for name, precision in zip(names, ("fp32", "fp16", "bf16", "int8"), strict=True):
        facts = manifest(outcome.repository, name)
        assert (facts["name"], facts["precision"], facts["version"]) == (name, precision, 1)
        assert facts["weights_sha256"] == base["weights_sha256"]
        if precision != "fp32":
            assert facts["made_from"] == {"precision": "fp32", "sha256": base["files"]["model.onnx"]["sha256"]}
            assert {row["batch"] for row in facts["gates"]["rows"]} == {1, 2, 4, 8}
            assert {row["output"] for row in facts["gates"]["rows"]} == {"logits"}
            assert all(row["passed"] for row in facts["gates"]["rows"])
            assert facts["accuracy"]["reference"] == 1.0 and facts["accuracy"]["samples"] == 64
    assert base["accuracy"] == {"metric": "top1", "samples": 64, "value": 1.0}
    assert manifest(outcome.repository, "net_fp16")["conversion"]["nodes"]["fp16"] > 0
    assert manifest(outcome.repository, "net_int8")["conversion"]["layers"] == {"int8": 4, "total": 4}
    assert manifest(outcome.repository, "net_int8")["conversion"]["calibration"]["samples"] == 32
    assert "net_fp16" in outcome.err or "fp16 gates" in outcome.err


@pytest.mark.parametrize("name", ["net", "net_fp16", "net_bf16", "net_int8"])
def test_golden_config(spec: Callable[..., Path], export: Export, name: str) -> None:
    """TRITONSTACK_RENEW_GOLDEN=1 (`make golden`) writes the files anew."""
    precision = name.partition("_")[2] or "fp32"
    outcome = export(spec("sound"), "--precision", precision, "--default-precision", "fp32")
    assert outcome.code == 0, outcome.err
    found = (outcome.repository / name / "config.pbtxt").read_text()
    golden = GOLDEN / f"{name}.pbtxt"
    if os.environ.get("TRITONSTACK_RENEW_GOLDEN") == "1":
        golden.write_text(found)
    assert found == golden.read_text()


def test_names_follow_the_default(spec: Callable[..., Path], export: Export) -> None:
    path = spec("sound", "precision: {variants: [fp32, fp16], default: fp16}\n")
    outcome = export(path)
    assert outcome.code == 0, outcome.err
    assert sorted(p.name for p in outcome.repository.iterdir()) == ["net", "net_fp32"]
    assert manifest(outcome.repository, "net")["precision"] == "fp16"
    # The bare name stays with FP16 when only the other one is made, and all variants share one version number.
    assert export(path, "--precision", "fp32").code == 0
    assert sorted(p.name for p in (outcome.repository / "net").iterdir()) == ["1", "config.pbtxt", "labels.txt"]
    assert (outcome.repository / "net_fp32" / "2").is_dir()
    assert export(path).code == 0
    assert (outcome.repository / "net" / "3").is_dir() and (outcome.repository / "net_fp32" / "3").is_dir()


def test_one_precision_alone_takes_the_bare_name(export: Export) -> None:
    outcome = export("linear", "--name", "net", "--precision", "fp16")
    assert outcome.code == 0, outcome.err
    assert [p.name for p in outcome.repository.iterdir()] == ["net"]
    assert manifest(outcome.repository, "net")["precision"] == "fp16"
    assert "random inputs" in outcome.err


def test_a_failed_gate_publishes_nothing(
    spec: Callable[..., Path], export: Export, listing: Listing, tmp_path: Path
) -> None:
    path = spec("sound", "precision: {variants: [fp32, fp16, int8], int8: {fallback: false, gates: {snr_db: 90}}}\n")
    earlier = export(path, "--precision", "fp32")
    before = listing(earlier.repository)
    reports = [str(tmp_path / name) for name in ("report.html", "report.json")]
    outcome = export(path, "--report", reports[0], "--report", reports[1], "--junit", str(tmp_path / "report.xml"))
    assert outcome.code == 1
    assert "int8" in outcome.err and "'logits'" in outcome.err and "90" in outcome.err and "next:" in outcome.err
    assert listing(earlier.repository) == before
    # The report says what passed and what did not.
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["published"] is False and report["passed"] is False
    assert [(v["precision"], v["passed"]) for v in report["variants"]] == [
        ("fp32", True), ("fp16", True), ("int8", False),
    ]  # fmt: skip
    suites = ElementTree.parse(tmp_path / "report.xml").getroot()  # noqa: S314 - our own file
    assert int(suites.attrib["failures"]) + int(suites.attrib["errors"]) > 0
    assert "net_int8" in (tmp_path / "report.html").read_text()


def test_a_report_that_cannot_be_written_says_what_is_published(
    export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Path.replace

    def full(self: Path, target: Path) -> Path:
        if Path(target).name == "report.json":
            raise OSError(28, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", full)
    outcome = export("linear", "--name", "net", "--report", str(tmp_path / "report.json"))
    assert outcome.code == 1 and "No space left on device" in outcome.err
    assert "the variants are published all the same" in outcome.err
    assert (outcome.repository / "net" / "1" / "model.onnx").is_file()


def test_sensitive_layers_fall_back_and_are_told(spec: Callable[..., Path], export: Export) -> None:
    outcome = export(spec("spiky", "precision: {variants: [fp32, int8], int8: {method: max, gates: {snr_db: 30}}}\n"))
    assert outcome.code == 0, outcome.err
    conversion = manifest(outcome.repository, "net_int8")["conversion"]
    assert 0 < len(conversion["excluded"]) <= 2
    assert all(layer["reason"] == "sensitive" and layer["macs_share"] > 0 for layer in conversion["excluded"])
    assert conversion["layers"]["int8"] == 4 - len(conversion["excluded"])
    assert f"{len(conversion['excluded'])} of 4 layers" in outcome.out


LOSSY = (
    "precision: {variants: [fp32, int8], int8: {method: max, fallback: false, "
    "gates: {snr_db: -99, channel_db: -99, cosine: -1, max_rel: 1000}}}\n"
)


def test_lost_accuracy_is_refused_unless_it_is_allowed(spec: Callable[..., Path], export: Export) -> None:
    path = spec("spiky", LOSSY)
    refused = export(path)
    assert refused.code == 1, refused.out
    assert "int8 misses its gates" in refused.err and "top1" in refused.err and "1 points may be lost" in refused.err
    outcome = export(path, "--allow-drop", "int8=100", "--json")
    assert outcome.code == 0, outcome.err
    facts = manifest(outcome.repository, "net_int8")
    assert facts["allowed_drop"] == 100 and facts["accuracy"]["drop_points"] > 1
    assert outcome.json["variants"][1]["allowed_drop"] == 100


def test_allowed_drop_lets_limits_pass_and_says_so(spec: Callable[..., Path], export: Export) -> None:
    path = spec("spiky", LOSSY.replace("snr_db: -99", "snr_db: 60"))
    assert export(path).code == 1
    outcome = export(path, "--allow-drop", "int8=100")
    assert outcome.code == 0, outcome.err
    assert "--allow-drop lets through" in outcome.err
    gates = manifest(outcome.repository, "net_int8")["gates"]
    assert gates["waived"] is True and not all(row["passed"] for row in gates["rows"])


def test_allowed_drop_that_fits_nothing(spec: Callable[..., Path], export: Export, tmp_path: Path) -> None:
    path = spec("sound", "precision: [fp32, int8]\n")
    for flag in ("fp16=1", "bf16=1"):
        outcome = export(path, "--allow-drop", flag)
        assert outcome.code == 2 and f"{flag[:4]} is not made" in outcome.err, outcome.err
    without = spec("sound", "precision: [fp32, int8]\n", base=SPEC.replace("evaluation:", "#"))
    outcome = export(without, "--allow-drop", "int8=1")
    assert outcome.code == 2 and "no `evaluation`" in outcome.err, outcome.err


def test_up_to_date_until_the_data_change(spec: Callable[..., Path], export: Export, tmp_path: Path) -> None:
    path = spec("sound", "precision: [fp32, int8]\n")
    first = export(path, "--if-changed", "--json")
    assert first.json["created"] is True
    again = export(path, "--if-changed", "--json")
    assert again.code == 0 and again.json["created"] is False
    assert [v["version"] for v in again.json["variants"]] == [1, 1]
    assert again.json["variants"][1]["conversion"] == first.json["variants"][1]["conversion"]
    random = np.random.default_rng(8)
    np.savez(tmp_path / "calibration.npz", image=random.uniform(-1, 1, (40, 3, 16, 16)).astype(np.float32))
    assert export(path, "--if-changed", "--json").json["created"] is True
    # FP32 alone reads no data, and is told apart by that.
    assert export(path, "--precision", "fp32", "--if-changed", "--json").json["created"] is True
    assert export(path, "--precision", "fp32", "--if-changed", "--json").json["created"] is False


def test_a_picture_moved_to_another_class_is_a_change(tmp_path: Path) -> None:
    from tritonstack_export.export_identity import _data_sha256
    from tritonstack_export.spec import ModelSpec

    spec = ModelSpec.model_validate(
        {"name": "m", "model": {"onnx": "m.onnx"}, "precision": ["fp16"], "evaluation": {"images": "pictures"}}
    )
    for name in ("0/a.png", "1/b.png"):
        (tmp_path / "pictures" / name).parent.mkdir(parents=True)
        (tmp_path / "pictures" / name).write_text(name)
    before = _data_sha256(spec, tmp_path)
    assert before == _data_sha256(spec, tmp_path)
    (tmp_path / "pictures" / "0" / "a.png").rename(tmp_path / "pictures" / "1" / "a.png")
    assert _data_sha256(spec, tmp_path) != before


@pytest.mark.slow
def test_up_to_date_does_not_skip_what_is_asked_now(spec: Callable[..., Path], export: Export, tmp_path: Path) -> None:
    path = spec("sound", "precision: [fp16]\n")
    assert export(path, "--if-changed").code == 0
    report = tmp_path / "report.html"
    again = export(path, "--if-changed", "--report", str(report), "--json")
    assert again.json["created"] is False and not report.exists()
    assert "report.html is not written: nothing was exported" in again.err
    built = export(path, "--if-changed", "--preflight", "--json")
    assert built.code == 0 and built.json["created"] is True, built.err
    assert export(path, "--if-changed", "--preflight", "--json").json["created"] is False
    assert export(path, "--if-changed", "--json").json["created"] is False


def test_the_same_input_gives_the_same_bytes(spec: Callable[..., Path], export: Export, tmp_path: Path) -> None:
    path = spec("spiky", "precision: {variants: [fp16, bf16, int8], int8: {gates: {snr_db: 30}}}\n")
    digests = []
    for place in ("one", "another"):
        outcome = export(path, repository=tmp_path / place / "models")
        assert outcome.code == 0, outcome.err
        files = sorted(outcome.repository.rglob("model.onnx"))
        assert len(files) == 3
        digests.append([hashlib.sha256(file.read_bytes()).hexdigest() for file in files])
        assert all(str(tmp_path).encode() not in file.read_bytes() for file in files)
    assert digests[0] == digests[1]


def test_half_inputs_where_the_spec_gives_them_up(spec: Callable[..., Path], export: Export) -> None:
    image = "preprocess: {image: {resize: {mode: exact, height: 16, width: 16}, scale: 0.01}}\n"
    outcome = export(spec("sound", image + "precision: {variants: [fp32, fp16], fp16: {keep_io_types: false}}\n"))
    assert outcome.code == 0, outcome.err
    from tritonclient.grpc import model_config_pb2 as pb

    full, half = outcome.config("net"), outcome.config("net_fp16")
    assert (full.input[0].data_type, half.input[0].data_type) == (pb.TYPE_FP32, pb.TYPE_FP16)
    assert half.output[0].data_type == pb.TYPE_FP16
    assert json.loads(half.parameters["tritonstack.image"].string_value)["dtype"] == "FP16"
    assert json.loads(full.parameters["tritonstack.image"].string_value)["dtype"] == "FP32"
    assert half.model_warmup[0].inputs["image"].data_type == pb.TYPE_FP16


def test_bf16_is_for_gpus(spec: Callable[..., Path], export: Export) -> None:
    from tritonclient.grpc import model_config_pb2 as pb

    outcome = export(spec("sound"), "--precision", "fp32,bf16")
    assert outcome.code == 0, outcome.err
    assert outcome.config("net_bf16").instance_group[0].kind == pb.ModelInstanceGroup.KIND_GPU
    assert outcome.config("net").instance_group[0].kind == pb.ModelInstanceGroup.KIND_AUTO
    assert "bf16: ONNX Runtime cannot run it on a CPU" in outcome.err


def test_int8_without_calibration_is_a_usage_error(spec: Callable[..., Path], export: Export, listing: Listing) -> None:
    path = spec("sound", "precision: [fp32, int8]\n", base=SPEC.replace("calibration:", "#"))
    outcome = export(path)
    assert outcome.code == 2 and "INT8 needs `calibration`" in outcome.err
    assert not outcome.repository.exists()


@pytest.mark.parametrize(
    ("text", "needles"),
    [
        ("precision: fp61\n", ["precision", "fp61"]),
        ("precision: [fp32, fp32]\n", ["fp32 is given twice"]),
        ("precision: []\n", ["precision"]),
        ("precision: {variants: [fp32], int8: {method: median}}\n", ["precision.int8.method", "median"]),
        ("precision: {int8: {percentile: 10}}\n", ["precision.int8.percentile"]),
        ("precision: {fp16: {keep_fp23: [a]}}\n", ["keep_fp23", "keep_fp32"]),
        ("calibration: {npz: a.npz, images: b}\n", ["exactly one of `images`, `npz` and `python`"]),
        ("evaluation: {npz: a.npz, metric: top3}\n", ["top1, top5"]),
        ("evaluation: {npz: a.npz, max_drop: {int8: -1}}\n", ["max_drop"]),
        ("engine: {optimization_level: 9}\n", ["engine.optimization_level"]),
        ("engine: {profiles: [{batch: {min: 4, opt: 2, max: 8}}]}\n", ["min <= opt <= max"]),
        ("engine: {hardware: any}\n", ["engine.hardware"]),
    ],
)
def test_wrong_keys(write_spec: Callable[..., Path], export: Export, text: str, needles: list[str]) -> None:
    outcome = export(write_spec("name: net\nmodel: {factory: 'MODELS:linear'}\n" + text))
    assert outcome.code == 2 and outcome.err.count("\n") == 1, outcome.err
    for needle in needles:
        assert needle in outcome.err, outcome.err
    assert not outcome.repository.exists()


def test_a_variant_that_does_not_fit_publishes_none(
    spec: Callable[..., Path], export: Export, listing: Listing
) -> None:
    path = spec("sound", "precision: [fp32, fp16]\n")
    stranger = export("linear", "--name", "net_fp16")
    before = listing(stranger.repository)
    outcome = export(path)
    assert outcome.code == 1 and "does not fit the published model 'net_fp16'" in outcome.err
    assert listing(stranger.repository) == before


def test_a_failure_between_two_renames_is_undone(
    spec: Callable[..., Path], export: Export, listing: Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = spec("sound", "precision: [fp32, fp16]\n")
    outcome = export(path, "--precision", "fp32")
    before = listing(outcome.repository)
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if target == outcome.repository / "net_fp16":
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    again = export(path)
    assert again.code == 1 and "No space left on device" in again.err
    assert listing(outcome.repository) == before


def test_preflight_of_every_variant(spec: Callable[..., Path], export: Export) -> None:
    outcome = export(spec("sound", "precision: [fp32, fp16, int8]\n"), "--preflight", "--json")
    assert outcome.code == 0, outcome.err
    seen = {v["precision"]: v["preflight"] for v in outcome.json["variants"]}
    assert {p: (r["passed"], r["precision"]) for p, r in seen.items()} == {
        "fp32": (True, "fp32"), "fp16": (True, "fp16"), "int8": (True, "int8"),
    }  # fmt: skip
    assert not [path for path in outcome.repository.rglob("*") if "plan" in path.name or "engine" in path.name]


def test_preflight_that_fails_publishes_nothing(spec: Callable[..., Path], export: Export) -> None:
    outcome = export(spec("sound"), "--preflight", "--compute-capability", "9.0")
    assert outcome.code == 2 and "9.0" in outcome.err and "8.9" in outcome.err
    profile = "engine: {profiles: [{batch: {min: 1, opt: 2, max: 4}}]}\n"
    outcome = export(spec("sound", profile), "--precision", "fp32", "--preflight")
    assert outcome.code != 0 and "profile" in outcome.err
    assert not outcome.repository.exists()


def test_a_refused_operator_is_named_and_reported(export: Export, tmp_path: Path) -> None:
    """TensorRT has no DynamicQuantizeLinear: nothing is published, and the report shows why."""
    import onnx
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [
            helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"], name="on_the_fly"),
            helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], name="back"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
    )
    path = tmp_path / "dynamic.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    outcome = export(path, "--no-batch", "--preflight", "--report", str(tmp_path / "report.json"))
    assert outcome.code == 1 and "the pre-flight fails" in outcome.err, outcome.err
    assert "DynamicQuantizeLinear" in outcome.err and "next:" in outcome.err
    assert not outcome.repository.exists()
    [variant] = json.loads((tmp_path / "report.json").read_text())["variants"]
    assert variant["passed"] is False and variant["preflight"][0]["passed"] is False


@pytest.mark.skipif(importlib.util.find_spec("pytriton") is None, reason="the embedded tritonserver is not installed")
def test_the_real_server_answers_with_every_variant(
    spec: Callable[..., Path], export: Export, start_server: Callable[..., Any]
) -> None:
    from tritonstack import Client

    outcome = export(spec("sound", "precision: [fp32, fp16, int8]\n"))
    assert outcome.code == 0, outcome.err
    server = start_server(outcome.repository)
    images = np.random.default_rng(9).uniform(-1, 1, (4, 3, 16, 16)).astype(np.float32)
    with Client(server.grpc_url) as client:
        client.wait_ready(["net", "net_fp16", "net_int8"], timeout_s=60)
        answers = {name: client.infer(name, {"image": images})["logits"] for name in ("net", "net_fp16", "net_int8")}
    spread = float(np.ptp(answers["net"])) / 2
    assert np.abs(answers["net_fp16"] - answers["net"]).max() < 0.01 * spread
    assert 0 < np.abs(answers["net_int8"] - answers["net"]).max() < 0.3 * spread
