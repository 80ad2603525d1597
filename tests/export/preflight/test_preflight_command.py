"""`tritonstack preflight`: what it finds under its paths, its flags, its verdicts, its cache."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from graphs import REFUSED, conv_net, dense, relu, save, two_inputs

from tritonstack.command import main
from tritonstack_export.engine.settings import Bounds, BuildSettings
from tritonstack_export.preflight.onnx_preflight import preflight_onnx
from tritonstack_export.preflight.result_cache import ResultCache
from tritonstack_export.repository import manifest

Preflight = Callable[..., Any]


def add_entry(
    repository: Path,
    name: str,
    model: Any,
    *,
    version: int = 1,
    precision: str = "fp32",
    engine: dict[str, Any] | None = None,
    with_manifest: bool = True,
    dims: str = "4",
    maximum: int = 16,
) -> Path:
    """An entry as `export` leaves it, with the facts that a pre-flight reads."""
    folder = repository / name
    file = save(model, folder / str(version) / "model.onnx")
    (folder / "config.pbtxt").write_text(
        f'backend: "onnxruntime" max_batch_size: {maximum} '
        f'input [ {{ name: "x" data_type: TYPE_FP32 dims: [ {dims} ] }} ]'
    )
    if with_manifest:
        shape = ["batch", *map(int, dims.split(","))]
        fields = {
            "name": name,
            "precision": precision,
            "inputs": [{"name": "x", "dtype": "float32", "shape": shape}],
            "outputs": [{"name": "y", "dtype": "float32", "shape": shape}],
            "dimensions": {"batch": {"min": 1, "opt": 4, "max": maximum}},
            "spec": {"name": name, "model": {"onnx": "x.onnx"}, **({"engine": engine} if engine else {})},
        }
        files = manifest.digest_version(file.parent)
        manifest.write(file.parent, manifest.Manifest(files=files, fields=fields))
    return folder


def contents(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(folder)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "models"
    add_entry(root, "one", relu())
    add_entry(root, "one", relu(), version=3)
    add_entry(root, "two", conv_net(), dims="3, 8, 8")
    (root / "ensemble" / "1").mkdir(parents=True)
    (root / "ensemble" / "config.pbtxt").write_text('platform: "ensemble"')
    (root / ".git" / "1").mkdir(parents=True)
    save(relu(), root / ".git" / "1" / "model.onnx")
    return root


def test_a_whole_repository(preflight: Preflight, repository: Path) -> None:
    before = contents(repository)
    run = preflight(repository)
    assert run.code == 0, run.out + run.err
    assert (
        "one version 1 (fp32)\n  ✓ file" in run.out and "one version 3 (fp32)" in run.out and "two version 1" in run.out
    )
    assert "x 1x4 … 4x4 … 16x4" in run.out, "the bounds of the manifest"
    assert "3 of 3 passed" in run.out and ".git" not in run.out
    assert "without an ONNX file, so not tried: ensemble" in run.out
    assert "No artefact: built with TensorRT for RTX 1.7.1.116 as a proxy for TensorRT" in run.out
    assert contents(repository) == before, "the repository was changed"


def test_narrower_paths(preflight: Preflight, repository: Path) -> None:
    assert [r["model"] for r in preflight(repository / "one", "--json").results] == ["one version 1", "one version 3"]
    assert [r["model"] for r in preflight(repository / "one" / "3", "--json").results] == ["one version 3"]
    file = repository / "one" / "3" / "model.onnx"
    [result] = preflight(file, file, repository / "one" / "3", "--json").results
    assert result["profiles"] == [{"x": [[1, 4], [4, 4], [16, 4]]}], "its manifest counts for the file too"


def test_a_repository_that_is_called_like_a_version(preflight: Preflight, repository: Path) -> None:
    renamed = repository.rename(repository.with_name("2026"))
    assert len(preflight(renamed, "--json").results) == 3


def test_relative_paths(preflight: Preflight, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository / "one" / "3")
    assert [r["model"] for r in preflight(".", "--json").results] == ["one version 3"]
    monkeypatch.chdir(repository / "one")
    assert len(preflight(".", "--json").results) == 2


def test_bounds_of_a_config_without_a_manifest(preflight: Preflight, tmp_path: Path) -> None:
    folder = add_entry(tmp_path, "plain", relu(), with_manifest=False, maximum=5)
    [result] = preflight(folder, "--json").results
    assert result["profiles"] == [{"x": [[1, 4], [5, 4], [5, 4]]}]


def test_bounds_of_a_lone_file(preflight: Preflight, tmp_path: Path) -> None:
    path = save(relu(), tmp_path / "lone.onnx")
    assert preflight(path, "--json").results[0]["profiles"] == [{"x": [[1, 4], [8, 4], [32, 4]]}]
    run = preflight(path, "--min-shapes", "x:2x4", "--max-shapes", "x:64x4", "--opt-shapes", "x:3x4", "--json")
    assert run.results[0]["profiles"] == [{"x": [[2, 4], [3, 4], [64, 4]]}]
    run = preflight(path, "--opt-shapes", "x:3x4", "--json")
    assert run.results[0]["profiles"] == [{"x": [[3, 4], [3, 4], [3, 4]]}]


def test_profiles_of_the_spec(preflight: Preflight, tmp_path: Path) -> None:
    profiles = [{"batch": {"min": 1, "opt": 1, "max": 4}}, {"batch": {"min": 1, "opt": 8, "max": 16}}]
    folder = add_entry(tmp_path, "two_profiles", relu(), engine={"profiles": profiles})
    [result] = preflight(folder, "--json").results
    assert result["passed"]
    assert result["profiles"] == [{"x": [[1, 4], [1, 4], [4, 4]]}, {"x": [[1, 4], [8, 4], [16, 4]]}]


def test_what_a_manifest_says_that_the_graph_is_not(preflight: Preflight, tmp_path: Path) -> None:
    """A claim of FP16 (E25), a batch that is fixed in the graph (E30), and a profile that does not exist."""
    add_entry(tmp_path, "claims_fp16", conv_net(), precision="fp16", dims="3, 8, 8")
    add_entry(tmp_path, "fixed", relu((2, 4)))
    add_entry(tmp_path, "profile", relu(), engine={"profiles": [{"length": {"min": 1, "opt": 1, "max": 4}}]})
    add_entry(tmp_path, "engine", relu(), engine={"no_such_key": 1})
    run = preflight(tmp_path, "--json")
    assert run.code == 1 and run.json["passed"] is False
    problems = {result["model"].split()[0]: result["problem"] for result in run.results}
    assert problems["claims_fp16"]["step"] == "parse" and "fp16" in problems["claims_fp16"]["summary"]
    assert problems["fixed"]["step"] == "profiles" and "fixed at 2" in problems["fixed"]["summary"]
    assert problems["profile"]["step"] == "profiles" and "no dimension 'length'" in problems["profile"]["summary"]
    assert problems["engine"]["step"] == "profiles" and "manifest" in problems["engine"]["summary"]


def test_one_bad_model_does_not_hide_the_others(preflight: Preflight, repository: Path) -> None:
    add_entry(repository, "bad", REFUSED["custom operator"][0]())
    (repository / "cut" / "1").mkdir(parents=True)
    (repository / "cut" / "1" / "model.onnx").write_bytes(b"hello")
    run = preflight(repository, "--quiet")
    assert run.code == 1 and "3 of 5 passed" in run.out and run.err == ""
    assert "at: node 'custom0' (MyOp)" in run.out and "fix: " in run.out
    assert "✗ file" in run.out and "· build     not reached" in run.out


USAGE = [
    # E33 and its siblings: (arguments, what the line names)
    (["--opt-shapes", "x:1x3x8x8,x:2x3x8x8"], ["--opt-shapes", "'x' is given twice", "one shape per input"]),
    (["--opt-shapes", "X:1x4"], ["--opt-shapes", "'X'", "one of x"]),
    (["--opt-shapes", "x=1x4"], ["--opt-shapes", "'x=1x4'", "NAME:SIZExSIZE"]),
    (["--opt-shapes", "x:1,4"], ["--opt-shapes", "'4'", "NAME:SIZExSIZE"]),
    (["--opt-shapes", "x:-1x4"], ["--opt-shapes", "'x:-1x4'", "NAME:SIZExSIZE"]),
    (["--opt-shapes", "x:1.5x4"], ["--opt-shapes", "'x:1.5x4'"]),
    (["--opt-shapes", ""], ["--opt-shapes", "''", "NAME:SIZExSIZE"]),
    (["--opt-shapes", ":1x4"], ["--opt-shapes", "':1x4'"]),
    (["--opt-shapes", "x:0x4"], ["--opt-shapes", "axis 0 of 'x' is 0", "at least 1"]),
    (["--opt-shapes", "x:1x5"], ["--opt-shapes", "axis 1 of 'x' is fixed at 4", "'x:1x5'", "batchx4"]),
    (["--opt-shapes", "x:1x4x1"], ["--opt-shapes", "2 dimensions", "'x:1x4x1'"]),
    (["--opt-shapes", "x:99999999999x4"], ["--opt-shapes", "too large", "2147483647"]),
    (
        ["--min-shapes", "x:8x4", "--opt-shapes", "x:4x4"],
        ["--opt-shapes", "is 4, below 8 in --min-shapes", "min <= opt"],
    ),
    (["--opt-shapes", "x:8x4", "--max-shapes", "x:2x4"], ["--max-shapes", "is 2, below 8 in --opt-shapes"]),
    (["--min-shapes", "x:1", "--opt-shapes", "x:4x4"], ["--opt-shapes", "2 dimensions, but 1 in --min-shapes"]),
    (
        ["--compute-capability", "9.0"],
        ["--compute-capability", "'9.0'", "H100 and H200", "7.5, 8.0, 8.6, 8.9, 12.0, 12.1"],
    ),
    (["--compute-capability", "10.0"], ["--compute-capability", "B200", "take 12.0"]),
    (["--compute-capability", "8.5"], ["--compute-capability", "'8.5'", "8.6"]),
    (["--compute-capability", ""], ["--compute-capability", "''"]),
    (["--compute-capability", "8.9,,8.0"], ["--compute-capability", "''"]),
    (["--timeout", "0"], ["--timeout", "'0'", "above 0"]),
    (["--timeout", "soon"], ["--timeout", "'soon'", "seconds"]),
    (["--timeout", "inf"], ["--timeout", "'inf'"]),
    (["--max-shape", "x:1x4"], ["--max-shape"]),
    (["no/such/place"], ["PATH", "no/such/place", "does not exist"]),
]


@pytest.mark.parametrize(("arguments", "said"), USAGE, ids=lambda value: " ".join(value)[:40])
def test_wrong_usage(preflight: Preflight, tmp_path: Path, arguments: list[str], said: list[str]) -> None:
    path = save(relu(), tmp_path / "m" / "model.onnx")
    run = preflight(path, *arguments)
    assert (run.code, run.out, run.err.count("\n")) == (2, "", 1), run.err
    assert all(words in run.err for words in said), run.err
    assert list((tmp_path / "m").iterdir()) == [path]


def test_a_flag_that_fits_no_model_of_several(preflight: Preflight, repository: Path) -> None:
    run = preflight(repository, "--opt-shapes", "x:2x4", "--quiet")
    assert run.code == 2 and "argument --opt-shapes: 'x' has 4 dimensions" in run.err


def test_a_lone_file_whose_sizes_nobody_said(preflight: Preflight, tmp_path: Path) -> None:
    run = preflight(save(two_inputs(), tmp_path / "two.onnx"))
    assert run.code == 2 and "'length'" in run.err and "give --opt-shapes" in run.err
    assert preflight(tmp_path / "two.onnx", "--opt-shapes", "a:2x3,b:2x3").code == 0
    run = preflight(tmp_path / "two.onnx", "--opt-shapes", "a:2x3")
    assert run.code == 2 and "the input 'b' has dynamic dimensions and no shape" in run.err


def test_paths_without_a_model(preflight: Preflight, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    run = preflight(tmp_path / "empty")
    assert (run.code, run.err.count("\n")) == (1, 1) and "no ONNX file under" in run.err
    (tmp_path / "notes.txt").write_text("")
    assert preflight(tmp_path / "notes.txt").code == 2


def test_sm_words_are_understood(preflight: Preflight, tmp_path: Path) -> None:
    path = save(relu(), tmp_path / "model.onnx")
    [result] = preflight(path, "--compute-capability", "sm_89,8.0,8.9,sm120", "--json").results
    assert result["compute_capabilities"] == ["8.0", "8.9", "12.0"]


def test_no_install(preflight: Preflight, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setenv("TRITONSTACK_CACHE", str(tmp_path / "elsewhere"))
    run = preflight(save(relu(), tmp_path / "model.onnx"), "--no-install", "--quiet")
    assert (run.code, run.out, run.err.count("\n")) == (1, "", 1)
    assert "pip install --no-deps --target" in run.err and not (tmp_path / "elsewhere").exists()


def test_the_second_run_builds_nothing(preflight: Preflight, repository: Path, cache: Path) -> None:
    first = preflight(repository, "--json")
    # Without the installation nothing can be built.
    [link] = [path for path in cache.parent.iterdir() if path.is_symlink()]
    link.unlink()
    second = preflight(repository, "--json", "--no-install")
    assert second.code == 0 and all(result["cached"] for result in second.results)
    told = [[{**result, "cached": None} for result in run.results] for run in (first, second)]
    assert told[0] == told[1]
    assert "from cache" in preflight(repository).out
    assert preflight(repository, "--no-cache", "--no-install").code == 1


def test_failures_are_remembered_too(preflight: Preflight, tmp_path: Path) -> None:
    path = save(REFUSED["mixed types"][0](), tmp_path / "model.onnx")
    first, second = preflight(path, "--json"), preflight(path, "--json")
    assert (first.code, second.code) == (1, 1) and second.results[0]["cached"]
    assert second.results[0]["problem"] == first.results[0]["problem"]


def test_a_cached_run_imports_nothing_heavy(preflight: Preflight, repository: Path) -> None:
    assert preflight(repository).code == 0
    source = (
        "import sys; from tritonstack.command import main; code = main(sys.argv[1:])\n"
        "heavy = {'torch', 'onnxruntime', 'tritonclient', 'modelopt'} & {m.split('.')[0] for m in sys.modules}\n"
        "assert not heavy, heavy; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", source, "preflight", str(repository / "two")], capture_output=True, text=True
    )
    assert done.returncode == 0 and "from cache" in done.stdout, done.stderr


def chosen(maximum: int = 8, **others: Any) -> BuildSettings:
    return BuildSettings(profiles=({"x": Bounds((1, 64), (2, 64), (maximum, 64))},), **others)


def test_what_makes_a_result_stale(site: Path, tmp_path: Path) -> None:
    cache = ResultCache(tmp_path / "results")
    path = save(dense(), tmp_path / "model.onnx", external=True)

    def cached(settings: BuildSettings | None = None, **options: Any) -> bool:
        result = preflight_onnx(path, settings or chosen(), cache=cache, site=site, **options)
        assert result.passed
        return result.cached

    assert (cached(), cached()) == (False, True)
    assert (cached(chosen(16)), cached(chosen(16)), cached()) == (False, True, True)
    assert not cached(chosen(optimization_level=1))
    assert not cached(compute_capabilities=("8.0",)) and not cached(compute_capabilities=("8.0", "8.9"))
    assert cached(compute_capabilities=("8.9", "8.0")), "the order of capabilities means nothing"
    data = tmp_path / "model.onnx.data"
    content = bytearray(data.read_bytes())
    content[100] ^= 1
    data.write_bytes(content)
    assert not cached(), "other weights in the data file"
    path.touch()
    assert cached(), "the time of a file means nothing"


def test_a_moved_file_keeps_its_result_under_its_own_name(site: Path, tmp_path: Path) -> None:
    cache = ResultCache(tmp_path / "results")
    first = save(dense(), tmp_path / "a.onnx")
    other = save(dense(), tmp_path / "b.onnx")
    preflight_onnx(first, chosen(), cache=cache, site=site)
    result = preflight_onnx(other, chosen(), cache=cache, site=site)
    assert result.cached and result.onnx == str(other)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"key": "other"}', b"\xff\xfe", None])
def test_a_damaged_cache_is_no_cache(site: Path, tmp_path: Path, content: bytes | None) -> None:
    cache = ResultCache(tmp_path / "results")
    path = save(relu(), tmp_path / "model.onnx")
    settings = BuildSettings(profiles=({"x": Bounds((1, 4), (2, 4), (8, 4))},))
    preflight_onnx(path, settings, cache=cache, site=site)
    [file] = (tmp_path / "results").iterdir()
    if content is None:
        value = json.loads(file.read_bytes())
        del value["problem"]
        content = json.dumps(value).encode()
    file.write_bytes(content)
    again = preflight_onnx(path, settings, cache=cache, site=site)
    assert again.passed and not again.cached
    assert preflight_onnx(path, settings, cache=cache, site=site).cached


def test_a_cache_that_cannot_be_written(site: Path, tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file in its place")
    path = save(relu(), tmp_path / "model.onnx")
    settings = BuildSettings(profiles=({"x": Bounds((1, 4), (2, 4), (8, 4))},))
    assert preflight_onnx(path, settings, cache=ResultCache(tmp_path / "results"), site=site).passed


def test_faults_of_the_machine_are_not_remembered(site: Path, tmp_path: Path) -> None:
    cache = ResultCache(tmp_path / "results")
    path = save(relu(), tmp_path / "model.onnx")
    settings = BuildSettings(profiles=({"x": Bounds((1, 4), (2, 4), (8, 4))},))
    assert not preflight_onnx(path, settings, cache=cache, site=site, timeout_s=0.01).passed
    assert preflight_onnx(path, settings, cache=cache, site=site).passed


def test_old_results_are_swept(tmp_path: Path) -> None:
    from tritonstack_export.preflight.result import PreflightResult

    folder = tmp_path / "results"
    folder.mkdir()
    for name, age_days in (("old.json", 100), (".new-left", 1), ("young.json", 10)):
        (folder / name).write_text("{}")
        when = (folder / name).stat().st_mtime - age_days * 86400
        os.utime(folder / name, (when, when))
    ResultCache(folder).write("k", PreflightResult("m", "0" * 64, "b", ("8.9",)))
    assert sorted(path.name for path in folder.iterdir()) == ["k.json", "young.json"]


def test_docs_show_flags_that_exist() -> None:
    import re
    import shlex

    from tritonstack_export.preflight.command import build_parser

    text = (Path(__file__).resolve().parents[3] / "docs" / "preflight.md").read_text("utf-8")
    lines = re.findall(r"^tritonstack preflight (.*)$", text, re.M)
    assert len(lines) == 4
    for line in lines:
        build_parser().parse_args(shlex.split(line, comments=True))
    flags = set(re.findall(r"--[a-z][a-z-]*", build_parser().format_help()))
    assert set(re.findall(r"--[a-z][a-z-]*", text)) <= flags
    assert flags - set(re.findall(r"--[a-z][a-z-]*", text)) == {"--help", "--quiet", "--timeout"}


def test_a_config_that_cannot_be_read_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file whose reading fails, as of a disk that is broken."""
    save(relu(), tmp_path / "net" / "1" / "model.onnx")
    (tmp_path / "net" / "config.pbtxt").symlink_to("/proc/self/mem")
    assert main(["preflight", str(tmp_path), "--quiet"]) == 1
    out = capsys.readouterr().out
    assert "config.pbtxt cannot be read: Input/output error" in out and "fix: check its permissions and the disk" in out
