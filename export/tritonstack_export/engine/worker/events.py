"""What the worker says to its parent: one JSON object a line."""

from __future__ import annotations

import json
import os
import time
from typing import Any, TextIO


class WorkerFailure(Exception):
    """The work cannot be done. `kind` is one word that the parent knows; `details` are JSON-ready."""

    def __init__(self, kind: str, text: str, **details: Any) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.details = details


class Events:
    """Writes events to what was stdout at the start; whatever libraries print there goes to stderr from then on."""

    _PROGRESS_INTERVAL_S = 0.1

    def __init__(self) -> None:
        self._out: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._last_progress_s = 0.0
        self._last_phase = ""

    def send(self, event: str, **fields: Any) -> None:
        """Write one event. Ends the process when nobody reads: the parent is gone."""
        try:
            self._out.write(json.dumps({"event": event, **fields}, default=str) + "\n")
            self._out.flush()
        except (BrokenPipeError, ValueError):
            os._exit(1)

    def progress(self, phase: str, share: float | None) -> None:
        """A phase and how much of it is done, 0 to 1; of a phase only some reports are sent."""
        now_s = time.monotonic()
        if phase != self._last_phase or now_s - self._last_progress_s >= self._PROGRESS_INTERVAL_S:
            self._last_phase, self._last_progress_s = phase, now_s
            self.send("progress", phase=phase, share=share)
