"""Ensembles held against their models (R05 and siblings)."""

from __future__ import annotations

from pathlib import Path

import pytest
from repository_builder import (
    IDENTITY_PY,
    ONNX,
    PYTHON,
    add_ensemble,
    add_model,
    batching,
    ensemble,
    identity_model,
    io,
    step,
)

from tritonstack_export.check import CheckReport, Finding, check_repository

PRE = step("pre", "raw", "mid")
NET = step("net", "mid", "out")


def check(root: Path, text: str, *, version: bool = True) -> CheckReport:
    for name in ("pre", "net"):
        add_model(root, name, batching())
    add_ensemble(root, "ens", text, version=version)
    return check_repository(root)


def the_error(report: CheckReport) -> Finding:
    assert len(report.errors) == 1, report.findings
    assert report.errors[0].model == "ens"
    return report.errors[0]


def test_a_sound_ensemble(tmp_path: Path) -> None:
    report = check(tmp_path, ensemble(PRE, NET))
    assert report.findings == ()
    ens = next(model for model in report.models if model.name == "ens")
    assert (ens.versions, ens.backend, ens.dependencies) == ((1,), "ensemble", ("pre", "net"))


def test_the_order_of_steps_does_not_matter(tmp_path: Path) -> None:
    assert check(tmp_path, ensemble(NET, PRE)).findings == ()


# R05, one line each
@pytest.mark.parametrize(
    ("text", "message", "line", "fix"),
    [
        (
            ensemble(PRE, step("nett", "mid", "out")),
            "step 2: model 'nett' is not in the repository",
            7,
            "did you mean 'net'?",
        ),
        (
            ensemble(PRE, NET, dtype="TYPE_INT64"),
            "step 2, output 'y' of model 'net': tensor 'out' is TYPE_FP32 there, TYPE_INT64 for the ensemble output",
            4,
            "make both the same",
        ),
        (
            ensemble(PRE, NET, out="[ 4 ]"),
            "step 2, output 'y' of model 'net': tensor 'out' has dims [3] there, [4] for the ensemble output",
            4,
            "",
        ),
        (ensemble(PRE, NET, raw="[ 3, 1 ]"), "step 1, input 'x' of model 'pre': tensor 'raw' has dims [3]", 3, ""),
        (ensemble(PRE, NET).replace('model_name: "net" ', ""), "step 2 names no model", 7, ""),
        (ensemble(PRE, step("net", "mid", "out", version=3)), "step 2: model 'net' serves versions [1]", 7, "-1"),
        (ensemble(PRE, step("net", "mid", "out", key_out="z")), "step 2: model 'net' has no output 'z'", 7, "'y'"),
        (ensemble(PRE, NET, extra="instance_group { }\n"), "an ensemble has no instances of its own", 9, ""),
        (ensemble(PRE, NET, extra='model_warmup { name: "w" }\n'), "an ensemble takes no model_warmup", 9, ""),
        (ensemble(PRE, NET).replace('"ensemble"\n', '"ensemble" backend: "python"\n'), "has no backend", 1, ""),
        (ensemble(PRE, NET).replace('platform: "ensemble"\n', ""), "without platform", 4, 'platform: "ensemble"'),
        (ensemble(), "the ensemble has no steps", 5, ""),
    ],
)
def test_one_error_one_line(tmp_path: Path, text: str, message: str, line: int, fix: str) -> None:
    report = check(tmp_path, text)
    error = next(finding for finding in report.errors if message in finding.message)
    assert error.line == line and fix in error.fix
    assert "ens" not in [model.name for model in report.models]


def test_an_output_that_is_never_written(tmp_path: Path) -> None:
    report = check(tmp_path, ensemble(PRE, step("net", "mid", "oops")))
    assert [finding.message for finding in report.errors] == [
        "step 2: tensor 'oops' is written but nothing reads it",
        "output 'out' is never written by any step",
    ]
    assert "step 2 writes 'oops'" in report.errors[1].fix


def test_a_tensor_that_is_never_produced(tmp_path: Path) -> None:
    report = check(tmp_path, ensemble(PRE, step("net", "middle", "out")))
    found = {finding.message: finding.fix for finding in report.errors}
    assert found["step 2: tensor 'middle' is read by model 'net' but never produced"] == "did you mean 'mid'?"


def test_batches_larger_than_the_steps_take(tmp_path: Path) -> None:
    report = check(tmp_path, ensemble(PRE, NET, size=64))
    assert [finding.message for finding in report.errors] == [
        f"step {index}: model {name!r} takes batches up to 8, the ensemble allows 64"
        for index, name in ((1, "pre"), (2, "net"))
    ]


def test_an_ensemble_needs_an_empty_version_folder(tmp_path: Path) -> None:
    error = the_error(check(tmp_path, ensemble(PRE, NET), version=False))
    assert error.code == "no-version" and error.fix == "mkdir ens/1"


def test_inputs_that_are_not_mapped(tmp_path: Path) -> None:
    report = check(tmp_path, ensemble(PRE, step("net", "mid", "out", key_in="xx")))
    assert [finding.message for finding in report.errors] == [
        "step 2: model 'net' has no input 'xx' (ensemble tensor 'mid')",
        "step 2: input 'x' of model 'net' is not mapped to any tensor",
    ]


def test_inputs_nobody_uses(tmp_path: Path) -> None:
    extra = 'input { name: "more" data_type: TYPE_FP32 dims: 3 }\n'
    assert the_error(check(tmp_path, ensemble(PRE, NET, extra=extra))).message == "input 'more' is used by no step"


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((PRE, NET, step("net", "raw", "out")), "step 2 and step 3: tensor 'out' is written twice"),
        ((step("pre", "raw", "raw"), step("net", "raw", "out")), "tensor 'raw' is an input of the ensemble and is"),
        (
            (step("pre", "b", "a"), step("net", "a", "b"), step("net", "raw", "out")),
            "no way to start step 1 (pre), step 2 (net): they wait for each other's tensors",
        ),
    ],
)
def test_data_flow(tmp_path: Path, steps: tuple[str, ...], message: str) -> None:
    assert message in the_error(check(tmp_path, ensemble(*steps))).message


def test_ensembles_of_ensembles(tmp_path: Path) -> None:
    add_ensemble(tmp_path, "outer", ensemble(step("ens", "raw", "out", key_in="raw", key_out="out")))
    assert check(tmp_path, ensemble(PRE, NET)).findings == ()


def test_an_ensemble_that_contains_itself(tmp_path: Path) -> None:
    def inside(name: str) -> str:
        return ensemble(step(name, "raw", "out", key_in="raw", key_out="out"))

    for name, inner in {"self": "self", "a": "b", "b": "c", "c": "a"}.items():
        add_ensemble(tmp_path, name, inside(inner))
    report = check_repository(tmp_path)
    found = {finding.model: finding.message for finding in report.errors if finding.code == "ensemble-cycle"}
    assert found["self"].endswith("self -> self")
    assert found["a"].endswith("a -> b -> c -> a")
    assert report.models == ()


def test_an_ensemble_over_a_broken_model_is_not_served_nor_is_what_needs_it(tmp_path: Path) -> None:
    add_ensemble(tmp_path, "outer", ensemble(step("ens", "raw", "out", key_in="raw", key_out="out")))
    check(tmp_path, ensemble(PRE, NET))
    (tmp_path / "net" / "1" / "model.onnx").write_bytes(b"")
    report = check_repository(tmp_path)
    assert {finding.model for finding in report.errors} == {"net", "ens", "outer"}
    assert [model.name for model in report.models] == ["pre"]


@pytest.mark.parametrize(
    ("size", "raw", "out", "severity"),
    [
        (8, "[ -1 ]", "[ -1 ]", None),
        (0, "[ -1, 3 ]", "[ -1, 3 ]", None),
        (0, "[ 2, 3 ]", "[ -1, -1 ]", None),
        (0, "[ 3 ]", "[ 3 ]", "warning"),
        (0, "[ 2, 4 ]", "[ 2, 4 ]", "error"),
    ],
)
def test_shapes_with_variable_dims_and_without_batch(
    tmp_path: Path, size: int, raw: str, out: str, severity: str | None
) -> None:
    report = check(tmp_path, ensemble(PRE, NET, size=size, raw=raw, out=out))
    assert {finding.severity for finding in report.findings} == ({severity} if severity else set())


def test_a_batching_ensemble_over_a_model_that_takes_full_shapes(tmp_path: Path) -> None:
    add_model(tmp_path, "full", f"{ONNX}max_batch_size: 0\n{io('[ -1, 3 ]', '[ -1, 3 ]')}", identity_model())
    assert check(tmp_path, ensemble(PRE, step("full", "mid", "out"))).findings == ()


def test_optional_inputs_need_no_tensor(tmp_path: Path) -> None:
    optional = 'input { name: "hint" data_type: TYPE_FP32 dims: 1 optional: true }\n'
    add_model(tmp_path, "soft", batching(optional, head=PYTHON), IDENTITY_PY)
    assert check(tmp_path, ensemble(PRE, step("soft", "mid", "out"))).findings == ()


def test_answers_of_two_decoupled_models_cannot_be_paired(tmp_path: Path) -> None:
    decoupled = "model_transaction_policy { decoupled: true }\n"
    for name in ("one", "two"):
        add_model(tmp_path, name, batching(decoupled, head=PYTHON), IDENTITY_PY)
    second = 'input { name: "z" data_type: TYPE_FP32 dims: 3 }\n'
    add_model(tmp_path, "pair", batching(second, head=PYTHON), IDENTITY_PY)
    pair = step("pair", "a", "out").replace("output_map", 'input_map { key: "z" value: "b" } output_map')
    text = ensemble(step("one", "raw", "a"), step("two", "raw", "b"), pair)
    add_ensemble(tmp_path, "ens", text)
    assert "step 3: model 'pair' gets tensors from different decoupled" in the_error(check_repository(tmp_path)).message
    same = ensemble(step("one", "raw", "a"), step("pre", "a", "b"), pair)
    (tmp_path / "ens" / "config.pbtxt").write_text(same)
    add_model(tmp_path, "pre", batching())
    assert check_repository(tmp_path).findings == ()
