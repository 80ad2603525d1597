"""A check report for people: grouped by model, each problem with its place and its fix."""

from __future__ import annotations

from tritonstack_export.check.finding import CheckReport, Finding, printable


def report_text(report: CheckReport) -> str:
    """The whole report; paths are shown relative to the repository."""
    blocks = []
    groups: dict[str | None, list[Finding]] = {}
    for finding in report.findings:
        groups.setdefault(finding.model, []).append(finding)
    for model, findings in groups.items():
        title = printable(report.root) if model is None else printable(model)
        blocks.append("\n".join([title, *(_lines(finding, report) for finding in findings)]))
    if report.models:
        names = ", ".join(
            f"{printable(model.name)} ({', '.join(map(str, model.versions))})" for model in report.models[:20]
        )
        more = f" and {len(report.models) - 20} more" if len(report.models) > 20 else ""
        blocks.append(f"servable: {names}{more}")
    blocks.append(_summary(report))
    return "\n\n".join(blocks)


def _lines(finding: Finding, report: CheckReport) -> str:
    place = finding.place
    try:
        relative = finding.path.relative_to(report.root)
        where = printable(relative) + place.removeprefix(printable(finding.path))
    except ValueError:
        where = place
    at = f" [{where}]" if where not in (".", finding.model) else ""
    return f"  {finding.severity} {finding.code}: {finding.message}{at}\n      fix: {finding.fix}"


def _summary(report: CheckReport) -> str:
    def count(number: int, noun: str) -> str:
        return f"{number} {noun}{'' if number == 1 else 's'}"

    return (
        f"{count(len(report.models), 'servable model')}, {count(len(report.errors), 'error')}, "
        f"{count(len(report.warnings), 'warning')}"
    )
