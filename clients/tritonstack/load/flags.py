"""The flags of `tritonstack load`: a short help for the screen, a long one behind `--help-all`.

Nothing but argparse is imported here, so that help costs no more than starting Python.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tritonstack.arguments import Parser, some_path, whole_number

USAGE = """tritonstack load MODEL (--concurrency N[,N…] | --rate R[,R…] | --find-knee | --sweep SPACE) [options]
       tritonstack load compare BEFORE.json AFTER.json [options]"""
# One address has this many ports to connect from, and HTTP takes a connection per request in flight.
MAX_CONCURRENCY = 65535
MAX_WORKERS = 256
EPILOG = """exit codes: 0 valid and within the limits, 1 not (or no server, no model), 2 wrong usage, 130 interrupted
`tritonstack load --help-all` shows every flag; docs/load.md says how everything is counted"""


class _Group:
    """One group of flags. `add` shows a flag in both helps, `more` in the long one alone."""

    def __init__(self, parser: argparse.ArgumentParser, title: str, *, full: bool) -> None:
        self._group = parser.add_argument_group(title)
        self._full = full

    def add(self, *names: str, **options: Any) -> None:
        self._group.add_argument(*names, **options)

    def more(self, *names: str, **options: Any) -> None:
        if not self._full:
            options["help"] = argparse.SUPPRESS
        self._group.add_argument(*names, **options)


class _Show(argparse.Action):
    """A flag that prints `text()` and ends, as `--help` does."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, text: Callable[[], str], help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)
        self._text = text

    def __call__(self, parser: argparse.ArgumentParser, *rest: object) -> NoReturn:
        print(self._text(), end="")
        parser.exit()


def parser(*, full: bool = False) -> Parser:
    """The parser of `tritonstack load`. `full`: its help shows every flag."""
    top = Parser(
        prog="tritonstack load",
        usage=USAGE,
        epilog=EPILOG,
        description="Put a served model under load and measure it.",
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=26, width=108),
        add_help=False,
    )
    top.add_argument("model", metavar="MODEL", help=argparse.SUPPRESS)
    _add_load(_Group(top, "load", full=full))
    _add_search(_Group(top, "search", full=full))
    _add_requests(_Group(top, "requests", full=full))
    _add_server(_Group(top, "server and generator", full=full))
    _add_result(_Group(top, "result", full=full))
    return top


def _add_load(group: _Group) -> None:
    add, more = group.add, group.more
    add(
        "--concurrency",
        type=_several(whole_number(1, MAX_CONCURRENCY)),
        metavar="N[,N…]",
        help="closed loop: requests in flight",
    )
    add("--rate", type=_several(number(0)), metavar="R[,R…]", help="open loop: requests per second, by the clock")
    more("--ramp", metavar="FROM:TO", type=_ramp, help="open loop: from one rate to another over the duration")
    more("--profile", metavar="R:TIME,…", help="open loop: a rate for a time, such as 10:30s,50:30s")
    more("--trace", type=some_path, metavar="FILE", help="open loop: replay the times of a CSV or JSONL file")
    more("--speed", type=number(0), metavar="X", help="of a trace (default: 1, as recorded)")
    add("--arrival", choices=("poisson", "constant", "gamma"), metavar="KIND", help="poisson (default), constant or "
        "gamma gaps")  # fmt: skip
    more("--burstiness", type=number(0), metavar="CV", help="of gamma gaps: deviation / mean (default: 2)")
    add("--max-in-flight", type=whole_number(1, MAX_CONCURRENCY), metavar="N",
        help="bound of an open loop (default: 1024 or 512 MB)")  # fmt: skip
    add("--duration", type=number(0), metavar="S", help="seconds measured (default: 10, no limit with --requests)")
    add("--requests", type=whole_number(1), metavar="N", help="requests measured, if the time does not end first")
    add("--warmup", type=number(0, may_equal=True), metavar="S", default=2.0, help="seconds before it (default: 2)")
    more("--stability", type=number(0), metavar="PCT", help="measure until three windows in a row agree to PCT percent")
    more("--window", type=number(0), metavar="S", help="length of each (default: 5)")
    more("--max-windows", type=whole_number(3), metavar="N", help="at most (default: 10)")
    more("--stability-latency", type=_percentile, metavar="P", help="pNN that has to agree (default: mean)")


def _add_search(group: _Group) -> None:
    add, more = group.add, group.more
    add("--slo", action="append", metavar="OBJECTIVE", help="such as p99<50ms or errors<0.1%%; repeatable")
    add("--find-knee", action="store_true", help="find the highest rate that keeps every --slo")
    more("--precision", type=_percent, metavar="PCT", help="of the knee (default: 5%%)")
    more("--start-rate", type=number(0), metavar="R", help="first rate tried (default: found by a short closed loop)")
    add("--sweep", metavar="SPACE", help="such as concurrency=1:64:x2,instance_count=1,2: the best trade-offs")
    more("--budget", type=seconds, metavar="TIME", help="of a search in all, such as 300s or 10m (default: 300s)")


def _add_requests(group: _Group) -> None:
    add, more = group.add, group.more
    add("--batch", type=whole_number(1), metavar="B", default=1, help="samples per request (default: 1)")
    add("--input", action="append", type=_input_file, metavar="NAME=@FILE.npy", help="samples of one input; repeatable")
    add("--data", type=some_path, metavar="FILE.npz", help="samples of all inputs by name")
    add("--image", action="append", type=some_path, metavar="FILE|FOLDER",
        help="pictures, prepared as the model describes")  # fmt: skip
    more("--text", type=some_path, metavar="FILE", help="one text per line, for a model that takes BYTES")
    more("--jsonl", type=some_path, metavar="FILE", help="one whole request per line")
    more("--range", action="append", type=_range, metavar="NAME=LOW:HIGH", help="of random values, both included")
    add("--zero", action="store_true", help="zeros instead of random values (the default)")
    add("--shape", action="append", type=_shape, metavar="NAME:DxD", help="sizes of open dimensions, without the batch")
    more("--pool", type=whole_number(1), metavar="N", help="distinct requests (default: 16 or 64 MB, of a file all)")
    more("--json-body", action="store_true", help="HTTP without raw tensors: everything in JSON")
    more("--expected", type=some_path, metavar="FILE.npz", help="the right outputs, sample by sample as the inputs")
    more("--validate", choices=("expected", "recorded", "off"), metavar="HOW", help="compare answers with the expected "
         "ones (default), with those recorded once before the run, or not (off)")  # fmt: skip
    more("--rtol", type=number(0, may_equal=True), metavar="R", default=0.0, help="allowed: atol + rtol * |expected|")
    more("--atol", type=number(0, may_equal=True), metavar="A", default=0.0, help="(default of both: 0)")
    more("--nan-equal", action="store_true", help="NaN is right where NaN is expected")
    more("--priority", type=whole_number(1), metavar="N", help="of every request, for models with priority levels")
    more(
        "--queue-timeout",
        type=whole_number(1),
        metavar="US",
        help="most microseconds in the queue, if its policy allows",
    )
    more("--parameter", action="append", type=_parameter, metavar="NAME=VALUE", help="of every request; repeatable")
    more("--stream", action="store_true", help="over gRPC streams, with any number of answers to a request")
    more("--sequences", type=whole_number(1), metavar="N", help="of a stateful model, so many at a time")
    more("--sequence-length", metavar="L", help="requests of each: 20 (default), 5-40, or ~20 on average")
    more("--text-ids", action="store_true", help="correlation ids are texts")
    more("--cancel", metavar="F@S", help="take a share F of the requests back S seconds after they were sent")
    add("--seed", type=whole_number(0), metavar="N", default=0, help="of values and Poisson gaps (default: 0)")


def _add_server(group: _Group) -> None:
    add, more = group.add, group.more
    add("--url", default="127.0.0.1", help="host:port, grpc://… or http://… (default: 127.0.0.1)")
    add("--protocol", choices=("grpc", "http"), metavar="P", help="grpc (default) or http where the URL is silent")
    add("--version", default="", metavar="V", help="model version (default: the server's choice)")
    more("--header", action="append", type=_header, metavar="NAME=VALUE", help="with every request; repeatable")
    more("--ca-file", type=some_path, metavar="PEM", help="certificates to trust, of an https:// or grpcs:// address")
    more("--certificate-file", type=some_path, metavar="PEM", help="the client's own certificate, for mutual TLS")
    more("--key-file", type=some_path, metavar="PEM", help="and its key")
    add("--timeout", type=number(0), metavar="S", default=30.0, help="of each request (default: 30)")
    add("--workers", type=whole_number(1, MAX_WORKERS), metavar="N", help="processes that send (default: as needed)")
    more("--connections", type=whole_number(1, MAX_CONCURRENCY), metavar="N", help="of a worker (default: 1, of HTTP "
         "one per request in flight)")  # fmt: skip
    more("--transport", choices=("auto", "h2", "grpcio", "http"), metavar="T", default="auto", help="h2: gRPC by own "
         "HTTP/2 framing, grpcio: with TLS, http: HTTP/1.1 (default: auto)")  # fmt: skip
    more("--shared-memory", choices=("none", "system", "cuda"), metavar="KIND", default="none", help="of inputs: none "
         "(default), system or cuda, on the server's host")  # fmt: skip
    more("--metrics-url", metavar="URL", help="Triton's metrics (default: beside the server's port; 'none': not read)")


def _add_result(group: _Group) -> None:
    add, more = group.add, group.more
    add("--max-error-rate", type=_fraction, metavar="F", default=0.0, help="fail above this fraction (default: 0)")
    add("--max-lag", type=number(0), metavar="MS", help="invalid where p99 of the own lag is above (default: 10)")
    add("--fail-if", action="append", metavar="GATES", help="such as p99>50ms,errors>0.1%%: exit code 1 then")
    more("--baseline", type=some_path, metavar="FILE", help="a report that gates such as throughput<-5%% compare with")
    add("--json", action="store_true", help="print the report as JSON")
    add("--output", type=some_path, metavar="FILE", help="also write the JSON report to a file")
    add("--html", type=some_path, metavar="FILE", help="also write a page to look at")
    more("--csv", type=some_path, metavar="FILE", help="also write one row per level")
    more("--prometheus", type=some_path, metavar="FILE", help="also write Prometheus' text format")
    add("--quiet", action="store_true", help="no live view")
    more("--schema", action=_Show, text=_schema, help="print the JSON Schema of the report")
    add("--help-all", action=_Show, text=lambda: parser(full=True).format_help(), help="show every flag")
    add("-h", "--help", action="help", help="show this help")


def _schema() -> str:
    import json

    from tritonstack.load.schema import report_schema

    return json.dumps(report_schema(), indent=2) + "\n"


def _several(one: Callable[[str], float]) -> Callable[[str], tuple[float, ...]]:
    def parse(text: str) -> tuple[float, ...]:
        return tuple(one(part.strip()) for part in text.split(","))

    return parse


def number(above: float, *, may_equal: bool = False) -> Callable[[str], float]:
    """An argparse `type` for finite numbers above (or from) `above`."""
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
    value = number(0, may_equal=True)(text)
    if value > 1:
        raise argparse.ArgumentTypeError(f"given {text!r}; expected a fraction from 0 to 1, such as 0.01")
    return value


def _percent(text: str) -> float:
    value = number(0)(text.removesuffix("%"))
    if value > 100:
        raise argparse.ArgumentTypeError(f"given {text!r}; expected above 0% and at most 100%")
    return value / 100


def seconds(text: str) -> float:
    """An argparse `type` for times: ``300``, ``300s``, ``10m``, ``1h``."""
    factor = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:], 0.0)
    try:
        return number(0)(text[:-1] if factor else text) * (factor or 1.0)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"given {text!r}; expected a time such as 300s or 10m") from None


def _percentile(text: str) -> float:
    value = number(0)(text.removeprefix("p"))
    if value >= 100:
        raise argparse.ArgumentTypeError(f"given {text!r}; expected a percentile below 100, such as p99")
    return value


def _ramp(text: str) -> tuple[float, float]:
    parts = text.split(":")
    if len(parts) != 2:
        raise argparse.ArgumentTypeError(f"given {text!r}; expected FROM:TO, such as 10:200")
    first, last = (number(0, may_equal=True)(part) for part in parts)
    return first, last


def _range(text: str) -> tuple[str, tuple[float, float]]:
    name, mark, limits = text.partition("=")
    low, colon, high = limits.partition(":")
    try:
        found = (float(low), float(high)) if name and mark and colon else None
    except ValueError:
        found = None
    if found is None or not (math.isfinite(found[0]) and math.isfinite(found[1]) and found[0] <= found[1]):
        raise argparse.ArgumentTypeError(f"given {text!r}; expected NAME=LOW:HIGH, such as ids=0:30521")
    return name, found


def _parameter(text: str) -> tuple[str, bool | int | float | str]:
    """A request parameter; true, false and numbers are what they look like, all else is text."""
    name, mark, value = text.partition("=")
    if not name or not mark:
        raise argparse.ArgumentTypeError(f"given {text!r}; expected NAME=VALUE")
    if value in ("true", "false"):
        return name, value == "true"
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


def _header(text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not name or not mark:
        raise argparse.ArgumentTypeError(f"given {text!r}; expected NAME=VALUE")
    return name, value


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


def flag_of(name: str) -> str:
    """``max_in_flight`` -> ``--max-in-flight``."""
    return f"--{name.replace('_', '-')}"


def given_flags(options: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Those of `names` that were given, as flags."""
    return [flag_of(name) for name in names if getattr(options, name) not in (None, False)]
