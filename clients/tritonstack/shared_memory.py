"""System shared memory: tensors that the server reads and writes in place instead of on the wire.

    with Client(url) as client, SharedMemoryRegion(24) as region:
        client.register(region)
        x = region.slot((1, 3), "FP32")
        x.write(np.ones((1, 3), np.float32))
        result = client.infer("addone", {"x": x}, outputs={"y": region.slot((1, 3), "FP32", offset=12)})

Client and server must be on one host and share ``/dev/shm`` (one IPC namespace). Names are never reused: they hold an
id of this ``/dev/shm``, the process id and a random part, because a server keeps the file it once opened and would read
a replaced one's predecessor without noticing.

A region is unregistered and its file removed when it is closed, at the end of the process and on SIGTERM. What a
killed process leaves behind is found by its lock, which dies with it: see `remove_orphans`.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import mmap
import os
import signal
import threading
import uuid
import zlib
from collections.abc import Callable
from math import prod
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import numpy as np

from tritonstack.errors import InputError, SetupError, TensorError, UsageError
from tritonstack.tensor.bytes_tensor import decode_bytes_tensor
from tritonstack.tensor.conform import conform
from tritonstack.tensor.datatype import bfloat16_dtype, datatype
from tritonstack.tensor.tensor_spec import TensorSpec

_FOLDER = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory lives on Linux
_DEFAULT_PREFIX = "tritonstack"
# How long the end of a process may be held up by servers that do not answer.
_EXIT_GRACE_S = 2.0

Array = np.ndarray[Any, Any]


class SharedMemoryRegion:
    """A shared-memory file owned by this process. `byte_size` bytes of it are for tensors.

    Raises SetupError where ``/dev/shm`` is missing or full. Safe from threads as far as its slots do not overlap.
    """

    def __init__(self, byte_size: int, *, prefix: str = _DEFAULT_PREFIX, mode: int = 0o600) -> None:
        if byte_size < 1:
            raise UsageError("bad size of a shared-memory region", given=str(byte_size), expected="at least 1 byte")
        if not prefix or not all(c.isascii() and (c.isalnum() or c in "_.") for c in prefix):
            raise UsageError("bad prefix", given=repr(prefix), expected="letters, digits, '_' and '.'")
        self.byte_size = byte_size
        self._pid = os.getpid()
        self.name, self._fd = _create(prefix, byte_size, mode)
        status = os.fstat(self._fd)
        self._identity = (status.st_dev, status.st_ino)
        self._map = mmap.mmap(self._fd, byte_size)
        self._unregister: dict[str, Callable[[], None]] = {}
        self._closed = False
        _guard.add(self)

    @property
    def key(self) -> str:
        """The name by which the server opens the file."""
        return f"/{self.name}"

    @property
    def path(self) -> Path:
        """The file."""
        return _FOLDER / self.name

    def slot(
        self, shape: tuple[int, ...], datatype: str, *, offset: int = 0, byte_size: int | None = None
    ) -> SharedMemorySlot:
        """Room for one tensor at `offset` bytes. BYTES tensors need `byte_size`, the room for their encoding.

        Raises TensorError when it does not fit into the region.
        """
        return SharedMemorySlot(self, shape, datatype, offset=offset, byte_size=byte_size)

    def check(self) -> None:
        """InputError unless the file under this name is still the one that was created here.

        A server that opened the region reads that very file; were it removed or replaced, client and server would
        talk past each other without an error.
        """
        if self._closed:
            raise InputError(f"the shared-memory region {self.name} is closed")
        try:
            status = self.path.stat()
            same = (status.st_dev, status.st_ino) == self._identity and status.st_size >= self.byte_size
        except OSError:
            same = False
        if not same:
            raise InputError(
                f"the shared-memory file {self.path} was removed or replaced by someone else",
                next_step="close the region and make a new one",
            )

    def view(self, offset: int, byte_size: int) -> memoryview:
        """The bytes themselves, writable; valid until the region is closed."""
        return memoryview(self._map)[offset : offset + byte_size]

    def registered(self, endpoint: str, unregister: Callable[[], None]) -> None:
        """Remember how to take the region back from the server at `endpoint`, for the end of the process."""
        self._unregister[endpoint] = unregister

    def unregistered(self, endpoint: str) -> None:
        """The server at `endpoint` no longer knows the region."""
        self._unregister.pop(endpoint, None)

    def close(self) -> None:
        """Unregister from the servers that still know the region, and remove its file. Closing twice is fine.

        Only the process that made a region closes it; in a forked child this does nothing.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        _guard.discard(self)
        unregister, self._unregister = [*self._unregister.values()], {}
        for call in unregister:
            call()
        self.remove_file()
        with contextlib.suppress(BufferError):  # arrays that still look into it keep the memory until they are gone
            self._map.close()
        os.close(self._fd)

    def remove_file(self) -> None:
        """Remove the file unless another has taken its name."""
        with contextlib.suppress(OSError):
            status = self.path.stat()
            if (status.st_dev, status.st_ino) == self._identity:
                self.path.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SharedMemorySlot:
    """Room for one tensor in a region; usable as an input and as an output of `infer`."""

    def __init__(
        self,
        region: SharedMemoryRegion,
        shape: tuple[int, ...],
        datatype_name: str,
        *,
        offset: int,
        byte_size: int | None,
    ) -> None:
        kind = datatype(datatype_name)
        if kind.name == "BYTES" and byte_size is None:
            raise UsageError("a slot for BYTES needs byte_size, the room for the encoded elements")
        needed = prod(shape) * kind.byte_size
        self.byte_size = needed if byte_size is None else byte_size
        if offset < 0 or any(dim < 0 for dim in shape) or self.byte_size < needed:
            raise UsageError(
                "bad slot", given=f"{kind.name} {list(shape)} at offset {offset} in {byte_size} bytes", expected=None
            )
        if offset + self.byte_size > region.byte_size:
            raise TensorError(
                f"{kind.name} {list(shape)} at offset {offset} does not fit into the shared-memory region",
                given=f"{offset + self.byte_size} bytes needed",
                expected=f"at most the region's {region.byte_size}",
            )
        self.region = region
        self.shape = tuple(shape)
        self.datatype = kind.name
        self.offset = offset
        self.used_bytes = needed

    @property
    def array(self) -> Array:
        """The tensor in place: writes go to the server's eyes. Not for BYTES; valid until the region is closed.

        BF16 needs the package ml_dtypes.
        """
        kind = datatype(self.datatype)
        dtype = bfloat16_dtype() if kind.name == "BF16" else kind.numpy_dtype
        if dtype is None:
            raise UsageError(f"a {self.datatype} slot cannot be seen as a numpy array", next_step="use write and read")
        return np.frombuffer(self.region.view(self.offset, self.used_bytes), dtype).reshape(self.shape)

    def write(self, value: object, *, cast: bool = False) -> None:
        """Put a tensor in; TensorError unless it has the slot's shape and data type and fits."""
        self.region.check()
        spec = TensorSpec("slot", self.datatype, self.shape)
        data = conform(spec, value, max_batch_size=0, cast=cast).data
        if len(data) > self.byte_size:
            raise TensorError(f"the encoded tensor has {len(data)} bytes", expected=f"at most {self.byte_size}")
        self.region.view(self.offset, len(data))[:] = data
        self.used_bytes = len(data)

    def read(self, shape: tuple[int, ...] | None = None) -> Array:
        """A copy of the tensor, or of its first part of another `shape` (a batch that was not full)."""
        self.region.check()
        shape = self.shape if shape is None else shape
        if self.datatype == "BYTES":
            return decode_bytes_tensor(self.view(), shape, name="slot", exact=False)
        from tritonstack.client.result import OutputTensor, decode_tensor

        size = prod(shape) * datatype(self.datatype).byte_size
        if size > self.byte_size:
            raise TensorError(
                f"{self.datatype} {list(shape)} is larger than the slot", expected=f"{self.byte_size} bytes"
            )
        return decode_tensor("slot", OutputTensor(self.datatype, shape, self.region.view(self.offset, size)))

    def view(self) -> memoryview:
        """The whole room of the slot as bytes."""
        return self.region.view(self.offset, self.byte_size)


def _create(prefix: str, byte_size: int, mode: int) -> tuple[str, int]:
    """A new locked file of `byte_size` bytes: its name and descriptor."""
    while True:
        name = f"{prefix}-{instance_id()}-{os.getpid()}-{uuid.uuid4().hex[:16]}"
        try:
            fd = os.open(_FOLDER / name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, mode)
        except OSError as error:
            raise SetupError(f"cannot create shared memory in {_FOLDER}: {error.strerror}") from None
        try:
            # Held as long as this process lives: how others tell a region in use from a leftover.
            fcntl.flock(fd, fcntl.LOCK_SH)
            # Reserved now, because writing to a file that the full file system cannot back kills the process.
            os.posix_fallocate(fd, 0, byte_size)
        except OSError as error:
            os.close(fd)
            (_FOLDER / name).unlink(missing_ok=True)
            raise SetupError(
                f"no room for a shared-memory region of {byte_size} bytes: {error.strerror}",
                next_step=f"free space in {_FOLDER} or make it larger (Docker: --shm-size; Kubernetes: an emptyDir of "
                "medium Memory)",
            ) from None
        if os.fstat(fd).st_nlink:
            return name, fd
        os.close(fd)  # a cleaner saw the file in the instant before it was locked


def instance_id() -> str:
    """Tells this ``/dev/shm`` from those of other hosts, boots and IPC namespaces: eight hexadecimal digits."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        device = _FOLDER.stat().st_dev
    except OSError as error:
        raise SetupError(f"shared memory needs Linux with {_FOLDER}: {error.strerror}") from None
    return f"{zlib.crc32(boot + str(device).encode()):08x}"


def remove_orphans(prefix: str = _DEFAULT_PREFIX) -> tuple[str, ...]:
    """Remove the files of regions whose process is gone, and return their names.

    Servers may still have them registered: `Client.clean_shared_memory` takes care of both.
    """
    removed = []
    for path in sorted(_FOLDER.glob(f"{prefix}-{instance_id()}-*")):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # gone already, or another user's
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            removed.append(path.name)
        except OSError:
            continue  # in use
        finally:
            os.close(fd)
    return tuple(removed)


def is_orphan(name: str, prefix: str = _DEFAULT_PREFIX) -> bool:
    """Whether a server's region of this name was made in this ``/dev/shm`` and its file is gone."""
    return name.startswith(f"{prefix}-{instance_id()}-") and not (_FOLDER / name).exists()


class _Guard:
    """Closes the regions of this process when it ends, by itself or by SIGTERM."""

    def __init__(self) -> None:
        self._regions: dict[str, SharedMemoryRegion] = {}
        self._pid = 0
        self._previous: Callable[[int, FrameType | None], Any] | int | None = None
        self._installed = False

    def add(self, region: SharedMemoryRegion) -> None:
        if self._pid != os.getpid():
            if not self._pid:
                atexit.register(self.close_all)
            self._regions.clear()  # a parent's, after a fork
            self._pid = os.getpid()
        self._regions[region.name] = region
        self._install()

    def discard(self, region: SharedMemoryRegion) -> None:
        self._regions.pop(region.name, None)
        if not self._regions:
            self._uninstall()

    def close_all(self) -> None:
        if self._pid == os.getpid():
            for region in [*self._regions.values()]:
                region.close()

    def _install(self) -> None:
        if self._installed or threading.current_thread() is not threading.main_thread():
            return
        previous = signal.getsignal(signal.SIGTERM)
        if previous is None or previous is signal.SIG_IGN:
            return  # set outside Python, or ignored on purpose: not ours to change
        self._previous = previous
        signal.signal(signal.SIGTERM, self._on_signal)
        self._installed = True

    def _uninstall(self) -> None:
        """Give SIGTERM back, unless somebody has taken it since."""
        if not self._installed or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, self._previous)
        self._installed = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        previous = self._previous
        if self._pid == os.getpid():
            for region in [*self._regions.values()]:
                region.remove_file()
            # The interrupted code may hold locks that unregistering needs: a thread can be left waiting, this cannot.
            closer = threading.Thread(target=self.close_all, daemon=True)
            closer.start()
            closer.join(_EXIT_GRACE_S)
        if callable(previous):
            previous(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


_guard = _Guard()
