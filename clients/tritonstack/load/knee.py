"""The highest rate whose objective holds: bracketing, then bisection, each rate judged by a sequential test.

A request breaks a latency objective such as ``p99<50ms`` when its latency from the scheduled moment is above 50 ms or
when it failed; the objective holds where the share of such requests is at most 1 %. After each window of a rate an
interval for that share is taken (Clopper and Pearson on the effective number of requests); as in LoadGen's early
stopping, a rate holds once the whole interval lies below 1 %, breaks once it lies above, and is measured further
otherwise. Look number i may err with ALPHA / (i (i + 1)), which adds up to ALPHA for independent requests
however often one looks. Requests that queue together are not independent: their number is divided by the design
effect of the share over the seconds of the windows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tritonstack.errors import UsageError
from tritonstack.load.curve import CurvePoint, curve_point
from tritonstack.load.interval import share_interval
from tritonstack.load.measurement import lag_allowed_us
from tritonstack.load.objective import Condition
from tritonstack.load.saved_report import SavedLevel

ALPHA = 0.05
"""The level of the verdict about one rate; a bound on its error for independent requests, which queued ones are not."""
MOST_LOOKS = 5
SHORTEST_S = 4.0
"""Enough seconds to see in them how much requests hang together."""
LONGEST_S = 30.0
WINDOWS_TO_HOLD = 2
"""Near the knee, where a queue may happen to stay short for some seconds."""
ANSWERED_SHARE = 0.9
"""Where less of the offered rate is answered within the window, the server has fallen behind for good."""

Verdict = Literal["holds", "breaks", "undecided", "thin", "generator", "interrupted"]
Measure = Callable[[float, float], SavedLevel]
"""Runs one window: (rate in requests per second, seconds) -> the level. It raises for a server that is gone."""


@dataclass(frozen=True)
class KneeQuestion:
    """What is searched. `start_rate` is the first rate tried, `precision` the width of the final bracket as a share,
    `budget_s` the wall time after which no new window begins."""

    objectives: tuple[Condition, ...]
    start_rate: float
    precision: float = 0.05
    budget_s: float = 300.0
    max_error_rate: float = 0.0
    max_lag_s: float = 0.010

    def __post_init__(self) -> None:
        require_shares(self.objectives)


def require_shares(objectives: Sequence[Condition]) -> None:
    """Refuse objectives that no share of requests decides. Raises UsageError."""
    for objective in objectives:
        if objective.percent is None and objective.metric != "errors":
            raise UsageError(
                f"argument --find-knee: {objective.text!r} cannot be searched for",
                expected="objectives of percentiles or errors, such as p99<50ms or errors<1%",
            )


@dataclass(frozen=True)
class Probe:
    """One rate and what was found about it."""

    rate: float
    verdict: Verdict
    reason: str
    windows: int
    requests: int
    point: CurvePoint

    def to_json(self) -> dict[str, Any]:
        return {
            "rate": self.rate,
            "verdict": self.verdict,
            "reason": self.reason,
            "windows": self.windows,
            "requests": self.requests,
            "point": self.point.to_json(),
        }


@dataclass(frozen=True)
class Knee:
    """The answer. `rate` is the highest that was shown to hold (None: none was, or the generator was the limit) and
    the knee lies in `interval`, whose upper end is None where nothing above was shown to break; `called` is False
    where the search ended without a bracket as narrow as asked. `limited_by` says what broke above."""

    rate: float | None
    interval: tuple[float, float | None]
    called: bool
    limited_by: str
    probes: tuple[Probe, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "rate": self.rate,
            "interval": list(self.interval),
            "called": self.called,
            "limited_by": self.limited_by,
            "alpha": ALPHA,
            "notes": list(self.notes),
            "probes": [probe.to_json() for probe in self.probes],
        }


@dataclass
class _Evidence:
    """Counts over the windows of one rate, per objective."""

    requests: int = 0
    bad: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, list[tuple[int, float]]] = field(default_factory=dict)

    def add(self, level: SavedLevel, objectives: Sequence[Condition]) -> None:
        counts = level.body["counts"]
        errors = int(counts["errors"])
        missing = int(counts["unsent"]) + int(counts["abandoned"])
        total = int(counts["measured"]) + missing
        self.requests += total
        for objective in objectives:
            bad = errors + missing
            if objective.is_latency:
                bad += level.distribution.count - level.distribution.within(objective.value)
                self.seconds.setdefault(objective.text, []).extend(_slow_shares(level.series, objective.value))
            self.bad[objective.text] = self.bad.get(objective.text, 0) + bad

    def interval(self, objective: Condition, alpha: float) -> tuple[float, float]:
        n, k = self.requests, self.bad.get(objective.text, 0)
        effect = _share_effect(self.seconds.get(objective.text, []), k / n if n else 0.0)
        return share_interval(k / effect, n / effect, 1 - 2 * alpha)


def find_knee(
    question: KneeQuestion,
    measure: Measure,
    *,
    clock: Callable[[], float],
    stopped: Callable[[], bool] = lambda: False,
    tell: Callable[[str], None] = lambda text: None,
) -> Knee:
    """Search. `clock` tells seconds, `stopped` whether the user wants to end, `tell` is told what goes on."""
    end_s = clock() + question.budget_s
    probes: list[Probe] = []
    low: Probe | None = None
    high: Probe | None = None
    rate = question.start_rate
    notes: list[str] = []
    while True:
        if clock() + SHORTEST_S / 2 >= end_s:
            notes.append(f"the budget of {question.budget_s:g} s was spent")
            break
        probe = _probe(question, rate, measure, end_s, clock, stopped, bracketing=high is None)
        probes.append(probe)
        tell(f"{rate:.4g}/s {probe.verdict}: {probe.reason}")
        if probe.verdict == "interrupted":
            notes.append("interrupted")
            break
        if probe.verdict == "undecided" and clock() + SHORTEST_S / 2 >= end_s:
            notes.append(f"the budget of {question.budget_s:g} s was spent before {rate:.4g}/s was decided")
            break
        if probe.verdict == "thin":
            # So few requests that not even a perfect rate could be shown to hold: a higher one may.
            rate *= 2
            continue
        if probe.verdict == "holds":
            low = probe
        else:
            high = probe
        if low is not None and high is not None and high.rate <= low.rate:
            # What broke counts, and what held at that rate or above it, in passing or by chance, does not.
            notes.append(f"{low.rate:.4g}/s held although {high.rate:.4g}/s did not: the server's speed varies")
            low = max((p for p in probes if p.verdict == "holds" and p.rate < high.rate), key=_rate, default=None)
        if low is None:
            if rate < question.start_rate / 1e4 or rate < 0.05:
                break
            rate /= 2
        elif high is None:
            rate *= 2
        elif high.rate / low.rate <= 1 + question.precision:
            if low.windows >= WINDOWS_TO_HOLD:
                break
            # It held in passing, while the bracket was sought: once more before it is the answer.
            rate = low.rate
        else:
            rate = math.sqrt(low.rate * high.rate)
    return _answer(question, low, high, probes, notes)


def _rate(probe: Probe) -> float:
    return probe.rate


def _answer(
    question: KneeQuestion, low: Probe | None, high: Probe | None, probes: Sequence[Probe], notes: list[str]
) -> Knee:
    narrow = low is not None and high is not None and high.rate / low.rate <= 1 + question.precision
    by_generator = high is not None and high.verdict == "generator"
    if high is None:
        limited = "nothing broke up to the last rate tried"
    elif by_generator:
        limited = f"the generator, not the server: {high.reason}"
    else:
        limited = high.reason
    if by_generator:
        notes.append("no knee is called: the rates above were limited by the generator (more --workers, a larger host)")
    elif high is not None and high.verdict == "undecided":
        notes.append(f"{high.rate:.4g}/s was neither shown to hold nor to break and counts as not holding")
    bottom = low.rate if low is not None else 0.0
    top = high.rate if high is not None and not by_generator else None
    return Knee(
        rate=low.rate if low is not None and not by_generator else None,
        interval=(bottom, top),
        called=narrow and not by_generator,
        limited_by=limited,
        probes=tuple(probes),
        notes=tuple(notes),
    )


def window_s(question: KneeQuestion, rate: float) -> float:
    """How long one window of `rate` lasts in seconds: enough for a rate without any bad request to hold."""
    strictest = min(_allowed(objective) for objective in question.objectives)
    enough = 1.2 * math.log(2 / ALPHA) / max(strictest, 1e-4)
    return min(max(enough / rate, SHORTEST_S), LONGEST_S)


def _allowed(objective: Condition) -> float:
    """The share of requests that may break it."""
    return objective.value if objective.percent is None else 1 - objective.percent / 100


def _probe(
    question: KneeQuestion,
    rate: float,
    measure: Measure,
    end_s: float,
    clock: Callable[[], float],
    stopped: Callable[[], bool],
    *,
    bracketing: bool,
) -> Probe:
    """Judge one rate. While `bracketing`, nothing above has broken yet: one clear window is enough to go higher."""
    evidence = _Evidence()
    for look in range(1, MOST_LOOKS + 1):
        left_s = max(end_s - clock(), SHORTEST_S / 2)
        level = measure(rate, min(window_s(question, rate), left_s))
        evidence.add(level, question.objectives)

        def ended(verdict: Verdict, reason: str, level: SavedLevel = level, look: int = look) -> Probe:
            return Probe(rate, verdict, reason, look, evidence.requests, curve_point(level, verdict))

        if level.body["interrupted"] or stopped():
            return ended("interrupted", "interrupted")
        if reason := generator_limit(level.body, question.max_lag_s):
            return ended("generator", reason)
        answered = level.body["requests_per_s"]
        # Below some hundred requests the count itself varies that much.
        if answered < ANSWERED_SHARE * rate and rate * level.body["window_s"] > 400:
            return ended("breaks", f"only {answered:.1f}/s of {rate:.4g}/s were answered")
        alpha = ALPHA / (look * (look + 1))
        found = [(o, _allowed(o), *evidence.interval(o, alpha)) for o in question.objectives]
        broken = next(((o, a, low) for o, a, low, _ in found if low > a), None)
        if broken is not None:
            objective, allowed, low = broken
            least = f"at least {_share(low)} of the requests are beyond it"
            return ended("breaks", f"{objective.text}: {least}, {_share(allowed)} allowed")
        enough = bracketing or look >= WINDOWS_TO_HOLD
        if enough and all(high <= allowed for _, allowed, _, high in found):
            objective, _, _, high = max(found, key=lambda entry: entry[3] / max(entry[1], 1e-12))
            return ended("holds", f"{objective.text}: at most {_share(high)} of the requests are beyond it")
        if bracketing and not any(evidence.bad.values()):
            return ended("thin", f"no bad one among {evidence.requests} requests, too few to show that it holds")
        if clock() + SHORTEST_S / 2 >= end_s or look == MOST_LOOKS:
            return ended("undecided", f"after {look} window{'s' if look > 1 else ''} neither side is shown")
    raise AssertionError("unreachable")


def _share(value: float) -> str:
    return f"{100 * value:.3g} %"


def generator_limit(level: Mapping[str, Any], max_lag_s: float) -> str:
    """Why this level was limited by the generator, empty where it was not."""
    lag, latency = level.get("lag"), level["latency"]
    if level.get("lost_workers"):
        return "a worker of the generator was lost"
    if lag and lag["p99_us"] is not None and lag["p99_us"] > lag_allowed_us(max_lag_s, latency["p99_us"]):
        return f"p99 of its own lag is {lag['p99_us'] / 1e3:.1f} ms"
    busy = [worker.get("loop_busy") or 0.0 for worker in level.get("workers") or ()]
    busy.append((level.get("generator") or {}).get("loop_busy") or 0.0)
    if max(busy) > 0.95:
        return f"a worker of the generator was busy {100 * max(busy):.0f} % of the time"
    return ""


def _slow_shares(series: Sequence[Mapping[str, Any]], limit_us: float) -> list[tuple[int, float]]:
    """(requests, share beyond the limit) of each second, as its p50, p99 and maximum tell."""
    found = []
    for second in series:
        count = int(second["completed"])
        if not count or second.get("p50_us") is None:
            continue
        p50, p99, most = second["p50_us"], second["p99_us"], second["max_us"]
        if most <= limit_us:
            share = 0.0
        elif p99 <= limit_us:
            share = min(0.5 / count, 0.01)
        elif p50 <= limit_us:
            # Between the two percentiles the tail is taken as exponential.
            share = 0.5 * 0.02 ** ((limit_us - p50) / max(p99 - p50, 1e-9))
        else:
            share = min(0.5 + 0.5 * (p50 - limit_us) / p50, 1.0)
        found.append((count, share))
    return found


def _share_effect(seconds: Sequence[tuple[int, float]], share: float) -> float:
    """How much more the shares of the seconds vary than those of independent requests; at least 1."""
    if len(seconds) < 4 or not 0 < share < 1:
        return 1.0
    typical = float(np.mean([count for count, _ in seconds]))
    seen = float(np.var([found for _, found in seconds], ddof=1))
    return max(1.0, seen * typical / (share * (1 - share)))
