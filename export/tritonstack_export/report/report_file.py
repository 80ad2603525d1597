"""Writing a report: the format follows the file's suffix."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tritonstack.errors import SetupError, UsageError
from tritonstack.whole_file import taking_place_of
from tritonstack_export.report.data import ExportReport

SUFFIXES = (".html", ".json", ".xml")


def require_report_file(flag: str, path: Path, *, suffixes: tuple[str, ...] = SUFFIXES) -> None:
    """Refuse, before any work, a report that could not be written in the end. Raises UsageError."""
    from tritonstack.arguments import require_output_file

    if path.suffix.lower() not in suffixes:
        raise UsageError(
            f"argument {flag}: the suffix of {str(path)!r} names no format of a report",
            expected=f"a file name that ends in {' or '.join(suffixes)}",
        )
    require_output_file(flag, path)


def render(report: ExportReport, suffix: str) -> str:
    """The report as ``.html``, ``.json`` or ``.xml`` (JUnit)."""
    return _renderer(suffix)(report)


def write_report(report: ExportReport, path: Path) -> Path:
    """Write `report` in the format of the suffix of `path`, in one step (temporary name, fsync, rename).

    Raises UsageError for other suffixes and SetupError when the file cannot be written; the old one stays then.
    """
    if path.suffix.lower() not in SUFFIXES:
        require_report_file("--report", path)
    content = render(report, path.suffix.lower()).encode("utf-8", "backslashreplace")
    umask = os.umask(0)
    os.umask(umask)
    try:
        with taking_place_of(path, mode=0o666 & ~umask) as file:
            file.write(content)
    except OSError as error:
        raise SetupError(
            f"the report {path} could not be written: {error.strerror or error}",
            next_step="check the free space and the permissions there",
        ) from error
    return path


def _renderer(suffix: str) -> Callable[[ExportReport], str]:
    if suffix == ".html":
        from tritonstack_export.report.html_report import render_html

        return render_html
    if suffix == ".xml":
        from tritonstack_export.report.junit_report import render_junit

        return render_junit
    from tritonstack_export.report.json_report import render_json

    return render_json
