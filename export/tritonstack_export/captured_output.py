"""Keep what a library prints out of the terminal, and have it at hand when it matters."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import IO


class CapturedOutput:
    """What was written to file descriptors 1 and 2 while capturing."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._text: str | None = None

    def text(self) -> str:
        """What was captured so far, or in all."""
        return self._text if self._text is not None else self._read()

    def _read(self) -> str:
        _flush()
        self._file.seek(0)
        return self._file.read().decode("utf-8", "replace")

    def _keep(self) -> None:
        self._text = self._read()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


@contextmanager
def captured_output() -> Iterator[CapturedOutput]:
    """Send file descriptors 1 and 2 of this process into a temporary file, and silence Python warnings.

    Descriptors besides `sys.stdout`, since C++ code knows no Python stream, and Python's streams need not lead to
    descriptors 1 and 2 (notebooks). Log records below ERROR are dropped: handlers hold the stream they were made
    with. Output of other threads is captured too.
    """
    _flush()
    with ExitStack() as stack:
        file = stack.enter_context(tempfile.TemporaryFile())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        text = stack.enter_context(os.fdopen(os.dup(file.fileno()), "w", errors="replace", buffering=1))
        stack.enter_context(redirect_stdout(text))
        stack.enter_context(redirect_stderr(text))
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.WARNING)
        kept = [(number, os.dup(number)) for number in (1, 2)]
        captured = CapturedOutput(file)
        try:
            for number, _ in kept:
                os.dup2(file.fileno(), number)
            yield captured
        finally:
            captured._keep()
            for number, copy in kept:
                os.dup2(copy, number)
                os.close(copy)
