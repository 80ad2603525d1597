"""Output tensors for people and for JSON."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np

from tritonstack.client.result import InferResult
from tritonstack.terminal import table

_SHOWN = 6


def outputs_table(result: InferResult) -> str:
    """One row per output: name, data type, shape and its first values."""
    rows = []
    for name, array in result.outputs.items():
        flat = array.reshape(-1)
        values = ", ".join(_short(value) for value in flat[:_SHOWN].tolist())
        more = f", … ({flat.size} values)" if flat.size > _SHOWN else ""
        rows.append((name, result.datatype(name), str(list(array.shape)), f"{values}{more}"))
    return table(("output", "type", "shape", "values"), rows)


def _short(value: Any) -> str:
    if isinstance(value, bytes):
        text = _text(value)
        shown = repr(value if text is None else text)
        return shown if len(shown) <= 40 else f"{shown[:39]}…"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def outputs_as_json(result: InferResult) -> dict[str, Any]:
    """The whole answer, JSON-ready.

    Values keep the nesting of their shape. BYTES that are UTF-8 are text, others ``{"base64": "…"}``. NaN and infinity,
    which JSON does not know, are the texts ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``.
    """
    return {
        "model": result.model_name,
        "model_version": result.model_version,
        "id": result.request_id,
        "parameters": dict(result.parameters),
        "outputs": [
            {"name": name, "datatype": result.datatype(name), "shape": list(array.shape), "data": _values(array)}
            for name, array in result.outputs.items()
        ],
    }


def _values(array: np.ndarray[Any, Any]) -> Any:
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    return _json_ready(array.tolist())


def _json_ready(value: Any) -> Any:
    if isinstance(value, list):
        return [_json_ready(item) for item in value]
    if isinstance(value, bytes):
        text = _text(value)
        return {"base64": base64.b64encode(value).decode()} if text is None else text
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
