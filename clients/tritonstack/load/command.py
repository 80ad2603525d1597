"""`tritonstack load`: flags to a plan, a report to the screen and to files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tritonstack.arguments import require_output_file
from tritonstack.errors import UsageError
from tritonstack.load.flags import flag_of, given_flags, parser

if TYPE_CHECKING:
    from tritonstack.client.endpoint import TlsOptions
    from tritonstack.load.arrival import Arrival
    from tritonstack.load.inputs import InputSource
    from tritonstack.load.objective import Condition
    from tritonstack.load.plan import LoadPlan
    from tritonstack.load.report import LoadReport
    from tritonstack.load.saved_report import SavedReport
    from tritonstack.load.schedule import GapKind
    from tritonstack.load.server_metrics import MetricsAddress
    from tritonstack.load.stability import StabilityRule

FILES = ("output", "html", "csv", "prometheus")
BUDGET_S = 300.0
DEFAULT_DURATION_S = 10.0
DEFAULT_BURSTINESS = 2.0
LOADS = ("concurrency", "rate", "ramp", "profile", "trace")
"""The ways to say how requests come; one of them is needed."""


def main(argv: list[str]) -> int:
    """Run the command; returns its exit code."""
    if argv[:1] == ["compare"]:
        from tritonstack.load.compare_command import main as compare

        return compare(argv[1:])
    options = parser().parse_args(argv)
    for name in FILES:
        require_output_file(flag_of(name), getattr(options, name))
    check_modes(options)
    slo, gates = conditions(options)
    if options.find_knee:
        from tritonstack.load.knee import require_shares

        require_shares(slo)
    plan = plan_of(options)
    space, rule = _space(options), stability_of(options)
    baseline = _baseline(options)
    metrics = metrics_of(options, plan)

    from dataclasses import replace

    from tritonstack.load.live import LiveLine, Nothing
    from tritonstack.load.study import KneeOptions, Study

    study = Study(
        plan,
        display=Nothing() if options.quiet else LiveLine(),
        metrics=metrics,
        slo=slo,
        stability=rule,
        command=("tritonstack", "load", *argv),
    )
    budget_s = options.budget or BUDGET_S
    with study:
        if options.find_knee:
            report = study.knee(KneeOptions(options.precision or 0.05, options.start_rate, budget_s))
        elif space is not None:
            report = study.sweep(space, budget_s)
        else:
            report = study.measure()
    report = replace(
        report, gates=tuple(gate.text for gate in gates), broken_gates=tuple(broken(report, gates, baseline))
    )
    return deliver(report, options)


def deliver(report: LoadReport, options: argparse.Namespace) -> int:
    """Print and write the report; returns the exit code."""
    from tritonstack.load.report import write_text
    from tritonstack.load.saved_report import SavedReport
    from tritonstack.load.table import render
    from tritonstack.terminal import print_json

    body = report.to_json()
    if options.json:
        print_json(body)
    else:
        print(render(report))
    # After printing, so that a full disk does not cost the result.
    saved = SavedReport("this run", body)
    for name in FILES:
        path: Path | None = getattr(options, name)
        if path is not None:
            write_text(path, _renderer(name)(saved))
    # Beyond a knee things are there to break, and a table of them says so.
    for level in report.levels if report.knee is None and report.sweep is None else ():
        for text in (*level.problems, *level.failures):
            print(f"tritonstack load: {level.arrival.label}: {text}", file=sys.stderr)
    for text in report.broken_gates:
        print(f"tritonstack load: gate broken: {text}", file=sys.stderr)
    if report.knee is not None and report.knee.rate is None:
        print(f"tritonstack load: no knee: {report.knee.limited_by}", file=sys.stderr)
    if report.interrupted:
        return 130
    return 0 if report.ok else 1


def _renderer(name: str) -> Callable[[SavedReport], str]:
    if name == "html":
        from tritonstack.load.html_report import render_html

        return render_html
    if name == "csv":
        from tritonstack.load.csv_report import render_csv

        return render_csv
    if name == "prometheus":
        from tritonstack.load.prometheus_text import render_prometheus

        return render_prometheus
    from tritonstack.load.report import json_text

    return lambda report: json_text(report.body)


def conditions(options: argparse.Namespace) -> tuple[tuple[Condition, ...], tuple[Condition, ...]]:
    """The objectives and the gates. Raises UsageError."""
    from tritonstack.load.gate import require_no_baseline
    from tritonstack.load.objective import parse_gates, parse_objectives

    slo = tuple(one for text in options.slo or () for one in parse_objectives(text))
    gates = tuple(one for text in options.fail_if or () for one in parse_gates(text))
    if any(gate.metric == "goodput" for gate in gates) and not any(one.is_latency for one in slo):
        raise UsageError("a gate on the goodput needs an objective", next_step="add --slo such as p99<50ms")
    if options.baseline is None:
        require_no_baseline(gates)
    elif not gates:
        raise UsageError("--baseline is for gates that compare with it", expected="--fail-if beside it")
    return slo, gates


def _baseline(options: argparse.Namespace) -> SavedReport | None:
    if options.baseline is None:
        return None
    from tritonstack.load.saved_report import read_report

    return read_report(options.baseline)


def broken(report: LoadReport, gates: tuple[Condition, ...], baseline: SavedReport | None) -> list[str]:
    """The gates that the report breaks, in words."""
    from tritonstack.load.compare import compare
    from tritonstack.load.gate import broken_gates
    from tritonstack.load.saved_report import SavedReport

    if not gates:
        return []
    saved = SavedReport("this run", report.to_json())
    if baseline is None:
        return [str(gate) for gate in broken_gates(saved, gates)]
    return [str(gate) for gate in compare(baseline, saved, gates=gates).broken]


def check_modes(options: argparse.Namespace) -> None:
    """Refuse flags that contradict each other."""
    loads = given_flags(options, LOADS)
    if options.find_knee and options.sweep:
        raise UsageError("--find-knee and --sweep are two different searches", expected="one of them")
    if options.find_knee:
        _check_knee(options, loads)
    else:
        for name in ("precision", "start_rate"):
            if getattr(options, name) is not None:
                raise UsageError(f"{flag_of(name)} belongs to a search for the knee", expected="--find-knee beside it")
    if options.budget is not None and not (options.find_knee or options.sweep):
        raise UsageError("--budget bounds a search", expected="--find-knee or --sweep beside it")
    if not options.find_knee and not options.sweep and len(loads) != 1:
        given = " and ".join(loads) or "neither"
        raise UsageError(
            "one kind of load is needed",
            given=given,
            expected="either --concurrency or --rate (or --ramp, --profile, --trace)",
        )
    is_open = options.find_knee or (options.sweep and "rate" in options.sweep) or loads not in ([], ["--concurrency"])
    if not is_open:
        for name in ("arrival", "max_in_flight", "max_lag"):
            if getattr(options, name) is not None:
                raise UsageError(f"{flag_of(name)} belongs to an open loop", expected="--rate beside it")
    if options.burstiness is not None and options.arrival != "gamma":
        raise UsageError("--burstiness is of gamma gaps", expected="--arrival gamma beside it")
    if options.speed is not None and options.trace is None:
        raise UsageError("--speed is of a trace", expected="--trace beside it")
    if options.trace is not None and options.arrival is not None:
        raise UsageError("a trace brings its own gaps", given=f"--arrival {options.arrival}")
    if options.profile is not None and options.duration is not None:
        raise UsageError("a profile brings its own times", given=f"--duration {options.duration:g}")
    if options.expected is not None and options.validate in ("recorded", "off"):
        raise UsageError("--expected is what answers are compared with", given=f"--validate {options.validate}")
    if options.stability is None:
        for name in ("window", "max_windows", "stability_latency"):
            if getattr(options, name) is not None:
                raise UsageError(f"{flag_of(name)} belongs to the stability rule", expected="--stability beside it")
    else:
        for name in ("duration", "requests", "find_knee", "sweep", "ramp", "profile", "trace"):
            if getattr(options, name):
                raise UsageError(f"--stability decides how long is measured, and so does {flag_of(name)}")


def _check_knee(options: argparse.Namespace, loads: list[str]) -> None:
    if not options.slo:
        raise UsageError("--find-knee needs an objective", expected="--slo such as p99<50ms beside it")
    for flag in (*loads, *given_flags(options, ("duration", "requests"))):
        raise UsageError(f"--find-knee chooses its own rates and windows; {flag} has no place beside it")


def stability_of(options: argparse.Namespace) -> StabilityRule | None:
    """The rule that --stability asks for, None for a fixed duration."""
    if options.stability is None:
        return None
    from tritonstack.load.stability import StabilityRule

    return StabilityRule(
        options.stability / 100, options.window or 5.0, options.max_windows or 10, options.stability_latency
    )


def _space(options: argparse.Namespace) -> dict[str, tuple[float, ...]] | None:
    if options.sweep is None:
        return None
    from tritonstack.load.sweep_space import parse_space

    space = parse_space(options.sweep)
    swept = [name for name in ("concurrency", "rate") if name in space]
    given = given_flags(options, ("concurrency", "rate"))
    if swept and given:
        raise UsageError(f"the sweep brings its own {swept[0]}, and {given[0]} another load", expected="one of them")
    loads = options.concurrency or options.rate
    if not swept and (loads is None or len(loads) != 1):
        raise UsageError(
            "a sweep needs one kind of load",
            expected="concurrency=… or rate=… in --sweep, or one --concurrency or --rate",
        )
    if "batch" in space and options.batch != 1:
        raise UsageError("the sweep brings its own batch", given=f"--batch {options.batch} and --sweep {options.sweep}")
    return space


def metrics_of(options: argparse.Namespace, plan: LoadPlan) -> MetricsAddress | None:
    """Where the server's metrics are read, None where they shall not be."""
    from tritonstack.client.endpoint import parse_endpoint
    from tritonstack.load.server_metrics import metrics_address

    if options.metrics_url == "none":
        return None
    return metrics_address(options.metrics_url, parse_endpoint(plan.url, protocol=plan.protocol))


def plan_of(options: argparse.Namespace) -> LoadPlan:
    """The plan that parsed flags describe; UsageError where they contradict each other."""
    from tritonstack.load.arrival import OpenLoop
    from tritonstack.load.conversation import conversation_of
    from tritonstack.load.inputs import load_npz
    from tritonstack.load.plan import LoadPlan

    arrivals = _arrivals(options)
    duration_s = options.duration or (None if options.requests else DEFAULT_DURATION_S)
    if options.profile is not None or (options.trace is not None and options.duration is None):
        duration_s = max(arrival.schedule.duration_s or 0.0 for arrival in arrivals if isinstance(arrival, OpenLoop))
    shapes = dict(options.shape or ())
    if len(shapes) < len(options.shape or ()):
        raise UsageError("--shape names an input twice", given=", ".join(name for name, _ in options.shape))
    return LoadPlan(
        model=options.model,
        arrivals=arrivals,
        url=options.url,
        protocol=options.protocol,
        version=options.version,
        duration_s=duration_s,
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
        workers=options.workers,
        connections=options.connections,
        transport=options.transport,
        shared_memory=options.shared_memory,
        json_body=options.json_body,
        pool=options.pool,
        validate=options.validate or "expected",
        expected={} if options.expected is None else load_npz(options.expected),
        rtol=options.rtol,
        atol=options.atol,
        nan_equal=options.nan_equal,
        tls=_tls(options),
        headers=dict(options.header or ()),
        conversation=conversation_of(options),
        priority=options.priority or 0,
        queue_timeout_us=options.queue_timeout,
        parameters=dict(options.parameter or ()),
    )


def _tls(options: argparse.Namespace) -> TlsOptions | None:
    from tritonstack.client.endpoint import TlsOptions

    if (options.certificate_file is None) != (options.key_file is None):
        raise UsageError("a certificate and its key belong together", expected="--certificate-file and --key-file")
    if options.ca_file is None and options.certificate_file is None:
        return None
    return TlsOptions(options.ca_file, options.certificate_file, options.key_file)


def _arrivals(options: argparse.Namespace) -> tuple[Arrival, ...]:
    from tritonstack.load.arrival import ClosedLoop, OpenLoop

    if options.concurrency is not None:
        return tuple(ClosedLoop(count) for count in options.concurrency)
    if options.trace is not None:
        from tritonstack.load.trace import read_trace

        return (OpenLoop.following(read_trace(options.trace).schedule(speed=options.speed or 1.0)),)
    kind: GapKind = options.arrival or "poisson"
    burstiness = 1.0
    if kind == "gamma":
        burstiness = options.burstiness or DEFAULT_BURSTINESS
    if options.ramp is not None or options.profile is not None:
        from tritonstack.load.rate_profile import RateProfile
        from tritonstack.load.schedule import Gaps, Timetable

        if options.ramp is not None:
            first, last = options.ramp
            profile = RateProfile.ramp(first, last, options.duration or DEFAULT_DURATION_S)
        else:
            profile = RateProfile.steps(options.profile)
        return (OpenLoop.following(Timetable(profile, Gaps(kind, burstiness))),)
    # Searches put their own rates in its place; only the kind of gaps stays.
    rates = options.rate if options.rate is not None else (1.0,)
    return tuple(OpenLoop(rate, kind, burstiness) for rate in rates)


def _source(options: argparse.Namespace) -> InputSource:
    from tritonstack.load.inputs import (
        ArrayInputs,
        ImageInputs,
        JsonlInputs,
        RandomInputs,
        TextInputs,
        ZeroInputs,
        find_images,
        load_npy,
        load_npz,
        load_texts,
    )

    kinds = {flag_of(name): getattr(options, name) for name in ("input", "data", "image", "text", "jsonl", "zero")}
    given = [flag for flag, value in kinds.items() if value]
    if len(given) > 1:
        raise UsageError("the inputs have one source", given=" and ".join(given), expected="one of them")
    if options.shape and given and given != ["--zero"]:
        raise UsageError(f"--shape describes generated inputs, but {given[0]} brings its own shapes")
    if options.range and given:
        raise UsageError(f"--range is of random values, and {given[0]} brings its own")
    if options.input:
        arrays = dict(options.input)
        if len(arrays) < len(options.input):
            raise UsageError("--input names an input twice", given=", ".join(name for name, _ in options.input))
        files = ", ".join(path.name for path in arrays.values())
        return ArrayInputs({name: load_npy(path) for name, path in arrays.items()}, origin=f"from {files}")
    if options.data is not None:
        return ArrayInputs(load_npz(options.data), origin=f"from {options.data.name}")
    if options.image:
        return ImageInputs(tuple(found for path in options.image for found in find_images(path)))
    if options.text is not None:
        return TextInputs(load_texts(options.text), origin=f"texts from {options.text.name}")
    if options.jsonl is not None:
        return JsonlInputs(options.jsonl)
    return ZeroInputs() if options.zero else RandomInputs(options.seed, dict(options.range or ()))
