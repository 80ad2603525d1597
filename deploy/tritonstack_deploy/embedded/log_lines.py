"""Triton's log, line by line: parsed, and filtered to what a person starting a server wants to read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Level = Literal["info", "warning", "error", "fatal", "verbose", "output"]

# I1130 18:00:00.123456 4711 model_lifecycle.cc:123] "successfully loaded 'm'"   (2.51 quotes the message)
_LINE = re.compile(r"^([IWEFV])(\d{4} \d{2}:\d{2}:\d{2}\.\d+) (\d+) ([\w.]+:\d+)\] ?(.*)$")
_LEVELS: dict[str, Level] = {"I": "info", "W": "warning", "E": "error", "F": "fatal", "V": "verbose"}

# Info lines worth showing without --verbose.
_SHOWN_INFO = ("successfully loaded",)
# While draining, Triton counts down once a second; only counts of things still going on are news.
_DRAINING = re.compile(
    r"^Timeout \d+: Found [1-9]\d* (model versions that have in-flight|HTTP service|.* non-inference requests)"
)
_UNLOADING = re.compile(r"^Timeout \d+: Found \d+ live models and 0 in-flight")
# Warnings and errors that say only that there is no GPU, which the table of models tells in better words, and errors
# that repeat for the whole repository what each model's own line has said.
_QUIET = (
    "Unable to allocate pinned system memory",
    "failed to allocate pinned system memory",
    "CUDA memory pool disabled",
    "not enabling peer access",
    "failed to enable peer access",
    "Failed to initialize NVML",
    "CudaDriverHelper has not been initialized",
    "DCGM",
    "Cannot get CPU metric",
    "failed to load all models",
    "error: creating server",
)
# What Triton prints past its log: its tables, the name of the signal we sent, and native stack frames.
_PAST_THE_LOG = re.compile(r"^(\+-|\| |Signal \(\d+\) received|\s*\d+# )")

_PROVIDERS = re.compile(r"tritonstack-onnxruntime model=(\S+) version=(\S+) kind=(\S+) device=(\S+) providers=(\S+)")


@dataclass(frozen=True)
class LogLine:
    """One line of Triton's log; `level` is "output" for text that a model or a library printed past the log."""

    level: Level
    message: str
    raw: str

    @property
    def says_ports_are_open(self) -> bool:
        """Whether this is the last of the lines in which Triton says that it listens: gRPC, HTTP, then metrics."""
        return self.message.startswith("Started Metrics Service at")

    @property
    def is_past_the_log(self) -> bool:
        """Whether the line is of a table, a native stack or a signal: printed, but no words about what happened."""
        return self.level == "output" and _PAST_THE_LOG.match(self.message) is not None

    @property
    def matters(self) -> bool:
        """Whether to show the line by default."""
        if any(text in self.message for text in _QUIET):
            return False
        match self.level:
            case "error" | "fatal" | "warning":
                return True
            case "info":
                if _DRAINING.match(self.message):
                    return not _UNLOADING.match(self.message)
                return any(text in self.message for text in _SHOWN_INFO)
            case "verbose":
                return False
            case "output":
                return bool(self.message.strip()) and not _PAST_THE_LOG.match(self.message)


@dataclass(frozen=True)
class ProvidersInUse:
    """What our onnxruntime backend reported for one model instance."""

    model: str
    version: str
    kind: str
    providers: tuple[str, ...]


def parse_line(raw: str) -> LogLine:
    """Parse one line as it came (no newline)."""
    match = _LINE.match(raw)
    if not match:
        return LogLine("output", raw, raw)
    message = match[5]
    if len(message) >= 2 and message[0] == message[-1] == '"':
        message = message[1:-1].replace('\\"', '"').replace("\\n", "\n").replace("\\t", "\t")
    return LogLine(_LEVELS[match[1]], message, raw)


def parse_providers(line: LogLine) -> ProvidersInUse | None:
    """The providers a backend line reports, or None for any other line."""
    match = _PROVIDERS.search(line.message)
    if not match:
        return None
    return ProvidersInUse(match[1], match[2], match[3], tuple(match[5].split(",")))


def short_reason(text: str) -> str:
    """A model's own reason for not loading, without the stack of wrappers and C++ or Python frames around it."""
    lines = [line.strip() for line in text.strip().splitlines()]
    kept = [line for line in lines if line and not _FRAME.match(line)]
    reason = " ".join(kept) if kept else "no reason given"
    for prefix in _WRAPPERS:
        reason = prefix.sub("", reason)
    return reason.strip()


_FRAME = re.compile(r"^(At:|File \"|Traceback|<frozen |/\S+\.(py|cc|cpp|h)\(\d+\)|\S+\.py\(\d+\): \w+|\^+$|~+\^)")
_WRAPPERS = (
    re.compile(r"^(Internal|Invalid argument|Not found|Unavailable|Unknown): "),
    re.compile(r"^failed to load '[^']+' version \d+: (Internal|Invalid argument|Not found|Unavailable): "),
    re.compile(r"^(ValueError|RuntimeError|OSError|FileNotFoundError): "),
)
