"""Load a checkpoint into a module: digest first, then tensors only, never code."""

from __future__ import annotations

import importlib.util
import pickle
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonstack.errors import InputError, UsageError
from tritonstack_export import source_location
from tritonstack_export.digest import file_sha256
from tritonstack_export.spec import Checkpoint

if TYPE_CHECKING:
    from torch import Tensor, nn


# What torch's unpickler raises for bytes that are no pickle at all, or not a whole one.
_BROKEN_PICKLE = (
    RuntimeError, EOFError, OSError, ValueError, AttributeError, ImportError, LookupError, TypeError, struct.error,
)  # fmt: skip


def resolve_resource(reference: str, *, folder: Path, key: str, may_be_folder: bool = False) -> Path:
    """The file that `reference` names: ``package:NAME/relative/path`` or a path relative to `folder`.

    The package is found without importing it. `key` names the spec key in the UsageError raised when it is missing.
    """
    if reference.startswith("package:"):
        package, _, relative = reference.removeprefix("package:").partition("/")
        try:
            found = importlib.util.find_spec(package) if package else None
        except (ImportError, ValueError):
            found = None
        roots = list(found.submodule_search_locations or []) if found else []
        if not roots:
            raise UsageError(f"{key}: the package {package!r} is not installed", given=reference)
        path = Path(roots[0]) / relative
        if not path.resolve().is_relative_to(Path(roots[0]).resolve()):
            raise UsageError(f"{key}: the path leaves the package", given=reference)
    else:
        path = folder / reference
    if not path.is_file() and not (may_be_folder and path.is_dir()):
        kind = "file or folder" if may_be_folder else "file"
        raise UsageError(f"{key}: no such {kind}", given=reference, expected=f"a {kind}; looked at {path}")
    return path


def load_checkpoint(module: nn.Module, checkpoint: Checkpoint, *, folder: Path, trust: bool) -> None:
    """Check the digest of `checkpoint`, then load it into `module` in place.

    Raises UsageError for a missing file, InputError for a wrong digest, a pickle that would run code (unless
    `trust`), or tensors that do not fit the module.
    """
    path = resolve_resource(checkpoint.path, folder=folder, key="model.checkpoint.path")
    if checkpoint.sha256 is not None:
        digest = file_sha256(path)
        if digest != checkpoint.sha256:
            raise InputError(
                f"the checkpoint {path.name} has another sha256",
                given=digest,
                expected=checkpoint.sha256,
                next_step="download it again, or correct model.checkpoint.sha256",
            )
    kind = checkpoint.format or ("safetensors" if path.suffix == ".safetensors" else "state_dict")
    tensors = _read_safetensors(path) if kind == "safetensors" else _read_pickle(path, trust=trust)
    if checkpoint.key is not None:
        for part in checkpoint.key.split("."):
            if not isinstance(tensors, Mapping) or part not in tensors:
                keys = ", ".join(map(str, list(tensors)[:8])) if isinstance(tensors, Mapping) else type(tensors)
                raise InputError(f"{path.name} has no key {checkpoint.key!r}", expected=f"one of {keys}")
            tensors = tensors[part]
    _fill(module, tensors, checkpoint, path)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path.name} is not a whole safetensors file: {source_location.first_line(error)}") from error
    return tensors


def _read_pickle(path: Path, *, trust: bool) -> Any:
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=not trust)
    except pickle.UnpicklingError as error:
        if not trust and "weights_only" in str(error).lower():
            raise InputError(
                f"the checkpoint {path.name} holds more than tensors, and loading it would run code from the file",
                expected="a state_dict or a safetensors file",
                next_step="save `model.state_dict()` instead, or pass --trust if you trust where the file comes from",
            ) from error
        raise InputError(f"{path.name} cannot be read: {source_location.first_line(error)}") from error
    except _BROKEN_PICKLE as error:
        raise InputError(f"{path.name} is not a whole checkpoint: {source_location.first_line(error)}") from error


def _fill(module: nn.Module, tensors: Any, checkpoint: Checkpoint, path: Path) -> None:
    import torch

    if isinstance(tensors, torch.nn.Module):
        tensors = tensors.state_dict()
    if not isinstance(tensors, Mapping) or not all(isinstance(v, torch.Tensor) for v in tensors.values()):
        hint = ", ".join(map(str, list(tensors)[:8])) if isinstance(tensors, Mapping) else type(tensors).__name__
        raise InputError(
            f"{path.name} is not a mapping of names to tensors",
            given=hint,
            next_step="name the sub-dict that is one as model.checkpoint.key",
        )
    try:
        result = module.load_state_dict(tensors, strict=False)
    except RuntimeError as error:
        detail = " ".join(str(error).split("\n", 1)[-1].split())[:300]
        raise InputError(f"{path.name} does not fit the model: {detail}") from error
    problems = [
        f"{len(names)} {what} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
        for what, names in (("missing", result.missing_keys), ("unexpected", result.unexpected_keys))
        if names
    ]
    if checkpoint.strict and problems:
        raise InputError(
            f"{path.name} does not fit the model: {' and '.join(problems)}",
            next_step="check model.arguments and model.checkpoint.key, or set model.checkpoint.strict to false",
        )
