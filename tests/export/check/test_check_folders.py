"""The walk: versions, links, clutter, names (R02, R12, R15, R16 and their siblings)."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from repository_builder import add_model, batching, identity_model

from tritonstack.errors import UsageError
from tritonstack_export.check import CheckReport, check_repository


def codes(report: CheckReport, model: str | None = None) -> set[str]:
    return {finding.code for finding in report.findings if finding.model == model}


def only_error(report: CheckReport) -> str:
    assert len(report.errors) == 1, report.errors
    assert report.errors[0].fix
    return report.errors[0].message


def test_a_sound_repository_has_nothing_to_say(tmp_path: Path) -> None:
    add_model(tmp_path, "net", batching())
    (tmp_path / "README.md").write_text("a file at the top is fine")
    report = check_repository(tmp_path)
    assert report.findings == ()
    assert [(model.name, model.versions, model.path) for model in report.models] == [("net", (1,), tmp_path / "net")]


# R02
def test_a_model_without_version(tmp_path: Path) -> None:
    add_model(tmp_path, "empty_model", batching(), version=None)
    message = only_error(check_repository(tmp_path))
    assert message == "model 'empty_model' has no version directory (expected e.g. empty_model/1/model.onnx)"


@pytest.mark.parametrize("name", ["01", "0", "v1", "1.0", "latest"])
def test_a_folder_triton_ignores_is_no_version(tmp_path: Path, name: str) -> None:
    add_model(tmp_path, "net", batching(), version=name)
    report = check_repository(tmp_path)
    assert codes(report, "net") == {"no-version", "version-folder"}
    assert f"(ignored: {name})" in report.errors[0].message
    add_model(tmp_path, "net", batching(), version="2")
    report = check_repository(tmp_path)
    assert report.ok and codes(report, "net") == {"version-folder"}


@pytest.mark.parametrize(
    ("name", "words"),
    [("-1", "hangs"), ("+3", "hangs"), ("9" * 20, "aborts"), ("9223372036854775808", "aborts")],
)
def test_a_version_that_brings_triton_down_is_an_error_even_beside_a_good_one(
    tmp_path: Path, name: str, words: str
) -> None:
    add_model(tmp_path, "net", batching())
    (tmp_path / "net" / name).mkdir()
    assert words in only_error(check_repository(tmp_path))


def test_the_largest_version_number_is_fine(tmp_path: Path) -> None:
    add_model(tmp_path, "net", batching(), version=str(2**63 - 1))
    assert check_repository(tmp_path).models[0].versions == (2**63 - 1,)


# R12
@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("specific: { versions: [ 3 ] }", "version_policy asks for [3], available: [1, 2]"),
        ("specific: { versions: [ 1, 3 ] }", "version_policy asks for [1, 3], available: [1, 2]"),
        ("specific: { }", "version_policy 'specific' names no version"),
        ("latest: { num_versions: 0 }", "version_policy serves the latest 0 versions, so none"),
        ("latest: { }", "version_policy serves the latest 0 versions, so none"),
    ],
)
def test_a_policy_that_cannot_be_kept(tmp_path: Path, policy: str, message: str) -> None:
    config = batching(f"version_policy: {{ {policy} }}\n")
    for version in ("1", "2"):
        add_model(tmp_path, "net", config, version=version)
    report = check_repository(tmp_path)
    assert only_error(report) == message
    assert report.errors[0].line == 5
    assert report.models == ()


@pytest.mark.parametrize(
    ("policy", "served"),
    [
        ("", (10,)),
        ("version_policy { latest { num_versions: 2 } }", (2, 10)),
        ("version_policy { all { } }", (1, 2, 10)),
        ("version_policy { specific { versions: [ 2 ] } }", (2,)),
    ],
)
def test_versions_that_are_served(tmp_path: Path, policy: str, served: tuple[int, ...]) -> None:
    for version in ("1", "2", "10"):
        add_model(tmp_path, "net", batching(policy), version=version)
    assert check_repository(tmp_path).models[0].versions == served


def test_a_version_that_is_not_served_may_lack_its_model_with_a_warning(tmp_path: Path) -> None:
    add_model(tmp_path, "net", batching(), version="2")
    (tmp_path / "net" / "1").mkdir()
    report = check_repository(tmp_path)
    assert report.ok and [finding.code for finding in report.warnings] == ["model-file"]


# R15
def test_configmap_links_are_one_model_and_broken_links_are_named(tmp_path: Path) -> None:
    add_model(tmp_path, "..2026_11_30", batching())
    (tmp_path / "..data").symlink_to("..2026_11_30")
    (tmp_path / "net").symlink_to("..data")
    (tmp_path / "dangling").mkdir()
    (tmp_path / "dangling" / "1").symlink_to("/nope/1")
    (tmp_path / "loop").symlink_to(".")
    report = check_repository(tmp_path)
    assert [model.name for model in report.models] == ["net"]
    assert codes(report) == {"configmap"}
    assert codes(report, "dangling") == {"dangling-link"}
    assert codes(report, "loop") == {"link-loop"}
    assert "'/nope/1'" in next(f.message for f in report.errors if f.model == "dangling")


def test_links_that_lead_nowhere_or_round(tmp_path: Path) -> None:
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "up").symlink_to("..")
    add_model(tmp_path, "net", batching())
    (tmp_path / "net" / "2").symlink_to(".")
    add_model(tmp_path, "lost", batching())
    (tmp_path / "lost" / "1" / "model.onnx").unlink()
    (tmp_path / "lost" / "1" / "model.onnx").symlink_to("moved.onnx")
    (tmp_path / "lost" / "config.pbtxt").rename(tmp_path / "kept")
    (tmp_path / "lost" / "config.pbtxt").symlink_to("../kept")
    report = check_repository(tmp_path)
    assert {finding.model: finding.code for finding in report.errors} == {
        "gone": "dangling-link",
        "a": "link-loop",
        "b": "link-loop",
        "up": "link-loop",
        "net": "link-loop",
        "lost": "dangling-link",
    }


def test_links_out_of_the_repository_and_twins_are_warnings(tmp_path: Path) -> None:
    store, root = tmp_path / "store", tmp_path / "repository"
    add_model(store, "net", batching())
    root.mkdir()
    (root / "one").symlink_to(store / "net")
    (root / "two").symlink_to("one")
    report = check_repository(root)
    assert report.ok and len(report.models) == 2
    assert codes(report) == {"same-model"}
    assert codes(report, "one") == {"link-outside"}


def test_a_repository_that_is_itself_a_link(tmp_path: Path) -> None:
    add_model(tmp_path / "real", "net", batching())
    (tmp_path / "link").symlink_to("real")
    assert check_repository(tmp_path / "link").findings == ()


# R16
def test_an_empty_repository(tmp_path: Path) -> None:
    assert only_error(check_repository(tmp_path)) == f"no models found in {tmp_path}"
    assert check_repository(tmp_path, allow_empty=True).findings == ()
    (tmp_path / ".git").mkdir()
    (tmp_path / "notes.txt").write_text("")
    assert "no models found" in only_error(check_repository(tmp_path))


@pytest.mark.parametrize(
    "name", [".git", ".ipynb_checkpoints", "lost+found", "__pycache__", ".net.partial", "__MACOSX"]
)
def test_clutter_is_warned_about_and_left_out(tmp_path: Path, name: str) -> None:
    add_model(tmp_path, "net", batching())
    add_model(tmp_path, name, "broken")
    report = check_repository(tmp_path)
    assert report.ok and codes(report) == {"clutter"}
    assert [model.name for model in report.models] == ["net"]


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    add_model(tmp_path, "net", batching())
    (tmp_path / "docs").mkdir()
    assert "'docs' is no model" in only_error(check_repository(tmp_path))


def test_names(tmp_path: Path) -> None:
    for name in ("Net", "net", "with space", "a&b", "$(id)", "a+b", "tab\there", "größe"):
        add_model(tmp_path, name, batching())
    os.mkdir(os.fsencode(tmp_path) + b"/bad\xff")  # noqa: PTH102 - a name that is no text
    report = check_repository(tmp_path)
    assert codes(report) == {"case-collision"}
    assert {finding.model: finding.severity for finding in report.findings if finding.code == "model-name"} == {
        "with space": "error",
        "a&b": "error",
        "$(id)": "error",
        "a+b": "warning",
        "größe": "warning",
        "tab\there": "error",
        "bad\udcff": "error",
    }
    assert all(finding.message.isprintable() for finding in report.findings)
    for finding in report.findings:
        str(finding.as_dict()).encode("utf-8")


def test_a_config_that_names_another_model(tmp_path: Path) -> None:
    add_model(tmp_path, "net", 'name: "other"\n' + batching())
    report = check_repository(tmp_path)
    assert only_error(report) == "the config calls the model 'other', its folder is 'net'"
    assert (report.errors[0].line, report.errors[0].column) == (1, 1)


def test_what_may_not_be_read_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root reads everything, so the refusal is put in at the system's border."""
    add_model(tmp_path, "net", batching())
    add_model(tmp_path, "two", batching())

    def refuse(path: Path | str, *_: object, **__: object) -> bytes:
        if "two" in str(path) or str(path).endswith(".onnx"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real_read(Path(path))

    real_read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", refuse)
    monkeypatch.setattr("onnx.load", refuse)
    report = check_repository(tmp_path)
    assert [(finding.model, finding.code) for finding in report.errors] == [
        ("net", "unreadable"),
        ("two", "unreadable"),
    ]
    assert all("Permission denied" in finding.message for finding in report.errors)


def test_a_config_that_is_no_file(tmp_path: Path) -> None:
    (add_model(tmp_path, "folder", None) / "config.pbtxt").mkdir()
    os.mkfifo(add_model(tmp_path, "pipe", None) / "config.pbtxt")
    with (add_model(tmp_path, "huge", None) / "config.pbtxt").open("wb") as file:
        file.truncate(20 * 1024 * 1024)
    add_model(tmp_path, "none", None)
    report = check_repository(tmp_path)
    assert {(finding.model, finding.code) for finding in report.errors} == {
        (name, "no-config") for name in ("folder", "pipe", "huge", "none")
    }


def test_wrong_places_are_usage_errors(tmp_path: Path) -> None:
    folder = add_model(tmp_path, "net", batching())
    with pytest.raises(UsageError, match="No such file"):
        check_repository(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="is a file"):
        check_repository(folder / "config.pbtxt")
    with pytest.raises(UsageError, match="single model") as caught:
        check_repository(folder)
    assert str(tmp_path) in str(caught.value.next_step)
    (folder / "config.pbtxt").unlink()
    with pytest.raises(UsageError, match="single model"):
        check_repository(folder)


def test_a_stray_config_at_the_top_is_just_a_file(tmp_path: Path) -> None:
    add_model(tmp_path, "net", batching())
    (tmp_path / "config.pbtxt").write_text("")
    assert check_repository(tmp_path).findings == ()


def test_pipes_in_place_of_files_are_never_opened(tmp_path: Path) -> None:
    for name in ("model.onnx", "manifest.json"):
        folder = add_model(tmp_path, name.partition(".")[0], batching())
        (folder / "1" / name).unlink(missing_ok=True)
        os.mkfifo(folder / "1" / name)
    os.mkfifo(tmp_path / "pipe")
    report = check_repository(tmp_path)
    assert [finding.code for finding in report.errors] == ["manifest", "model-file"]


def test_a_thousand_models_stay_within_open_files_and_recursion(tmp_path: Path) -> None:
    data = identity_model().SerializeToString()
    for index in range(1000):
        add_model(tmp_path, f"net{index}", batching(), data)
    report = check_repository(tmp_path)
    assert report.ok and len(report.models) == 1000
