"""The key of an engine: everything that decides what TensorRT builds, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tritonstack.errors import SetupError
from tritonstack_export.digest import file_sha256, json_sha256
from tritonstack_export.engine.settings import BuildSettings

BUILDER_SCHEMA = 1
"""Raised when this project builds other engines from the same settings."""


def onnx_sha256(path: Path) -> str:
    """The digest of a model: of the file itself, or of it and its external weights where it has some.

    Reads every byte. Raises InputError for a file that is no ONNX model or lacks its weights.
    """
    from tritonstack_export.onnx_tensors import external_span, external_tensors, read_proto

    own = file_sha256(path)
    outside = external_tensors(read_proto(path))
    if not outside:
        return own
    files = sorted({external_span(tensor, path.parent)[0] for tensor in outside})
    return json_sha256([own, *((file.relative_to(path.parent).as_posix(), file_sha256(file)) for file in files)])


def plugin_digests(plugins: Sequence[Path]) -> dict[str, str]:
    """File name -> SHA-256 of each plugin library. Raises SetupError for a missing one."""
    digests = {}
    for path in plugins:
        try:
            digests[path.name] = file_sha256(path)
        except OSError as error:
            raise SetupError(
                f"the plugin library {path} cannot be read: {error.strerror}",
                next_step="check `plugins` in the spec's `engine`",
            ) from None
    return digests


def key_parts(
    *,
    model_sha256: str,
    settings: BuildSettings,
    tensorrt: str,
    compute_capability: str,
    gpu: str | None,
    plugins: Mapping[str, str],
) -> dict[str, Any]:
    """What the key is made of, as the record keeps it.

    `gpu`: the name of the GPU, which counts only with `hardware: same`: kernels are chosen by what ran fastest on it.
    """
    return {
        "schema": BUILDER_SCHEMA,
        "onnx_sha256": model_sha256,
        "settings": settings.as_key(),
        "tensorrt": tensorrt,
        "compute_capability": compute_capability,
        "gpu": gpu if settings.hardware == "same" else None,
        "plugins": dict(plugins),
    }


def engine_key(parts: Mapping[str, Any]) -> str:
    """The key: 64 hexadecimal digits."""
    return json_sha256(parts)
