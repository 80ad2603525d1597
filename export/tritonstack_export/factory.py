"""Call a model factory named `file.py:callable` or `package.module:callable`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonstack.errors import InputError, UsageError
from tritonstack_export import source_location

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class BuiltModel:
    """What a factory returned. `examples`: parameter name or None (positional), and the tensor; may be empty."""

    module: nn.Module
    examples: tuple[tuple[str | None, Tensor], ...]
    sources: tuple[Path, ...]
    """The Python files that make the module: the factory's, its neighbours that were imported, those of the classes."""


def build_model(reference: str, arguments: Mapping[str, Any], *, folder: Path, seed: int) -> BuiltModel:
    """Import the factory and call it with `arguments`; its file and package are looked up from `folder` too.

    The factory runs under its own random state seeded with `seed`, so weights it draws are the same every time.
    `sys.path` is as before afterwards. Raises UsageError when the reference leads nowhere, InputError when the
    factory fails or returns something else than a module (and example inputs).
    """
    import torch

    where, _, attribute = reference.rpartition(":")
    with _search_path(folder, where) as neighbours:
        factory, source = _import(where, attribute, folder, "model.factory")
        if not callable(factory):
            raise UsageError(f"model.factory: {attribute!r} in {where!r} cannot be called")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                built = factory(**arguments)
            except Exception as error:
                at = source_location.from_traceback(error.__traceback__)
                raise InputError(
                    f"the factory {attribute!r} failed{f' at {at}' if at else ''}: "
                    f"{type(error).__name__}: {source_location.first_line(error)}",
                    next_step="call it by hand with the arguments of the spec",
                ) from error
        module, examples = _unpack(built, attribute)
        files = {source, *neighbours().values(), *_class_files(module)}
    return BuiltModel(module, examples, tuple(sorted(file for file in files if file is not None and file.is_file())))


def _class_files(module: nn.Module) -> set[Path]:
    """The files of the classes of a module and all its parts; those of torch itself are known by its version."""
    found = set()
    for cls in {base for part in module.modules() for base in type(part).__mro__}:
        home = sys.modules.get(cls.__module__)
        file = getattr(home, "__file__", None)
        if file and cls.__module__.partition(".")[0] != "torch":
            found.add(Path(file))
    return found


def import_attribute(reference: str, *, folder: Path, key: str) -> Any:
    """The object that `reference` names (``file.py:name`` or ``package.module:name``); `key` names the spec key."""
    where, colon, attribute = reference.rpartition(":")
    if not colon:
        raise UsageError(f"{key}: expected `file.py:name` or `package.module:name`", given=repr(reference))
    with _search_path(folder, where):
        return _import(where, attribute, folder, key)[0]


def _import(where: str, attribute: str, folder: Path, key: str) -> tuple[Any, Path | None]:
    if where.endswith(".py") or "/" in where:
        path = (folder / where).resolve()
        if not path.is_file():
            raise UsageError(f"{key}: no such file {where!r}", expected=f"a path relative to {folder}")
        name = f"tritonstack_model_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise UsageError(f"{key}: {where!r} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        # Dataclasses and typing look their module up by name while the file runs.
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            at = source_location.from_traceback(error.__traceback__) or path.name
            raise InputError(
                f"{key}: {where!r} cannot be imported, at {at}: "
                f"{type(error).__name__}: {source_location.first_line(error)}"
            ) from error
    else:
        try:
            module = importlib.import_module(where)
        except ImportError as error:
            raise UsageError(
                f"{key}: cannot import {where!r}: {error}",
                next_step="install the package, or name a file as `file.py:callable`",
            ) from error
    target: Any = module
    for part in attribute.split("."):
        if not hasattr(target, part):
            names = sorted(n for n in vars(module) if callable(getattr(module, n)) and not n.startswith("_"))
            raise UsageError(
                f"{key}: {where!r} has no {attribute!r}", expected=f"one of {', '.join(names[:12]) or 'none'}"
            )
        target = getattr(target, part)
    file = getattr(module, "__file__", None)
    return target, Path(file) if file else None


@contextmanager
def _search_path(folder: Path, where: str) -> Iterator[Callable[[], dict[str, Path]]]:
    """Let the factory import its neighbours, and leave neither the path nor the neighbours behind.

    Yields a function that tells the neighbours imported so far: module name -> file. A neighbour left in
    `sys.modules` would be handed to the next model that has a file of the same name.
    """
    folders = [str(folder.resolve())]
    if where.endswith(".py"):
        folders.insert(0, str((folder / where).resolve().parent))
    path, modules = list(sys.path), set(sys.modules)

    def neighbours() -> dict[str, Path]:
        found = {}
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if any(file.startswith(f + "/") and "site-packages" not in file for f in folders):
                found[name] = Path(file)
        return found

    sys.path[:0] = folders
    importlib.invalidate_caches()
    try:
        yield neighbours
    finally:
        sys.path[:] = path
        for name in neighbours():
            if not name.startswith("tritonstack_model_"):
                del sys.modules[name]


def _unpack(built: Any, attribute: str) -> tuple[nn.Module, tuple[tuple[str | None, Tensor], ...]]:
    import torch

    def refuse(what: str) -> InputError:
        return InputError(
            f"the factory {attribute!r} returned {what}",
            expected="a torch.nn.Module, or (module, example inputs) with a tensor, tuple or dict of tensors",
        )

    first = built[0] if isinstance(built, tuple) and built else built
    if isinstance(first, torch.jit.ScriptModule):
        raise InputError(
            f"the factory {attribute!r} returned a TorchScript module, which torch.export cannot capture",
            next_step="return the plain torch.nn.Module it was made from",
        )
    if isinstance(built, torch.nn.Module):
        return built, ()
    if not (isinstance(built, tuple) and len(built) == 2 and isinstance(built[0], torch.nn.Module)):
        raise refuse(type(built).__name__)
    module, given = built
    pairs: list[tuple[str | None, Any]]
    if isinstance(given, torch.Tensor):
        pairs = [(None, given)]
    elif isinstance(given, Mapping):
        pairs = [(str(name), value) for name, value in given.items()]
    elif isinstance(given, Sequence):
        pairs = [(None, value) for value in given]
    else:
        raise refuse(f"a module and {type(given).__name__} as example inputs")
    for index, (name, value) in enumerate(pairs):
        if not isinstance(value, torch.Tensor):
            raise refuse(f"example input {name or index} of type {type(value).__name__}")
    return module, tuple(pairs)
