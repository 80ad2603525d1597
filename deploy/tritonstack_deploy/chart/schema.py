"""values.schema.json from the values: types by the defaults, rules by the comments, no unknown keys."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tritonstack_deploy.chart.values import Entry


def values_schema(entries: Sequence[Entry]) -> dict[str, Any]:
    """JSON Schema (draft 7, which Helm 3 and 4 read) of the whole file."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart tritonstack",
        **_object(entries),
    }


def schema_text(entries: Sequence[Entry]) -> str:
    """The file's text."""
    return json.dumps(values_schema(entries), indent=1, ensure_ascii=False) + "\n"


def _object(entries: Sequence[Entry]) -> dict[str, Any]:
    properties = {entry.path[-1]: _schema(entry) for entry in entries}
    if entries and len(entries[0].path) == 1:
        # A parent chart hands its own over.
        properties["global"] = {"type": "object"}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _schema(entry: Entry) -> dict[str, Any]:
    base: dict[str, Any] = {"description": entry.prose} if entry.prose else {}
    default = entry.default
    if isinstance(default, dict) and entry.children:
        base |= _object(entry.children)
    elif isinstance(default, dict):
        base |= {"type": "object"}
    elif isinstance(default, list):
        base |= {"type": "array"}
    elif isinstance(default, bool):
        base |= {"type": "boolean"}
    elif isinstance(default, int):
        base |= {"type": "integer"}
    elif isinstance(default, float):
        base |= {"type": "number"}
    elif isinstance(default, str):
        base |= {"type": "string"}
    return base | dict(entry.rules)
