"""What an export did: the time of each step, and remarks for the user."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tritonstack.terminal import Progress


@dataclass
class Record:
    """What happened: seconds per step, and notes for the user. Filled as the steps run."""

    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _shown: int = 0

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time and show one step; notes made so far are printed below it."""
        start = time.monotonic()
        try:
            with self.progress.step(name):
                yield
        finally:
            self.seconds[name] = round(time.monotonic() - start, 3)
            for note in self.notes[self._shown :]:
                self.progress.note(note)
            self._shown = len(self.notes)

    def note(self, text: str) -> None:
        """Remember a remark once."""
        if text not in self.notes:
            self.notes.append(text)
