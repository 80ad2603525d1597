"""`preprocess.serve`: what export publishes so that a model takes encoded pictures, and what it refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).with_name("golden")
MODELS = Path(__file__).with_name("image_models.py")

SPEC = """
name: net
model: {factory: 'MODELS:plain'}
inputs: [{name: image, dtype: float32, shape: [batch, 3, 16, 16], range: [-1, 1]}]
outputs: [{name: logits}]
batch: {min: 1, opt: 4, max: 8}
labels: {output: logits, values: [a, b, c, d, e]}
classification: {output: logits}
preprocess:
  serve: true
  image:
    crop_fraction: 0.875
    resize: {mode: exact, height: 16, width: 16}
    interpolation: bicubic
    mean: [123.675, 116.28, 103.53]
    std: [58.395, 57.12, 57.375]
"""


@dataclass
class Outcome:
    code: int
    out: str
    err: str
    repository: Path

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def config(self, name: str) -> Any:
        from tritonstack_export.repository import parse_config

        path = self.repository / name / "config.pbtxt"
        return parse_config(path.read_bytes(), path=path)

    def manifest(self, name: str, version: int = 1) -> Any:
        return json.loads((self.repository / name / str(version) / "manifest.json").read_text())

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.repository.iterdir()) if self.repository.exists() else []


Export = Callable[..., Outcome]


@pytest.fixture
def export(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Export:
    """`export(text, *flags)`: export the spec with that text."""
    from tritonstack.command import main

    def run(text: str, *flags: str) -> Outcome:
        spec = tmp_path / "spec.yaml"
        spec.write_text(text.replace("MODELS", str(MODELS)))
        repository = tmp_path / "repository"
        capfd.readouterr()
        code = main(["export", str(spec), "--repository", str(repository), *flags])
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err, repository)

    return run


@pytest.mark.parametrize("name", ["net_preprocess", "net_images"])
def test_golden_config(export: Export, name: str) -> None:
    """TRITONSTACK_RENEW_GOLDEN=1 (`make golden`) writes the files anew."""
    outcome = export(SPEC)
    assert outcome.code == 0, outcome.err
    found = (outcome.repository / name / "config.pbtxt").read_text()
    golden = GOLDEN / f"{name}.pbtxt"
    if os.environ.get("TRITONSTACK_RENEW_GOLDEN") == "1":
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(found)
    assert found == golden.read_text()


def test_entries_stand_beside_the_model(export: Export) -> None:
    outcome = export(SPEC, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.names == ["net", "net_images", "net_preprocess"]
    assert [(entry["name"], entry["version"]) for entry in outcome.json["image_entries"]] == [
        ("net_preprocess", 1),
        ("net_images", 1),
    ]
    assert (outcome.repository / "net_images" / "labels.txt").read_text() == "a\nb\nc\nd\ne\n"
    assert not (outcome.repository / "net_preprocess" / "labels.txt").exists()
    for name, kind in (("net_preprocess", "image_preprocess"), ("net_images", "ensemble")):
        facts = outcome.manifest(name)
        assert (facts["name"], facts["version"], facts["format"]) == (name, 1, kind)
        assert facts["spec_sha256"] == outcome.manifest("net")["spec_sha256"]
        assert "../config.pbtxt" in facts["files"]
    from tritonstack_export.check import check_repository

    report = check_repository(outcome.repository)
    assert not report.findings
    assert {model.name: model.dependencies for model in report.models}["net_images"] == ("net_preprocess", "net")


def test_without_serve_there_is_the_model_alone(export: Export) -> None:
    outcome = export(SPEC.replace("serve: true", "serve: false"), "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.names == ["net"] and outcome.json["image_entries"] == []


def test_variants_have_ensembles_and_share_the_preprocessing(export: Export) -> None:
    outcome = export(SPEC + "precision: [fp32, fp16]\n")
    assert outcome.code == 0, outcome.err
    assert outcome.names == ["net", "net_fp16", "net_fp16_images", "net_images", "net_preprocess"]
    steps = outcome.config("net_fp16_images").ensemble_scheduling.step
    assert [step.model_name for step in steps] == ["net_preprocess", "net_fp16"]


def test_a_variant_with_fp16_inputs_has_its_own_preprocessing(export: Export) -> None:
    more = "precision: {variants: [fp32, fp16], fp16: {keep_io_types: false}}\n"
    outcome = export(SPEC + more)
    assert outcome.code == 0, outcome.err
    assert [name for name in outcome.names if "preprocess" in name] == ["net_fp16_preprocess", "net_preprocess"]
    from tritonclient.grpc import model_config_pb2 as pb

    assert outcome.config("net_fp16_preprocess").output[0].data_type == pb.TYPE_FP16
    assert outcome.config("net_preprocess").output[0].data_type == pb.TYPE_FP32
    assert outcome.config("net_fp16_images").ensemble_scheduling.step[0].model_name == "net_fp16_preprocess"
    alone = export(SPEC + more, "--precision", "fp16", "--default-precision", "fp32")
    assert alone.code == 0, alone.err
    assert (alone.repository / "net_fp16_preprocess" / "2").is_dir()
    assert not (alone.repository / "net_preprocess" / "2").exists()


def test_the_next_version_is_that_of_all(export: Export) -> None:
    assert export(SPEC).code == 0
    outcome = export(SPEC, "--version", "7")
    assert outcome.code == 0, outcome.err
    for name in ("net", "net_preprocess", "net_images"):
        assert sorted(p.name for p in (outcome.repository / name).iterdir() if p.name.isdecimal()) == ["1", "7"]
    assert "version 7" in export(SPEC, "--version", "7").err


def test_if_changed_looks_at_every_entry(export: Export) -> None:
    assert export(SPEC).code == 0
    outcome = export(SPEC, "--if-changed", "--json")
    assert outcome.code == 0 and outcome.json["created"] is False
    assert [entry["name"] for entry in outcome.json["image_entries"]] == ["net_preprocess", "net_images"]
    config = outcome.repository / "net_images" / "config.pbtxt"
    config.unlink()
    again = export(SPEC, "--if-changed", "--json")
    assert again.code == 0, again.err
    assert again.json["created"] is True and config.is_file() and again.json["version"] == 2


def test_warm_up_pictures_are_published_with_the_preprocessing(export: Export) -> None:
    outcome = export(SPEC)
    config = outcome.config("net_preprocess")
    assert [(w.name, w.batch_size) for w in config.model_warmup] == [
        ("baseline_1", 1), ("baseline_4", 4), ("progressive", 1)
    ]  # fmt: skip
    folder = outcome.repository / "net_preprocess" / "warmup"
    files = {w.inputs["image_bytes"].input_data_file for w in config.model_warmup}
    assert {path.name for path in folder.iterdir()} == files
    assert {f"../warmup/{name}" for name in files} <= set(outcome.manifest("net_preprocess")["files"])
    assert not outcome.config("net_images").model_warmup
    # A picture that is gone would keep the model from loading: it is published anew.
    (folder / "baseline.jpeg").unlink()
    again = export(SPEC, "--if-changed", "--json")
    assert again.code == 0 and again.json["created"] is True
    assert {path.name for path in folder.iterdir()} == files


def test_no_warm_up_where_the_spec_wants_none(export: Export) -> None:
    outcome = export(SPEC + "serving: {warmup: false}\n")
    assert not outcome.config("net_preprocess").model_warmup
    assert not (outcome.repository / "net_preprocess" / "warmup").exists()


@pytest.mark.parametrize(
    "image",
    [
        {},
        {"center_crop": [300, 17]},
        {"center_crop": [300, 310], "crop_fraction": 0.13},
        {"crop_fraction": 0.001},
        {"resize": {"mode": "shorter", "height": 256}, "center_crop": [224, 224]},
        {"resize": {"mode": "letterbox", "height": 31, "width": 640}, "center_crop": [31, 600], "crop_fraction": 0.7},
        {"resize": {"mode": "exact", "height": 1, "width": 1}},
    ],
    ids=str,
)
def test_warm_up_pictures_fit_every_preprocessing(image: dict[str, Any]) -> None:
    """One that does not would end the server."""
    import struct

    from tritonstack.image import ImagePreprocessing
    from tritonstack_export.image_warmup import can_warm_up, warmup_files

    assert not can_warm_up(ImagePreprocessing.from_dict({"crop_fraction": 1e-5}))
    preprocessing = ImagePreprocessing.from_dict(image)
    assert can_warm_up(preprocessing)
    for content in warmup_files(preprocessing).values():
        (length,) = struct.unpack_from("<I", content)
        assert length == len(content) - 4
        assert preprocessing.preprocess(content[4:]).shape[0] == 3


def test_an_edited_preprocessing_is_kept(export: Export) -> None:
    outcome = export(SPEC)
    config = outcome.repository / "net_preprocess" / "config.pbtxt"
    text = config.read_text().replace("count: 2", "count: 5")
    config.write_text(text)
    again = export(SPEC)
    assert again.code == 0 and "was edited" in again.err
    assert config.read_text() == text and again.manifest("net_preprocess", 2)["config_edited"] is True


def test_a_shared_preprocessing_changes_for_all_or_not_at_all(export: Export) -> None:
    variants = SPEC + "precision: [fp32, fp16]\n"
    assert export(variants).code == 0
    changed = variants.replace("crop_fraction: 0.875", "crop_fraction: 0.5")
    alone = export(changed, "--precision", "fp32", "--default-precision", "fp32")
    assert alone.code == 1
    assert "'net_fp16_images' uses it too" in alone.err and "--precision" in alone.err
    assert not (alone.repository / "net" / "2").exists()
    together = export(changed)
    assert together.code == 0, together.err
    assert together.config("net_preprocess").parameters["crop_fraction"].string_value == "0.5"


def test_nothing_is_published_when_a_name_is_taken(export: Export, tmp_path: Path) -> None:
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "net_images").write_text("not a model")
    outcome = export(SPEC)
    assert outcome.code == 1 and "net_images" in outcome.err
    assert outcome.names == ["net_images"]


def test_a_name_of_another_kind_of_model_is_refused(export: Export, tmp_path: Path) -> None:
    taken = tmp_path / "repository" / "net_preprocess"
    (taken / "1").mkdir(parents=True)
    (taken / "config.pbtxt").write_text('backend: "python"\nmax_batch_size: 8\n')
    outcome = export(SPEC)
    assert outcome.code == 1 and "served by python instead of image_preprocess" in outcome.err
    assert outcome.names == ["net_preprocess"]


def test_other_inputs_pass_through(export: Export) -> None:
    text = (
        SPEC.replace("plain", "with_threshold")
        .replace("range: [-1, 1]}]", "range: [-1, 1]}, {name: image_bytes, dtype: float32, shape: [batch, 1]}]")
        .replace("image:\n", "image:\n    input: image\n")
        .replace("outputs: [{name: logits}]", "outputs: [{name: logits}, {name: preprocessed}]")
    )
    outcome = export(text)
    assert outcome.code == 0, outcome.err
    config = outcome.config("net_images")
    # The model's own names win; those of the ensemble give way.
    assert [tensor.name for tensor in config.input] == ["image_bytes_", "image_bytes"]
    assert json.loads(config.parameters["tritonstack.image_bytes"].string_value) == {"input": "image_bytes_"}
    first, second = config.ensemble_scheduling.step
    assert dict(first.output_map) == {"preprocessed": "preprocessed_"}
    assert dict(second.input_map) == {"image": "preprocessed_", "image_bytes": "image_bytes"}
    assert dict(second.output_map) == {"logits": "logits", "preprocessed": "preprocessed"}


@pytest.mark.parametrize(
    ("image", "parameters"),
    [
        (
            "{resize: {mode: shorter, height: 20}, center_crop: [16, 16], scale: 0.00392156862745098}",
            {"resize": "shorter", "height": "20", "center_crop": "16x16", "scale": "0.003921569"},
        ),
        (
            "{resize: {mode: letterbox, height: 16, width: 16, pad: 114}, channel_order: BGR, exif: false}",
            {"resize": "letterbox", "height": "16", "width": "16", "pad_value": "114", "exif": "false"},
        ),
        ("{center_crop: [16, 16], interpolation: nearest}", {"resize": "none", "center_crop": "16x16"}),
    ],
)
def test_every_setting_reaches_the_backend(export: Export, image: str, parameters: dict[str, str]) -> None:
    head = SPEC[: SPEC.index("  image:\n")]
    outcome = export(f"{head}  image: {image}\n")
    assert outcome.code == 0, outcome.err
    found = {name: value.string_value for name, value in outcome.config("net_preprocess").parameters.items()}
    assert found.items() >= parameters.items()
    assert ("width" in found) == ("width" in parameters)
    assert ("crop_fraction" in found) is False


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("interpolation: bicubic", "interpolation: lanczos", "has no lanczos filter"),
        ("serve: true", "serve: perhaps", "serve"),
        ("serve: true", "served: true", "serve"),
        ("height: 16, width: 16}", "height: 24, width: 24}", "does not fit the input"),
    ],
)
def test_what_cannot_be_served_is_refused(export: Export, old: str, new: str, words: str) -> None:
    outcome = export(SPEC.replace(old, new))
    assert outcome.code == 2 and words in outcome.err
    assert outcome.names == []


def test_serve_needs_a_description(export: Export) -> None:
    outcome = export(SPEC[: SPEC.index("  image:\n")])
    assert outcome.code == 2 and "`serve` needs `image`" in outcome.err


def test_a_model_without_batch(export: Export) -> None:
    text = (
        SPEC.replace("[batch, 3, 16, 16]", "[3, 16, 16]")
        .replace("plain", "single")
        .replace("batch: {min: 1, opt: 4, max: 8}", "batch: false")
    )
    outcome = export(text)
    assert outcome.code == 0, outcome.err
    for name in ("net_preprocess", "net_images"):
        config = outcome.config(name)
        assert config.max_batch_size == 0 and list(config.input[0].dims) == [1]
        assert not config.HasField("dynamic_batching")


def test_a_leading_dimension_that_is_no_batch_is_for_clients_only(export: Export) -> None:
    text = SPEC.replace("[batch, 3, 16, 16]", "[1, 3, 16, 16]").replace(
        "batch: {min: 1, opt: 4, max: 8}", "batch: false"
    )
    refused = export(text)
    assert refused.code == 2 and "leading dimension that is no batch" in refused.err
    outcome = export(text.replace("serve: true", "serve: false"))
    assert outcome.code == 0, outcome.err
    assert outcome.names == ["net"]
