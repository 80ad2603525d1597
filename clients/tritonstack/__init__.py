"""Client library, load tester and the command of tritonstack.

The public names below are loaded on first use, so importing the package does nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tritonstack._version import __version__

if TYPE_CHECKING:
    from tritonstack.errors import TritonstackError

_HOME = {
    # public name: module that defines it
    "TritonstackError": "tritonstack.errors",
}

__all__ = ["TritonstackError", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tritonstack' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
