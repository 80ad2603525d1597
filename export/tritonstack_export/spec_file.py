"""A model spec from a file: YAML, overrides from the command line, then validation that says where."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from tritonstack.errors import UsageError
from tritonstack_export.spec import ModelSpec
from tritonstack_export.spec_text import KeyPath, SpecText, read_spec_text

_SHOWN = 4


def load_spec(path: Path) -> SpecText:
    """The raw spec. `path` may also be a factory (``model.py:build``) or an ONNX file, for which defaults do."""
    text = str(path)
    file, colon, callable_name = text.rpartition(":")
    if colon and file.endswith(".py") and callable_name.isidentifier():
        source = Path(file)
        if not source.is_file():
            raise UsageError(f"no such file: {source}", given=text, expected="SPEC.yaml, FILE.py:CALLABLE or FILE.onnx")
        values: dict[str, Any] = {
            "name": source.stem,
            "model": {"factory": f"{source.name}:{callable_name}"},
        }
        return SpecText(source, values, {})
    if path.suffix == ".py" and path.is_file():
        raise UsageError(f"{path} is a Python file", expected=f"also the factory in it: {path}:CALLABLE")
    if path.suffix == ".onnx":
        if not path.is_file():
            raise UsageError(f"no such file: {path}")
        return SpecText(path, {"name": path.stem, "model": {"onnx": path.name}}, {})
    return read_spec_text(path)


def validate_spec(text: SpecText, overridden: Mapping[KeyPath, str] | None = None) -> ModelSpec:
    """`text` as a ModelSpec. Raises UsageError that lists the mistakes in one line, each with its position.

    `overridden`: key path -> the flag that set it; a mistake there names the flag instead of the file.
    """
    try:
        return ModelSpec.model_validate(text.values)
    except ValidationError as error:
        mistakes = [_mistake(text, item, overridden or {}) for item in _distinct(error.errors(include_url=False))]
    more = f" (and {len(mistakes) - _SHOWN} more)" if len(mistakes) > _SHOWN else ""
    raise UsageError("; ".join(mistakes[:_SHOWN]) + more)


def _distinct(items: list[Any]) -> list[Any]:
    """One entry per place: the branches of a union report the same value several times."""
    seen: set[KeyPath] = set()
    kept = []
    for item in items:
        place = _place(item["loc"])
        if place not in seen:
            seen.add(place)
            kept.append(item)
    return kept


def _place(loc: tuple[Any, ...]) -> KeyPath:
    """The key path without the names of union branches that pydantic puts into `loc`."""
    path: list[str | int] = []
    for part in loc:
        if isinstance(part, str) and (
            part[:1].isupper() or "[" in part or part in ("int", "float", "str") or part.startswith("constrained-")
        ):
            continue
        path.append(part)
    return tuple(path)


def _mistake(text: SpecText, item: Any, overridden: Mapping[KeyPath, str]) -> str:
    place = _place(item["loc"])
    name = ".".join(str(part) for part in place) or "spec"
    at = next((flag for path, flag in overridden.items() if place[: len(path)] == path), None) or text.where(place)
    kind = item["type"]
    if kind == "extra_forbidden":
        known = _known_keys(place[:-1])
        close = get_close_matches(str(place[-1]), known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"the keys here are {', '.join(known)}"
        return f"{at}: unknown key {name!r}; {hint}"
    if kind == "missing":
        return f"{at}: the key {name!r} is missing"
    message = str(item["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if kind == "string_pattern_mismatch" and place == ("name",):
        message = "expected letters, digits, '_', '.' and '-', not starting with '.' or '-'"
    value = item.get("input")
    shown = "" if isinstance(value, dict | list | BaseModel) else f" {value!r}"
    return f"{at}: {name}{shown}: {message}"


def _known_keys(place: KeyPath) -> list[str]:
    """The keys that the schema knows under `place`."""
    models: list[type[BaseModel]] = [ModelSpec]
    for part in place:
        found: list[type[BaseModel]] = []
        for model in models:
            if isinstance(part, int):
                found.append(model)
                continue
            field = model.model_fields.get(part)
            if field is not None:
                found.extend(_models_in(field.annotation))
            elif place[0] == "dimensions":
                found.append(model)
        models = found
    return list(dict.fromkeys(key for model in models for key in model.model_fields))


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models_in(part)]
