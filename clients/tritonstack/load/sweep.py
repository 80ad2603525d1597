"""Tries configurations of a served model and reports the best trade-offs; the original is put back in any case."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tritonstack.errors import InputError, InternalError, ServerError, TritonstackError
from tritonstack.load.curve import CurvePoint, curve_point, pareto_set
from tritonstack.load.model_control import ModelConfig, ModelControl
from tritonstack.load.saved_report import SavedLevel
from tritonstack.load.sweep_space import Setting, changed_config, settings_of

Measure = Callable[[Setting], SavedLevel]
"""Loads the model as a setting's client part says -> the level."""


@dataclass(frozen=True)
class SweepPoint:
    """One setting that was tried. `point` is None where the server refused the configuration, for `problem`; a point
    with a problem was measured, but is not to be believed or kept."""

    setting: Setting
    point: CurvePoint | None
    gpu_memory_bytes: float | None
    problem: str
    best: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "setting": self.setting.to_json(),
            "label": self.setting.label,
            "point": None if self.point is None else self.point.to_json(),
            "gpu_memory_bytes": self.gpu_memory_bytes,
            "problem": self.problem,
            "best": self.best,
        }


@dataclass(frozen=True)
class Sweep:
    """All points in the order they were tried; `best` ones are the Pareto set over throughput, p99 and, where known,
    GPU memory. `skipped` settings did not fit into the budget. `restored` is False where nothing had been changed."""

    points: tuple[SweepPoint, ...]
    skipped: tuple[Setting, ...]
    restored: bool
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "points": [point.to_json() for point in self.points],
            "skipped": [setting.to_json() for setting in self.skipped],
            "restored": self.restored,
            "notes": list(self.notes),
        }


def run_sweep(
    space: Mapping[str, tuple[float, ...]],
    *,
    model: str,
    control: ModelControl,
    measure: Measure,
    budget_s: float,
    clock: Callable[[], float],
    stopped: Callable[[], bool] = lambda: False,
    tell: Callable[[str], None] = lambda text: None,
) -> Sweep:
    """Try every setting of `space` until `budget_s` of wall time are over.

    Raises SetupError where the server's model control is closed, InputError for a model without instances of its own.
    Whatever ends the sweep, the model is served with its original configuration afterwards; InternalError says so
    where the server did not take it back.
    """
    end_s = clock() + budget_s
    settings = settings_of(space)
    points: list[SweepPoint] = []
    skipped: list[Setting] = []
    notes: list[str] = []
    touched = any(setting.server for setting in settings)
    with _restoring(control, model, touched=touched, tell=tell) as original:
        loaded: tuple[tuple[str, int], ...] = ()
        refused = ""
        for index, setting in enumerate(settings):
            if stopped():
                notes.append("interrupted")
                skipped = settings[index:]
                break
            if clock() >= end_s:
                notes.append(f"the budget of {budget_s:g} s was spent: {len(settings) - index} settings were not tried")
                skipped = settings[index:]
                break
            if setting.server != loaded:
                loaded = setting.server
                refused = _load(control, model, original, setting)
            if refused:
                points.append(SweepPoint(setting, None, None, refused))
                tell(f"{setting.label}: {refused}")
                continue
            points.append(_measured(setting, measure))
            tell(_words(points[-1]))
    return Sweep(_with_best(points), tuple(skipped), touched, tuple(notes))


def _load(control: ModelControl, model: str, original: ModelConfig, setting: Setting) -> str:
    """Load one configuration; returns why the server refused it, empty where it did not."""
    try:
        control.load(model, changed_config(original, dict(setting.server)))
    except ServerError as error:
        # Triton goes on serving what it had; its reason is in its log alone.
        return error.summary
    return ""


def _measured(setting: Setting, measure: Measure) -> SweepPoint:
    level = measure(setting)
    metrics = (level.body.get("server_use") or {}).get("metrics") or {}
    memory = [gpu["memory_used_bytes"] for gpu in metrics.get("gpus", ()) if gpu["memory_used_bytes"] is not None]
    problems = [*level.body["problems"], *level.body["failures"]]
    return SweepPoint(setting, curve_point(level), sum(memory) if memory else None, problems[0] if problems else "")


def _words(point: SweepPoint) -> str:
    found = point.point
    if found is None or found.p99_us is None:
        return f"{point.setting.label}: {point.problem or 'no request succeeded'}"
    words = f"{point.setting.label}: {found.throughput_per_s:.1f}/s, p99 {found.p99_us / 1e3:.2f} ms"
    return f"{words} ({point.problem})" if point.problem else words


def _with_best(points: Sequence[SweepPoint]) -> tuple[SweepPoint, ...]:
    sound = [p for p in points if p.point is not None and p.point.p99_us is not None and not p.problem]
    by_memory = all(p.gpu_memory_bytes is not None for p in sound)

    def costs(point: SweepPoint) -> tuple[float, ...]:
        found = point.point
        if found is None:
            raise InternalError("a point without a measurement cannot be ranked")
        memory = ((point.gpu_memory_bytes or 0.0),) if by_memory else ()
        return (-found.throughput_per_s, found.p99_us or 0.0, *memory)

    best = {id(point) for point in pareto_set(sound, costs)}
    return tuple(replace(point, best=id(point) in best) for point in points)


@contextmanager
def _restoring(
    control: ModelControl, model: str, *, touched: bool, tell: Callable[[str], None]
) -> Iterator[ModelConfig]:
    """Yields the configuration in use, and puts it back whatever happens inside, also on SIGTERM.

    A plain load would not do: after a load with an override Triton 2.51 keeps that one until the model is unloaded or
    its folder changes.
    """
    if not touched:
        yield {}
        return
    original = control.config(model)
    if original.get("ensemble_scheduling") or original.get("platform") == "ensemble":
        raise InputError(
            f"model {model!r} is an ensemble: it has no instances or batching of its own",
            next_step="sweep one of its steps, or only concurrency, rate and batch",
        )
    # Loading what is there already tells, before anything has changed, whether the server takes orders at all.
    control.load(model, original)
    with _terminating_in_order():
        try:
            yield original
        finally:
            with _undisturbed():
                _put_back(control, model, original)
                tell(f"{model} is served with its original configuration again")


def _put_back(control: ModelControl, model: str, original: ModelConfig) -> None:
    try:
        control.load(model, original)
        now = control.config(model)
    except TritonstackError as error:
        raise InternalError(
            f"{model} could not be put back to its original configuration",
            given=str(error),
            next_step="reload it by hand: unload and load the model, or restart the server",
        ) from error
    if now != original:
        raise InternalError(
            f"the server took the original configuration of {model} back, but serves another one",
            next_step="unload and load the model, or restart the server",
        )


@contextmanager
def _terminating_in_order() -> Iterator[None]:
    """SIGTERM ends the sweep like Ctrl-C, so that the configuration is put back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals wait while the configuration is put back."""
    numbers = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
