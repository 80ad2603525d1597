"""Read the files inside a Qt resource archive (.rcc), which is what gcompris ships its pictures in."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

_COMPRESSED, _FOLDER, _ZSTD = 1, 2, 4


def read_archive(path: Path) -> Iterator[tuple[str, bytes]]:
    """(path inside the archive, content) of every file. Raises ValueError for what is no archive of this kind.

    The layout is that of Qt's resource compiler: a big-endian header with the offsets of a tree of fixed-size nodes,
    of the names and of the data. A node holds the offset of its name, flags, and for a folder the number and first
    index of its children.
    """
    data = path.read_bytes()
    if data[:4] != b"qres":
        raise ValueError(f"{path.name} is no Qt resource archive")
    version, tree, blobs, names = struct.unpack_from(">IIII", data, 4)
    node_size = 14 if version == 1 else 22

    def name_at(offset: int) -> str:
        start = names + offset
        (length,) = struct.unpack_from(">H", data, start)
        return data[start + 6 : start + 6 + 2 * length].decode("utf-16-be")

    def walk(index: int, prefix: str) -> Iterator[tuple[str, bytes]]:
        start = tree + index * node_size
        name, flags = struct.unpack_from(">IH", data, start)
        here = f"{prefix}/{name_at(name)}" if index else ""
        if flags & _FOLDER:
            count, first = struct.unpack_from(">II", data, start + 6)
            for child in range(first, first + count):
                yield from walk(child, here)
            return
        (offset,) = struct.unpack_from(">I", data, start + 10)
        (length,) = struct.unpack_from(">I", data, blobs + offset)
        content = data[blobs + offset + 4 : blobs + offset + 4 + length]
        if flags & _ZSTD:
            raise ValueError(f"{here} is compressed with zstd, which this reader does not know")
        # Qt puts the unpacked length before zlib's own stream.
        yield here.lstrip("/"), zlib.decompress(content[4:]) if flags & _COMPRESSED else content

    yield from walk(0, "")
