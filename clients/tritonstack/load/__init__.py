"""Put a served model under load and measure it: `run_load(LoadPlan(...)) -> LoadReport`.

The names below are loaded on first use, so importing the package does nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tritonstack.load.arrival import ClosedLoop, OpenLoop
    from tritonstack.load.inputs import ArrayInputs, ImageInputs, RandomInputs, ZeroInputs
    from tritonstack.load.plan import LoadPlan
    from tritonstack.load.report import LevelReport, LoadReport
    from tritonstack.load.session import run_load, run_load_async

_HOME = {
    "ArrayInputs": "tritonstack.load.inputs",
    "ClosedLoop": "tritonstack.load.arrival",
    "ImageInputs": "tritonstack.load.inputs",
    "LevelReport": "tritonstack.load.report",
    "LoadPlan": "tritonstack.load.plan",
    "LoadReport": "tritonstack.load.report",
    "OpenLoop": "tritonstack.load.arrival",
    "RandomInputs": "tritonstack.load.inputs",
    "ZeroInputs": "tritonstack.load.inputs",
    "run_load": "tritonstack.load.session",
    "run_load_async": "tritonstack.load.session",
}

__all__ = [
    "ArrayInputs",
    "ClosedLoop",
    "ImageInputs",
    "LevelReport",
    "LoadPlan",
    "LoadReport",
    "OpenLoop",
    "RandomInputs",
    "ZeroInputs",
    "run_load",
    "run_load_async",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tritonstack.load' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
