"""The Pareto plots of a report as SVG: what is lost against what is gained, per variant."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tritonstack.page.ticks import round_step
from tritonstack_export.report.markup import Markup, tag
from tritonstack_export.report.wording import figure

_WIDTH, _HEIGHT = 460, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 20, 32, 46


@dataclass(frozen=True)
class Point:
    """One variant: `cost` along x (less is better), `quality` along y (more is better; None: it is the reference,
    drawn as a line at its cost). `kind` is its precision, which picks the colour."""

    label: str
    kind: str
    cost: float
    quality: float | None


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats in one thing without losing in the other, by rising cost."""
    front: list[Point] = []
    rated = [point for point in points if point.quality is not None]
    for point in sorted(rated, key=lambda p: (p.cost, -(p.quality or 0))):
        if not front or (point.quality or 0) > (front[-1].quality or 0):
            front.append(point)
    return front


def pareto_plot(title: str, points: Sequence[Point], *, cost: str, quality: str, identity: str) -> Markup:
    """One plot. `cost` and `quality` name the axes; `identity` is unique within the page."""
    rated = [point.quality for point in points if point.quality is not None]
    x_axis = _Axis.around([point.cost for point in points], start_at_zero=True)
    y_axis = _Axis.around(rated or [0.0, 1.0], start_at_zero=False)

    def x_of(value: float) -> float:
        return _LEFT + x_axis.position(value) * (_WIDTH - _LEFT - _RIGHT)

    def y_of(value: float) -> float:
        return _HEIGHT - _BOTTOM - y_axis.position(value) * (_HEIGHT - _TOP - _BOTTOM)

    parts: list[Markup] = []
    for value in x_axis.ticks:
        parts.append(_line(x_of(value), _TOP, x_of(value), _HEIGHT - _BOTTOM, "grid"))
        parts.append(_words(x_of(value), _HEIGHT - _BOTTOM + 16, figure(value), anchor="middle"))
    for value in y_axis.ticks:
        parts.append(_line(_LEFT, y_of(value), _WIDTH - _RIGHT, y_of(value), "grid"))
        parts.append(_words(_LEFT - 8, y_of(value) + 4, figure(value, 4), anchor="end"))
    parts.append(_words((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, cost, anchor="middle", css="axis"))
    parts.append(_words(_LEFT - 48, _TOP - 16, quality, anchor="start", css="axis"))
    front = pareto_front(points)
    if len(front) > 1:
        path = " ".join(f"{x_of(p.cost):.1f},{y_of(p.quality or 0):.1f}" for p in front)
        parts.append(tag("polyline", points=path, class_="front"))
    taken: list[tuple[float, float, float, float]] = [
        (x_of(p.cost) - 7, y_of(p.quality) - 7, x_of(p.cost) + 7, y_of(p.quality) + 7)
        for p in points
        if p.quality is not None
    ]
    lines = [_between(front[i], front[i + 1], x_of, y_of) for i in range(len(front) - 1)]
    for point in points:
        x = x_of(point.cost)
        if point.quality is None:
            parts.append(_line(x, _TOP, x, _HEIGHT - _BOTTOM, "reference"))
            parts.append(_label(point.label, x, _TOP + 14, taken, lines))
            continue
        y = y_of(point.quality)
        told = f"{point.label}: {cost} {figure(point.cost)}, {quality} {figure(point.quality, 4)}"
        parts.append(tag("circle", tag("title", told), cx=f"{x:.1f}", cy=f"{y:.1f}", r="6", class_=f"p {point.kind}"))
        parts.append(_label(point.label, x, y + 4, taken, lines))
    said = "; ".join(
        f"{p.label} {figure(p.cost)}{'' if p.quality is None else f' and {figure(p.quality, 4)}'}" for p in points
    )
    return tag(
        "svg",
        tag("title", title, id=f"{identity}-title"),
        tag("desc", f"{cost} and {quality} of each variant: {said}. The line joins the best trade-offs.",
            id=f"{identity}-desc"),
        parts,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_labelledby=f"{identity}-title {identity}-desc",
    )  # fmt: skip


def _between(
    a: Point, b: Point, x_of: Callable[[float], float], y_of: Callable[[float], float]
) -> list[tuple[float, float]]:
    """Places along the line from `a` to `b`, close enough together that no name fits between them."""
    x1, y1, x2, y2 = x_of(a.cost), y_of(a.quality or 0), x_of(b.cost), y_of(b.quality or 0)
    return [(x1 + (x2 - x1) * i / 30, y1 + (y2 - y1) * i / 30) for i in range(31)]


def _label(
    text: str,
    x: float,
    y: float,
    taken: list[tuple[float, float, float, float]],
    lines: list[list[tuple[float, float]]],
) -> Markup:
    """The name beside its point, where it covers neither a point nor another name as far as there is room."""
    shown = text if len(text) <= 34 else f"{text[:15]}…{text[-18:]}"
    width = 6.4 * len(shown)
    best: tuple[float, float, float, str] | None = None
    for dx, dy, anchor in (
        (11, 0, "start"),
        (-11, 0, "end"),
        (0, -15, "middle"),
        (0, 19, "middle"),
        (11, 16, "start"),
        (-11, 16, "end"),
        (11, -14, "start"),
        (-11, -14, "end"),
    ):
        left = x + dx - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
        box = (left, y + dy - 11, left + width, y + dy + 3)
        outside = max(0.0, 2 - box[0]) + max(0.0, box[2] - _WIDTH + 2) + max(0.0, _TOP - 8 - box[1])
        covered = sum(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken)
        crossed = sum(any(box[0] < px < box[2] and box[1] < py < box[3] for px, py in line) for line in lines)
        penalty = outside * 10 + covered * 100 + crossed * 30
        if best is None or penalty < best[0]:
            best = (penalty, x + dx, y + dy, anchor)
    assert best is not None  # noqa: S101  # the table of places is not empty
    _, at_x, at_y, anchor = best
    left = at_x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
    taken.append((left, at_y - 11, left + width, at_y + 3))
    return _words(at_x, at_y, shown, anchor=anchor, css="label")


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    ticks: tuple[float, ...]

    @classmethod
    def around(cls, values: Sequence[float], *, start_at_zero: bool) -> _Axis:
        """An axis over all `values` with a margin and about five round ticks."""
        low, high = min(values), max(values)
        if start_at_zero:
            low = min(0.0, low)
        spread = high - low or max(abs(high), 1.0) * 0.1
        low = low if start_at_zero else low - 0.15 * spread
        high = high + (0.3 if start_at_zero else 0.15) * spread
        step = round_step((high - low) / 5)
        first = math.ceil(low / step - 1e-9)
        last = math.floor(high / step + 1e-9)
        return cls(low, high, tuple(step * index for index in range(first, last + 1)))

    def position(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)


def _line(x1: float, y1: float, x2: float, y2: float, css: str) -> Markup:
    return tag("line", x1=f"{x1:.1f}", y1=f"{y1:.1f}", x2=f"{x2:.1f}", y2=f"{y2:.1f}", class_=css)


def _words(x: float, y: float, text: str, *, anchor: str, css: str = "tick") -> Markup:
    return tag("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, class_=css)
