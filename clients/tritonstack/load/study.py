"""What is done with a plan: measure its levels once, until they are stable, or search with them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tritonstack.client.endpoint import Endpoint, parse_endpoint
from tritonstack.errors import InternalError, TritonstackError
from tritonstack.load.arrival import Arrival, ClosedLoop, OpenLoop
from tritonstack.load.findings import findings_of, saved_level
from tritonstack.load.knee import Knee, KneeQuestion, find_knee
from tritonstack.load.live import Display, Watcher
from tritonstack.load.merged_level import merged_level
from tritonstack.load.model_control import model_control
from tritonstack.load.monitor import Monitor
from tritonstack.load.objective import Condition
from tritonstack.load.plan import LoadPlan
from tritonstack.load.report import LevelReport, LoadReport
from tritonstack.load.saved_report import SavedLevel
from tritonstack.load.series import Second
from tritonstack.load.server_metrics import MetricsAddress
from tritonstack.load.session import CONTROL_TIMEOUT_S, run_load
from tritonstack.load.stability import IN_A_ROW, Stability, StabilityRule, WindowFigures, is_stable
from tritonstack.load.statistics_delta import models_to_watch
from tritonstack.load.sweep import run_sweep
from tritonstack.load.sweep_space import Setting

CALIBRATION_S = 2.0
"""Length of the closed loop that tells where a search for the knee starts."""
CALIBRATION_CONCURRENCY = 4
BETWEEN_WINDOWS_S = 0.5
"""Warm-up of every window after the first one: answers have to be on their way again."""


@dataclass(frozen=True)
class KneeOptions:
    """`start_rate` None: half of what a short closed loop reaches."""

    precision: float
    start_rate: float | None
    budget_s: float


class Study:
    """Runs plans against one server and looks at the server meanwhile. Use as a context manager."""

    def __init__(
        self,
        plan: LoadPlan,
        *,
        display: Display,
        metrics: MetricsAddress | None,
        slo: Sequence[Condition] = (),
        stability: StabilityRule | None = None,
        command: Sequence[str] = (),
    ) -> None:
        self._plan = plan
        self._endpoint: Endpoint = parse_endpoint(plan.url, protocol=plan.protocol)
        self._slo = tuple(slo)
        self._stability = stability
        self._command = tuple(command)
        self._monitor = Monitor(metrics, endpoint=self._endpoint, models=_models(plan))
        self._watcher = Watcher(display, self._monitor)
        self._interrupted = False

    def __enter__(self) -> Study:
        self._monitor.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._monitor.close()

    def measure(self) -> LoadReport:
        """Every level of the plan."""
        if self._stability is None:
            return self._run(self._plan)
        reports = []
        for arrival in self._plan.arrivals:
            reports.append(self._settle(arrival, self._stability))
            if self._interrupted:
                break
        return self._joined(reports)

    def knee(self, options: KneeOptions) -> LoadReport:
        """Search the knee; the report's levels are the windows of the rates that were tried, in order."""
        reports: list[LoadReport] = []
        start_rate = options.start_rate or self._first_rate()
        question = KneeQuestion(
            self._slo,
            start_rate,
            options.precision,
            options.budget_s,
            self._plan.max_error_rate,
            self._plan.max_lag_s,
        )

        def window(rate: float, duration_s: float) -> SavedLevel:
            arrival = replace(_open_loop(self._plan.arrivals), rate=rate)
            # Windows of one rate follow each other with other gaps.
            same = sum(level.arrival == arrival for report in reports for level in report.levels)
            plan = replace(
                self._plan,
                arrivals=(arrival,),
                duration_s=duration_s,
                requests=None,
                warmup_s=min(self._plan.warmup_s, 1.0),
                seed=self._plan.seed + same,
            )
            reports.append(self._run(plan))
            if not reports[-1].levels:
                raise KeyboardInterrupt
            return saved_level(reports[-1].levels[0])

        found: Knee = find_knee(
            question, window, clock=time.monotonic, stopped=lambda: self._interrupted, tell=self._watcher.note
        )
        return replace(self._joined(reports), knee=found)

    def sweep(self, space: dict[str, tuple[float, ...]], budget_s: float) -> LoadReport:
        """Try the configurations of `space`; the report's levels are those of the settings, in order."""
        reports: list[LoadReport] = []

        def measure(setting: Setting) -> SavedLevel:
            client = dict(setting.client)
            plan = replace(
                self._plan,
                batch=int(client.get("batch", self._plan.batch)),
                arrivals=(_arrival(client, self._plan.arrivals),),
            )
            report = self._run(plan)
            reports.append(report)
            if not report.levels:
                raise KeyboardInterrupt
            return saved_level(report.levels[0])

        with model_control(self._endpoint) as control:
            found = run_sweep(
                space,
                model=self._plan.model,
                control=control,
                measure=measure,
                budget_s=budget_s,
                clock=time.monotonic,
                stopped=lambda: self._interrupted,
                tell=self._watcher.note,
            )
        return replace(self._joined(reports), sweep=found)

    def _run(self, plan: LoadPlan) -> LoadReport:
        self._watcher.forget()
        report = run_load(plan, observer=self._watcher, command=self._command)
        self._interrupted = self._interrupted or report.interrupted
        seen = zip(report.levels, self._watcher.opened_s, self._watcher.seconds, strict=False)
        levels = [self._finished(level, opened_s, seconds) for level, opened_s, seconds in seen]
        return replace(report, levels=tuple(levels), slo=self._slo)

    def _finished(self, level: LevelReport, opened_s: float, seconds: Sequence[Second]) -> LevelReport:
        """The level with what follows from it and what was seen at the server meanwhile."""
        # The workers' own seconds are exact; a run in this process is told by the watcher.
        level = replace(level, series=level.series or tuple(seconds))
        use = self._monitor.between(opened_s, opened_s + level.window_s)
        found = replace(findings_of(level, self._slo), server_use=use)
        notes = []
        if use.metrics is not None and use.metrics.problem:
            part = "some of the server's metrics are" if use.metrics.readings else "the server's metrics are"
            notes.append(f"{part} missing: {use.metrics.url}: {use.metrics.problem}")
        if use.metrics is not None and use.metrics.restarted:
            notes.append("the server was restarted during the run")
        return replace(level, findings=found).with_notes(*notes)

    def _settle(self, arrival: Arrival, rule: StabilityRule) -> LoadReport:
        """Windows of one level until three in a row agree; the report is that of the last three together."""
        reports: list[LoadReport] = []
        figures: list[WindowFigures] = []
        while len(figures) < rule.max_windows and not self._interrupted:
            plan = replace(
                self._plan,
                arrivals=(arrival,),
                duration_s=rule.window_s,
                requests=None,
                warmup_s=min(self._plan.warmup_s, BETWEEN_WINDOWS_S) if reports else self._plan.warmup_s,
                seed=self._plan.seed + len(reports),
            )
            reports.append(self._run(plan))
            if not reports[-1].levels:
                break
            figures.append(_figures(reports[-1].levels[0], rule))
            if is_stable(rule, figures):
                break
        levels = [report.levels[0] for report in reports if report.levels][-IN_A_ROW:]
        if not levels:
            return reports[-1]
        whole = merged_level(levels)
        stable = is_stable(rule, figures)
        found = Stability(rule.limit, rule.window_s, rule.percentile, tuple(figures), stable)
        use = levels[-1].findings.server_use
        whole = replace(whole, findings=replace(findings_of(whole, self._slo), server_use=use, stability=found))
        if not stable and not self._interrupted:
            agreed = f"no three windows in a row of {len(figures)} agreed to {100 * rule.limit:g} %"
            whole = whole.with_notes(f"not stable: {agreed}; what is shown are the last {len(levels)}")
        return replace(reports[-1], levels=(whole,))

    def _joined(self, reports: Sequence[LoadReport]) -> LoadReport:
        """Several reports of one plan as one."""
        if not reports:
            raise InternalError("a search ended without having run anything")
        return replace(
            reports[0],
            duration_s=self._plan.duration_s,
            requests=self._plan.requests,
            versions=tuple(sorted({version for report in reports for version in report.versions})),
            interrupted=self._interrupted,
            levels=tuple(level for report in reports for level in report.levels),
        )

    def _first_rate(self) -> float:
        """Half of what a short closed loop reaches: the search then brackets from there."""
        plan = replace(
            self._plan,
            arrivals=(ClosedLoop(CALIBRATION_CONCURRENCY),),
            duration_s=CALIBRATION_S,
            requests=None,
            warmup_s=min(self._plan.warmup_s, 0.5),
        )
        report = self._run(plan)
        if not report.levels:
            raise KeyboardInterrupt
        return max(report.levels[0].requests_per_s / 2, 1.0)


def _arrival(client: dict[str, float], arrivals: Sequence[Arrival]) -> Arrival:
    if "concurrency" in client:
        return ClosedLoop(int(client["concurrency"]))
    if "rate" in client:
        return replace(_open_loop(arrivals), rate=client["rate"])
    return arrivals[0]


def _open_loop(arrivals: Sequence[Arrival]) -> OpenLoop:
    """The kind of gaps that was asked for, at any rate."""
    return next((arrival for arrival in arrivals if isinstance(arrival, OpenLoop)), OpenLoop(1.0))


def _figures(level: LevelReport, rule: StabilityRule) -> WindowFigures:
    if rule.percentile is None:
        return WindowFigures(level.requests_per_s, level.latency.mean_us)
    return WindowFigures(level.requests_per_s, saved_level(level).metric(f"p{rule.percentile:g}"))


def _models(plan: LoadPlan) -> tuple[str, ...]:
    """The model and, where it is an ensemble, its steps; the model alone where the server does not tell."""

    async def ask() -> tuple[str, ...]:
        from tritonstack import AsyncClient

        async with AsyncClient(
            plan.url, protocol=plan.protocol, timeout_s=CONTROL_TIMEOUT_S, retries=0, tls=plan.tls, headers=plan.headers
        ) as client:
            return await models_to_watch(client, plan.model)

    # What is wrong with the server or the plan is said by the run itself.
    with contextlib.suppress(TritonstackError):
        return asyncio.run(ask())
    return (plan.model,)
