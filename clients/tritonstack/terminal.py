"""What the commands print: plain tables and JSON on stdout, talk and progress on stderr.

Progress redraws one line and only on a terminal; elsewhere each finished step is one plain line.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

Align = Literal["<", ">"]


def table(header: Sequence[str], rows: Iterable[Sequence[object]], *, align: str = "") -> str:
    """A plain text table. `align` holds one of ``<`` or ``>`` per column; columns beyond it are left-aligned."""
    cells = [[str(value) for value in row] for row in rows]
    widths = [max([len(name), *(len(row[i]) for row in cells)]) for i, name in enumerate(header)]
    marks = (align + "<" * len(header))[: len(header)]

    def line(values: Sequence[str]) -> str:
        return "  ".join(f"{value:{mark}{width}}" for value, mark, width in zip(values, marks, widths, strict=True))

    return "\n".join([line(header).rstrip(), line(["-" * w for w in widths]), *(line(row).rstrip() for row in cells)])


def print_json(value: Any) -> None:
    """One JSON document on stdout. NaN and infinity are refused, since JSON has no word for them."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def human_bytes(count: float) -> str:
    """Bytes in powers of 1000 as disks and networks count them: ``18.7 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def human_seconds(seconds: float) -> str:
    """A duration with a unit that keeps three digits: ``412 ms``, ``3.21 s``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


class Progress:
    """Step-by-step progress on stderr.

    On a terminal the running step is shown at once and replaced by its result; elsewhere a line appears as each
    step ends. `quiet` silences both.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._tty = sys.stderr.isatty()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time one step: ``with progress.step("parity"):``."""
        if self._tty and not self._quiet:
            print(f"  … {name}", end="", file=sys.stderr, flush=True)
        start = time.monotonic()
        try:
            yield
        except BaseException:
            self._line(f"  ✗ {name}  {human_seconds(time.monotonic() - start)}")
            raise
        self._line(f"  ✓ {name}  {human_seconds(time.monotonic() - start)}")

    def note(self, text: str) -> None:
        """A remark that stays on the screen."""
        self._line(f"    {text}")

    def update(self, text: str) -> None:
        """A passing remark: redrawn in place on a terminal, dropped elsewhere."""
        if self._tty and not self._quiet:
            print(f"\r\033[2K{text}", end="", file=sys.stderr, flush=True)

    def _line(self, text: str) -> None:
        if not self._quiet:
            print(f"\r\033[2K{text}" if self._tty else text, file=sys.stderr, flush=True)
