"""A pre-flight for people: per file the steps, what was seen, and what is wrong with its remedy."""

from __future__ import annotations

from tritonstack.terminal import human_bytes, human_seconds
from tritonstack_export.preflight.onnx_preflight import PROXY_NOTE
from tritonstack_export.preflight.result import PreflightResult, Problem, Step

_MARKS = {True: "✓", False: "✗", None: "·"}


def result_text(label: str, result: PreflightResult) -> str:
    """The block of one file."""
    head = label + (f" ({result.precision})" if result.precision else "") + (" from cache" if result.cached else "")
    lines = [head]
    details = _details(result)
    for step, passed in result.steps().items():
        said = details[step] if passed else "not reached" if passed is None else ""
        if passed is False and result.problem is not None:
            said = result.problem.summary
        lines.append(f"  {_MARKS[passed]} {step:<8}  {said}".rstrip())
        if passed is False and result.problem is not None:
            lines += [f"      {line}" for line in _problem_lines(result.problem)]
    lines += [f"    warning: {text}" for text in result.warnings]
    lines += [f"    note: {text}" for text in result.notes]
    return "\n".join(lines)


def closing_text(results: list[PreflightResult]) -> str:
    """The last lines: how many passed, and what this was."""
    failed = sum(not result.passed for result in results)
    first = results[0]
    return (
        f"{len(results) - failed} of {len(results)} passed\n"
        f"{PROXY_NOTE} for compute capability {', '.join(first.compute_capabilities)}; the engines were thrown away."
    )


def _details(result: PreflightResult) -> dict[Step, str]:
    types = ", ".join(f"{word} {count}" for word, count in sorted(result.types.items(), key=lambda item: -item[1]))
    bounds = "; ".join(
        ", ".join(f"{name} {' … '.join('x'.join(map(str, shape)) for shape in shapes)}" for name, shapes in p.items())
        for p in result.profiles
    )
    built = [
        human_seconds(result.seconds) if result.seconds is not None else "",
        f"engine {human_bytes(result.engine_bytes)}" if result.engine_bytes is not None else "",
        f"peak memory {human_bytes(result.peak_rss_bytes)}" if result.peak_rss_bytes is not None else "",
    ]
    return {
        "file": "whole and sound",
        "parse": f"{result.layers} layer{'s' * (result.layers != 1)}, every operator known, types agree ({types})"
        if result.layers
        else "",
        "profiles": bounds or ("every shape is fixed" if result.passed else "fit"),
        "build": ", ".join(filter(None, built)),
    }


def _problem_lines(problem: Problem) -> list[str]:
    lines = []
    if problem.node is not None or problem.operator is not None:
        operator = f" ({problem.operator})" if problem.operator else ""
        lines.append(f"at: node {problem.node!r}{operator}" if problem.node else f"at: operator {problem.operator}")
    if problem.given:
        lines.append(f"said: {problem.given}")
    if problem.remedy:
        lines.append(f"fix: {problem.remedy}")
    return lines
