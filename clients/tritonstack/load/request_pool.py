"""The requests of a run as bytes in one memory file, made once and read by every worker.

Layout: a head of 64 bytes (magic, number of entries, where the table and the texts are), then the bytes of the
entries, each part on a boundary of 64, then the table int64 [entry, 8] (start and length of head, body and expected
answer, number of the target, number of the headers), then the targets and headers as JSON. Workers map it and never
copy.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tritonstack.errors import InternalError

Headers = tuple[tuple[str, str], ...]

_HEAD = struct.Struct("<8sQQQQQ")
_MAGIC = b"TSPOOL01"
_ALIGN = 64
_NONE = -1


@dataclass(frozen=True, slots=True)
class PoolEntry:
    """One request. `head` stands before the body on the wire (gRPC: the five bytes that frame a message; HTTP: none);
    `target` is a gRPC method or an HTTP path, `headers` those of HTTP; `expected` as `ExpectedAnswer.encoded`."""

    target: str
    body: bytes | memoryview
    head: bytes = b""
    headers: Headers = ()
    expected: bytes | None = None


def grpc_entry(target: str, body: bytes | memoryview, *, expected: bytes | None = None) -> PoolEntry:
    """A unary gRPC request of one serialised message, uncompressed."""
    return PoolEntry(target, body, b"\0" + len(body).to_bytes(4, "big"), (), expected)


class RequestPool:
    """A pool in memory. `close` when no view of it is in use any more."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        size = os.fstat(fd).st_size
        if size < _HEAD.size:
            raise InternalError("not a pool of requests", given=f"{size} bytes")
        self._map = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
        self._view = memoryview(self._map)
        magic, count, table_at, texts_at, texts_length, self._bytes = _HEAD.unpack_from(self._view)
        if magic != _MAGIC:
            raise InternalError("not a pool of requests", given=repr(bytes(magic)))
        table: NDArray[np.int64] = np.frombuffer(self._view, "<i8", count * 8, table_at).reshape(count, 8)
        self._rows: list[list[int]] = table.tolist()
        texts = json.loads(bytes(self._view[texts_at : texts_at + texts_length]))
        self._targets: list[str] = texts["targets"]
        self._headers: list[Headers] = [tuple((name, value) for name, value in one) for one in texts["headers"]]

    @classmethod
    def of(cls, entries: Iterable[PoolEntry]) -> RequestPool:
        """The pool of these entries, which are asked for one at a time and not kept."""
        fd = os.memfd_create("tritonstack-requests", os.MFD_CLOEXEC)
        try:
            _write(fd, entries)
            return cls(fd)
        except BaseException:
            os.close(fd)
            raise

    def with_expected(self, answers: Sequence[bytes | None]) -> RequestPool:
        """A new pool of the same requests, whose expected answers are `answers`, one per entry."""

        def entries() -> Iterator[PoolEntry]:
            for index, answer in enumerate(answers):
                head, body = self.entry(index)
                yield PoolEntry(self.target(index), body, bytes(head), self.headers(index), answer)

        return RequestPool.of(entries())

    @classmethod
    def from_fd(cls, fd: int) -> RequestPool:
        """The pool behind a descriptor that another process gave; takes the descriptor over."""
        return cls(fd)

    def to_memory_file(self) -> int:
        """The descriptor of the memory file, for a child process; it stays the pool's own."""
        return self._fd

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def largest(self) -> int:
        """Bytes of the largest body."""
        return max((row[3] for row in self._rows), default=0)

    @property
    def byte_size(self) -> int:
        """Bytes of all requests and expected answers together."""
        return int(self._bytes)

    @property
    def has_expected(self) -> bool:
        """Whether any entry has an expected answer."""
        return any(row[4] != _NONE for row in self._rows)

    def entry(self, index: int) -> tuple[memoryview, memoryview]:
        """Head and body, valid until `close`."""
        row = self._rows[index]
        return self._view[row[0] : row[0] + row[1]], self._view[row[2] : row[2] + row[3]]

    def framed(self, index: int) -> memoryview:
        """Head and body in one piece, as they lie, valid until `close`."""
        row = self._rows[index]
        return self._view[row[0] : row[0] + row[1] + row[3]]

    def expected(self, index: int) -> memoryview | None:
        """The encoded expected answer, None where nothing is expected."""
        row = self._rows[index]
        return None if row[4] == _NONE else self._view[row[4] : row[4] + row[5]]

    def target(self, index: int) -> str:
        """The gRPC method or HTTP path of an entry."""
        return self._targets[self._rows[index][6]]

    def headers(self, index: int) -> Headers:
        """The HTTP headers of an entry beyond the usual ones."""
        return self._headers[self._rows[index][7]]

    def close(self) -> None:
        """Unmap the memory and close its descriptor."""
        if self._fd < 0:
            return
        self._rows = []
        self._view.release()
        self._map.close()
        os.close(self._fd)
        self._fd = -1


def _write(fd: int, entries: Iterable[PoolEntry]) -> None:
    rows: list[tuple[int, ...]] = []
    targets: dict[str, int] = {}
    headers: dict[Headers, int] = {}
    at = total = 0

    def put(part: bytes | memoryview) -> int:
        nonlocal at
        at += -at % _ALIGN
        start = at
        _write_all(fd, part, start)
        at += len(part)
        return start

    put(bytes(_HEAD.size))
    for entry in entries:
        # Head and body lie next to each other, so that one contiguous range is what goes over the wire.
        head_at = put(entry.head)
        body_at = at
        _write_all(fd, entry.body, body_at)
        at += len(entry.body)
        expected_at, expected_length = _NONE, 0
        if entry.expected is not None:
            expected_at, expected_length = put(entry.expected), len(entry.expected)
        total += len(entry.head) + len(entry.body) + expected_length
        rows.append(
            (
                head_at,
                len(entry.head),
                body_at,
                len(entry.body),
                expected_at,
                expected_length,
                targets.setdefault(entry.target, len(targets)),
                headers.setdefault(entry.headers, len(headers)),
            )
        )
    table_at = put(np.array(rows, "<i8").reshape(len(rows), 8).tobytes())
    texts = json.dumps({"targets": list(targets), "headers": [list(map(list, one)) for one in headers]}).encode()
    texts_at = put(texts)
    _write_all(fd, _HEAD.pack(_MAGIC, len(rows), table_at, texts_at, len(texts), total), 0)


def _write_all(fd: int, data: bytes | memoryview, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written
