"""The switched config is one that Triton's tensorrt backend loads: its rules on profiles, batches, kinds and files.

They are those of its model_state.cc and instance_state.cc; engines come from the stand-in (see standin_tensorrt.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import engine_models as models
import pytest
from engine_models import add_entry, listing

from tritonstack_export.check import check_repository
from tritonstack_export.engine.build_engines import BuildOptions, EntryResult, build_engines
from tritonstack_export.engine.cache import EngineCache
from tritonstack_export.engine.home import TensorRtHome
from tritonstack_export.engine.machine import Machine
from tritonstack_export.engine.plan_record import Target
from tritonstack_export.repository import manifest, parse_config

HOME = TensorRtHome("standin_tensorrt", site=Path(__file__).parent)
MACHINE = Machine(HOME, "11.2.1.2", "9.0", "NVIDIA H200", "580.95.05")
TARGET = Target("11.2.1.2", ("9.0",))
TWO_PROFILES = {
    "profiles": [{"batch": {"min": 1, "opt": 2, "max": 4}}, {"batch": {"min": 5, "opt": 8, "max": 8}}],
}


def switch(repository: Path) -> EntryResult:
    (result,) = build_engines(
        repository,
        find_machine=lambda: MACHINE,
        cache=EngineCache(repository.parent / "cache"),
        options=BuildOptions("tensorrt"),
    )
    return result


def add_fp16(repository: Path, **options: Any) -> Path:
    """An entry in FP16, which is what every engine of the stand-in runs in."""
    return add_entry(repository, proto=models.conv_fp16(), precision="fp16", **options)


def config(old: str, new: str) -> str:
    assert old in models.CONFIG
    return models.CONFIG.replace(old, new)


def group(text: str) -> str:
    return config("count: 2 kind: KIND_AUTO", text)


def config_of(folder: Path) -> Any:
    return parse_config((folder / "config.pbtxt").read_bytes(), path="config.pbtxt")


@pytest.mark.parametrize(
    ("text", "engine", "message"),
    [
        (group('profile: ["5"]'), None, "names the profile '5', and the engine has 1"),
        (group('profile: ["0", "2"]'), TWO_PROFILES, "names the profile '2', and the engine has 2"),
        (group('profile: ["max"]'), TWO_PROFILES, "names the profile 'max'"),
        # The largest batch counts over the profiles that are named, not over all that the engine has.
        (group('profile: ["0"]'), TWO_PROFILES, "is 8, and of the 2 profiles instance_group uses 0, up to 4"),
    ],
)
def test_profiles_of_instance_groups(repository: Path, text: str, engine: dict[str, Any] | None, message: str) -> None:
    add_fp16(repository, config=text, engine=engine)
    before = listing(repository)
    result = switch(repository)
    assert result.status == "failed" and message in str(result.reason)
    assert listing(repository) == before


def test_a_profile_that_takes_the_whole_batch_is_kept(repository: Path) -> None:
    folder = add_fp16(repository, config=group('profile: ["1"]'), engine=TWO_PROFILES)
    assert switch(repository).status == "engine"
    assert list(config_of(folder).instance_group[0].profile) == ["1"]
    assert check_repository(repository, target=TARGET).findings == ()


def test_other_kinds_than_gpus_are_left_alone(repository: Path) -> None:
    add_fp16(repository, config=group("kind: KIND_MODEL"))
    result = switch(repository)
    assert result.status == "left alone" and "KIND_MODEL instances" in str(result.reason)


def test_files_named_for_onnx_runtime_are_not_taken_for_engines(repository: Path) -> None:
    names = 'default_model_filename: "net.onnx"\ncc_model_filenames { key: "9.0" value: "net.onnx" }\n'
    folder = add_fp16(repository, config=models.CONFIG + names)
    (folder / "1" / "model.onnx").rename(folder / "1" / "net.onnx")
    current = manifest.read(folder / "1")
    manifest.write(
        folder / "1",
        manifest.Manifest(manifest.digest_version(folder / "1", also=[folder / "config.pbtxt"]), current.fields),
    )
    assert switch(repository).status == "engine"
    switched = config_of(folder)
    assert not switched.default_model_filename and not switched.cc_model_filenames
    assert check_repository(repository, target=TARGET).findings == ()


def test_a_version_that_is_not_served_does_not_stand_in_the_way(repository: Path) -> None:
    """One config.pbtxt is for all versions: the batch and the profiles of the newest are more than the first takes."""
    folder = add_fp16(repository)
    add_fp16(repository, version=2, engine=TWO_PROFILES)
    result = switch(repository)
    assert result.status == "engine", result.reason
    assert list(config_of(folder).instance_group[0].profile) == ["0", "1"]
    assert any(note.startswith("version 1 is not served, and could not be: ") for note in result.notes)
    assert check_repository(repository, target=TARGET).findings == ()


def test_served_versions_with_other_profiles_each(repository: Path) -> None:
    both = config("latest { num_versions: 1 }", "all { }")
    add_fp16(repository, config=both)
    add_fp16(repository, version=2, engine=TWO_PROFILES, config=both)
    result = switch(repository)
    assert result.status == "failed"
    assert "the engine of 'net/1' does not fit its config.pbtxt: instance_group names the profile '1'" in str(
        result.reason
    )
