"""From the paths of a command line to the ONNX files below them, each with what its repository says about it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonstack.errors import InputError, UsageError
from tritonstack_export.repository import manifest
from tritonstack_export.repository.layout import CONFIG_NAME, parse_version

if TYPE_CHECKING:
    from tritonstack_export.engine.profile import InputShape
    from tritonstack_export.engine.settings import BuildSettings
    from tritonstack_export.preflight.shape_flags import ShapeFlags

# For an ONNX file that nothing describes: the bounds that `export` takes when a spec does not say.
_DEFAULT_MAX_BATCH = 32


@dataclass(frozen=True)
class Target:
    """An ONNX file. `label` is how it is called; `version` the folder with its manifest, None for a lone file."""

    onnx: Path
    label: str
    version: Path | None = None


def find_targets(paths: Sequence[Path]) -> tuple[list[Target], list[str]]:
    """The ONNX files under `paths` (repositories, entries, version folders, files), each once, and the labels of
    models that hold none.

    Raises UsageError for a path that does not exist or is no ONNX file, InputError when there is none at all.
    """
    targets: dict[str, Target] = {}
    without: list[str] = []
    for path in paths:
        if not path.exists():
            raise UsageError(
                f"argument PATH: {path} does not exist", expected="a repository, an entry or an .onnx file"
            )
        found = list(_under(path, without))
        for target in found:
            targets.setdefault(os.path.realpath(target.onnx), target)
    if not targets:
        said = f" (only {', '.join(without)})" if without else ""
        raise InputError(
            f"no ONNX file under {', '.join(map(str, paths))}{said}",
            expected="a model repository, an entry, a version folder or an .onnx file",
        )
    return list(targets.values()), without


def _under(path: Path, without: list[str]) -> Iterator[Target]:
    if path.is_file():
        if path.suffix.lower() != ".onnx":
            raise UsageError(
                f"argument PATH: {path} is no .onnx file", expected="a repository, an entry or an .onnx file"
            )
        version = path.parent if parse_version(path.absolute().parent.name) is not None else None
        yield Target(path, str(path), version)
    elif _is_entry(path):
        yield from _in_entry(path, without)
    elif any(path.glob("*.onnx")):
        if parse_version(path.absolute().name) is not None:
            yield from _in_version(path, f"{path.absolute().parent.name} version {path.absolute().name}")
        else:
            yield from (Target(file, str(file)) for file in sorted(path.glob("*.onnx")))
    else:
        for child in sorted(path.iterdir()):
            if not child.name.startswith(".") and child.is_dir() and _is_entry(child):
                yield from _in_entry(child, without)


def _is_entry(path: Path) -> bool:
    return (path / CONFIG_NAME).is_file() or bool(_versions(path))


def _versions(path: Path) -> list[Path]:
    """Version folders that hold an ONNX file, ascending."""
    found = [
        (number, child)
        for child in path.iterdir()
        if (number := parse_version(child.name)) is not None and child.is_dir() and any(child.glob("*.onnx"))
    ]
    return [child for _, child in sorted(found)]


def _in_entry(path: Path, without: list[str]) -> Iterator[Target]:
    versions = _versions(path)
    if not versions:
        without.append(path.absolute().name)
    for version in versions:
        yield from _in_version(version, f"{path.absolute().name} version {version.name}")


def _in_version(version: Path, label: str) -> Iterator[Target]:
    files = sorted(version.glob("*.onnx"))
    for file in files:
        yield Target(file, label if len(files) == 1 else f"{label} ({file.name})", version)


def settings_of(target: Target, inputs: Sequence[InputShape], flags: ShapeFlags | None) -> BuildSettings:
    """How the engine of `target` is to be built: from its manifest (`spec.engine`, `dimensions`, `precision`), else
    from the `max_batch_size` of its config, else 1 to 32 samples; `flags` win over all of it.

    `inputs` are those of the graph. Raises UsageError for bounds that do not fit the graph or are missing, and
    RepositoryError for a manifest or config that cannot be read.
    """
    from tritonstack_export.engine.profile import profiles_for_graph
    from tritonstack_export.engine.settings import BuildSettings

    recorded = _recorded(target)
    if flags is not None:
        settings = BuildSettings() if recorded is None else _from_manifest(*recorded, with_profiles=False)
        return replace(settings, profiles=_of_flags(flags, inputs))
    if recorded is not None:
        return _from_manifest(*recorded, with_profiles=True)
    return BuildSettings(profiles=profiles_for_graph(inputs, max_batch_size=_max_batch(target)))


def _of_flags(flags: ShapeFlags, inputs: Sequence[InputShape]) -> tuple[Any, ...]:
    profile = flags.profile(inputs)
    return (profile,) if profile else ()


def _recorded(target: Target) -> tuple[Mapping[str, Any], Path] | None:
    """The fields and the path of the manifest, None for a file without one or one that it does not list."""
    if target.version is None or not (target.version / manifest.MANIFEST_NAME).is_file():
        return None
    found = manifest.read(target.version)
    listed = target.onnx.name in found.files
    known = listed and {"inputs", "dimensions"} <= found.fields.keys()
    return (found.fields, target.version / manifest.MANIFEST_NAME) if known else None


def _from_manifest(fields: Mapping[str, Any], path: Path, *, with_profiles: bool) -> BuildSettings:
    """What the manifest at `path` says, with the profiles of its own bounds or without any."""
    from tritonstack_export.engine.manifest_build import manifest_build
    from tritonstack_export.engine.profile import profiles_from_spec
    from tritonstack_export.engine.settings import settings_from_spec

    said = manifest_build(fields, path=path)
    profiles = profiles_from_spec(said.engine, said.inputs, said.dimensions) if with_profiles else ()
    return settings_from_spec(said.engine, profiles, precision=said.precision)


def _max_batch(target: Target) -> int:
    """`max_batch_size` of the config beside the version, or what `export` takes by default."""
    config = target.version.absolute().parent / CONFIG_NAME if target.version is not None else None
    if config is None or not config.is_file():
        return _DEFAULT_MAX_BATCH
    from tritonstack_export.repository import parse_config, read_config_text

    return int(parse_config(read_config_text(config), path=config).max_batch_size)
