"""Plots as SVG without any script: lines over a number, bars over a logarithmic latency, stacked bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tritonstack.load.page.axis import Axis
from tritonstack.load.page.markup import Markup, tag

WIDTH, HEIGHT = 460, 280
LEFT, RIGHT, TOP, BOTTOM = 62, 18, 30, 46
Number = Callable[[float], str]


@dataclass(frozen=True)
class Line:
    """One line: points (x, y), in colour `color` of the page's six. `marks`: each point is drawn, with its name."""

    name: str
    points: tuple[tuple[float, float], ...]
    color: int
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Frame:
    """Title, axes and what they mean. `identity` is unique within the page."""

    title: str
    identity: str
    x_name: str
    y_name: str
    x_text: Number
    y_text: Number


def line_plot(
    frame: Frame, lines: Sequence[Line], *, log_y: bool = False, limit: tuple[float, str] | None = None
) -> Markup:
    """Lines over x. `limit` is an upright value of y drawn across, with its name."""
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points] + ([limit[0]] if limit else [])
    x_axis, y_axis = Axis.linear(xs), Axis.log(ys) if log_y else Axis.linear(ys)
    parts = list(_grid(frame, x_axis, y_axis))
    if limit is not None:
        y = _y(y_axis, limit[0])
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="limit"))
        parts.append(_words(WIDTH - RIGHT, y - 5, limit[1], "end", "label"))
    for line in lines:
        places = [(_x(x_axis, x), _y(y_axis, y)) for x, y in line.points]
        if len(places) > 1:
            parts.append(
                tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in places), class_=f"line s{line.color}")
            )
        for (x, y), told in zip(places, line.marks, strict=False):
            parts.append(
                tag("circle", tag("title", told), cx=f"{x:.1f}", cy=f"{y:.1f}", r="4.5", class_=f"p f{line.color}")
            )
    said = "; ".join(
        f"{line.name}: from {frame.y_text(line.points[0][1])} at {frame.x_text(line.points[0][0])} to "
        f"{frame.y_text(line.points[-1][1])} at {frame.x_text(line.points[-1][0])}"
        for line in lines
        if line.points
    )
    return _svg(frame, said, parts)


def histogram_plot(
    frame: Frame, values: Sequence[float], counts: Sequence[int], marks: Sequence[tuple[str, float]]
) -> Markup:
    """How often which value came, over a logarithmic x with equal widths there. `marks` are named values of x."""
    x_axis = Axis.log(values)
    bins = 60
    shown = [0.0] * bins
    for value, count in zip(values, counts, strict=True):
        shown[min(int(x_axis.position(value) * bins), bins - 1)] += count
    total = sum(shown) or 1.0
    shares = [count / total for count in shown]
    y_axis = Axis.linear(shares)
    parts = list(_grid(frame, x_axis, y_axis))
    width = (WIDTH - LEFT - RIGHT) / bins
    for index, share in enumerate(shares):
        if share:
            # A single slowest request among thousands stays visible.
            top = min(_y(y_axis, share), HEIGHT - BOTTOM - 1.5)
            parts.append(
                tag("rect", x=f"{LEFT + index * width:.2f}", y=f"{top:.1f}", width=f"{width * 0.9:.2f}",
                    height=f"{HEIGHT - BOTTOM - top:.1f}", class_="f0")
            )  # fmt: skip
    row = 0
    last = -1e9
    for name, value in marks:
        x = _x(x_axis, value)
        row = row + 1 if x - last < 44 else 0
        last = x
        parts.append(tag("line", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=TOP, y2=HEIGHT - BOTTOM, class_="line s1"))
        parts.append(_words(min(x + 3, WIDTH - 34), TOP + 10 + 12 * (row % 5), name, "start", "label"))
    said = ", ".join(f"{name} {frame.x_text(value)}" for name, value in marks)
    return _svg(frame, f"Shares of {total:.0f} requests by latency; {said}", parts)


def stacked_bars(rows: Sequence[tuple[str, Sequence[float], str]], names: Sequence[str]) -> Markup:
    """Bars of (name, parts, amount as text) on one scale, and the legend of their parts."""
    longest = max((sum(parts) for _, parts, _ in rows), default=0.0) or 1.0
    bars = [
        (
            tag("span", name, class_="name"),
            tag(
                "span",
                [
                    tag("span", class_=f"part b{i}", style=f"width:{100 * part / longest:.2f}%")
                    for i, part in enumerate(parts)
                    if part > 0
                ],
                class_="track",
                aria_hidden="true",
            ),
            tag("span", amount, class_="amount"),
        )
        for name, parts, amount in rows
    ]
    return Markup(tag("div", bars, class_="stack") + legend(names))


def legend(names: Sequence[str], *, first: int = 0) -> Markup:
    """Which colour means what, from colour `first` on."""
    keys = [
        tag("span", tag("span", class_=f"key b{first + i}", aria_hidden="true"), name) for i, name in enumerate(names)
    ]
    return tag("p", keys, class_="legend")


def _x(axis: Axis, value: float) -> float:
    return LEFT + axis.position(value) * (WIDTH - LEFT - RIGHT)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.position(value) * (HEIGHT - TOP - BOTTOM)


def _grid(frame: Frame, x_axis: Axis, y_axis: Axis) -> Iterator[Markup]:
    last = -1e9
    for value in x_axis.ticks:
        x = _x(x_axis, value)
        yield tag("line", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=TOP, y2=HEIGHT - BOTTOM, class_="grid")
        if x - last >= 46:  # names of ticks may not run into each other
            yield _words(x, HEIGHT - BOTTOM + 16, frame.x_text(value), "middle", "tick")
            last = x
    for value in y_axis.ticks:
        y = _y(y_axis, value)
        yield tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="grid")
        yield _words(LEFT - 7, y + 4, frame.y_text(value), "end", "tick")
    yield _words((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, frame.x_name, "middle", "axis")
    yield _words(8, TOP - 14, frame.y_name, "start", "axis")


def _words(x: float, y: float, text: str, anchor: str, css: str) -> Markup:
    return tag("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, class_=css)


def _svg(frame: Frame, said: str, parts: Sequence[Markup]) -> Markup:
    return tag(
        "svg",
        tag("title", frame.title, id=f"{frame.identity}-title"),
        tag("desc", f"{frame.y_name} over {frame.x_name}. {said}.", id=f"{frame.identity}-desc"),
        parts,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_labelledby=f"{frame.identity}-title {frame.identity}-desc",
    )
