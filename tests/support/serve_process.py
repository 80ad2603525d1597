"""A `tritonstack serve` process as a user starts it, and what it may not leave behind."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

COMMAND = [sys.executable, "-m", "tritonstack", "serve"]


class Serve:
    """One `tritonstack serve` process; `stderr` grows while it runs."""

    def __init__(self, arguments: list[str]) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.stderr = ""
        self.endpoints: dict[str, object] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stderr or ():
            self.stderr += line

    def wait_ready(self) -> dict[str, object]:
        text = ""
        for line in self.process.stdout or ():
            text += line
            if line.rstrip() == "}":
                self.endpoints = json.loads(text)
                return self.endpoints
        raise AssertionError(f"serve ended with {self.process.wait()}: {self.stderr}")

    def finish(self, number: int | None = None, timeout: float = 60) -> int:
        """Send a signal (or none), wait, and return the exit code."""
        if number is not None:
            self.process.send_signal(number)
        code = self.process.wait(timeout)
        self._reader.join(5)
        return code

    def descendants(self) -> list[int]:
        import psutil

        return [p.pid for p in psutil.Process(self.process.pid).children(recursive=True)]


def leftovers(pid: int) -> list[str]:
    """Shared memory and run folders of the serve process `pid`."""
    places = (Path("/dev/shm"), Path(tempfile.gettempdir()))
    return [str(path) for place in places for path in place.glob(f"tritonstack_{pid}_*")]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 20) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()
