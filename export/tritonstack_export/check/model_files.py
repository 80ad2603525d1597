"""The model file of each version: present, not empty, of the right kind, unchanged since export."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path, PurePosixPath

from tritonstack_export.check.finding import FindingList, printable
from tritonstack_export.check.folder_walk import resolve_link
from tritonstack_export.check.model_entry import ModelEntry
from tritonstack_export.check.onnx_file import check_onnx_file
from tritonstack_export.check.onnx_rules import check_against_graph
from tritonstack_export.check.plan_file import check_plan
from tritonstack_export.check.platform import MODEL_FILES
from tritonstack_export.engine.plan_record import Target
from tritonstack_export.repository.config_text import ModelConfig


def check_model_files(entry: ModelEntry, config: ModelConfig, *, real_root: Path, target: Target) -> None:
    """Look at every version; those the policy does not serve only get warnings for a missing file."""
    if entry.is_ensemble:
        return
    names = _file_names(entry, config)
    for version in entry.versions:
        folder = entry.version_paths[version]
        for name in names:
            served = version in entry.served
            _check_one(entry, config, folder, name, served=served, real_root=real_root, target=target)
        if version in entry.served:
            _check_manifest(entry, folder)


def _file_names(entry: ModelEntry, config: ModelConfig) -> list[str]:
    """Model files that each version folder must have: the default one and those per compute capability."""
    per_device = {name for name in config.cc_model_filenames.values() if name}
    default = config.default_model_filename or MODEL_FILES.get(entry.backend)
    names = sorted(per_device)
    if default and (config.default_model_filename or not per_device):
        names = [default, *(name for name in names if name != default)]
    good = []
    for name in names:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            entry.findings.error(
                "model-file",
                f"the model file name {printable(name)!r} leads out of the version folder",
                fix="name a file inside the version folder",
                at=("default_model_filename",) if name == default else ("cc_model_filenames",),
            )
        else:
            good.append(name)
    return good


def _check_one(
    entry: ModelEntry, config: ModelConfig, folder: Path, name: str, *, served: bool, real_root: Path, target: Target
) -> None:
    findings = entry.findings
    path = folder / name
    shown = f"{folder.name}/{printable(name)}"
    if not path.exists() and not path.is_symlink():
        report = findings.error if served else findings.warning
        report(
            "model-file",
            f"{shown} is missing" + _present_instead(folder) + ("" if served else " (this version is not served)"),
            fix=f"put the model there, or name its file in default_model_filename ({entry.backend} backend)",
            path=path,
        )
        return
    status = resolve_link(path, real_root=real_root, findings=findings)
    if status is None:
        return
    if not stat.S_ISREG(status.st_mode):
        if entry.backend in ("onnxruntime", "tensorrt", "python"):
            findings.error(
                "model-file",
                f"{shown} is a folder, not a file" if stat.S_ISDIR(status.st_mode) else f"{shown} is no regular file",
                fix="put the model file itself there",
                path=path,
            )
        return
    if status.st_size == 0:
        findings.error("model-file", f"{shown} is empty (0 bytes)", fix="copy or export the model again", path=path)
        return
    if not served:
        return
    if entry.backend == "onnxruntime":
        before = len(findings.items)
        graph = check_onnx_file(path, findings)
        if graph is not None and config.max_batch_size >= 0:
            check_against_graph(entry, config, graph, model_file=path)
        if len(entry.served) > 1:
            # One config serves several files: say which of them a finding is about.
            for index in range(before, len(findings.items)):
                item = findings.items[index]
                findings.items[index] = replace(item, message=f"version {folder.name}: {item.message}")
    elif entry.backend == "tensorrt":
        check_plan(path, shown, config, findings, target=_plan_target(config, name, target))
    elif entry.backend == "python":
        _check_python(path, shown, findings)


def _plan_target(config: ModelConfig, name: str, target: Target) -> Target:
    """What one engine file has to fit: with files per compute capability, each only the GPUs that will load it."""
    own = tuple(sorted(capability for capability, file in config.cc_model_filenames.items() if file == name))
    if own:
        return Target(target.tensorrt, own)
    others = set(config.cc_model_filenames)
    return Target(target.tensorrt, tuple(gpu for gpu in target.compute_capabilities if gpu not in others))


def _present_instead(folder: Path) -> str:
    try:
        names = sorted(child.name for child in folder.iterdir() if not child.name.startswith("."))
    except OSError:
        return ""
    if not names:
        return ": the version folder is empty"
    return f"; the folder has {', '.join(map(printable, names[:3]))}" + (" …" if len(names) > 3 else "")


def _check_python(path: Path, shown: str, findings: FindingList) -> None:
    import ast
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        findings.error(
            "model-file",
            f"{shown} is no valid Python{f', line {line}' if line else ''}: {getattr(error, 'msg', error)}",
            fix="mend the syntax",
            path=path,
        )
        return
    except OSError as error:
        findings.error("unreadable", f"{shown}: {error.strerror}", fix="check its permissions", path=path)
        return
    if not _mentions(tree, "TritonPythonModel"):
        findings.error(
            "model-file", f"{shown} defines no class TritonPythonModel", fix="the python backend needs it", path=path
        )


def _mentions(tree: object, name: str) -> bool:
    """Whether a module defines, imports or assigns `name`, or imports everything from somewhere."""
    import ast

    for node in ast.walk(tree):  # type: ignore[arg-type]
        if isinstance(node, ast.ClassDef) and node.name == name:
            return True
        if isinstance(node, ast.ImportFrom | ast.Import) and any(
            (alias.asname or alias.name) in (name, "*") for alias in node.names
        ):
            return True
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            return True
    return False


def _check_manifest(entry: ModelEntry, folder: Path) -> None:
    from tritonstack_export.repository.manifest import MANIFEST_NAME, verify

    path = folder / MANIFEST_NAME
    if not path.exists():
        return
    for problem in verify(folder):
        entry.findings.error(
            "manifest", f"{folder.name}/{MANIFEST_NAME}: {problem}", fix="export the version again", path=path
        )
