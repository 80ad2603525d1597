"""Finding the models of a repository: one level of folders, links resolved by hand, never a recursive walk.

Triton takes every folder at the top for a model, follows links wherever they lead and does not notice when two lead
to the same place. This walk looks at two levels only (models, versions), so no link can make it run on.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import defaultdict
from pathlib import Path

from tritonstack_export.check.finding import FindingList, printable
from tritonstack_export.check.model_entry import ModelEntry
from tritonstack_export.repository.layout import is_shell_safe

INT64_MAX = 2**63 - 1

_CLUTTER = {"lost+found", "__pycache__", "__MACOSX", "@eaDir", "node_modules", "System Volume Information"}
# Folders inside a model that Triton itself reads: custom configs, warm-up data, initial states of sequences.
_KNOWN_FOLDERS = {"configs", "warmup", "initial_state"}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
_VERSION = re.compile(r"[1-9][0-9]*")
_EXPLAINS_NO_VERSION = {"dangling-link", "link-loop", "unreadable"}
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")


def find_models(root: Path, *, findings: FindingList) -> list[ModelEntry]:
    """The model folders directly under `root`, by name, with their version folders.

    Problems of the repository go to `findings`, those of one model to the entry's own list. Raises nothing for
    broken content.
    """
    models: list[ModelEntry] = []
    real_root = Path(os.path.realpath(root))
    configmap: list[str] = []
    targets: defaultdict[str, list[str]] = defaultdict(list)
    try:
        names = sorted(child.name for child in root.iterdir())
    except OSError as error:
        findings.error("unreadable", f"cannot list the repository: {error.strerror}", fix="check its permissions")
        return []
    for name in names:
        path = root / name
        if name.startswith("..") or _is_clutter(name):
            if path.is_dir():
                if name.startswith(".."):
                    configmap.append(name)
                else:
                    _report_clutter(name, path, findings)
            continue
        entry = ModelEntry(name=name, path=path, findings=FindingList(path=path, model=name))
        if not _is_model_folder(path, real_root=real_root, findings=entry.findings):
            if entry.findings.items:
                models.append(entry)
            continue
        _check_name(name, entry.findings)
        targets[os.path.realpath(path)].append(name)
        _find_versions(entry, real_root=real_root)
        models.append(entry)
    if configmap:
        findings.warning(
            "configmap",
            f"{', '.join(map(printable, configmap))}: the links of a mounted ConfigMap or Secret; Triton would load "
            "each as one more copy of the model",
            fix="mount it elsewhere and copy or link the models into a repository, or use `tritonstack serve`",
        )
    _report_twins(targets, findings)
    _report_case_twins([model.name for model in models], findings)
    return models


def _is_clutter(name: str) -> bool:
    return name.startswith(".") or name in _CLUTTER


def _report_clutter(name: str, path: Path, findings: FindingList) -> None:
    findings.warning(
        "clutter",
        f"{printable(name)!r} is no model, but Triton would try to load it as one",
        fix="keep it out of the repository (`tritonstack serve` hides it from Triton)",
        path=path,
    )


def resolve_link(path: Path, *, real_root: Path, findings: FindingList) -> os.stat_result | None:
    """The status of what `path` is or leads to; None after a finding when it leads nowhere or round in circles.

    A link that leaves the repository is reported as a warning and followed.
    """
    try:
        status = path.stat()
    except OSError as error:
        shown = printable(path.name)
        if not path.is_symlink():
            findings.error(
                "unreadable", f"{shown!r} cannot be read: {error.strerror}", fix="check its permissions", path=path
            )
        elif error.errno == errno.ELOOP:
            findings.error("link-loop", f"the link {shown!r} leads back to itself", fix="remove the link", path=path)
        else:
            findings.error(
                "dangling-link",
                f"the link {shown!r} leads to {printable(_link_target(path))!r}: {error.strerror}",
                fix="restore the target or remove the link",
                path=path,
            )
        return None
    if path.is_symlink():
        real = Path(os.path.realpath(path))
        if stat.S_ISDIR(status.st_mode) and Path(os.path.realpath(path.parent)).is_relative_to(real):
            findings.error(
                "link-loop",
                f"the link {printable(path.name)!r} leads back to a folder that contains it "
                f"({printable(_link_target(path))}): Triton follows it about 40 levels deep",
                fix="remove the link",
                path=path,
            )
            return None
        if not real.is_relative_to(real_root):
            findings.warning(
                "link-outside",
                f"the link {printable(path.name)!r} leaves the repository, to {printable(real)}",
                fix="copy the target in before the repository is moved, uploaded or mounted elsewhere",
                path=path,
            )
    return status


def _link_target(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return "?"


def _is_model_folder(path: Path, *, real_root: Path, findings: FindingList) -> bool:
    """Whether `path` is a folder to take for a model; plain files at the top are fine and no models."""
    status = resolve_link(path, real_root=real_root, findings=findings)
    if status is None:
        return False
    if not stat.S_ISDIR(status.st_mode):
        # A link to a file outside is nobody's model: its warning would only distract.
        findings.items.clear()
        return False
    return True


def _check_name(name: str, findings: FindingList) -> None:
    shown = printable(name)
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        findings.error("model-name", f"the folder name {shown!r} is not UTF-8", fix="rename it in letters and digits")
        return
    if not name.isprintable():
        findings.error("model-name", f"the name {shown!r} has control characters", fix="rename it")
    elif not is_shell_safe(name):
        findings.error(
            "model-name",
            f"the name {shown!r} has characters that Triton's python backend would pass to a shell",
            fix="use letters, digits, '_', '-' and '.' only",
        )
    elif not _PLAIN_NAME.fullmatch(name):
        findings.warning(
            "model-name",
            f"the name {shown!r} needs escaping in URLs, metrics and Kubernetes labels",
            fix="use letters, digits, '_', '-' and '.' only",
        )


def _find_versions(entry: ModelEntry, *, real_root: Path) -> None:
    findings = entry.findings
    try:
        names = sorted(child.name for child in entry.path.iterdir())
    except OSError as error:
        findings.error("unreadable", f"cannot list the model folder: {error.strerror}", fix="check its permissions")
        return
    ignored = []
    for name in names:
        path = entry.path / name
        looks_like_version = _WHOLE_NUMBER.fullmatch(name) is not None
        if not looks_like_version and not path.is_symlink() and not path.is_dir():
            continue
        status = resolve_link(path, real_root=real_root, findings=findings)
        if status is None or not stat.S_ISDIR(status.st_mode):
            if status is not None and looks_like_version:
                findings.warning(
                    "version-folder",
                    f"{name!r} is a file, not a version folder",
                    fix=f"move it to {name}/<model file>",
                    path=path,
                )
            continue
        if _VERSION.fullmatch(name) and int(name) <= INT64_MAX:
            entry.version_paths[int(name)] = path
        elif looks_like_version:
            ignored.append(name)
            _report_bad_version(name, path, findings)
        elif name not in _KNOWN_FOLDERS:
            ignored.append(name)
            findings.warning(
                "version-folder",
                f"the folder {printable(name)!r} is no version: Triton ignores it",
                fix="name version folders 1, 2, 3, … or move it out of the model",
                path=path,
            )
    entry.versions = tuple(sorted(entry.version_paths))
    entry.ignored = tuple(map(printable, ignored))


def _report_bad_version(name: str, path: Path, findings: FindingList) -> None:
    value = int(name)
    if name.startswith(("-", "+")):
        findings.error(
            "version-folder",
            f"the version folder {name!r} has a sign: Triton's start-up hangs on it",
            fix="name version folders 1, 2, 3, …",
            path=path,
        )
    elif value > INT64_MAX:
        findings.error(
            "version-folder",
            f"the version folder {name!r} is larger than {INT64_MAX}: Triton aborts on it",
            fix="use a smaller number, such as a date: 20261130",
            path=path,
        )
    else:
        what = "is zero" if value == 0 else "starts with a zero"
        findings.warning(
            "version-folder",
            f"the version folder {name!r} {what}: Triton ignores it",
            fix=f"rename it to {max(1, value)}",
            path=path,
        )


def report_no_version(entry: ModelEntry) -> None:
    """Say that a model has no version, unless a broken version folder has been reported already."""
    shown = printable(entry.name)
    if entry.versions or any(finding.code in _EXPLAINS_NO_VERSION for finding in entry.findings.items):
        return
    if not os.path.lexists(entry.config_path) and not entry.ignored:
        entry.findings.error(
            "no-version",
            f"{shown!r} is no model: it has neither a config.pbtxt nor a version directory, yet Triton would try it",
            fix="move it out of the repository",
        )
        return
    also = f" (ignored: {', '.join(entry.ignored)})" if entry.ignored else ""
    if entry.is_ensemble:
        entry.findings.error(
            "no-version",
            f"ensemble {shown!r} has no version directory{also}; Triton wants one, though it stays empty",
            fix=f"mkdir {shown}/1",
        )
        return
    entry.findings.error(
        "no-version",
        f"model {shown!r} has no version directory (expected e.g. {shown}/1/model.onnx){also}",
        fix=f"mkdir {shown}/1 and put the model file there",
    )


def _report_twins(targets: dict[str, list[str]], findings: FindingList) -> None:
    for names in targets.values():
        if len(names) > 1:
            findings.warning(
                "same-model",
                f"{', '.join(map(printable, names))} are links to one folder: Triton loads it {len(names)} times",
                fix="keep one of them, unless several copies are meant",
            )


def _report_case_twins(names: list[str], findings: FindingList) -> None:
    by_case: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        by_case[name.casefold()].append(name)
    for twins in by_case.values():
        if len(twins) > 1:
            findings.warning(
                "case-collision",
                f"{', '.join(map(printable, twins))} differ in upper and lower case only: one overwrites the other on "
                "file systems and object stores that ignore case",
                fix="rename one of them",
            )
