"""`tritonstack export`: the command line of export_model."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tritonstack.arguments import Parser, some_path
from tritonstack.errors import InputError, UsageError
from tritonstack_export.precision_names import PRECISIONS

if TYPE_CHECKING:
    from tritonstack_export.model_export import ExportResult

_DESCRIPTION = """\
Export a PyTorch model to ONNX and publish it as a new version of a Triton model repository.
Nothing appears in DIR unless the ONNX checker, the comparison with PyTorch at several batch sizes and
`tritonstack check` all pass. Flags override the spec."""


def build_parser() -> argparse.ArgumentParser:
    """The parser; its help fits one screen."""
    parser = Parser(
        prog="tritonstack export",
        description=_DESCRIPTION,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=110),
        usage="tritonstack export SPEC --repository DIR [options]",
    )
    add = parser.add_argument
    add(
        "spec",
        type=some_path,
        metavar="SPEC",
        help="model spec (YAML), or FILE.py:CALLABLE, or FILE.onnx where defaults do",
    )
    add("--repository", metavar="DIR", type=some_path, required=True, help="model repository; created when missing")
    add("--name", "--model-name", metavar="M", help="model name (default: the spec's)")
    add("--version", metavar="N", type=_positive, help="version to publish (default: the next free one)")
    add("--opset", metavar="N", type=int, help="ONNX opset, 16 to 23 (default: 20)")
    for kind, default in (("min", "1"), ("opt", "8"), ("max", "32")):
        add(f"--{kind}-batch", metavar="N", type=int, help=f"batch bounds: {kind} (default: {default})")
    add("--no-batch", action="store_true", help="serve without a batch dimension (max_batch_size 0)")
    add("--input-names", metavar="A,B", help="rename the inputs, in order")
    add("--output-names", metavar="A,B", help="outputs: by key for dict outputs, else in order")
    add("--dynamic", metavar="NAME:AXIS=DIM", action="append", default=[], help="make an axis dynamic; repeatable")
    add("--precision", metavar="A,B", help="variants to make: fp32, fp16, bf16, int8 (default: the spec's, else fp32)")
    add("--default-precision", metavar="P", choices=PRECISIONS, help="the variant that bears the bare name")
    add(
        "--allow-drop", metavar="P=POINTS", action="append", default=[], help="accept this loss of accuracy; repeatable"
    )
    add("--preflight", action="store_true", help="TensorRT for RTX builds of every variant; needs no GPU")
    add("--compute-capability", metavar="A,B", help="what --preflight builds for (default: 8.9)")
    add("--report", metavar="FILE", type=some_path, action="append", default=[], help=".html or .json; repeatable")
    add("--junit", metavar="FILE", type=some_path, help="the gates as JUnit XML")
    add("--if-changed", action="store_true", help="do nothing when the newest version is up to date")
    add("--keep-work", metavar="DIR", type=some_path, help="keep intermediate files in DIR")
    add("--trust", action="store_true", help="load checkpoints that run code (pickles of whole objects)")
    add("--quiet", action="store_true", help="no progress on stderr")
    add("--json", action="store_true", help="print the result as JSON")
    return parser


def _positive(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= value <= 2**63 - 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a version: expected a whole number from 1")
    return value


def main(argv: list[str]) -> int:
    """Run the command and return its exit code; mistakes are raised as TritonstackError."""
    import signal

    parser = build_parser()
    arguments, unknown = parser.parse_known_args(argv)
    _require_known(parser, unknown)
    previous = signal.signal(signal.SIGTERM, _terminate)
    try:
        result = _export(arguments, argv)
    except SystemExit as end:
        if isinstance(end, _Terminated):
            raise
        raise _exited(end) from end
    finally:
        signal.signal(signal.SIGTERM, previous)
    from tritonstack_export.export_text import as_json, as_text

    if arguments.json:
        from tritonstack.terminal import print_json

        print_json(as_json(result))
    else:
        print(as_text(result))
    return 0


class _Terminated(SystemExit):
    """Our own end by SIGTERM: an exception, so that the staging folder is removed on the way out."""


def _terminate(signum: int, frame: object) -> NoReturn:
    raise _Terminated(128 + signum)


def _exited(end: SystemExit) -> InputError:
    """The error for a model's code that ends the program, such as a script that reads its command line on import."""
    from tritonstack_export import source_location

    at = source_location.from_traceback(end.__traceback__)
    return InputError(
        f"the model's code ended the program with sys.exit({end.code!r}){f' at {at}' if at else ''}",
        next_step="""put what belongs to running it as a script under `if __name__ == "__main__":`""",
    )


def _require_known(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> None:
    if not unknown:
        return
    from difflib import get_close_matches

    known = [option for action in parser._actions for option in action.option_strings if option.startswith("--")]
    flag = unknown[0].split("=", 1)[0]
    if not flag.startswith("-"):
        raise UsageError(f"one argument too many: {unknown[0]!r}", expected="one SPEC")
    close = get_close_matches(flag, known, n=1, cutoff=0.75)
    raise UsageError(
        f"no such option {' '.join(unknown[:2])!r}",
        expected=f"{close[0]}?" if close else f"one of {', '.join(known)}",
    )


def _export(arguments: argparse.Namespace, argv: Sequence[str]) -> ExportResult:
    """Flags first (no heavy import before they are right), then the spec, then the work."""
    import os

    from tritonstack_export import spec_flags

    # PyTorch's OpenMP threads spin while they wait, for as long as anything else runs on the machine: on two busy cores
    # the same runs then take up to nine times as long. Read when the library is loaded, so it has to be said before.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _require_flags(arguments)
    names = {
        flag: spec_flags.parse_names(f"--{flag.replace('_', '-')}", value) if value is not None else None
        for flag in ("input_names", "output_names")
        for value in (getattr(arguments, flag),)
    }
    flags = spec_flags.SpecFlags(
        name=arguments.name,
        opset=arguments.opset,
        min_batch=arguments.min_batch,
        opt_batch=arguments.opt_batch,
        max_batch=arguments.max_batch,
        no_batch=arguments.no_batch,
        input_names=names["input_names"],
        output_names=names["output_names"],
        precisions=spec_flags.parse_precisions(arguments.precision) if arguments.precision is not None else None,
        default_precision=arguments.default_precision,
    )
    spec_flags.require_batch_order(flags)
    dynamic = tuple(spec_flags.parse_dynamic(text) for text in arguments.dynamic)
    reports = _report_files(arguments)
    capabilities = _capabilities(arguments)
    allowed_drop = dict(spec_flags.parse_allowed_drop(text) for text in arguments.allow_drop)

    from tritonstack_export.spec_file import load_spec, validate_spec

    text = load_spec(arguments.spec)
    overridden = spec_flags.apply(text, flags)
    spec = validate_spec(text, overridden)

    from tritonstack.errors import missing_package
    from tritonstack.terminal import Progress

    try:
        from tritonstack_export.converted_model import NameFlags
        from tritonstack_export.model_export import ExportOptions, export_model
    except ModuleNotFoundError as error:
        raise missing_package(
            error.name or "torch", needed_for="tritonstack export", install="pip install 'tritonstack[export]'"
        ) from error
    return export_model(
        spec,
        folder=text.path.resolve().parent,
        repository=arguments.repository,
        options=ExportOptions(
            version=arguments.version,
            if_changed=arguments.if_changed,
            trust=arguments.trust,
            keep_work=arguments.keep_work,
            allowed_drop=allowed_drop,
            preflight=capabilities,
            reports=reports,
            command_line=shlex.join(["tritonstack", "export", *argv]),
            names=NameFlags(
                input_names=flags.input_names,
                outputs_said_by="--output-names" if flags.output_names is not None else "outputs",
                dynamic=dynamic,
            ),
        ),
        progress=Progress(quiet=arguments.quiet),
    )


def _report_files(arguments: argparse.Namespace) -> tuple[Path, ...]:
    """Files of --report and --junit, each with a suffix that says its format and in a folder that can be written."""
    from tritonstack.arguments import require_output_file

    for path in arguments.report:
        if path.suffix not in (".html", ".json"):
            raise UsageError(
                f"--report {path}: no such format {path.suffix!r}", expected="a file called *.html or *.json"
            )
    if arguments.junit is not None and arguments.junit.suffix != ".xml":
        raise UsageError(f"--junit {arguments.junit}: no such format {arguments.junit.suffix!r}", expected="*.xml")
    given = [("--report", path) for path in arguments.report]
    if arguments.junit is not None:
        given.append(("--junit", arguments.junit))
    for flag, path in given:
        require_output_file(flag, path)
    return tuple(path for _, path in given)


def _capabilities(arguments: argparse.Namespace) -> tuple[str, ...]:
    if not arguments.preflight:
        if arguments.compute_capability is not None:
            raise UsageError("--compute-capability says what --preflight builds for", next_step="add --preflight")
        return ()
    from tritonstack_export.preflight.capability import parse_capabilities

    return parse_capabilities(arguments.compute_capability or "8.9")


def _require_flags(arguments: argparse.Namespace) -> None:
    import re

    from tritonstack_export.spec_flags import OPSET_MAX, OPSET_MIN

    if arguments.opset is not None and not OPSET_MIN <= arguments.opset <= OPSET_MAX:
        raise UsageError(f"--opset {arguments.opset}: not supported", expected=f"{OPSET_MIN} to {OPSET_MAX}")
    if arguments.name is not None and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}", arguments.name):
        raise UsageError(
            f"--name {arguments.name!r} (or --model-name): not a model name",
            expected="letters, digits, '_', '.' and '-', at most 200, not starting with '.' or '-'",
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
