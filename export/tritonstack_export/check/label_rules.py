"""Rules on label files: one label a line, as many as the output has classes."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import PurePosixPath
from typing import Any

from tritonstack_export.check.finding import printable
from tritonstack_export.check.model_entry import ModelEntry
from tritonstack_export.repository.config_text import ModelConfig
from tritonstack_export.repository.config_tokens import Position

_MAX_LABEL_BYTES = 64 * 1024 * 1024


def check_labels(entry: ModelEntry, config: ModelConfig) -> None:
    for index, output in enumerate(config.output):
        if output.label_filename:
            _check_file(output, ("output", index, "label_filename"), entry)


def _check_file(output: Any, at: tuple[str | int, ...], entry: ModelEntry) -> None:
    findings = entry.findings
    shown = printable(output.label_filename)
    path = entry.path / output.label_filename
    relative = PurePosixPath(output.label_filename)
    if relative.is_absolute() or ".." in relative.parts:
        findings.error(
            "labels", f"the label file {shown!r} lies outside the model", fix="put it beside config.pbtxt", at=at
        )
        return
    try:
        if not path.is_file():
            findings.error(
                "labels",
                f"output {printable(output.name)!r} names the label file {shown!r}, which is not there",
                fix=f"put {shown} beside config.pbtxt",
                at=at,
            )
            return
        size = path.stat().st_size
        data = path.read_bytes() if size <= _MAX_LABEL_BYTES else b""
    except OSError as error:
        findings.error("labels", f"the label file {shown!r}: {error.strerror}", fix="check its permissions", path=path)
        return
    if size > _MAX_LABEL_BYTES:
        findings.error("labels", f"the label file {shown!r} has {size} bytes", fix="is it a label file?", path=path)
        return
    _check_bytes(data, output, at, entry)


def _check_bytes(data: bytes, output: Any, at: tuple[str | int, ...], entry: ModelEntry) -> None:
    findings = entry.findings
    path = entry.path / output.label_filename
    if data.startswith(b"\xef\xbb\xbf"):
        findings.at_line(
            "error",
            "labels-bom",
            "the label file starts with a byte order mark, which becomes part of the first label",
            fix="save it as UTF-8 without BOM",
            path=path,
            position=Position(1, 1),
        )
        data = data[3:]
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        findings.at_line(
            "error",
            "labels",
            f"the label file is not UTF-8 (byte {data[error.start]:#04x})",
            fix="save it as UTF-8",
            path=path,
            position=Position(data.count(b"\n", 0, error.start) + 1, 1),
        )
        return
    if "\r" in text:
        findings.at_line(
            "error",
            "labels-crlf",
            "the label file has Windows line ends: each label would end in a carriage return",
            fix="save it with Unix line ends",
            path=path,
            position=Position(text.count("\n", 0, text.index("\r")) + 1, 1),
        )
    lines = text.replace("\r\n", "\n").split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            findings.at_line(
                "error",
                "labels-empty-line",
                "an empty line counts as a label and shifts no others",
                fix="remove the line or write the label",
                path=path,
                position=Position(number, 1),
            )
            break
    repeated = [label for label, times in Counter(filter(str.strip, lines)).items() if times > 1]
    if repeated:
        more = f" and {len(repeated) - 1} more" if len(repeated) > 1 else ""
        findings.at_line(
            "warning",
            "labels-duplicate",
            f"the label {printable(repeated[0])!r}{more} is given to several classes",
            fix="tell them apart if they are different classes",
            path=path,
            position=Position(lines.index(repeated[0]) + 1, 1),
        )
    classes = math.prod(output.dims) if output.dims and all(size > 0 for size in output.dims) else None
    if classes is not None and classes != len(lines):
        findings.error(
            "labels-count",
            f"output {printable(output.name)!r} has {classes} classes, {printable(output.label_filename)} has "
            f"{len(lines)} labels",
            fix="write one line per class, in the order of the output",
            at=at,
        )
