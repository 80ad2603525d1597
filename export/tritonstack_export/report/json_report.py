"""The report as JSON; the schema is described in docs/report.md."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from tritonstack_export.report.data import SCHEMA_VERSION, ExportReport


def as_dict(report: ExportReport) -> dict[str, Any]:
    """JSON-ready values. Numbers that are not finite become null, and every verdict is spelled out as `passed`."""
    value: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "passed": report.passed, **_plain(asdict(report))}
    for entry, variant in zip(value["variants"], report.variants, strict=True):
        entry["passed"] = variant.passed
        for row, numeric in zip(entry["rows"], variant.rows, strict=True):
            row["passed"] = numeric.passed
    return value


def render_json(report: ExportReport) -> str:
    """The whole document, ending in a newline. Text that is no Unicode (odd file names) is escaped, not refused."""
    text = json.dumps(as_dict(report), indent=2, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace").decode() + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
