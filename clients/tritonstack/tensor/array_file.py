"""Arrays from .npy and .npz files, without pickles, and with one kind of error whatever is wrong with the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tritonstack.errors import InputError


def read_array_file(path: Path) -> Any:
    """The array of a .npy file, or a dict of all arrays of a .npz file. InputError where it cannot be read."""
    import zipfile
    import zlib

    import numpy as np

    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "pickle" in reason or "Object arrays" in reason:
            reason = "other content, or Python objects, which are not loaded"
        raise InputError(
            f"{str(path)!r} is not a .npy or .npz file of plain arrays, or it was cut short",
            given=reason,
            expected="what numpy.save or numpy.savez writes for arrays of numbers",
        ) from None
