"""Command-line arguments: one parser class for all commands, and the types several of them share."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from tritonstack.errors import UsageError


class Parser(argparse.ArgumentParser):
    """An argparse parser that reports wrong usage as UsageError: one line, exit code 2."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        options.setdefault("allow_abbrev", False)
        super().__init__(**options)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, next_step=f"see `{self.prog} --help`")

    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse swallows what goes wrong here, so that help written to a full disk would count as written.
        print(message, end="", file=file or sys.stderr)


def whole_number(least: int, most: int | None = None) -> Any:
    """An argparse `type` for whole numbers from `least` to `most` (no bound when None)."""
    allowed = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"

    def parse(text: str) -> int:
        if not text.isascii() or not text.lstrip("-").isdigit():
            raise argparse.ArgumentTypeError(f"given {text!r}; expected {allowed}")
        value = int(text)
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"given {text!r}; expected {allowed}")
        return value

    return parse


def byte_size(text: str) -> int:
    """An argparse `type` for sizes in bytes with the suffixes k, M, G (powers of 1000) and Ki, Mi, Gi (of 1024)."""
    units = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
    number = text.rstrip("kMGiB")
    unit = text[len(number) :].removesuffix("B")
    if not number.isdigit() or unit not in units:
        raise argparse.ArgumentTypeError(f"given {text!r}; expected a size such as 512M or 1Gi")
    return int(number) * units[unit]


def some_path(text: str) -> Path:
    """An argparse `type` for paths: "" (an unset shell variable) would silently mean the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("given '', which is no path; expected a file or folder")
    return Path(text)


def require_output_file(flag: str, path: Path | None) -> None:
    """Refuse, before any work is done, a file that cannot be written in the end. None passes."""
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{flag} {path} is a folder", expected="a file name")
    if not path.parent.is_dir():
        raise UsageError(f"{flag} {path}: no such folder {path.parent}", next_step="make the folder first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{flag} {path} may not be written by this user", next_step="choose another place")
