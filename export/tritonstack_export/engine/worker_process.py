"""Start the worker, listen to it, and tell in words how it ended."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tritonstack.errors import InternalError
from tritonstack_export.engine.engine_error import EngineError
from tritonstack_export.engine.home import RtxHome, TensorRtHome

Event = dict[str, Any]
_MODULE = "tritonstack_export.engine.worker"
_TAIL_LINES = 8


def run_worker(
    home: TensorRtHome | RtxHome,
    request: dict[str, Any],
    *,
    timeout_s: float | None,
    on_event: Callable[[Event], None],
) -> Event:
    """Run one request to its end and return the last event, `done` or `failed`; `on_event` gets the others.

    Raises EngineError (timeout, died) when the process is stopped for its time or ends without a last word. Whatever
    happens, no process is left behind.
    """
    with tempfile.TemporaryFile("w+b") as talk:
        process = _start(home, talk)
        try:
            return _listen(process, {**request, "home": home.request()}, talk, timeout_s, on_event)
        finally:
            _stop(process)


def _start(home: TensorRtHome | RtxHome, talk: IO[bytes]) -> subprocess.Popen[bytes]:
    import tritonstack_export

    environment = dict(os.environ)
    # Another interpreter does not have this package; the worker's part of it needs the standard library only.
    package = str(Path(str(tritonstack_export.__file__)).parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (package, environment.get("PYTHONPATH"))))
    if home.library_path:
        folders = (*map(str, home.library_path), environment.get("LD_LIBRARY_PATH", ""))
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, folders))
    return subprocess.Popen(
        [str(home.python), "-P", "-m", _MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=talk,
        env=environment,
        # A group of its own: Ctrl-C is ours to pass on, and helpers that TensorRT starts end with it.
        start_new_session=True,
    )


def _listen(
    process: subprocess.Popen[bytes],
    request: dict[str, Any],
    talk: IO[bytes],
    timeout_s: float | None,
    on_event: Callable[[Event], None],
) -> Event:
    if process.stdin is None or process.stdout is None:
        raise InternalError("the worker has no pipes")
    messages: list[str] = []
    # A worker that died early breaks the pipe; what it said last is told below.
    with suppress(BrokenPipeError):
        process.stdin.write(json.dumps(request).encode())
        process.stdin.close()
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    buffer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and (left_s <= 0 or not selector.select(left_s)):
                raise EngineError(
                    f"the build was stopped after {timeout_s:g} s, its time limit",
                    kind="timeout",
                    log=_tail(messages, talk),
                    next_step="give it a longer --timeout, or a lower optimization_level in the spec's `engine`",
                )
            piece = os.read(process.stdout.fileno(), 1 << 16)
            if not piece:
                break
            *lines, buffer = (buffer + piece).split(b"\n")
            for line in lines:
                event: Event = json.loads(line)
                if event["event"] in ("done", "failed"):
                    return event
                if event["event"] == "message":
                    messages.append(event["text"])
                on_event(event)
    raise _died(process.wait(), messages, talk)


def _died(code: int, messages: list[str], talk: IO[bytes]) -> EngineError:
    log = _tail(messages, talk)
    last = f"; its last words: {' | '.join(log[-3:])}" if log else ""
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        if name == "SIGKILL":
            return EngineError(
                f"the TensorRT process was killed (SIGKILL), which is what happens when memory runs out{last}",
                kind="died",
                log=log,
                next_step="give the build more memory, or build fewer engines at once",
            )
        return EngineError(
            f"the TensorRT process crashed ({name}){last}",
            kind="died",
            log=log,
            next_step="try another TensorRT version or a lower optimization_level; report it to NVIDIA with the model",
        )
    return EngineError(
        f"the TensorRT process ended with exit code {code} before it was done{last}",
        kind="died",
        log=log,
        next_step="look at its last words",
    )


def _tail(messages: list[str], talk: IO[bytes]) -> tuple[str, ...]:
    talk.seek(0)
    printed = talk.read()[-20_000:].decode(errors="replace").splitlines()
    return tuple(line.strip() for line in (*messages, *printed) if line.strip())[-_TAIL_LINES:]


def _stop(process: subprocess.Popen[bytes]) -> None:
    # The group may outlive its leader.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
