"""What the manifest of a version says about building its engine: the spec's `engine`, bounds, inputs, precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonstack.errors import RepositoryError, missing_package
from tritonstack_export.engine.profile import Extent, InputShape
from tritonstack_export.engine.settings import Precision
from tritonstack_export.precision_names import PRECISIONS

if TYPE_CHECKING:
    from tritonstack_export.spec_precision import EngineSpec

_AGAIN = "export the version again"


@dataclass(frozen=True)
class ManifestBuild:
    """`dimensions`: bounds of each dynamic dimension, {} where the manifest gives none. `inputs`: names and shapes (a
    size or the name of a dimension per axis). `precision`: what the version was exported in, None where it says none.
    """

    engine: EngineSpec
    dimensions: Mapping[str, Extent]
    inputs: tuple[InputShape, ...]
    precision: Precision | None


def manifest_build(fields: Mapping[str, Any], *, path: Path) -> ManifestBuild:
    """The same from the `fields` of a manifest; of the one at `path` messages speak. {} gives the defaults.

    Raises RepositoryError for values that no export writes.
    """
    said = fields.get("precision")
    try:
        dimensions = {
            str(name): Extent(_size(bounds["min"]), _size(bounds["opt"]), _size(bounds["max"]))
            for name, bounds in (fields.get("dimensions") or {}).items()
        }
        inputs = tuple(
            InputShape(
                str(entry["name"]), tuple(axis if isinstance(axis, str) else _size(axis) for axis in entry["shape"])
            )
            for entry in fields.get("inputs") or ()
        )
    except (KeyError, TypeError, AttributeError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise RepositoryError(
            f"{path}: `inputs` or `dimensions` are not as an export writes them: {what}", next_step=_AGAIN
        ) from None
    precision: Precision | None = said if said in PRECISIONS else None
    return ManifestBuild(_engine_spec(fields, path), dimensions, inputs, precision)


def _size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no size")
    return value


def _engine_spec(fields: Mapping[str, Any], path: Path) -> EngineSpec:
    try:
        from pydantic import ValidationError
    except ModuleNotFoundError:
        raise missing_package(
            "pydantic", needed_for="reading how an engine is to be built", install="pip install 'tritonstack[export]'"
        ) from None
    from tritonstack_export.spec_precision import EngineSpec

    spec = fields.get("spec")
    value = spec.get("engine", {}) if isinstance(spec, dict) else {}
    try:
        return EngineSpec.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, ("spec.engine", *first["loc"])))
        raise RepositoryError(
            f"{path}: {place}: {first['msg']}", given=repr(first["input"]), next_step=_AGAIN
        ) from None
