"""Whether a run can be believed, whether it kept its limits, and what else its reader should know."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tritonstack.load.arrival import OpenLoop
from tritonstack.load.measurement import BACKLOG_GRACE_S, Measurement, lag_allowed_us
from tritonstack.load.plan import LoadPlan
from tritonstack.load.report import ServerBreakdown
from tritonstack.terminal import human_seconds

BUSY_SHARE = 0.9
"""From this share of the window on, a worker's thread may be what limits the rate."""
OVERLOAD_SHARE = 0.05
"""Where more than this share of the scheduled requests has no answer inside the window, the server was overloaded."""


@dataclass(frozen=True)
class Verdict:
    """`problems` make a run invalid, `failures` are broken limits, `notes` the rest."""

    problems: tuple[str, ...]
    failures: tuple[str, ...]
    notes: tuple[str, ...]


def judge(
    plan: LoadPlan, arrival: OpenLoop | None, result: Measurement, server: ServerBreakdown, max_in_flight: int | None
) -> Verdict:
    """Judge one run. `arrival` is None for a closed loop."""
    tally = result.tally
    problems: list[str] = []
    failures: list[str] = []
    notes: list[str] = []
    for worker in result.lost:
        problems.append(f"worker {worker.pid} on {worker.host} was lost ({worker.reason}), and its requests with it")
    if tally.measured == 0:
        (notes if result.interrupted else problems).append("no request ended inside the measured window")
    elif tally.latency.count == 0:
        problems.append("no request succeeded")
    if result.abandoned:
        problems.append(f"{_requests(result.abandoned)} outlived the deadline and had to be given up")
    if arrival is not None:
        problems += _late_generator(plan, result)
        if tally.unsent and not result.interrupted:
            problems.append(
                f"{_requests(tally.unsent)} scheduled but never sent: all {max_in_flight} places stayed taken "
                f"for {BACKLOG_GRACE_S:g} s after the window, so the slowest requests are missing from the latencies"
            )
        notes += _open_loop_notes(plan, arrival, result, max_in_flight)
    elif tally.drained_longest_s * 1e6 > tally.latency.max_us > 0:
        notes.append(
            f"a request still running at the end of the window took {human_seconds(tally.drained_longest_s)}, longer "
            "than any that was measured"
        )
    # What was taken back on purpose is neither a success nor a failure.
    measured, failed = tally.measured - tally.cancelled, tally.measured_errors - tally.cancelled
    if measured and failed / measured > plan.max_error_rate:
        failures.append(
            f"{failed} of {_requests(measured)} failed "
            f"({100 * failed / measured:.3g} %, allowed {100 * plan.max_error_rate:g} %)"
        )
    if result.window_s > 0 and result.loop_busy_s > BUSY_SHARE * result.window_s:
        notes.append(
            f"a worker of the generator was busy {100 * result.loop_busy_s / result.window_s:.0f} % of the time: the "
            "rate may be its limit rather than the server's (more --workers)"
        )
    if not server.readable:
        notes.append("the server's own times are missing: it did not hand out its statistics")
    if server.other_inferences:
        notes.append(f"the server ran at least {server.other_inferences} inferences of this model for other clients")
    for entry in server.models:
        if entry.reset:
            notes.append(f"{entry.model} version {entry.version} was loaded anew during the run")
    return Verdict(tuple(problems), tuple(failures), tuple(notes))


def _requests(count: int) -> str:
    return f"{count} request{'s' if count != 1 else ''}"


def _late_generator(plan: LoadPlan, result: Measurement) -> list[str]:
    lag_us = result.tally.lag.percentile_us(99)
    latency_us = result.tally.latency.percentile_us(99)
    if lag_us is None or lag_us <= lag_allowed_us(plan.max_lag_s, latency_us):
        return []
    return [
        f"the generator could not keep up: p99 of its own lag is {human_seconds(lag_us / 1e6)} (allowed "
        f"{human_seconds(plan.max_lag_s)}), so the latencies are partly its own; lower the rate or free CPU"
    ]


def _open_loop_notes(plan: LoadPlan, arrival: OpenLoop, result: Measurement, max_in_flight: int | None) -> list[str]:
    tally = result.tally
    notes = []
    if tally.limit_hits:
        notes.append(
            f"{_requests(tally.limit_hits)} had to wait for one of {max_in_flight} places in flight; the wait is part "
            "of the latency"
        )
    scheduled = tally.measured + tally.unsent + result.abandoned
    # Where the warm-up was shorter than a request of the unloaded server, the first answers are late by the rest of it
    # (twice, as the fastest request of all is a little faster than the usual one).
    filling = arrival.rate * max(2 * tally.fastest_s - plan.warmup_s, 0.0)
    missing = scheduled - tally.ended_in_window - filling
    # Two standard deviations of a Poisson count keep short runs from being called overloaded by chance.
    overloaded = missing > max(OVERLOAD_SHARE * scheduled, 2 * math.sqrt(scheduled))
    if overloaded and result.window_s > 0 and not result.interrupted:
        notes.append(
            f"{tally.ended_in_window / result.window_s:.1f}/s were answered of the {arrival.rate:g}/s asked: where the "
            "server is overloaded, latencies grow with the length of the run"
        )
    return notes
