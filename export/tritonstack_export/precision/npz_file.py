"""Read an .npz whole, or say why it cannot be read."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from tritonstack.errors import InputError
from tritonstack.terminal import human_bytes
from tritonstack_export import source_location
from tritonstack_export.samples import Array

READ_LIMIT = 6 * 2**30
"""Bytes that an archive may unpack to (6 GiB): it is read whole before samples are taken out of it."""

_DAMAGED = (ValueError, OSError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error)
"""What numpy, zipfile and zlib raise for a damaged, encrypted or pickled member."""


def read_arrays(path: Path, where: str) -> dict[str, Array]:
    """The arrays by name, any dtype and shape, except pickled objects. `where`: how messages name the file.

    Raises InputError for a file that is no archive, is damaged, holds something else than arrays, or is too large.
    """
    expected = "an .npz of plain arrays, as numpy.savez writes it (no pickled objects)"
    if not zipfile.is_zipfile(path):
        size = path.stat().st_size
        raise InputError(
            f"{where} cannot be read: it is no .npz archive, or is cut off",
            given=f"a file of {human_bytes(size)}" if size else "an empty file",
            expected=expected,
        )
    try:
        with zipfile.ZipFile(path) as members:
            unpacked = sum(member.file_size for member in members.infolist())
        if unpacked > READ_LIMIT:
            raise InputError(
                f"{where} is too large to be read whole",
                given=f"{human_bytes(unpacked)} unpacked",
                expected=f"at most {human_bytes(READ_LIMIT)}",
                next_step="keep fewer samples in it, or name a Python iterator that yields them one by one",
            )
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except _DAMAGED as error:
        raise InputError(f"{where} cannot be read: {source_location.first_line(error)}", expected=expected) from error
    for name, value in arrays.items():
        if not isinstance(value, np.ndarray):
            raise InputError(f"{where} holds {name!r}, which is no array", expected=expected)
    return arrays
