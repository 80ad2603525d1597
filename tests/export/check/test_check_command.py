"""`tritonstack check` as people and scripts call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from repository_builder import add_model, batching

from tritonstack.command import main
from tritonstack_export.check.visible_gpus import visible_gpus


def test_a_sound_repository(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_model(tmp_path, "net", batching())
    assert main(["check", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert out == "servable: net (1)\n\n1 servable model, 0 errors, 0 warnings\n"
    assert err == ""


def test_problems_are_grouped_by_model_with_place_and_fix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_model(tmp_path, "good", batching())
    add_model(tmp_path, "net", batching("dynamic_batching { preferred_batch_size: [ 16 ] }\n"))
    (tmp_path / ".git").mkdir()
    assert main(["check", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "net\n  error preferred-batch-size: preferred_batch_size holds 16, but max_batch_size is 8 " in out
    assert "[net/config.pbtxt:5:44]\n      fix: use sizes up to 8, or raise max_batch_size" in out
    assert "warning clutter: '.git'" in out
    assert out.endswith("servable: good (1)\n\n1 servable model, 1 error, 1 warning\n")


def test_json_and_strict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_model(tmp_path, "net", batching("dynamic_batching { max_queue_delay_microseconds: 5000000 }\n"))
    assert main(["check", str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["passed"], report["errors"], report["warnings"]) == (True, True, 0, 1)
    finding = report["findings"][0]
    assert finding["code"] == "queue-delay" and finding["line"] == 5 and finding["fix"]
    assert report["models"] == [
        {"name": "net", "path": str(tmp_path / "net"), "versions": [1], "backend": "onnxruntime", "dependencies": []}
    ]
    assert main(["check", str(tmp_path), "--json", "--strict"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["passed"]) == (True, False)


def test_empty_repositories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path)]) == 1
    assert f"no models found in {tmp_path}" in capsys.readouterr().out
    assert main(["check", str(tmp_path), "--allow-empty"]) == 0


def test_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_model(tmp_path, "net", batching("instance_group { kind: KIND_GPU gpus: [ 1 ] }\n"))
    assert [main(["check", str(tmp_path), *flags]) for flags in ([], ["--gpus", "0"], ["--gpus", "2"])] == [0, 1, 0]
    capsys.readouterr()
    assert main(["check", str(tmp_path), "--gpus", "auto"]) == (0 if visible_gpus() >= 2 else 1)


@pytest.mark.parametrize("chosen", ["", "-1"])
def test_hidden_gpus_are_not_counted(monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert visible_gpus() == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "DIR"),
        (["nowhere"], "No such file or directory"),
        ([".", "--gpus", "many"], "argument --gpus: not a number of GPUs; given 'many'; expected 0, 1, 2, … or auto"),
        ([".", "--gpus", "-1"], "--gpus"),
        ([".", "--gpus"], "--gpus"),
        ([".", "--nope"], "--nope"),
    ],
)
def test_wrong_usage_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and words in err


def test_help_fits_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["check", "--help"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.count("\n") <= 24
