"""What lands in the repository: whole versions or nothing, and never a change to a version that is there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Export = Callable[..., Any]
Listing = Callable[[Path], dict[str, str]]

LABELLED = """
name: net
model: {factory: 'MODELS:linear'}
outputs: [{name: logits}]
batch: {min: 1, opt: 4, max: 16}
labels: {output: logits, package: 'MODELS:four_labels'}
classification: {output: logits}
serving:
  instance_group: {count: 2, kind: cpu}
  dynamic_batching: {preferred: [16, 4], max_queue_delay_us: 250, queue_policy: {max_queue_size: 64}}
  version_policy: {latest: 2}
  response_cache: true
  parameters: {intra_op_thread_count: 2, enable_mem_arena: true}
"""


def test_entry_says_what_the_spec_says(export: Export, write_spec: Callable[..., Path]) -> None:
    from tritonclient.grpc import model_config_pb2 as pb

    outcome = export(write_spec(LABELLED))
    assert outcome.code == 0, outcome.err
    config = outcome.config("net")
    assert (config.name, config.backend, config.platform, config.max_batch_size) == ("net", "onnxruntime", "", 16)
    assert (config.instance_group[0].count, config.instance_group[0].kind) == (2, pb.ModelInstanceGroup.KIND_CPU)
    assert list(config.dynamic_batching.preferred_batch_size) == [4, 16]
    assert config.dynamic_batching.max_queue_delay_microseconds == 250
    assert config.dynamic_batching.default_queue_policy.max_queue_size == 64
    assert config.version_policy.latest.num_versions == 2
    assert config.response_cache.enable
    assert config.output[0].label_filename == "labels.txt"
    assert [(w.batch_size, list(w.inputs["x"].dims)) for w in config.model_warmup] == [(1, [8]), (4, [8])]
    parameters = {name: value.string_value for name, value in config.parameters.items()}
    assert parameters["intra_op_thread_count"] == "2"
    assert parameters["enable_mem_arena"] == "1"
    assert json.loads(parameters["tritonstack.classification"]) == {"output": "logits", "activation": "softmax"}
    labels = (outcome.repository / "net" / "labels.txt").read_bytes()
    assert labels == b"zero\none\ntwo, with comma\nthree: colon\n"


def test_defaults_serve_with_and_without_a_gpu(export: Export) -> None:
    from tritonclient.grpc import model_config_pb2 as pb

    from tritonstack_export.check import check_repository

    outcome = export("linear", "--name", "net")
    config = outcome.config("net")
    assert config.instance_group[0].kind == pb.ModelInstanceGroup.KIND_AUTO
    assert list(config.dynamic_batching.preferred_batch_size) == [8]
    for gpus in (None, 0, 2):
        assert not [f for f in check_repository(outcome.repository, gpus=gpus).findings if f.severity == "error"]


def test_manifest(export: Export, write_spec: Callable[..., Path]) -> None:
    from tritonstack_export.repository.manifest import read, verify

    outcome = export(write_spec(LABELLED))
    folder = outcome.repository / "net" / "1"
    manifest = read(folder)
    assert verify(folder) == []
    assert set(manifest.files) == {"model.onnx", "../config.pbtxt", "../labels.txt"}
    fields = manifest.fields
    assert fields["parameters"] == 36
    assert fields["opset"] == 20
    assert fields["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["batch", 8]}]
    assert fields["outputs"] == [{"name": "logits", "dtype": "float32", "shape": ["batch", 4]}]
    assert {"torch", "onnx", "onnxruntime", "tritonstack"} <= set(fields["tools"])
    assert len(fields["weights_sha256"]) == len(fields["spec_sha256"]) == 64
    assert {row["sizes"]["batch"] for row in fields["parity"]["rows"]} >= {1, 2, 4, 16}
    assert {"load", "reference", "export", "check", "parity", "entry"} <= set(fields["seconds"])
    assert str(Path(__file__).parent.parent.parent) not in json.dumps({k: v for k, v in fields.items() if k != "spec"})


def test_the_next_version_leaves_the_first_alone(export: Export, listing: Listing) -> None:
    first = export("linear", "--name", "net")
    before = listing(first.repository)
    second = export("linear", "--name", "net", "--json")
    assert second.json["version"] == 2
    after = listing(first.repository)
    assert {k: v for k, v in after.items() if not k.startswith("net/2")} == before
    assert export("linear", "--name", "net", "--version", "7", "--json").json["version"] == 7
    assert export("linear", "--name", "net", "--json").json["version"] == 8


def test_an_existing_version_is_refused_before_any_work(export: Export, listing: Listing) -> None:
    outcome = export("linear", "--name", "net")
    before = listing(outcome.repository)
    again = export("linear", "--name", "net", "--version", "1")
    assert again.code == 1
    assert "version 1 of 'net' exists already" in again.err and "such as 2" in again.err
    assert "load" not in again.err
    assert listing(outcome.repository) == before


@pytest.mark.parametrize("model", ["folded_reshape", "fails", "functional_dropout"])
def test_failures_leave_the_repository_as_it_was(export: Export, listing: Listing, model: str) -> None:
    outcome = export("linear", "--name", "net")
    before = listing(outcome.repository)
    assert export(model, "--name", "net").code == 1
    assert export(model, "--name", "other").code == 1
    assert listing(outcome.repository) == before


def test_failure_late_in_publication_is_undone(
    export: Export, write_spec: Callable[..., Path], listing: Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version folder cannot be moved, after labels and config were replaced already."""
    outcome = export(write_spec(LABELLED))
    before = listing(outcome.repository)
    changed = LABELLED.replace("count: 2", "count: 1").replace("package: 'MODELS:four_labels'", "values: [a, b, c, d]")
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if target == outcome.repository / "net" / "2":
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    again = export(write_spec(changed, "changed.yaml"))
    assert again.code == 1 and "No space left on device" in again.err
    assert listing(outcome.repository) == before


def test_folders_made_for_a_failed_export_go_again(export: Export, tmp_path: Path) -> None:
    assert export("fails", repository=tmp_path / "a" / "b").code == 1
    assert not (tmp_path / "a").exists()


def test_other_inputs_need_another_name(export: Export, listing: Listing) -> None:
    outcome = export("linear", "--name", "net")
    before = listing(outcome.repository)
    again = export("where", "--name", "net")
    assert again.code == 1
    assert "does not fit the published model 'net'" in again.err and "input 'x' has another dtype or shape" in again.err
    assert listing(outcome.repository) == before


def test_an_edited_config_is_kept(export: Export) -> None:
    outcome = export("linear", "--name", "net")
    path = outcome.repository / "net" / "config.pbtxt"
    edited = path.read_text().replace("preferred_batch_size: [8]", "preferred_batch_size: [4]")
    path.write_text(edited)
    again = export("linear", "--name", "net")
    assert again.code == 0
    assert "was edited" in again.err
    assert path.read_text() == edited
    # The version above recorded the edited config; that must not make it ours.
    assert export("linear", "--name", "net", "--max-batch", "16").code == 0
    assert path.read_text() == edited
    assert export("linear", "--name", "net", "--max-batch", "16", "--if-changed").out.startswith("up to date")
    path.unlink()
    assert export("linear", "--name", "net", "--max-batch", "16").code == 0
    assert "preferred_batch_size: [8]" in path.read_text()


def test_config_and_labels_follow_the_newest_version(export: Export, write_spec: Callable[..., Path]) -> None:
    export(write_spec(LABELLED))
    changed = LABELLED.replace("count: 2", "count: 1").replace("package: 'MODELS:four_labels'", "values: [a, b, c, d]")
    outcome = export(write_spec(changed, "changed.yaml"))
    assert outcome.code == 0, outcome.err
    assert outcome.config("net").instance_group[0].count == 1
    assert (outcome.repository / "net" / "labels.txt").read_text() == "a\nb\nc\nd\n"


def test_if_changed(export: Export, write_spec: Callable[..., Path], listing: Listing) -> None:
    spec = write_spec(LABELLED)
    outcome = export(spec, "--if-changed")
    assert "published" in outcome.out
    before = listing(outcome.repository)
    again = export(spec, "--if-changed")
    assert again.code == 0 and again.out.startswith("up to date: net version 1")
    assert listing(outcome.repository) == before
    fresh = export(spec, "--version", "7", "--json").json
    current = export(spec, "--if-changed", "--json").json
    assert current["created"] is False and current["version"] == 7
    assert current["parity"] == fresh["parity"] and current["parity"]["sizes"]
    assert (current["inputs"], current["outputs"]) == (fresh["inputs"], fresh["outputs"])
    assert export(spec, "--if-changed", "--max-batch", "17", "--json").json["version"] == 8


def test_if_changed_sees_the_code_and_the_flags(export: Export, tmp_path: Path) -> None:
    """The same weights under other code, wherever it lies, are another model; so are other names and axes."""
    (tmp_path / "layers.py").write_text("import torch\ndef act(x): return torch.relu(x)\n")
    (tmp_path / "net.py").write_text(
        "import torch, layers\nclass Net(torch.nn.Module):\n    def forward(self, x): return layers.act(x)\n"
        "def build(): return Net(), torch.zeros(2, 3)\n"
    )
    net = (Path(f"{tmp_path}/net.py:build"), "--if-changed", "--json")
    assert [export(*net).json["version"], export(*net).json["version"]] == [1, 1]
    (tmp_path / "layers.py").write_text("import torch\ndef act(x): return torch.tanh(x)\n")
    assert [export(*net).json["version"], export(*net).json["version"]] == [2, 2]
    renamed = export(*net, "--input-names", "pixels")
    assert renamed.code == 1 and "does not fit the published model" in renamed.err


@pytest.mark.parametrize("damage", ["model", "config", "manifest"])
def test_if_changed_sees_damage(export: Export, damage: str) -> None:
    outcome = export("linear", "--name", "net")
    target = {"model": "net/1/model.onnx", "config": "net/config.pbtxt", "manifest": "net/1/manifest.json"}[damage]
    path = outcome.repository / target
    path.write_bytes(path.read_bytes() + b"\n" if damage == "config" else path.read_bytes()[:-10])
    assert export("linear", "--name", "net", "--if-changed", "--json").json["version"] == 2


def test_labels_have_to_be_as_many_as_classes(export: Export, write_spec: Callable[..., Path]) -> None:
    outcome = export(write_spec(LABELLED.replace("package: 'MODELS:four_labels'", "values: [a, b, c]")))
    assert outcome.code == 1
    assert "3 labels for the 4 classes of 'logits'" in outcome.err
    assert not outcome.repository.exists()


def test_label_files_with_bom_and_windows_lines(
    export: Export, write_spec: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "names.txt").write_bytes("\ufeffzéro\r\none\r\ntwo\r\nthree\r\n".encode())
    outcome = export(write_spec(LABELLED.replace("package: 'MODELS:four_labels'", "file: names.txt")))
    assert outcome.code == 0, outcome.err
    assert (outcome.repository / "net" / "labels.txt").read_bytes() == "zéro\none\ntwo\nthree\n".encode()


def test_two_exports_at_once_get_two_versions(tmp_path: Path) -> None:
    models = Path(__file__).with_name("models.py")
    command = [sys.executable, "-m", "tritonstack", "export", f"{models}:linear", "--name", "net", "--quiet", "--json"]
    command += ["--repository", str(tmp_path / "repository")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert sorted(json.loads(answer)["version"] for answer in answers) == [1, 2]
    assert sorted(p.name for p in (tmp_path / "repository").iterdir()) == ["net"]


def test_leftovers_of_a_killed_export_are_removed(export: Export, tmp_path: Path) -> None:
    dead = tmp_path / "repository" / ".tritonstack-export-dead" / "net"
    dead.mkdir(parents=True)
    assert export("linear", "--name", "net").code == 0
    assert sorted(p.name for p in (tmp_path / "repository").iterdir()) == ["net"]


def test_staging_of_a_living_export_is_left_alone(tmp_path: Path, export: Export) -> None:
    from tritonstack_export.publication import staging

    with staging(tmp_path / "repository") as stage:
        assert export("linear", "--name", "net").code == 0
        assert stage.root.is_dir()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_repository_that_cannot_be_written(export: Export, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    outcome = export("linear", repository=closed / "repository")
    assert outcome.code == 1 and "cannot write" in outcome.err


def test_repository_that_is_a_file(export: Export, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = export("linear", repository=tmp_path / "file")
    assert outcome.code == 2 and "is not a folder" in outcome.err


@pytest.mark.parametrize("flag", ["--keep-work", "--repository"])
def test_folders_that_cannot_be_are_refused_before_the_work(export: Export, tmp_path: Path, flag: str) -> None:
    (tmp_path / "file").write_text("")
    for given in (tmp_path / "file", tmp_path / "file" / "below"):
        outcome = export("linear", flag, str(given))
        assert outcome.code == 2, outcome.err
        assert f"{flag}: {tmp_path / 'file'} is not a folder" in outcome.err and outcome.err.count("\n") == 1
    outcome = export("linear", flag, "")
    assert (outcome.code, f"{flag}: given ''" in outcome.err) == (2, True)


def test_keep_work(export: Export, tmp_path: Path) -> None:
    assert export("linear", "--name", "net", "--keep-work", str(tmp_path / "work")).code == 0
    assert (tmp_path / "work" / "exported.onnx").is_file()


def test_versions_named_one_by_one(export: Export, write_spec: Callable[..., Path]) -> None:
    text = LABELLED.replace("{latest: 2}", "{specific: [1, 2]}")
    first = export(write_spec(text))
    assert first.code == 2 and "while version 2 is missing" in first.err
    assert "load" not in first.err, "told before any work"
    assert export("linear", "--name", "net", "--output-names", "logits", "--max-batch", "16").code == 0
    second = export(write_spec(text))
    assert second.code == 0, second.err
    assert list(second.config("net").version_policy.specific.versions) == [1, 2]
    assert not (second.repository / "net" / "1").is_symlink()


def test_a_version_below_the_newest_is_said_not_to_be_served(export: Export) -> None:
    export("linear", "--name", "net", "--version", "5")
    outcome = export("linear", "--name", "net", "--version", "2")
    assert outcome.code == 0
    assert "version 2 is not served" in outcome.err and "5 exists" in outcome.err


def test_a_model_of_another_backend_is_left_alone(export: Export, listing: Listing, tmp_path: Path) -> None:
    folder = tmp_path / "repository" / "net"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text("")
    (folder / "config.pbtxt").write_text(
        'backend: "python"\nmax_batch_size: 8\ninput { name: "x" data_type: TYPE_FP32 dims: [8] }\n'
        'output { name: "output" data_type: TYPE_FP32 dims: [4] }\n'
    )
    before = listing(tmp_path / "repository")
    outcome = export("linear", "--name", "net")
    assert outcome.code == 1 and "served by python" in outcome.err
    assert listing(tmp_path / "repository") == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_export_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    model = tmp_path / "model.py"
    model.write_text(
        "import time\nimport torch\n\n\nclass Slow(torch.nn.Module):\n    def forward(self, x):\n"
        "        open(__file__ + '.started', 'w').close()\n        time.sleep(30)\n        return x\n\n\n"
        "def build():\n    return Slow(), (torch.ones(2, 3),)\n"
    )
    command = [sys.executable, "-m", "tritonstack", "export", f"{model}:build", "--repository", str(tmp_path / "repo")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "model.py.started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert "Traceback" not in err
    assert not (tmp_path / "repo").exists()
