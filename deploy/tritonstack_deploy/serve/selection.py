"""Which models of a checked repository to serve, and whether this machine can."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tritonstack.errors import RepositoryError, SetupError, UsageError
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
