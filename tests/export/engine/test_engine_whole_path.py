"""From an ONNX entry to a served engine in one go, with a stand-in for TensorRT on a GPU (see standin_tensorrt.py)."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import engine_models as models
import pytest
from engine_models import add_entry, read_json

from tritonstack_export.check import check_repository
from tritonstack_export.engine.build import BuildOutcome, build
from tritonstack_export.engine.build_engines import BuildOptions, EntryResult, build_engines
from tritonstack_export.engine.cache import EngineCache
from tritonstack_export.engine.engine_error import EngineError
from tritonstack_export.engine.home import TensorRtHome
from tritonstack_export.engine.machine import Machine
from tritonstack_export.engine.plan_record import Target
from tritonstack_export.engine.settings import Bounds, BuildSettings

HOME = TensorRtHome("standin_tensorrt", site=Path(__file__).parent)
MACHINE = Machine(HOME, "11.2.1.2", "9.0", "NVIDIA H200", "580.95.05")
PROFILE = {"x": Bounds((1, 3, 8, 8), (4, 3, 8, 8), (8, 3, 8, 8))}


def built(tmp_path: Path, make: Any, **settings: Any) -> BuildOutcome:
    path = models.save(make(), tmp_path / "model.onnx")
    return build(path, BuildSettings((PROFILE,), **settings), home=HOME, output=tmp_path / "model.plan")


def test_what_runs_is_read_back_from_the_engine(tmp_path: Path) -> None:
    """E25 on a TensorRT without precision flags: FP16 is in the graph, and the engine says so."""
    outcome = built(tmp_path, models.conv_fp16, precision="fp16")
    assert outcome.read_back and outcome.summary is not None
    assert (outcome.tensorrt, outcome.summary.executed) == ("11.2.1.2", "fp16")
    assert outcome.profiles == ({"x": [[1, 3, 8, 8], [4, 3, 8, 8], [8, 3, 8, 8]]},)
    assert outcome.warnings == ("a warning of the builder",)


def test_int8_asked_and_fp16_run(tmp_path: Path) -> None:
    outcome = built(tmp_path, models.conv_int8, precision="int8")
    assert outcome.warnings[-1] == ("INT8 was asked for, but 1 of 1 convolutions and matrix products run in FP16: conv")


def test_fp16_asked_of_an_fp32_graph(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="TensorRT would run it in FP32"):
        built(tmp_path, models.conv, precision="fp16")
    assert not (tmp_path / "model.plan").exists()


@pytest.mark.parametrize("how", ["closed", "broken"])
def test_an_engine_that_cannot_be_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setenv("STANDIN", how)
    outcome = built(tmp_path, models.conv)
    assert not outcome.read_back and outcome.plan_bytes > 100
    assert "could not be read back" in outcome.warnings[-1]


@pytest.mark.parametrize(
    "settings",
    [
        {"hardware": "ampere_plus"}, {"hardware": "same_compute_capability"}, {"version_compatible": True},
        {"weights": "refit"}, {"weights": "stripped"}, {"sparsity": True}, {"tf32": False},
        {"workspace_bytes": 1 << 30}, {"optimization_level": 5},
    ],
)  # fmt: skip
def test_every_policy_word_has_its_call(tmp_path: Path, settings: dict[str, Any]) -> None:
    assert built(tmp_path, models.conv, **settings).plan_bytes > 100


def test_chosen_compute_capabilities_are_for_rtx_only(tmp_path: Path) -> None:
    path = models.save(models.conv(), tmp_path / "model.onnx")
    with pytest.raises(EngineError, match=r"TensorRT 11\.2\.1\.2 builds for the GPU it runs on"):
        build(path, BuildSettings((PROFILE,)), home=HOME, compute_capabilities=["9.0"])


def test_plugin_libraries_are_loaded(tmp_path: Path) -> None:
    source, library = tmp_path / "plugin.c", tmp_path / "plugin.so"
    source.write_text(
        "#include <stdio.h>\n"
        f'__attribute__((constructor)) static void seen(void) {{ fclose(fopen("{tmp_path}/loaded", "w")); }}\n'
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    built(tmp_path, models.conv, plugins=(library,))
    assert (tmp_path / "loaded").exists()


def run(repository: Path, cache: EngineCache, **options: Any) -> EntryResult:
    (result,) = build_engines(
        repository, find_machine=lambda: MACHINE, cache=cache, options=BuildOptions("tensorrt"), **options
    )
    return result


def test_from_onnx_to_a_served_engine(repository: Path, tmp_path: Path) -> None:
    cache = EngineCache(tmp_path / "cache")
    folder = add_entry(repository, proto=models.conv_fp16(), precision="fp16", engine={"version_compatible": True})
    phases: list[tuple[str, float | None]] = []
    result = run(repository, cache, talk=lambda model, phase, share: phases.append((phase, share)))
    assert (result.status, result.versions[0].source) == ("engine", "built"), result.reason
    assert ("Building", 0.0) in phases
    record = read_json(folder / "1" / "model.plan.json")
    assert (record["precision_asked"], record["precision"], record["precision_read_from"]) == ("fp16", "fp16", "engine")
    assert record["executed"]["compute_layers"] == {"fp16": 1}
    assert any("version-compatible=true" in note for note in result.notes)
    assert cache.timing_cache("11.2.1.2", "9.0").read_bytes() == b"timings"
    assert check_repository(repository, target=Target("11.2.1.2", ("9.0",))).findings == ()
    assert run(repository, cache).versions[0].source == "in place"
    # Another repository on the same machine takes it from the cache.
    other = tmp_path / "other"
    add_entry(other, proto=models.conv_fp16(), precision="fp16", engine={"version_compatible": True})
    assert run(other, cache).versions[0].source == "cached"


def test_a_full_cache_disk_fails_the_entry_and_not_the_run(repository: Path, tmp_path: Path) -> None:
    add_entry(repository)
    (tmp_path / "file").write_text("")
    result = run(repository, EngineCache(tmp_path / "file" / "cache"))
    assert result.status == "failed" and "cannot be written: Not a directory" in str(result.reason)
