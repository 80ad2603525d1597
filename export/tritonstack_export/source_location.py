"""Where in the user's own code something happened, from a traceback or from a recorded stack."""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

_OWN = str(Path(__file__).resolve().parent)
_STDLIB = sysconfig.get_paths()["stdlib"]
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)(?:\n\s+(?P<code>[^\n]+))?')


def is_user_file(name: str) -> bool:
    """Whether a frame's file belongs to the user: not torch, onnx, this package or the standard library."""
    if name.startswith(("<", _OWN)):
        return False
    if name.startswith(_STDLIB) and "site-packages" not in name:
        return False
    return not re.search(r"/site-packages/(torch|onnx|onnxscript|onnx_ir|onnxruntime|numpy)/", name)


def short(file: str, line: int | str) -> str:
    """``model.py:13``: the folder is left out, since messages end up in logs and manifests."""
    return f"{Path(file).name}:{line}"


def from_traceback(trace: TracebackType | None) -> str | None:
    """``model.py:13`` of the innermost user frame of a traceback, or None."""
    for frame in reversed(traceback.extract_tb(trace)):
        if is_user_file(frame.filename):
            return short(frame.filename, frame.lineno or 0)
    return None


def from_stack_text(text: str | None) -> tuple[str, str] | None:
    """(``model.py:13``, its source line) of the innermost user frame of a printed stack, or None."""
    for match in reversed(list(_FRAME.finditer(text or ""))):
        if is_user_file(match["file"]):
            return short(match["file"], match["line"]), (match["code"] or "").strip()
    return None


def of_error(error: BaseException) -> str | None:
    """``model.py:13`` where `error` arose in user code: from its text (torch writes it there), else its traceback."""
    found = from_stack_text(str(error))
    return found[0] if found else from_traceback(error.__traceback__)


def first_line(error: BaseException, *, limit: int = 300) -> str:
    """The first line of an exception's text, shortened."""
    text = str(error).strip().split("\n", 1)[0].strip() or type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"
