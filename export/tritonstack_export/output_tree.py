"""The structure a forward pass returns, as a flat row of tensors with stable names.

    tensor                          output
    (a, b)                          output_0, output_1
    {"scores": s, "boxes": b}       scores, boxes
    (a, [b, {"aux": c}])            output_0, output_1_0, output_1_aux

Names depend on the structure alone, so they are the same in every run. None is left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tritonstack.errors import InputError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from tritonstack_export.spec import OutputSpec

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class OutputTree:
    """The tensors of one forward pass by their path, and the paths that held None."""

    tensors: dict[Path, Tensor]
    dropped: tuple[Path, ...]


def flatten(value: Any) -> OutputTree:
    """Walk dicts, dataclasses, named tuples, tuples and lists. Raises InputError for anything else than tensors."""
    tensors: dict[Path, Tensor] = {}
    dropped: list[Path] = []
    _walk(value, (), tensors, dropped)
    return OutputTree(tensors, tuple(dropped))


def _walk(value: Any, path: Path, tensors: dict[Path, Tensor], dropped: list[Path]) -> None:
    import torch

    if isinstance(value, torch.Tensor):
        tensors[path] = value
    elif value is None:
        dropped.append(path)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _walk(item, (*path, key if isinstance(key, int) else str(key)), tensors, dropped)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for key in value._fields:
            _walk(getattr(value, key), (*path, key), tensors, dropped)
    elif isinstance(value, tuple | list):
        for index, item in enumerate(value):
            _walk(item, (*path, index), tensors, dropped)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _walk(getattr(value, field.name), (*path, field.name), tensors, dropped)
    else:
        raise InputError(
            f"the model returns {type(value).__name__} as {path_name(path)!r}",
            expected="tensors, or tuples, lists and dicts of tensors",
            next_step="wrap the model in a module that returns tensors only",
        )


def path_name(path: Path) -> str:
    """The name of the output at `path`."""
    name = "_".join(map(str, path))
    return name if path and isinstance(path[0], str) else f"output_{name}" if path else "output"


def name_outputs(tree: OutputTree, asked: tuple[OutputSpec, ...] | None, *, said_by: str) -> dict[str, Path]:
    """Output name -> path, in the order they are published.

    Names asked for that are keys of the model's own outputs are matched by key, never by position, so their order
    does not matter. For outputs without keys they are matched by position. Raises UsageError, naming `said_by` (a
    flag or a spec key), when they do not fit.
    """
    own = {path_name(path): path for path in tree.tensors}
    if not own:
        raise InputError(
            "the model returns no tensor",
            expected="tensors, or tuples, lists and dicts of tensors",
            next_step="return the result from forward",
        )
    if len(own) != len(tree.tensors):
        names = [path_name(path) for path in tree.tensors]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InputError(f"two outputs would share the name {twice[0]!r}", next_step="rename one of the dict keys")
    if asked is None:
        return own
    keys = [entry.key or entry.name for entry in asked]
    if all(key in own for key in keys):
        return {entry.name: own[entry.key or entry.name] for entry in asked}
    keyed = any(isinstance(part, str) for path in own.values() for part in path) or any(e.key for e in asked)
    if keyed:
        missing = next(key for key in keys if key not in own)
        raise UsageError(f"{said_by}: the model has no output {missing!r}", expected=f"keys out of {', '.join(own)}")
    if len(asked) != len(own):
        raise UsageError(
            f"{said_by}: {len(asked)} name{'s' * (len(asked) != 1)} for {len(own)} outputs",
            given=", ".join(entry.name for entry in asked),
            expected=f"{len(own)} different names, for {', '.join(own)}",
        )
    return {entry.name: path for entry, path in zip(asked, own.values(), strict=True)}
