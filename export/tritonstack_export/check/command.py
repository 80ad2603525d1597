"""`tritonstack check`: validate a model repository before any server sees it."""

from __future__ import annotations

import argparse
import re

from tritonstack.arguments import Parser, some_path
from tritonstack.errors import UsageError


def main(argv: list[str]) -> int:
    """Run the command; the exit code is 0 without errors, 1 with errors."""
    arguments = _parser().parse_args(argv)
    from tritonstack.terminal import print_json
    from tritonstack_export.check.plan_target import target_from_flags
    from tritonstack_export.check.report_text import report_text
    from tritonstack_export.check.repository_check import check_repository

    report = check_repository(
        arguments.directory,
        gpus=_gpu_count(arguments.gpus),
        allow_empty=arguments.allow_empty,
        target=target_from_flags(arguments.tensorrt, arguments.compute_capability),
    )
    passed = report.ok and not (arguments.strict and report.warnings)
    if arguments.json:
        print_json({**report.as_dict(), "passed": passed})
    else:
        print(report_text(report))
    return 0 if passed else 1


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tritonstack check",
        description="Validate a Triton model repository, harder than Triton does: every problem in one run, each\n"
        "with a fix. Exit code 0: no errors, 1: errors, 2: wrong usage.",
    )
    parser.add_argument(
        "directory", type=some_path, metavar="DIR", help="the model repository: a folder with one folder per model"
    )
    parser.add_argument(
        "--gpus",
        metavar="N|auto",
        help="GPUs of the machine that will serve it; auto counts those here (default: placement is not judged)",
    )
    parser.add_argument(
        "--tensorrt",
        metavar="VERSION",
        help="TensorRT of the server: engines have to fit it (default: that of this machine, where it has one)",
    )
    parser.add_argument(
        "--compute-capability",
        metavar="X.Y[,…]",
        help="compute capability of the GPUs that will serve it, such as 9.0 (default: that of the GPUs here)",
    )
    parser.add_argument("--allow-empty", action="store_true", help="a repository without models is fine")
    parser.add_argument("--strict", action="store_true", help="warnings fail too")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser


def _gpu_count(value: str | None) -> int | None:
    if value is None:
        return None
    if value == "auto":
        from tritonstack_export.check.visible_gpus import visible_gpus

        return visible_gpus()
    if not re.fullmatch(r"[0-9]{1,4}", value):
        raise UsageError("argument --gpus: not a number of GPUs", given=repr(value), expected="0, 1, 2, … or auto")
    return int(value)
