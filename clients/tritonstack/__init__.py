"""Client library, load tester and the command of tritonstack.

The public names below are loaded on first use, so importing the package does nothing else.
"""

from __future__ import annotations

from tritonstack._version import __version__

# Type checkers take this name for true; importing it from `typing` would cost half of the time of `--help`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from tritonstack.client.asynchronous import AsyncClient
    from tritonstack.client.blocking import Client
    from tritonstack.client.endpoint import TlsOptions
    from tritonstack.client.model import ModelConfigView, ModelMetadata, ModelStatistics
    from tritonstack.client.request import PreparedRequest
    from tritonstack.client.request_builder import InferOptions
    from tritonstack.client.result import InferResult
    from tritonstack.errors import (
        DeadlineExceeded,
        ServerError,
        ServerUnavailable,
        TensorError,
        TritonstackError,
        UsageError,
    )
    from tritonstack.shared_memory import SharedMemoryRegion, SharedMemorySlot
    from tritonstack.tensor.tensor_spec import TensorSpec

_HOME = {
    # public name: module that defines it
    "AsyncClient": "tritonstack.client.asynchronous",
    "Client": "tritonstack.client.blocking",
    "DeadlineExceeded": "tritonstack.errors",
    "InferOptions": "tritonstack.client.request_builder",
    "InferResult": "tritonstack.client.result",
    "ModelConfigView": "tritonstack.client.model",
    "ModelMetadata": "tritonstack.client.model",
    "ModelStatistics": "tritonstack.client.model",
    "PreparedRequest": "tritonstack.client.request",
    "ServerError": "tritonstack.errors",
    "ServerUnavailable": "tritonstack.errors",
    "SharedMemoryRegion": "tritonstack.shared_memory",
    "SharedMemorySlot": "tritonstack.shared_memory",
    "TensorError": "tritonstack.errors",
    "TensorSpec": "tritonstack.tensor.tensor_spec",
    "TlsOptions": "tritonstack.client.endpoint",
    "TritonstackError": "tritonstack.errors",
    "UsageError": "tritonstack.errors",
}

__all__ = [
    "AsyncClient",
    "Client",
    "DeadlineExceeded",
    "InferOptions",
    "InferResult",
    "ModelConfigView",
    "ModelMetadata",
    "ModelStatistics",
    "PreparedRequest",
    "ServerError",
    "ServerUnavailable",
    "SharedMemoryRegion",
    "SharedMemorySlot",
    "TensorError",
    "TensorSpec",
    "TlsOptions",
    "TritonstackError",
    "UsageError",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'tritonstack' has no attribute {name!r}")
    import importlib

    value: object = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
