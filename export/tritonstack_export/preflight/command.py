"""`tritonstack preflight`: the command line of preflight_onnx."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from tritonstack.arguments import Parser, some_path
from tritonstack.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tritonstack.terminal import Progress
    from tritonstack_export.preflight.result import PreflightResult
    from tritonstack_export.preflight.result_cache import ResultCache
    from tritonstack_export.preflight.shape_flags import ShapeFlags
    from tritonstack_export.preflight.target import Target

_DESCRIPTION = """\
See, without a GPU, whether TensorRT will take a model: every ONNX file below PATH is built for real with
TensorRT for RTX, and the engine is thrown away. It parses, type-checks and fits the profiles as TensorRT does,
but it is a proxy: nothing is written into the repository. Exit code 0: all passed, 1: not, 2: wrong usage."""


def build_parser() -> argparse.ArgumentParser:
    """The parser; its help fits one screen."""
    parser = Parser(
        prog="tritonstack preflight",
        description=_DESCRIPTION,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=34, width=110),
        usage="tritonstack preflight PATH [PATH …] [options]",
    )
    add = parser.add_argument
    add(
        "paths", nargs="+", type=some_path, metavar="PATH", help="model repository, entry, version folder or .onnx file"
    )
    add(
        "--compute-capability",
        metavar="X.Y,…",
        default="8.9",
        help="GPUs to build for: 7.5, 8.0, 8.6, 8.9, 12.0, 12.1 (default: 8.9)",
    )
    shape = "NAME:AxB…,…"
    add("--min-shapes", metavar=shape, help="smallest shapes, as in input:1x3x224x224 (default: --opt-shapes)")
    add("--opt-shapes", metavar=shape, help="shapes to optimise for (default: --max-shapes)")
    add("--max-shapes", metavar=shape, help="largest shapes (default: --opt-shapes)")
    add("--timeout", metavar="SECONDS", type=_seconds, default=900.0, help="limit of one build (default: 900)")
    add("--no-cache", action="store_true", help="build even what was built before")
    add("--no-install", action="store_true", help="fail when TensorRT for RTX is not installed yet (148 MB)")
    add("--quiet", action="store_true", help="no progress on stderr")
    add("--json", action="store_true", help="print the results as JSON")
    parser.epilog = (
        "Shapes come from a version's manifest, else from max_batch_size of its config, else 1 to 32 samples;\n"
        "the flags win. TensorRT for RTX is kept under $TRITONSTACK_CACHE (default: ~/.cache/tritonstack)."
    )
    return parser


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"given {text!r}; expected a number of seconds above 0")
    return value


def main(argv: list[str]) -> int:
    """Run the command; mistakes are raised as TritonstackError."""
    arguments = build_parser().parse_args(argv)
    from tritonstack_export.preflight.capability import parse_capabilities
    from tritonstack_export.preflight.shape_flags import ShapeFlags

    capabilities = parse_capabilities(arguments.compute_capability)
    flags = ShapeFlags.parse(least=arguments.min_shapes, best=arguments.opt_shapes, most=arguments.max_shapes)

    from tritonstack.terminal import Progress, print_json
    from tritonstack_export.preflight.report_text import closing_text, result_text
    from tritonstack_export.preflight.result_cache import ResultCache
    from tritonstack_export.preflight.target import find_targets

    targets, without = find_targets(arguments.paths)
    progress = Progress(quiet=arguments.quiet)
    cache = None if arguments.no_cache else ResultCache()
    results: list[PreflightResult] = []
    for target in targets:
        progress.update(f"{target.label}: pre-flight")
        result = _preflight(target, arguments, capabilities, flags, cache, progress)
        progress.update("")
        results.append(result)
        if not arguments.json:
            print(result_text(target.label, result), end="\n\n", flush=True)
    if arguments.json:
        print_json(_as_json(targets, results, without))
    else:
        if without:
            print(f"without an ONNX file, so not tried: {', '.join(without)}")
        print(closing_text(results))
    return 0 if all(result.passed for result in results) else 1


def _preflight(
    target: Target,
    arguments: argparse.Namespace,
    capabilities: tuple[str, ...],
    flags: ShapeFlags | None,
    cache: ResultCache | None,
    progress: Progress,
) -> PreflightResult:
    from tritonstack_export.engine.settings import BuildSettings
    from tritonstack_export.preflight import onnx_preflight
    from tritonstack_export.preflight.target import settings_of

    settings = BuildSettings()
    problem: InputError | None = None
    try:
        inputs = onnx_preflight.read_graph(target.onnx).inputs
    except InputError:
        # Told as the result of its first step below, like everything else that is wrong with a file.
        inputs = None
    if inputs is not None:
        try:
            settings = settings_of(target, inputs, flags)
        except UsageError as error:
            # A flag is wrong for the command as a whole; what a repository says is a finding about that model.
            if flags is not None or target.version is None:
                raise _with_flags(error, target) from error
            problem = error
        except InputError as error:
            problem = error
    result = onnx_preflight.preflight_onnx(
        target.onnx,
        settings,
        compute_capabilities=capabilities,
        cache=cache,
        install=not arguments.no_install,
        timeout_s=arguments.timeout,
        progress=progress,
    )
    return result if problem is None else onnx_preflight.with_profile_problem(result, problem)


def _with_flags(error: UsageError, target: Target) -> UsageError:
    """The error of a lone file whose sizes nobody said, with the flags that say them."""
    if error.summary.startswith("argument "):
        return error
    return UsageError(
        f"{target.label}: {error.summary}",
        given=error.given,
        expected=error.expected,
        next_step="give --opt-shapes, and --min-shapes and --max-shapes where the sizes vary",
    )


def _as_json(targets: Sequence[Target], results: Sequence[PreflightResult], without: Sequence[str]) -> dict[str, Any]:
    from tritonstack_export.preflight.onnx_preflight import PROXY_NOTE

    return {
        "schema_version": 1,
        "passed": all(result.passed for result in results),
        "proxy": f"{PROXY_NOTE}; the engines were thrown away",
        "without_onnx": list(without),
        "results": [
            {"model": target.label, **result.as_dict()} for target, result in zip(targets, results, strict=True)
        ],
    }
