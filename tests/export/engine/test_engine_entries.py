"""`build_engines` on repositories: the switch, its golden config, the way back, kills in between, refusals.

TensorRT itself needs a GPU. Builds are real ones by TensorRT for RTX; where an engine has to get into a repository,
the cache holds bytes with the header of a TensorRT engine under the key that the build would have.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engine_models as models
import pytest
from engine_models import add_entry, listing, plan_bytes, read_json

from tritonstack.command import main
from tritonstack.errors import SetupError, UsageError
from tritonstack_export.check import check_repository
from tritonstack_export.engine.build_engines import BuildOptions, EntryResult, build_engines, revert
from tritonstack_export.engine.cache import EngineCache
from tritonstack_export.engine.cache_key import engine_key, key_parts, onnx_sha256, plugin_digests
from tritonstack_export.engine.entry import read_entry, read_version
from tritonstack_export.engine.home import RtxHome, TensorRtHome
from tritonstack_export.engine.machine import Machine
from tritonstack_export.engine.plan_record import Target
from tritonstack_export.repository import manifest, parse_config
from tritonstack_export.repository.layout import EntryPaths

H200 = Machine(TensorRtHome("no_tensorrt"), "10.14.1.48", "9.0", "NVIDIA H200", "580.95.05")
TARGET = Target("10.14.1.48", ("9.0",))


def tensor(name: str, *shape: int, dtype: str = "FLOAT") -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": list(shape)}


def bake(
    cache: EngineCache,
    repository: Path,
    name: str = "net",
    *,
    machine: Machine = H200,
    plan: bytes | None = None,
    **fields: Any,
) -> None:
    """Put engines for the versions of an entry into the cache, as builds on that machine would."""
    entry = read_entry(EntryPaths(repository, name))
    assert not isinstance(entry, str)
    for version in entry.paths.versions():
        source = read_version(entry, version)
        parts = key_parts(
            model_sha256=onnx_sha256(source.onnx),
            settings=source.settings,
            tensorrt=machine.tensorrt,
            compute_capability=machine.compute_capability,
            gpu=machine.gpu,
            plugins=plugin_digests(source.settings.plugins),
        )
        record = {
            **parts,
            "gpu": machine.gpu,
            "precision": source.settings.precision,
            "seconds": 1.0,
            "warnings": [],
            "inputs": [tensor("x", -1, 3, 8, 8)],
            "outputs": [tensor("y", -1, 4, 8, 8)],
            **fields,
        }
        content = plan or plan_bytes(f"{name}/{version}".encode())

        def make(path: Path, content: bytes = content, record: dict[str, Any] = record) -> dict[str, Any]:
            path.write_bytes(content)
            return record

        cache.get_or_build(engine_key(parts), make)


@pytest.fixture
def cache(tmp_path: Path) -> EngineCache:
    return EngineCache(tmp_path / "cache")


def run(
    repository: Path, cache: EngineCache, *, machine: Machine = H200, policy: Any = "tensorrt", **options: Any
) -> list[EntryResult]:
    return build_engines(repository, find_machine=lambda: machine, cache=cache, options=BuildOptions(policy), **options)


def one(results: list[EntryResult]) -> EntryResult:
    (result,) = results
    return result


def config_of(folder: Path) -> Any:
    return parse_config((folder / "config.pbtxt").read_bytes(), path="config.pbtxt")


GOLDEN = """name: "net"
platform: "tensorrt_plan"
backend: "tensorrt"
max_batch_size: 8
version_policy {
  latest {
    num_versions: 1
  }
}
input {
  name: "x"
  data_type: TYPE_FP32
  dims: [3, 8, 8]
}
output {
  name: "y"
  data_type: TYPE_FP32
  dims: [4, 8, 8]
  label_filename: "labels.txt"
}
instance_group {
  count: 2
}
dynamic_batching {
  preferred_batch_size: [4]
  max_queue_delay_microseconds: 100
}
parameters {
  key: "tritonstack.classification"
  value {
    string_value: "{\\"output\\": \\"y\\", \\"activation\\": \\"none\\"}"
  }
}
model_warmup {
  name: "one"
  batch_size: 1
  inputs {
    key: "x"
    value {
      data_type: TYPE_FP32
      dims: [3, 8, 8]
      zero_data: true
    }
  }
}
"""


def test_the_switch(repository: Path, cache: EngineCache) -> None:
    folder = add_entry(repository)
    before = (folder / "config.pbtxt").read_bytes()
    bake(cache, repository)
    result = one(run(repository, cache))
    assert (result.status, result.changed, result.versions[0].source) == ("engine", True, "cached")
    text = (folder / "config.pbtxt").read_text()
    assert text == GOLDEN
    assert (folder / "configs" / "onnxruntime.pbtxt").read_bytes() == before
    assert (folder / "1" / "model.onnx").is_file()
    record = read_json(folder / "1" / "model.plan.json")
    assert (record["tensorrt"], record["compute_capability"], record["gpu"]) == ("10.14.1.48", "9.0", "NVIDIA H200")
    told = "\n".join(result.notes)
    for name in ("intra_op_thread_count", "session.disable_quant_qdq", "optimization.graph", "execution_accelerators"):
        assert name in told
    written = manifest.read(folder / "1")
    assert {"model.onnx", "model.plan", "model.plan.json", "../config.pbtxt"} <= set(written.files)
    assert written.files["../config.pbtxt"] == manifest.digest_file(folder / "config.pbtxt")
    assert written.fields["engine"]["key"] == record["key"]
    assert manifest.verify(folder / "1") == []
    report = check_repository(repository, target=TARGET)
    assert report.findings == () and [m.backend for m in report.models] == ["tensorrt"]
    (finding,) = check_repository(repository, target=Target("11.2", ("9.0",))).findings
    assert "engine built for sm_90 with TensorRT 10.14.1.48, this machine is sm_90 / 11.2" in finding.message


def test_a_second_run_changes_nothing(repository: Path, cache: EngineCache) -> None:
    add_entry(repository)
    bake(cache, repository)
    run(repository, cache)
    before = listing(repository)
    again = one(run(repository, cache))
    assert (again.changed, again.versions[0].source, again.notes) == (False, "in place", ())
    assert listing(repository) == before
    # Without the cache, too: what is in place needs none.
    assert not one(run(repository, EngineCache(cache.root / "none"))).changed


def test_the_second_run_loads_nothing_heavy(repository: Path, cache: EngineCache) -> None:
    add_entry(repository)
    bake(cache, repository)
    run(repository, cache)
    source = (
        "import sys\nfrom pathlib import Path\n"
        "from tritonstack_export.engine.build_engines import build_engines\n"
        "from tritonstack_export.engine.cache import EngineCache\n"
        "from tritonstack_export.engine.home import TensorRtHome\n"
        "from tritonstack_export.engine.machine import Machine\n"
        f"machine = Machine(TensorRtHome('no'), '10.14.1.48', '9.0', 'NVIDIA H200')\n"
        f"(r,) = build_engines(Path({str(repository)!r}), find_machine=lambda: machine, "
        f"cache=EngineCache(Path({str(cache.root)!r})))\n"
        "print(r.status, r.changed, sorted({'torch', 'onnxruntime', 'tensorrt', 'modelopt'} & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert result.stdout == "engine False []\n", result.stderr


def test_the_way_back(repository: Path, cache: EngineCache) -> None:
    folder = add_entry(repository)
    before = listing(repository)
    bake(cache, repository)
    run(repository, cache)
    result = one(revert(repository))
    assert (result.status, result.changed) == ("onnx", True)
    after = listing(repository)
    assert after.keys() == before.keys()
    assert {k for k in before if before[k] != after[k]} <= {"net/1/manifest.json"}
    assert "engine" not in manifest.read(folder / "1").fields
    assert manifest.verify(folder / "1") == []
    assert not one(revert(repository)).changed
    assert one(run(repository, cache)).status == "engine"


def test_several_versions(repository: Path, cache: EngineCache) -> None:
    folder = add_entry(repository)
    add_entry(repository, version=2)
    add_entry(repository, version=10)
    bake(cache, repository)
    result = one(run(repository, cache))
    assert [v.version for v in result.versions] == [1, 2, 10]
    assert all((folder / number / "model.plan").is_file() for number in ("1", "2", "10"))
    assert check_repository(repository, target=TARGET).ok


def test_one_version_that_fails_keeps_the_whole_entry_on_onnx(repository: Path, cache: EngineCache) -> None:
    folder = add_entry(repository)
    bake(cache, repository)
    add_entry(repository, version=2)
    (folder / "2" / "model.onnx").write_bytes(b"no model")
    before = listing(repository)
    result = one(run(repository, cache, policy="auto"))
    assert result.status == "onnx" and "model.onnx" in str(result.reason)
    assert listing(repository) == before
    assert one(run(repository, cache)).status == "failed"


def test_other_entries_are_left_alone(repository: Path, cache: EngineCache) -> None:
    add_entry(repository)
    bake(cache, repository)
    io = 'input [{ name: "x" data_type: TYPE_FP32 dims: [3] }] output [{ name: "y" data_type: TYPE_FP32 dims: [3] }]\n'
    for name, text in {
        "code": f'backend: "python"\nmax_batch_size: 1\n{io}',
        "cpu": models.CONFIG.replace("NAME", "cpu").replace("KIND_AUTO", "KIND_CPU"),
        "foreign": f'backend: "tensorrt"\nmax_batch_size: 1\n{io}',
        "whole": 'platform: "ensemble"\nmax_batch_size: 1\nensemble_scheduling { step { model_name: "net" } }\n',
    }.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(text)
    (repository / "broken").mkdir()
    (repository / "broken" / "config.pbtxt").write_text("backend: onnx")
    reasons = {r.name: (r.status, r.reason) for r in run(repository, cache)}
    assert reasons["net"] == ("engine", None)
    assert reasons["code"] == ("left alone", "it is served by python, not by ONNX Runtime")
    assert reasons["cpu"] == ("left alone", "it is to be served on the CPU (KIND_CPU)")
    assert reasons["foreign"] == ("left alone", "it has an engine that was not built from an ONNX file here")
    assert reasons["whole"] == ("left alone", "it is served by ensemble, not by ONNX Runtime")
    assert reasons["broken"][0] == "failed"
    chosen = run(repository, cache, models=["net"])
    assert [r.name for r in chosen] == ["net"]
    with pytest.raises(UsageError, match=r"--model: there is no model 'nte'; expected one of .*net"):
        run(repository, cache, models=["nte"])


def no_machine() -> Machine:
    raise SetupError("no GPU is visible here")


def test_auto_says_why_and_tensorrt_fails(repository: Path, cache: EngineCache) -> None:
    add_entry(repository)
    before = listing(repository)
    auto = one(build_engines(repository, find_machine=no_machine, cache=cache))
    assert (auto.status, auto.changed, auto.reason) == ("onnx", False, "no GPU is visible here")
    strict = one(build_engines(repository, find_machine=no_machine, cache=cache, options=BuildOptions("tensorrt")))
    assert (strict.status, strict.reason) == ("failed", "no GPU is visible here")
    assert listing(repository) == before


def test_auto_falls_back_from_an_engine_of_another_machine(repository: Path, cache: EngineCache) -> None:
    folder = add_entry(repository)
    before = (folder / "config.pbtxt").read_bytes()
    bake(cache, repository)
    run(repository, cache)
    result = one(build_engines(repository, find_machine=no_machine, cache=cache))
    assert (result.status, result.changed) == ("onnx", True)
    assert (folder / "config.pbtxt").read_bytes() == before
    assert manifest.verify(folder / "1") == [] and check_repository(repository).ok
    # Where the machine is back, so is the engine, which was left in its place.
    back = one(run(repository, EngineCache(cache.root / "none")))
    assert (back.status, back.versions[0].source) == ("engine", "in place")


def test_none_only_says_how_it_is(repository: Path, cache: EngineCache) -> None:
    add_entry(repository)
    bake(cache, repository)
    assert one(run(repository, cache, policy="none")).status == "onnx"
    run(repository, cache)
    before = listing(repository)
    result = one(build_engines(repository, find_machine=no_machine, cache=cache, options=BuildOptions("none")))
    assert (result.status, result.versions[0].record["compute_capability"]) == ("engine", "9.0")
    assert listing(repository) == before


def test_a_real_build_fills_the_cache_and_never_gets_into_the_repository(
    repository: Path, cache: EngineCache, rtx: RtxHome
) -> None:
    add_entry(repository, proto=models.conv_fp16(), precision="fp16")
    before = listing(repository)
    phases: list[str] = []
    machine = Machine(rtx, "1.7.1.116", "8.6")
    result = one(run(repository, cache, machine=machine, talk=lambda model, phase, share: phases.append(phase)))
    assert result.status == "failed"
    assert "an engine of TensorRT for RTX, which Triton's tensorrt backend cannot load" in str(result.reason)
    assert listing(repository) == before
    assert {"parse", "build"} <= set(phases)
    (record,) = [read_json(path) for path in cache.root.glob("*/*/record.json")]
    assert (record["precision_asked"], record["precision"], record["precision_read_from"]) == (
        "fp16",
        "fp16",
        "network",
    )
    assert record["inputs"] == [tensor("x", -1, 3, 8, 8)]
    assert record["settings"]["profiles"] == [{"x": [[1, 3, 8, 8], [4, 3, 8, 8], [8, 3, 8, 8]]}]


def test_the_graph_has_to_carry_what_the_manifest_says(repository: Path, cache: EngineCache, rtx: RtxHome) -> None:
    """E25: neither a build nor an engine from the cache, and nothing in the repository."""
    add_entry(repository, precision="fp16")
    before = listing(repository)
    result = one(run(repository, cache, machine=Machine(rtx, "1.7.1.116", "8.6")))
    assert result.status == "failed"
    assert "the manifest calls model.onnx fp16, but its graph holds none: TensorRT would run it in FP32" in str(
        result.reason
    )
    assert listing(repository) == before and not cache.root.exists()


def test_a_refusal_reaches_the_result_whole(repository: Path, cache: EngineCache, rtx: RtxHome) -> None:
    io = 'input [{ name: "x" data_type: TYPE_FP32 dims: [3] }] output [{ name: "y" data_type: TYPE_FP32 dims: [3] }]\n'
    config = f'backend: "onnxruntime"\nmax_batch_size: 8\n{io}'
    add_entry(repository, proto=models.one_node("MyOp", domain="custom"), config=config, with_manifest=False)
    result = one(run(repository, cache, machine=Machine(rtx, "1.7.1.116", "8.6"), policy="auto"))
    assert result.status == "onnx" and result.error is not None
    told = result.error.as_dict()
    assert (told["engine_kind"], told["node"], told["operator"]) == ("parse", "it", "MyOp")
    assert "name the plugin's library under `plugins`" in str(told["next"])
    assert [path.suffix for path in cache.root.rglob("*") if path.is_file()] == [".lock"]


def test_without_a_manifest_config_and_graph_decide(repository: Path, cache: EngineCache) -> None:
    folder = add_entry(repository, proto=models.conv_int8(), with_manifest=False)
    source = read_version(read_entry(EntryPaths(repository, "net")), 1)  # type: ignore[arg-type]
    assert source.settings.precision == "int8"
    assert source.settings.profiles[0]["x"].max == (8, 3, 8, 8)
    bake(cache, repository)
    assert one(run(repository, cache)).status == "engine"
    assert not (folder / "1" / "manifest.json").exists()
    assert check_repository(repository, target=TARGET).findings == ()


def test_several_profiles_reach_every_instance_group(repository: Path, cache: EngineCache) -> None:
    profiles = [{"batch": {"min": 1, "opt": 1, "max": 1}}, {"batch": {"min": 2, "opt": 8, "max": 8}}]
    folder = add_entry(repository, engine={"profiles": profiles})
    bake(cache, repository)
    assert one(run(repository, cache)).status == "engine"
    assert list(config_of(folder).instance_group[0].profile) == ["0", "1"]
    assert check_repository(repository, target=TARGET).findings == ()


def changed(old: str, new: str) -> str:
    assert old in models.CONFIG
    return models.CONFIG.replace(old, new)


HALF_INPUT = changed("TYPE_FP32 dims: [ 3, 8, 8 ] } ]", "TYPE_FP16 dims: [ 3, 8, 8 ] } ]")


@pytest.mark.parametrize(
    ("config", "fields", "message"),
    [
        (changed("max_batch_size: 8", "max_batch_size: 16"), {}, "is 16, the profiles of the engine take up to 8"),
        (HALF_INPUT, {}, "input 'x' is TYPE_FP32 in the engine, TYPE_FP16 in the config"),
        (changed("dims: [ 4, 8, 8 ]", "dims: [ 4, 9, 8 ]"), {}, r"dims \[4, 8, 8\] in the engine, \[4, 9, 8\] in the"),
        (changed("dims: [ 4, 8, 8 ]", "dims: [ 4, 64 ]"), {}, r"output 'y' has the dims \[4, 8, 8\]"),
        (changed('output [ { name: "y"', 'output [ { name: "z"'), {}, r"the engine has no output 'z' \(it has y\)"),
        (models.CONFIG, {"inputs": [tensor("x", -1, 3, 8, 8), tensor("m", -1, 3)]}, "does not name the input 'm'"),
        (models.CONFIG, {"inputs": [tensor("x", 1, 3, 8, 8)]}, "axis 0 of 'x' is fixed at 1 in the engine"),
        (models.CONFIG, {"inputs": [tensor("x", -1, 3, 8, 8, dtype="FP8")]}, "which Triton does not know"),
    ],
)  # fmt: skip
def test_config_and_engine_have_to_fit(
    repository: Path, cache: EngineCache, config: str, fields: dict[str, Any], message: str
) -> None:
    add_entry(repository, config=config)
    bake(cache, repository, **fields)
    before = listing(repository)
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(one(run(repository, cache)).reason)
    assert listing(repository) == before


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"profiles": [{"bacth": {"min": 1, "opt": 1, "max": 1}}]}, "no dimension 'bacth'"),
        ({"profiles": [{"batch": {"min": 8, "opt": 4, "max": 2}}]}, "spec.engine.profiles.0.*min <= opt <= max"),
        ({"optimization_level": 9}, "spec.engine.optimization_level"),
        ({"plugins": ["none.so"]}, r"plugin library .*net/none\.so cannot be read"),
        ({"speed": "high"}, "spec.engine.speed"),
    ],
)
def test_what_the_spec_asks_is_checked_first(
    repository: Path, cache: EngineCache, engine: dict[str, Any], message: str
) -> None:
    add_entry(repository, engine=engine)
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(one(run(repository, cache)).reason)


def test_an_edited_config_is_kept(repository: Path, cache: EngineCache) -> None:
    folder = add_entry(repository)
    bake(cache, repository)
    run(repository, cache)
    path = folder / "config.pbtxt"
    path.write_text(path.read_text().replace("count: 2", "count: 5"))
    result = one(run(repository, cache))
    assert config_of(folder).instance_group[0].count == 5
    assert "was edited since it was switched to the engine, and is kept" in result.notes[0]
    reverted = one(revert(repository))
    assert "kept as tensorrt.pbtxt" in reverted.notes[0]
    assert "count: 5" in (folder / "configs" / "tensorrt.pbtxt").read_text()
    assert config_of(folder).instance_group[0].count == 2


def test_a_new_model_gets_a_new_engine(repository: Path, cache: EngineCache) -> None:
    folder = add_entry(repository)
    bake(cache, repository)
    run(repository, cache)
    first = read_json(folder / "1" / "model.plan.json")["key"]
    # A spec with other settings, as a new export writes it; the engine in place is no longer the right one.
    current = manifest.read(folder / "1")
    fields = {**current.fields, "spec": {"name": "net", "engine": {"optimization_level": 5}}}
    manifest.write(folder / "1", manifest.Manifest(files=current.files, fields=fields))
    bake(cache, repository, plan=plan_bytes(b"other"))
    result = one(run(repository, cache))
    assert result.changed and result.versions[0].source == "cached"
    assert read_json(folder / "1" / "model.plan.json")["key"] != first
    assert (folder / "1" / "model.plan").read_bytes() == plan_bytes(b"other")
    assert manifest.verify(folder / "1") == [] and check_repository(repository, target=TARGET).findings == ()


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
from test_engine_entries import H200, run
from tritonstack_export.engine.build_engines import revert
from tritonstack_export.engine.cache import EngineCache
left = int(sys.argv[3])
def counted(function):
    def call(*arguments, **options):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return function(*arguments, **options)
    return call
Path.replace, Path.unlink = counted(Path.replace), counted(Path.unlink)
if sys.argv[4] == "revert":
    revert(Path(sys.argv[1]))
else:
    run(Path(sys.argv[1]), EngineCache(Path(sys.argv[2])))
"""


@pytest.mark.parametrize("what", ["switch", "rebuild", "revert"])
def test_a_kill_at_any_point_leaves_an_entry_that_is_served(
    repository: Path, cache: EngineCache, tmp_path: Path, what: str
) -> None:
    """Killed before the first, the second, … change of a name, until a run gets through."""
    folder = add_entry(repository)
    bake(cache, repository)
    if what != "switch":
        run(repository, cache)
    if what == "rebuild":
        # Another driver wrote the engine anew: same file names, other bytes.
        current = manifest.read(folder / "1")
        fields = {**current.fields, "spec": {"name": "net", "engine": {"tf32": False}}}
        manifest.write(folder / "1", manifest.Manifest(files=current.files, fields=fields))
        bake(cache, repository, plan=plan_bytes(b"rebuilt"))
    script = tmp_path / "killed.py"
    script.write_text(KILLED.format(tests=str(Path(__file__).parent)))
    start = tmp_path / "start"
    shutil.copytree(repository, start)
    for point in range(30):
        shutil.rmtree(repository)
        shutil.copytree(start, repository)
        code = subprocess.run(
            [sys.executable, str(script), str(repository), str(cache.root), str(point), what], timeout=60
        ).returncode
        report = check_repository(repository, target=TARGET)
        assert report.ok and [m.name for m in report.models] == ["net"], (point, report.findings)
        # Whatever was left is mended by the next run.
        final = one(revert(repository) if what == "revert" else run(repository, cache))
        assert final.status == ("onnx" if what == "revert" else "engine"), final.reason
        assert check_repository(repository, target=TARGET).findings == ()
        assert manifest.verify(folder / "1") == []
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert point >= 4 and code == 0


TOGETHER = """
import sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
from test_engine_entries import one, run
from tritonstack_export.engine.cache import EngineCache
print(one(run(Path(sys.argv[1]), EngineCache(Path(sys.argv[2])))).status)
"""


def test_several_at_once_on_one_repository(repository: Path, cache: EngineCache, tmp_path: Path) -> None:
    """As pods that start together on a shared volume: the config for ONNX Runtime must not get lost."""
    folder = add_entry(repository)
    before = (folder / "config.pbtxt").read_bytes()
    bake(cache, repository)
    script = tmp_path / "together.py"
    script.write_text(TOGETHER.format(tests=str(Path(__file__).parent)))
    command = [sys.executable, str(script), str(repository), str(cache.root)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate(timeout=60)[0] for process in processes] == ["engine\n"] * 4
    assert (folder / "configs" / "onnxruntime.pbtxt").read_bytes() == before
    assert check_repository(repository, target=TARGET).findings == ()


def test_a_config_that_changed_meanwhile_is_left_as_it_is(repository: Path, cache: EngineCache) -> None:
    folder = add_entry(repository)
    bake(cache, repository)

    def find() -> Machine:
        path = folder / "config.pbtxt"
        path.write_text(path.read_text().replace("max_batch_size: 8", "max_batch_size: 4"))
        return H200

    result = one(build_engines(repository, find_machine=find, cache=cache, options=BuildOptions("tensorrt")))
    assert "the config of 'net' was changed while its engine was built; next: run it again" in str(result.reason)
    assert config_of(folder).backend == "onnxruntime"


def test_a_stripped_engine_is_not_for_triton(repository: Path, cache: EngineCache) -> None:
    add_entry(repository, engine={"weights": "stripped"})
    assert "is stripped, and Triton's tensorrt backend puts no weights back" in str(one(run(repository, cache)).reason)


def test_a_full_disk_is_the_trouble_of_one_entry(
    repository: Path, cache: EngineCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tritonstack_export.engine import entry_switch

    for name in ("a", "b"):
        add_entry(repository, name)
        bake(cache, repository, name)

    def full(source: Path, target: Path) -> None:
        if target.parent.parent.name == "a":
            raise OSError(28, "No space left on device", str(target))
        shutil.copyfile(source, target)

    monkeypatch.setattr(entry_switch, "_copy_in", full)
    first, second = run(repository, cache, policy="auto")
    assert (first.status, second.status) == ("onnx", "engine")
    assert "No space left on device" in str(first.reason)
    assert check_repository(repository, target=TARGET).ok


def test_what_an_export_writes_is_built(tmp_path: Path, cache: EngineCache, rtx: RtxHome) -> None:
    """A real entry with a named dimension besides the batch, from export to a real build, and its digest read back."""
    repository = tmp_path / "exported"
    factory = tmp_path / "factory.py"
    factory.write_text(
        "import torch\n"
        "def make():\n"
        "    return torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 4)), (torch.ones(2, 5).long(),)\n"
    )
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        f"name: text\nmodel: {{factory: '{factory}:make'}}\n"
        "inputs: [{name: ids, dtype: int64, shape: [batch, length], range: [0, 49]}]\noutputs: [{name: y}]\n"
        "dimensions: {length: {min: 1, opt: 16, max: 64}}\nbatch: {max: 16}\n"
        "engine: {optimization_level: 1, profiles: "
        "[{length: {min: 1, opt: 8, max: 8}}, {length: {min: 9, opt: 32, max: 64}}]}\n"
    )
    assert main(["export", str(spec), "--repository", str(repository)]) == 0
    result = one(run(repository, cache, machine=Machine(rtx, "1.7.1.116", "8.9")))
    assert "TensorRT for RTX" in str(result.reason)
    (record,) = [read_json(path) for path in cache.root.glob("*/*/record.json")]
    assert record["settings"]["optimization_level"] == 1
    assert record["settings"]["profiles"] == [
        {"ids": [[1, 1], [8, 8], [16, 8]]},
        {"ids": [[1, 9], [8, 32], [16, 64]]},
    ]
    assert record["onnx_sha256"] == manifest.read(repository / "text" / "1").files["model.onnx"].sha256
    assert record["inputs"] == [tensor("ids", -1, -1, dtype="INT64")]


def test_a_repository_that_cannot_be_written(repository: Path, cache: EngineCache, monkeypatch: Any) -> None:
    add_entry(repository)
    access: Callable[..., bool] = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: False if mode & os.W_OK else access(path, mode))
    result = one(run(repository, cache))
    assert "net cannot be written, so no engine can be put there; next: mount the repository writable" in str(
        result.reason
    )


def test_the_config_for_onnxruntime_is_not_overwritten(repository: Path, cache: EngineCache) -> None:
    folder = add_entry(repository)
    bake(cache, repository)
    (folder / "configs").mkdir()
    (folder / "configs" / "onnxruntime.pbtxt").write_text('backend: "onnxruntime"\nmax_batch_size: 1\n')
    assert "onnxruntime.pbtxt is there already and is another config" in str(one(run(repository, cache)).reason)


def test_the_command_where_tensorrt_is_absent(
    repository: Path, cache: EngineCache, capsys: pytest.CaptureFixture[str]
) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has a GPU")
    add_entry(repository)
    arguments = ["build-engines", str(repository), "--cache", str(cache.root)]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "net: ONNX Runtime: TensorRT is not installed here" in out
    assert main([*arguments, "--engine", "tensorrt"]) == 1
    assert "net: failed: TensorRT is not installed here" in capsys.readouterr().out
    assert main([*arguments, "--json"]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert (model["model"], model["status"], model["error"]["kind"]) == ("net", "onnx", "SetupError")
    bake(cache, repository)
    run(repository, cache)
    assert main([*arguments, "--engine", "none"]) == 0
    assert "net: TensorRT" in capsys.readouterr().out
    assert main([*arguments, "--revert"]) == 0
    assert "net: ONNX Runtime" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["REPO", "--engine", "onnx"], "argument --engine: invalid choice: 'onnx'"),
        (["REPO", "--timeout", "0"], "argument --timeout: given '0'; expected a whole number of at least 1"),
        (["REPO", "--model", "nte"], "--model: there is no model 'nte'; expected one of net"),
        (["REPO/none"], "is no folder; expected a model repository"),
        (["REPO/net"], "no models found in"),
        ([], "the following arguments are required: DIR"),
    ],
)
def test_wrong_usage(repository: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    add_entry(repository)
    assert main(["build-engines", *(word.replace("REPO", str(repository)) for word in arguments)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
