"""Which models of a checked repository to serve, and whether this machine can."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tritonstack.errors import RepositoryError, SetupError, UsageError
from tritonstack_deploy.embedded.built_backends import missing_backends
from tritonstack_export.check import CheckReport, Finding
from tritonstack_export.check.nearest import did_you_mean


def select_models(report: CheckReport, wanted: Sequence[str]) -> dict[str, Path]:
    """The folders of the models to serve by name: `wanted` with what their ensembles call, or all of them.

    Raises UsageError for a name that is not there and RepositoryError when one of them has errors.
    """
    servable = {model.name: model for model in report.models}
    broken = {finding.model for finding in report.errors if finding.model is not None}
    if not wanted:
        return {name: model.path for name, model in servable.items()}
    chosen: dict[str, Path] = {}
    queue = list(wanted)
    while queue:
        name = queue.pop()
        if name in chosen:
            continue
        if name in broken:
            raise RepositoryError(f"model {name!r} has errors", next_step=f"tritonstack check {report.root}")
        if name not in servable:
            raise UsageError(
                f"no model {name!r} in {report.root}",
                expected=f"one of {', '.join(sorted(servable)) or 'none'}",
                next_step=did_you_mean(name, servable),
            )
        chosen[name] = servable[name].path
        queue.extend(servable[name].dependencies)
    return chosen


def named_backends(words: Sequence[str]) -> dict[str, Path]:
    """The paths of ``--backend NAME=PATH`` by name. Raises UsageError."""
    named = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or not path or not re.fullmatch(r"[A-Za-z0-9_]+", name):
            raise UsageError(
                "argument --backend", given=repr(word), expected="NAME=PATH, such as mine=libtriton_mine.so"
            )
        if name in ("python", "onnxruntime"):
            raise UsageError("argument --backend", given=repr(word), expected="another name: this one is built in")
        named[name] = Path(path)
    return named


def without_missing_backends(
    models: dict[str, Path], backends: Mapping[str, Path], wanted: Sequence[str]
) -> dict[str, Path]:
    """`models` without those whose backend has yet to be built, each told on stderr with what to do.

    Raises SetupError where one of the `wanted` models is among them, or where none is left.
    """
    missing = missing_backends(models, backends)
    if not missing:
        return models
    left = {name: folder for name, folder in models.items() if name not in {waiting.model for waiting in missing}}
    refused = [waiting for waiting in missing if waiting.model in wanted] or ([] if left else missing)
    if refused:
        raise SetupError(
            "; ".join(f"model {waiting.model!r} {waiting.reason}" for waiting in refused),
            next_step=refused[0].next_step,
        )
    for waiting in missing:
        print(f"warning: model {waiting.model!r} is not served: it {waiting.reason}", file=sys.stderr)
    print(f"  {missing[0].next_step}", file=sys.stderr)
    return left


def relevant_errors(report: CheckReport, wanted: Sequence[str]) -> tuple[Finding, ...]:
    """The errors that forbid serving: all of them, or with `wanted` only those of no particular other model."""
    if not wanted:
        return report.errors
    return tuple(finding for finding in report.errors if finding.model in wanted)


def require_cuda_provider(explicit_gpu: Sequence[str], providers: dict[str, tuple[str, ...]]) -> None:
    """Raise SetupError when a model whose config says KIND_GPU came up without the CUDA provider."""
    for name in explicit_gpu:
        found = providers.get(name)
        if found is not None and "CUDAExecutionProvider" not in found:
            raise SetupError(
                f"model {name!r} asks for KIND_GPU, but its onnxruntime has no usable CUDA provider",
                given=", ".join(found),
                expected="CUDAExecutionProvider",
                next_step="install onnxruntime-gpu and name its folder in TRITONSTACK_ONNXRUNTIME_SITE",
            )
