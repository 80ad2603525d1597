"""Where the server's log goes: a file for all of it, stderr for what matters."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tritonstack_deploy.embedded.log_lines import LogLine


class LogOutput:
    """Takes log lines and never raises: a reader that stopped would leave the server blocked on a full pipe.

    A file that can no longer be written is told once on stderr, and left alone from then on.
    """

    def __init__(self, file: IO[str] | None, *, everything: bool) -> None:
        self._file = file
        self._everything = everything

    def __call__(self, line: LogLine) -> None:
        if self._file is not None:
            try:
                print(line.raw, file=self._file, flush=True)
            except OSError as error:
                name, self._file = self._file.name, None
                self._say(f"warning: the log file {name} ends here: {error.strerror or error}")
        if self._everything:
            self._say(line.raw)
        elif line.matters:
            prefix = "" if line.level in ("info", "output") else f"{line.level}: "
            self._say(f"  {prefix}{line.message}")

    def _say(self, text: str) -> None:
        # Whoever read our stderr may have gone away (`2>&1 | head`).
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr)


@contextmanager
def log_output(path: Path | None, *, everything: bool) -> Iterator[LogOutput]:
    """The output for one server; opens `path` (emptying it) and closes it, also when its disk is full."""
    if path is None:
        yield LogOutput(None, everything=everything)
        return
    file = path.open("w")
    try:
        yield LogOutput(file, everything=everything)
    finally:
        # What could not be written was told when it happened.
        with contextlib.suppress(OSError):
            file.close()
