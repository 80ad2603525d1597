"""The CI templates: valid by the systems' own schemas, minimal in their rights, and every command in them parses."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tritonstack._version import __version__
from tritonstack.command import COMMANDS
from tritonstack_export import command as export_command
from tritonstack_export.check import command as check_command
from tritonstack_export.preflight import command as preflight_command
from tritonstack_export.preflight.capability import parse_capabilities

TEMPLATES = Path(__file__).resolve().parents[3] / "examples" / "ci"
GITHUB, GITLAB = TEMPLATES / "github-actions.yml", TEMPLATES / "gitlab-ci.yml"
PARSERS = {
    "export": export_command.build_parser,
    "check": check_command._parser,
    "preflight": preflight_command.build_parser,
}


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


def shell_lines(value: Any) -> Iterator[str]:
    """Every text of a template that a shell runs, continued lines joined."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key in ("run", "script", "before_script", "after_script"):
                texts = item if isinstance(item, list) else [item]
                for text in texts:
                    yield from re.sub(r"\\\n\s*", " ", text).strip().splitlines()
            else:
                yield from shell_lines(item)
    elif isinstance(value, list):
        for item in value:
            yield from shell_lines(item)


def commands(path: Path) -> list[list[str]]:
    return [shlex.split(line)[1:] for line in shell_lines(load(path)) if line.startswith("tritonstack ")]


def parsed(words: list[str]) -> argparse.Namespace:
    assert words[0] in COMMANDS
    return PARSERS[words[0]]().parse_args(words[1:])


@pytest.mark.parametrize(
    "arguments",
    [
        ["vendor.github-workflows", str(GITHUB)],
        ["custom.github-workflows-require-timeout", str(GITHUB)],
        ["vendor.gitlab-ci", "--data-transform", "gitlab-ci", str(GITLAB)],
    ],
    ids=lambda arguments: arguments[0],
)
def test_templates_are_valid(arguments: list[str]) -> None:
    pytest.importorskip("check_jsonschema", reason="the linter is not installed (pip install check-jsonschema)")
    result = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("path", [GITHUB, GITLAB], ids=["github", "gitlab"])
def test_every_command_of_ours_parses(path: Path) -> None:
    found = commands(path)
    assert [words[0] for words in found] == ["export", "check"]
    export, check = (parsed(words) for words in found)
    assert parse_capabilities(export.compute_capability) == ("8.0", "8.9")
    assert check.directory == export.repository
    assert {path.suffix for path in export.report} == {".html", ".json"} and export.junit.suffix == ".xml"


@pytest.mark.parametrize("path", [GITHUB, GITLAB], ids=["github", "gitlab"])
def test_the_two_do_the_same(path: Path) -> None:
    assert commands(path) == commands(GITHUB)


@pytest.mark.parametrize("path", [GITHUB, GITLAB], ids=["github", "gitlab"])
def test_the_version_is_pinned_to_this_one(path: Path) -> None:
    text = path.read_text("utf-8")
    assert f'TRITONSTACK_VERSION: "{__version__}"' in text
    assert "--constraint constraints.txt" in text


def test_github_has_the_least_rights_and_pinned_actions() -> None:
    workflow = load(GITHUB)
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["group"]
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 60 and "permissions" not in job
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"actions/[a-z-]+@v[0-9]+", step["uses"])
    (checkout,) = [s for s in workflow["jobs"]["export"]["steps"] if s.get("uses", "").startswith("actions/checkout")]
    assert checkout["with"]["persist-credentials"] is False


def test_reports_are_kept_when_a_gate_fails_too() -> None:
    steps = load(GITHUB)["jobs"]["export"]["steps"]
    reports = next(step for step in steps if step.get("with", {}).get("name") == "reports")
    assert reports["if"] == "${{ !cancelled() }}"
    artifacts = load(GITLAB)["export"]["artifacts"]
    assert artifacts["when"] == "always" and artifacts["reports"]["junit"] == "reports/report.xml"


def test_shell_lines_are_sound_shell() -> None:
    for path in (GITHUB, GITLAB):
        for line in shell_lines(load(path)):
            result = subprocess.run(["bash", "-n", "-c", line], capture_output=True, text=True)
            assert result.returncode == 0, result.stderr
