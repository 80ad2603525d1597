"""What goes wrong with one entry, or changes while its engine is built: told, contained, and nothing half-switched."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engine_models as models
import pytest
from engine_models import add_entry, listing

from tritonstack.command import main
from tritonstack_export.check import check_repository
from tritonstack_export.engine.build_engines import BuildOptions, EntryResult, build_engines
from tritonstack_export.engine.cache import EngineCache
from tritonstack_export.engine.cache_content import sweep
from tritonstack_export.engine.home import TensorRtHome
from tritonstack_export.engine.machine import Machine
from tritonstack_export.engine.plan_record import Target

MACHINE = Machine(TensorRtHome("standin_tensorrt", site=Path(__file__).parent), "11.2.1.2", "9.0", "NVIDIA H200")
TARGET = Target("11.2.1.2", ("9.0",))


@pytest.fixture
def cache(tmp_path: Path) -> EngineCache:
    return EngineCache(tmp_path / "cache")


def switch(
    repository: Path, cache: EngineCache, *, talk: Callable[[str, str], None] | None = None
) -> list[EntryResult]:
    return build_engines(
        repository,
        find_machine=lambda: MACHINE,
        cache=cache,
        options=BuildOptions("tensorrt"),
        talk=(lambda model, phase, share: talk(model, phase)) if talk is not None else None,
    )


def edit_json(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dimensions": {"batch": {"min": 1}}}, "not as an export writes them: no 'opt'"),
        ({"dimensions": {"batch": {"min": 1, "opt": "4", "max": 8}}}, "'4' is no size"),
        ({"dimensions": ["batch"]}, "not as an export writes them"),
        ({"inputs": [{"name": "x"}]}, "no 'shape'"),
        ({"inputs": [{"name": "x", "shape": [None, 3, 8, 8]}]}, "None is no size"),
        ({"inputs": "x"}, "not as an export writes them"),
    ],
)
def test_a_manifest_of_another_making(
    repository: Path, cache: EngineCache, fields: dict[str, Any], message: str
) -> None:
    edit_json(add_entry(repository, "bad") / "1" / "manifest.json", **fields)
    add_entry(repository, "good")
    bad, good = switch(repository, cache)
    assert (bad.status, good.status) == ("failed", "engine")
    assert message in str(bad.reason) and "next: export the version again" in str(bad.reason)


def test_a_config_that_cannot_be_read(repository: Path, cache: EngineCache) -> None:
    """A file whose reading fails, as of a disk that is broken."""
    path = add_entry(repository, "bad") / "config.pbtxt"
    path.unlink()
    path.symlink_to("/proc/self/mem")
    add_entry(repository, "good")
    bad, good = switch(repository, cache)
    assert (bad.status, good.status) == ("failed", "engine")
    assert "config.pbtxt cannot be read: Input/output error; next: check its permissions" in str(bad.reason)


def test_a_record_of_another_making(repository: Path, cache: EngineCache) -> None:
    folder = add_entry(repository, "bad")
    add_entry(repository, "good")
    switch(repository, cache)
    edit_json(folder / "1" / "model.plan.json", inputs=[{"name": "x"}])
    bad, good = switch(repository, cache)
    assert (bad.status, good.status) == ("failed", "engine")
    assert "does not say what it takes and gives" in str(bad.reason)


def test_a_config_in_the_way_is_noticed_before_anything_changes(repository: Path, cache: EngineCache) -> None:
    folder = add_entry(repository)
    (folder / "configs").mkdir()
    (folder / "configs" / "onnxruntime.pbtxt").write_text('backend: "onnxruntime"\nmax_batch_size: 1\n')
    before = listing(repository)
    (result,) = switch(repository, cache)
    assert "is there already and is another config" in str(result.reason)
    assert listing(repository) == before


def test_a_version_published_meanwhile(repository: Path, cache: EngineCache) -> None:
    """It is the newest, so the one to serve, and has no engine yet."""
    add_entry(repository)

    def publish(model: str, phase: str) -> None:
        if phase == "build":
            add_entry(repository, version=2)

    (result,) = switch(repository, cache, talk=publish)
    assert "version 2 of 'net' was published or removed while engines were built; next: run it again" in str(
        result.reason
    )
    assert check_repository(repository).ok
    (again,) = switch(repository, cache)
    assert again.status == "engine" and check_repository(repository, target=TARGET).ok


def test_a_model_replaced_while_it_is_built_poisons_no_cache(repository: Path, cache: EngineCache) -> None:
    folder = add_entry(repository, with_manifest=False)

    def replace(model: str, phase: str) -> None:
        if phase == "parse":
            models.save(models.conv_fp16(), folder / "1" / "model.onnx")

    (result,) = switch(repository, cache, talk=replace)
    assert "model.onnx was changed while its engine was built; next: run it again" in str(result.reason)
    assert list(cache.root.glob("*/*/record.json")) == []


def test_gc_leaves_engines_alone_until_all_versions_have_theirs(repository: Path, cache: EngineCache) -> None:
    add_entry(repository)
    add_entry(repository, version=2, proto=models.conv_fp16(), precision="fp16")
    kept: list[list[str]] = []

    def collect(model: str, phase: str) -> None:
        if model == "net/2" and phase == "build":
            kept.append(sweep(cache, max_bytes=0)[1])

    (result,) = switch(repository, cache, talk=collect)
    assert result.status == "engine", result.reason
    assert kept == [[result.versions[0].key]]


def test_an_engine_that_vanished_is_told(repository: Path, cache: EngineCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where folders cannot be locked, gc may be faster."""
    from tritonstack_export.engine import build_engines as module

    add_entry(repository)
    publish = module.publish_engines

    def late(entry: Any, engines: Any, **options: Any) -> Any:
        engines[0].plan.unlink()
        return publish(entry, engines, **options)

    monkeypatch.setattr(module, "publish_engines", late)
    before = listing(repository)
    (result,) = switch(repository, cache)
    assert result.status == "failed" and "cannot be read any more: No such file or directory" in str(result.reason)
    assert listing(repository) == before


@pytest.mark.parametrize("policy", ["auto", "tensorrt"])
def test_a_prepared_repository_that_is_mounted_read_only(
    repository: Path, cache: EngineCache, monkeypatch: pytest.MonkeyPatch, policy: Any
) -> None:
    """Its engines are in place, so nothing has to be written; ONNX Runtime is no better."""
    add_entry(repository)
    switch(repository, cache)
    before = listing(repository)

    def access(path: Any, mode: int) -> bool:
        return not mode & os.W_OK

    def refused(*arguments: Any, **options: Any) -> Any:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "access", access)
    monkeypatch.setattr(tempfile, "mkstemp", refused)
    (result,) = build_engines(
        repository, find_machine=lambda: MACHINE, cache=EngineCache(cache.root / "none"), options=BuildOptions(policy)
    )
    assert (result.status, result.changed, result.versions[0].source) == ("engine", False, "in place"), result.reason
    assert listing(repository) == before
    # With another engine to put there, that is said before it is built.
    other = Machine(MACHINE.home, "11.2.1.2", "8.9", "NVIDIA L4")
    (result,) = build_engines(
        repository, find_machine=lambda: other, cache=cache, options=BuildOptions("tensorrt"), talk=lambda *said: None
    )
    assert "cannot be written, so no engine can be put there" in str(result.reason)
    assert len(list(cache.root.glob("*/*/record.json"))) == 1


def test_the_way_back_needs_no_cache(
    repository: Path, cache: EngineCache, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add_entry(repository)
    switch(repository, cache)
    monkeypatch.setenv("TRITONSTACK_CACHE", "~no_such_user/cache")
    assert main(["build-engines", str(repository), "--revert"]) == 0
    assert capsys.readouterr().out == "net: ONNX Runtime: as asked\n"
    assert main(["build-engines", str(repository)]) == 1
    assert "there is no home folder to keep the cache in" in capsys.readouterr().err
