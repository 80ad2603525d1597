"""The real tritonserver as the judge: what `check` accepts loads, and what Triton refuses `check` refuses too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from repository_builder import IDENTITY_PY, ONNX, PYTHON, add_ensemble, add_model, batching, ensemble, io, step

from tritonstack.errors import RepositoryError
from tritonstack_deploy.embedded import EmbeddedServer
from tritonstack_export.check import check_repository

WARMUP = (
    'model_warmup { name: "w" batch_size: 2 '
    'inputs { key: "x" value { data_type: TYPE_FP32 dims: 3 zero_data: true } } }'
)


def python_config(extra: str = "", x: str = "[ 3 ]", *, size: int = 8, more: str = "") -> str:
    return f"{PYTHON}max_batch_size: {size}\n{io(x, x, more_x=more, more_y=more)}{extra}"


# Python models, since the judge is Triton's own validation and not the ONNX backend. All of them parse.
LOADS = {
    "plain": python_config(),
    "crlf": python_config().replace("\n", "\r\n"),
    "comment": python_config("# größe\n"),
    "octal": python_config(size=8).replace("max_batch_size: 8", "max_batch_size: 010"),
    "escapes": python_config('parameters { key: "a\\x41\\n\\u00e9" value { string_value: "é “x”" } }'),
    "angles": python_config("optimization <>;"),
    "reshape": python_config(x="[ -1, 4 ]", more="reshape { shape: [ -1, 2, 2 ] } "),
    "item_scalar": python_config(x="[ 1 ]", more="reshape { shape: [ ] } "),
    "auto": python_config("instance_group { kind: KIND_AUTO }"),
    "warmup": python_config(WARMUP),
    "queue": python_config("dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }"),
    "sequence": python_config("sequence_batching { }"),
    "no_batch": python_config(x="[ -1, 3 ]", size=0),
}
# Warm-ups that do not fit are left out: in this Triton they often end the whole server (SIGSEGV).
REFUSED = {
    "wire_type": python_config().replace("TYPE_FP32", "FP32"),
    "bom": "\ufeff" + python_config(),
    "bad_escape": python_config('metric_tags { key: "a" value: "\\q" }'),
    "big_x_escape": python_config('metric_tags { key: "a" value: "\\X41" }'),
    "underscore": python_config().replace(": 8", ": 1_0"),
    "plus": python_config().replace(": 8", ": +8"),
    "nbsp": python_config().replace(": 8", ":\u00a08"),
    "float_size": python_config().replace(": 8", ": 8.0"),
    "other_name": 'name: "x"\n' + python_config(),
    "negative_batch": python_config(size=-1),
    "zero_dim": python_config(x="[ 0 ]"),
    "no_dims": python_config(x="[ ]"),
    "bad_reshape": python_config(x="[ -1, 4 ]", more="reshape { shape: [ 2, -1, 2 ] } "),
    "scalar": python_config(x="[ 1 ]", size=0, more="reshape { shape: [ ] } "),
    "preferred": python_config("dynamic_batching { preferred_batch_size: [ 16 ] }"),
    "preferred_zero": python_config("dynamic_batching { preferred_batch_size: [ 0 ] }"),
    "levels": python_config("dynamic_batching { priority_levels: 2 }"),
    "cache": python_config("sequence_batching { } response_cache { enable: true }"),
    "gpu": python_config("instance_group { kind: KIND_GPU }"),
    "cpu_gpus": python_config("instance_group { kind: KIND_CPU gpus: [ 0 ] }"),
    "profile": python_config('instance_group { profile: "0" }'),
    "absent": python_config("version_policy { specific { versions: [ 3 ] } }"),
    "latest_zero": python_config("version_policy { latest { num_versions: 0 } }"),
    "labels": python_config().replace('name: "y"', 'name: "y" label_filename: "no.txt"'),
}
ENSEMBLES_LOAD = {
    "e_plain": ensemble(step("plain", "raw", "mid"), step("queue", "mid", "out")),
    "e_order": ensemble(step("queue", "mid", "out"), step("plain", "raw", "mid")),
    "e_nested": ensemble(step("e_plain", "raw", "out", key_in="raw", key_out="out")),
    "e_variable": ensemble(step("plain", "raw", "out"), raw="[ -1 ]", out="[ -1 ]"),
    "e_full": ensemble(step("plain", "raw", "out"), size=0, raw="[ -1, 3 ]", out="[ -1, 3 ]"),
}
ENSEMBLES_REFUSED = {
    "e_missing": ensemble(step("plainn", "raw", "out")),
    "e_type": ensemble(step("plain", "raw", "out"), dtype="TYPE_INT64"),
    "e_dims": ensemble(step("plain", "raw", "out"), out="[ 4 ]"),
    "e_batch": ensemble(step("plain", "raw", "out"), size=64),
    "e_unwritten": ensemble(step("plain", "raw", "oops")),
    "e_unread": ensemble(step("plain", "raw", "out"), step("plain", "raw", "more")),
    "e_never": ensemble(step("plain", "middle", "out")),
    "e_twice": ensemble(step("plain", "raw", "out"), step("queue", "raw", "out")),
    "e_waiting": ensemble(step("plain", "b", "a"), step("plain", "a", "b"), step("plain", "raw", "out")),
    "e_self": ensemble(step("e_self", "raw", "out", key_in="raw", key_out="out")),
    "e_version": ensemble(step("plain", "raw", "out", version=3)),
    "e_group": ensemble(step("plain", "raw", "out"), extra="instance_group { }"),
    "e_needs_broken": ensemble(step("gpu", "raw", "out")),
}


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judgements below are those for a machine without a GPU, also where there is one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("judged")
    for name, text in {**LOADS, **REFUSED}.items():
        add_model(root, name, text, IDENTITY_PY)
    for name, text in {**ENSEMBLES_LOAD, **ENSEMBLES_REFUSED}.items():
        add_ensemble(root, name, text)
    yield root


def test_check_and_triton_agree(repository: Path) -> None:
    report = check_repository(repository, gpus=0)
    accepted = {model.name for model in report.models}
    assert accepted == set(LOADS) | set(ENSEMBLES_LOAD)
    everything = {path.name: path for path in repository.iterdir()}
    server = EmbeddedServer(repository, models=everything)
    with pytest.raises(RepositoryError) as refused:
        server.start()
    names = set(re.findall(r"model '([^']+)' version", str(refused.value)))
    assert names == set(REFUSED) | set(ENSEMBLES_REFUSED)


def test_what_check_accepts_loads(repository: Path) -> None:
    report = check_repository(repository, gpus=0)
    chosen = {model.name: model.path for model in report.models if not model.name.startswith(("auto", "angles"))}
    with EmbeddedServer(repository, models=chosen) as server:
        assert {state.name for state in server.model_states() if state.ready} == set(chosen)


def test_onnx_entries_that_check_accepts_load(tmp_path: Path) -> None:
    add_model(tmp_path, "batched", batching("dynamic_batching { }\n"))
    add_model(tmp_path, "plain", f"{ONNX}max_batch_size: 0\n{io('[ -1, 3 ]', '[ -1, 3 ]')}")
    report = check_repository(tmp_path, gpus=0)
    assert report.findings == ()
    with EmbeddedServer(tmp_path, models={model.name: model.path for model in report.models}) as server:
        assert all(state.ready for state in server.model_states())
