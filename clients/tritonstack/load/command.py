"""`tritonstack load`: flags to a plan, a report to the screen."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tritonstack.arguments import Parser, require_output_file, some_path, whole_number
from tritonstack.errors import UsageError

if TYPE_CHECKING:
    from tritonstack.load.arrival import Arrival
    from tritonstack.load.inputs import InputSource
    from tritonstack.load.plan import LoadPlan

USAGE = "tritonstack load MODEL (--concurrency N[,N…] | --rate R[,R…]) [options]"
# One address has this many ports to connect from, and HTTP takes a connection per request in flight.
MAX_CONCURRENCY = 65535
EPILOG = """exit codes: 0 valid and within the limits, 1 not (or no server, no model), 2 wrong usage, 130 interrupted"""


def parser() -> Parser:
    """The parser of `tritonstack load`."""
    top = Parser(
        prog="tritonstack load",
        usage=USAGE,
        epilog=EPILOG,
        description="Put a served model under load and measure it.",
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=26, width=100),
        add_help=False,
    )
    top.add_argument("model", metavar="MODEL", help=argparse.SUPPRESS)
    add = top.add_argument_group("load").add_argument
    add(
        "--concurrency",
        type=_several(whole_number(1, MAX_CONCURRENCY)),
        metavar="N[,N…]",
        help="closed loop: requests in flight",
    )
    add("--rate", type=_several(_number(0)), metavar="R[,R…]", help="open loop: requests per second, by the clock")
    add("--arrival", choices=("poisson", "constant"), metavar="KIND", help="poisson (default) or constant gaps")
    add(
        "--max-in-flight",
        type=whole_number(1, MAX_CONCURRENCY),
        metavar="N",
        help="bound of an open loop (default: 1024 or 512 MB)",
    )
    add("--duration", type=_number(0), metavar="S", help="seconds measured (default: 10, no limit with --requests)")
    add("--requests", type=whole_number(1), metavar="N", help="requests measured, if the time does not end first")
    add("--warmup", type=_number(0, may_equal=True), metavar="S", default=2.0, help="seconds before it (default: 2)")
    add = top.add_argument_group("requests").add_argument
    add("--batch", type=whole_number(1), metavar="B", default=1, help="samples per request (default: 1)")
    add("--input", action="append", type=_input_file, metavar="NAME=@FILE.npy", help="samples of one input; repeatable")
    add("--data", type=some_path, metavar="FILE.npz", help="samples of all inputs by name")
    add(
        "--image",
        action="append",
        type=some_path,
        metavar="FILE|FOLDER",
        help="pictures, prepared as the model describes",
    )
    add("--zero", action="store_true", help="zeros instead of random values (the default)")
    add("--shape", action="append", type=_shape, metavar="NAME:DxD", help="sizes of open dimensions, without the batch")
    add("--seed", type=whole_number(0), metavar="N", default=0, help="of values and Poisson gaps (default: 0)")
    add = top.add_argument_group("server").add_argument
    add("--url", default="127.0.0.1", help="host:port, grpc://… or http://… (default: 127.0.0.1)")
    add(
        "--protocol",
        choices=("grpc", "http"),
        metavar="P",
        help="grpc (default) or http where the URL is silent",
    )
    add("--version", default="", metavar="V", help="model version (default: the server's choice)")
    add("--timeout", type=_number(0), metavar="S", default=30.0, help="of each request (default: 30)")
    add = top.add_argument_group("result").add_argument
    add("--max-error-rate", type=_fraction, metavar="F", default=0.0, help="fail above this fraction (default: 0)")
    add("--max-lag", type=_number(0), metavar="MS", help="invalid where p99 of the own lag is above (default: 10)")
    add("--json", action="store_true", help="print the report as JSON")
    add("--output", type=some_path, metavar="FILE", help="also write the JSON report to a file")
    add("--quiet", action="store_true", help="no live line")
    add("-h", "--help", action="help", help="show this help")
    return top


def main(argv: list[str]) -> int:
    """Run the command; returns its exit code."""
    options = parser().parse_args(argv)
    require_output_file("--output", options.output)
    plan = plan_of(options)

    from tritonstack.load.live import LiveLine, Silent
    from tritonstack.load.report import write_report
    from tritonstack.load.session import run_load
    from tritonstack.load.table import render
    from tritonstack.terminal import print_json

    report = run_load(plan, observer=Silent() if options.quiet else LiveLine(), command=("tritonstack", "load", *argv))
    if options.json:
        print_json(report.to_json())
    else:
        print(render(report))
    # After printing, so that a full disk does not cost the result.
    if options.output is not None:
        write_report(options.output, report.to_json())
    for level in report.levels:
        for text in (*level.problems, *level.failures):
            print(f"tritonstack load: {level.arrival.label}: {text}", file=sys.stderr)
    if report.interrupted:
        return 130
    return 0 if report.ok else 1


def plan_of(options: argparse.Namespace) -> LoadPlan:
    """The plan that parsed flags describe; UsageError where they contradict each other."""
    _check_loop(options)
    from tritonstack.load.plan import LoadPlan

    shapes = dict(options.shape or ())
    if len(shapes) < len(options.shape or ()):
        raise UsageError("--shape names an input twice", given=", ".join(name for name, _ in options.shape))
    return LoadPlan(
        model=options.model,
        arrivals=_arrivals(options),
        url=options.url,
        protocol=options.protocol,
        version=options.version,
        duration_s=options.duration if options.duration or options.requests else 10.0,
        requests=options.requests,
        warmup_s=options.warmup,
        batch=options.batch,
        inputs=_source(options),
        shapes=shapes,
        seed=options.seed,
        timeout_s=options.timeout,
        max_in_flight=options.max_in_flight,
        max_lag_s=0.010 if options.max_lag is None else options.max_lag / 1e3,
        max_error_rate=options.max_error_rate,
    )


def _check_loop(options: argparse.Namespace) -> None:
    if (options.concurrency is None) == (options.rate is None):
        given = "both" if options.rate is not None else "neither"
        raise UsageError("one kind of load is needed", given=given, expected="either --concurrency or --rate")
    if options.rate is None:
        for flag in ("arrival", "max_in_flight", "max_lag"):
            if getattr(options, flag) is not None:
                raise UsageError(f"--{flag.replace('_', '-')} belongs to an open loop", expected="--rate beside it")


def _arrivals(options: argparse.Namespace) -> tuple[Arrival, ...]:
    from tritonstack.load.arrival import ClosedLoop, OpenLoop

    if options.concurrency is not None:
        return tuple(ClosedLoop(count) for count in options.concurrency)
    return tuple(OpenLoop(rate, options.arrival or "poisson") for rate in options.rate)


def _source(options: argparse.Namespace) -> InputSource:
    from tritonstack.load.inputs import (
        ArrayInputs,
        ImageInputs,
        RandomInputs,
        ZeroInputs,
        find_images,
        load_npy,
        load_npz,
    )

    kinds = {"--input": options.input, "--data": options.data, "--image": options.image, "--zero": options.zero}
    given = [flag for flag, value in kinds.items() if value]
    if len(given) > 1:
        raise UsageError("the inputs have one source", given=" and ".join(given), expected="one of them")
    if options.shape and given and given != ["--zero"]:
        raise UsageError(f"--shape describes generated inputs, but {given[0]} brings its own shapes")
    if options.input:
        arrays = dict(options.input)
        if len(arrays) < len(options.input):
            raise UsageError("--input names an input twice", given=", ".join(name for name, _ in options.input))
        files = ", ".join(path.name for path in arrays.values())
        return ArrayInputs({name: load_npy(path) for name, path in arrays.items()}, origin=f"from {files}")
    if options.data:
        return ArrayInputs(load_npz(options.data), origin=f"from {options.data.name}")
    if options.image:
        return ImageInputs(tuple(picture for path in options.image for picture in find_images(path)))
    return ZeroInputs() if options.zero else RandomInputs(options.seed)


def _several(one: Callable[[str], float]) -> Callable[[str], tuple[float, ...]]:
    def parse(text: str) -> tuple[float, ...]:
        return tuple(one(part.strip()) for part in text.split(","))

    return parse


def _number(above: float, *, may_equal: bool = False) -> Callable[[str], float]:
    allowed = f"a number {'from' if may_equal else 'above'} {above:g}{' up' if may_equal else ''}"

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < above or (value == above and not may_equal):
            raise argparse.ArgumentTypeError(f"given {text!r}; expected {allowed}")
        return value

    return parse


def _fraction(text: str) -> float:
    value = _number(0, may_equal=True)(text)
    if value > 1:
        raise argparse.ArgumentTypeError(f"given {text!r}; expected a fraction from 0 to 1, such as 0.01")
    return value


def _input_file(text: str) -> tuple[str, Path]:
    name, mark, path = text.partition("=@")
    if not name or not mark or not path:
        raise argparse.ArgumentTypeError(f"given {text!r}; expected NAME=@FILE.npy")
    return name, Path(path)


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, mark, dims = text.rpartition(":")
    parts = dims.split("x") if dims else []
    if not name or not mark or not all(part.isascii() and part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"given {text!r}; expected NAME:DxD, such as ids:128 or image:3x224x224")
    return name, tuple(map(int, parts))
