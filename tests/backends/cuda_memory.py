"""Memory of a GPU by the driver alone (libcuda): regions that a server can map, and how much is free.

Nothing is loaded before the first region is made. All regions are in the primary context of one device.
"""

from __future__ import annotations

import ctypes
from types import TracebackType
from typing import Any, Self

import numpy as np

_HANDLE_BYTES = 64  # CUipcMemHandle
# Smaller allocations share a block, and with it what another process maps.
_BLOCK_BYTES = 2 << 20


class _Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * _HANDLE_BYTES)]


class Driver:
    """The driver with the context of `device` current in this thread. Raises OSError where there is no driver."""

    def __init__(self, device: int = 0) -> None:
        self.calls = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        number = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(number), device)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.calls, name)(*arguments)
        assert status == 0, f"{name} returned {status}"

    def free_bytes(self) -> int:
        """Of the whole device, whoever uses it."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value


class CudaRegion:
    """`byte_size` bytes of device memory, freed when the block ends."""

    def __init__(self, driver: Driver, byte_size: int) -> None:
        self.driver = driver
        self.byte_size = byte_size
        self._address = ctypes.c_uint64()
        whole = -(-byte_size // _BLOCK_BYTES) * _BLOCK_BYTES
        driver.call("cuMemAlloc_v2", ctypes.byref(self._address), ctypes.c_size_t(whole))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.driver.call("cuMemFree_v2", self._address)

    @property
    def handle(self) -> bytes:
        """With which another process maps the region."""
        handle = _Handle()
        self.driver.call("cuIpcGetMemHandle", ctypes.byref(handle), self._address)
        return ctypes.string_at(ctypes.addressof(handle), _HANDLE_BYTES)

    def write(self, values: np.ndarray[Any, Any], offset: int = 0) -> None:
        """Blocks until the bytes are there."""
        data = np.ascontiguousarray(values)
        place = ctypes.c_uint64(self._address.value + offset)
        self.driver.call("cuMemcpyHtoD_v2", place, ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(data.nbytes))
        # The copy may return while its last part is on its way.
        self.driver.call("cuCtxSynchronize")

    def read(self, shape: tuple[int, ...], dtype: Any, offset: int = 0) -> np.ndarray[Any, Any]:
        values = np.empty(shape, dtype)
        place = ctypes.c_uint64(self._address.value + offset)
        self.driver.call("cuMemcpyDtoH_v2", ctypes.c_void_p(values.ctypes.data), place, ctypes.c_size_t(values.nbytes))
        return values
