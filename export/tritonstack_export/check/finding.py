"""What `check` says: findings, and the report that holds them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tritonstack_export.repository.config_positions import ConfigPositions
from tritonstack_export.repository.config_tokens import Position

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem: what is wrong, where, and how to mend it.

    `code` names the rule and stays stable; `model` is None for a problem of the repository as a whole. `line` and
    `column` start at 1 and are None where the problem has no place inside a file.
    """

    severity: Severity
    code: str
    message: str
    fix: str
    path: Path
    model: str | None = None
    line: int | None = None
    column: int | None = None

    @property
    def place(self) -> str:
        """``path``, ``path:line:column`` where known."""
        return printable(self.path) + (f":{self.line}:{self.column}" if self.line is not None else "")

    def as_dict(self) -> dict[str, Any]:
        return {
            "severity": self.severity,
            "code": self.code,
            "model": None if self.model is None else printable(self.model),
            "path": printable(self.path),
            "line": self.line,
            "column": self.column,
            "message": self.message,
            "fix": self.fix,
        }


@dataclass(frozen=True, slots=True)
class ServableModel:
    """A model without errors: its name, its folder (as found in the repository), the versions its policy serves.

    `backend` is ``ensemble`` for ensembles. `dependencies` are the models an ensemble calls.
    """

    name: str
    path: Path
    versions: tuple[int, ...]
    backend: str
    dependencies: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "path": printable(self.path),
            "versions": list(self.versions),
            "backend": self.backend,
            "dependencies": list(self.dependencies),
        }


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The outcome of checking one repository: all findings, and the models that can be served."""

    root: Path
    findings: tuple[Finding, ...]
    models: tuple[ServableModel, ...]

    @property
    def ok(self) -> bool:
        """True when there is no error; warnings do not count."""
        return not self.errors

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "warning")

    def as_dict(self) -> dict[str, Any]:
        return {
            "repository": printable(self.root),
            "ok": self.ok,
            "errors": len(self.errors),
            "warnings": len(self.warnings),
            "models": [model.as_dict() for model in self.models],
            "findings": [finding.as_dict() for finding in self.findings],
        }


class FindingList:
    """Collects findings about one model (or the repository) and fills in where they belong.

    `at` is the path of a field in the model's config.pbtxt: the finding then points at that file, at the field's line
    once `positions` are known.
    """

    def __init__(self, *, path: Path, model: str | None = None) -> None:
        self.items: list[Finding] = []
        self.path = path
        self.model = model
        self.positions: ConfigPositions | None = None

    def error(
        self, code: str, message: str, *, fix: str, at: Iterable[str | int] = (), path: Path | None = None
    ) -> None:
        self._add("error", code, message, fix, at, path)

    def warning(
        self, code: str, message: str, *, fix: str, at: Iterable[str | int] = (), path: Path | None = None
    ) -> None:
        self._add("warning", code, message, fix, at, path)

    def at_line(self, severity: Severity, code: str, message: str, *, fix: str, path: Path, position: Position) -> None:
        """A finding inside a file other than config.pbtxt."""
        self.items.append(
            Finding(severity, code, message, fix, path, self.model, line=position.line, column=position.column)
        )

    @property
    def has_errors(self) -> bool:
        return any(item.severity == "error" for item in self.items)

    def _add(
        self, severity: Severity, code: str, message: str, fix: str, at: Iterable[str | int], path: Path | None
    ) -> None:
        place = tuple(at)
        position = None
        if place and path is None:
            path = self.path / "config.pbtxt"
            position = self.positions.at(*place) if self.positions is not None else None
        self.items.append(
            Finding(
                severity,
                code,
                message,
                fix,
                path or self.path,
                self.model,
                line=position.line if position else None,
                column=position.column if position else None,
            )
        )


def printable(text: Path | str) -> str:
    """`text` with bytes that are not UTF-8 and control characters written as escapes, so that it prints anywhere."""
    decoded = str(text).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in decoded)
