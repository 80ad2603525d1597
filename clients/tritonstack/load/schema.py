"""The JSON Schema of the report, made from the types that the report is made from."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tritonstack.load.knee import Knee, Probe
from tritonstack.load.report import SCHEMA_VERSION, Findings, LevelReport, LoadReport
from tritonstack.load.sweep import Sweep, SweepPoint

JsonSchema = dict[str, Any]
_PLAIN: dict[Any, JsonSchema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    Path: {"type": "string"},
    type(None): {"type": "null"},
    Any: {},
}
_NUMBERS = {"type": "object", "additionalProperties": {"type": "number"}}


def report_schema() -> JsonSchema:
    """The schema of the JSON that `LoadReport.to_json` gives, draft 2020-12. Times are in the unit their name ends
    in: `_us` microseconds, `_s` seconds."""
    level = _object(LevelReport, leave=("findings", "arrival"))
    found = _object(Findings)
    level["properties"] |= found["properties"]
    level["required"] += found["required"]
    _put(level, "ok", {"type": "boolean"})
    _put(level, "arrival", _arrival())
    level["description"] = _words(LevelReport)
    report = _object(LoadReport, leave=("levels", "knee", "sweep"))
    _put(report, "schema_version", {"const": SCHEMA_VERSION})
    _put(report, "kind", {"const": "tritonstack.load"})
    _put(report, "ok", {"type": "boolean"})
    _put(report, "levels", {"type": "array", "items": level})
    _put(report, "knee", _or_null(_knee()))
    _put(report, "sweep", _or_null(_sweep()))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"tritonstack load report, version {SCHEMA_VERSION}",
        "description": _words(LoadReport),
        **report,
    }


def _put(schema: JsonSchema, name: str, value: JsonSchema) -> None:
    schema["properties"][name] = value
    schema["required"].append(name)


def _or_null(schema: JsonSchema) -> JsonSchema:
    return {"anyOf": [schema, {"type": "null"}]}


def _arrival() -> JsonSchema:
    return {
        "type": "object",
        "properties": {
            "loop": {"enum": ["closed", "open"]},
            "concurrency": {"type": "integer", "minimum": 1},
            "rate": {"type": "number", "description": "arrivals per second, on average where they change"},
            "kind": {"type": "string"},
            "label": {"type": "string"},
        },
        "required": ["loop", "label"],
    }


def _knee() -> JsonSchema:
    schema = _object(Knee)
    probe = _object(Probe)
    schema["properties"]["probes"] = {"type": "array", "items": probe}
    _put(
        schema,
        "alpha",
        {"type": "number", "description": "the level of the verdict about one rate, for independent requests"},
    )
    schema["description"] = _words(Knee)
    return schema


def _sweep() -> JsonSchema:
    schema = _object(Sweep)
    point = _object(SweepPoint)
    point["properties"]["setting"] = _NUMBERS
    _put(point, "label", {"type": "string"})
    schema["properties"]["points"] = {"type": "array", "items": point}
    schema["properties"]["skipped"] = {"type": "array", "items": _NUMBERS}
    schema["description"] = _words(Sweep)
    return schema


def _object(kind: type, *, leave: Sequence[str] = ()) -> JsonSchema:
    """A dataclass as an object that has all of its fields and no other."""
    hints = get_type_hints(kind)
    names = [entry.name for entry in fields(kind) if entry.name not in leave]
    return {
        "type": "object",
        "properties": {name: _schema(hints[name]) for name in names},
        "required": list(names),
        "additionalProperties": False,
    }


def _schema(kind: Any) -> JsonSchema:
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        return {**_object(kind), "description": _words(kind)}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(one) for one in arguments]}
    if origin is tuple and arguments[-1] is not Ellipsis:
        items = [_schema(one) for one in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin in (tuple, list, Sequence):
        return {"type": "array", "items": _schema(arguments[0])}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1])}
    raise TypeError(f"no schema for {kind!r}")


def _words(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split())
