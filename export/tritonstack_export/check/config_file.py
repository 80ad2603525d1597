"""Reading a model's config.pbtxt and what can be said about it before any rule on its fields."""

from __future__ import annotations

import stat

from tritonstack_export.check.finding import printable
from tritonstack_export.check.model_entry import ModelEntry
from tritonstack_export.repository.config_positions import ConfigPositions
from tritonstack_export.repository.config_text import ConfigSyntaxError, parse_config

# A config with a thousand tensors has about 200 kB; beyond this it is some other file.
_MAX_CONFIG_BYTES = 16 * 1024 * 1024


def read_config(entry: ModelEntry) -> None:
    """Set `entry.config` and the positions of its findings, or report why there is no config."""
    path, findings = entry.config_path, entry.findings
    try:
        status = path.stat()
    except FileNotFoundError:
        if path.is_symlink():
            findings.error("dangling-link", "the link config.pbtxt leads nowhere", fix="restore its target", path=path)
        elif entry.versions:
            findings.error(
                "no-config",
                f"model {printable(entry.name)!r} has no config.pbtxt: what Triton would guess differs between servers",
                fix="write one, or export the model with `tritonstack export`",
                path=path,
            )
        return
    except OSError as error:
        findings.error("unreadable", f"config.pbtxt: {error.strerror}", fix="check its permissions", path=path)
        return
    if stat.S_ISDIR(status.st_mode):
        findings.error("no-config", "config.pbtxt is a folder", fix="replace it with a text file", path=path)
        return
    if not stat.S_ISREG(status.st_mode):
        findings.error("no-config", "config.pbtxt is no regular file", fix="replace it with a text file", path=path)
        return
    if status.st_size > _MAX_CONFIG_BYTES:
        findings.error(
            "no-config",
            f"config.pbtxt has {status.st_size} bytes, which no config needs",
            fix="is a model file stored under this name?",
            path=path,
        )
        return
    try:
        data = path.read_bytes()
    except OSError as error:
        findings.error("unreadable", f"config.pbtxt: {error.strerror}", fix="check its permissions", path=path)
        return
    _parse(entry, data)


def _parse(entry: ModelEntry, data: bytes) -> None:
    from tritonstack_export.repository.config_tokens import Position

    if not data.strip():
        entry.findings.error(
            "config-empty",
            "config.pbtxt is empty: no backend, no inputs, no outputs",
            fix="write one, or export the model with `tritonstack export`",
            path=entry.config_path,
        )
        return
    try:
        entry.config = parse_config(data, path=entry.config_path)
    except ConfigSyntaxError as error:
        offending = f": {error.offending}" if error.offending else ""
        entry.findings.at_line(
            "error",
            "config-syntax",
            f"{error.problem}{offending}",
            fix=error.fix,
            path=entry.config_path,
            position=Position(error.line, error.column),
        )
        return
    entry.findings.positions = ConfigPositions(data.decode("utf-8"))
