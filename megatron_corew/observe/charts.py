"""Geometry of the report's charts: series of numbers to paths in a box of 1000 x 1000.

The page stretches the box to any size and writes the labels over it as text, so that a chart is
as readable on a phone as on a wall. The y axis points down, as in SVG.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from megatron_corew.observe.format import number, tick

BOX = 1000.0
COLOURS = 7
_SMOOTH_FROM = 40
_MAX_DOTS = 45
_MAX_TABLE_ROWS = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One line: a value at some of the steps; NaN interrupts it."""

    label: str
    points: Mapping[int, float]
    place: int | None = None
    """Colour, counted from 0, where it must be the same in all charts; None: by the order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """Something that happened after a step."""

    step: int
    kind: str
    """``alarm``, ``rollback``, ``stop`` or ``start``."""
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """What one chart shows."""

    title: str
    note: str
    """One sentence: what is measured, and in which unit."""
    series: Sequence[Series]
    bounds: tuple[float | None, float | None] = (None, None)
    """Fixed ends of the y axis, such as (0, 1) for shares; None: from the data."""
    log: bool = False
    stacked: bool = False
    smooth: bool = True
    """Show a long series as its rolling mean over the pale single steps."""
    marks: Sequence[Mark] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A drawn series."""

    label: str
    colour: int
    last: str
    """The last value, for the legend."""
    path: str
    """What is drawn boldly; of a long series its rolling mean."""
    faint: str = ""
    """Every single step of a long series."""
    dots: str = ""
    """Marks of a short series."""
    area: bool = False
    dashed: bool = False
    """Beyond the colours there are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """A chart ready for the page."""

    title: str
    note: str
    lines: Sequence[Line]
    y_ticks: Sequence[tuple[float, str]]
    """Distance from the bottom in percent, and the label."""
    x_ticks: Sequence[tuple[float, str]]
    """Distance from the left in percent, and the label."""
    rows: Sequence[Sequence[str]]
    """The same as a table: step, then one cell per series; of a long run not every step."""
    marks: Sequence[tuple[float, Mark]] = ()
    """Distance from the left in thousandths, and what happened there."""
    data: Mapping[str, object] = field(default_factory=dict)
    """For the read-out: steps, their place in percent, and the values as text."""


def draw(chart: Chart) -> Drawing:
    """Lay out a chart.

    Args:
        chart: at least one series with at least one finite value.

    Returns:
        Paths, ticks, table and read-out of the chart.
    """
    steps = sorted({step for series in chart.series for step in series.points})
    curves = _stack(chart.series, steps) if chart.stacked else [s.points for s in chart.series]
    x_axis = _Axis(min(steps), max(steps), log=False)
    y_axis = _y_axis(chart, curves)
    lines = []
    below: Mapping[int, float] = dict.fromkeys(steps, 0.0)
    for order, (series, curve) in enumerate(zip(chart.series, curves, strict=True)):
        place = order if series.place is None else series.place
        colour, dashed = place % COLOURS + 1, place >= COLOURS
        last = number([value for value in series.points.values() if math.isfinite(value)][-1])
        if chart.stacked:
            path = _area(curve, below, x_axis, y_axis)
            lines.append(Line(label=series.label, colour=colour, last=last, path=path, area=True))
            below = curve
        else:
            smooth = chart.smooth and len(curve) >= _SMOOTH_FROM
            line = _line(series.label, colour, last, curve, x_axis, y_axis, smooth=smooth)
            lines.append(replace(line, dashed=dashed))
    return Drawing(
        title=chart.title,
        note=chart.note,
        lines=lines,
        y_ticks=[(y_axis.percent(value), tick(value)) for value in y_axis.ticks(4)],
        x_ticks=[(x_axis.percent(at), tick(at)) for at in x_axis.ticks(5) if at % 1 == 0],
        rows=_table(chart.series, steps),
        marks=[
            (round(BOX * x_axis.share(mark.step), 1), mark)
            for mark in chart.marks
            if steps[0] <= mark.step <= steps[-1]
        ],
        data={
            "x": steps,
            "ends": [steps[0], steps[-1]],
            "at": [round(x_axis.percent(step), 2) for step in steps],
            "y": [[_cell(series, step) for step in steps] for series in chart.series],
        },
    )


class _Axis:
    """Values to places, linear or logarithmic."""

    def __init__(self, low: float, high: float, *, log: bool) -> None:
        self._log = log
        self._low, self._high = self._scale(low), self._scale(high)
        if self._low == self._high:
            self._low, self._high = self._low - 0.5, self._high + 0.5

    def _scale(self, value: float) -> float:
        return math.log10(value) if self._log else value

    def share(self, value: float) -> float:
        """Place between the ends, 0 to 1; what lies outside is put on the edge."""
        # A logarithmic axis has no place for zero: its floor stands for it.
        if self._log and value <= 0:
            return 0.0
        place = (self._scale(value) - self._low) / (self._high - self._low)
        return min(1.0, max(0.0, place))

    def percent(self, value: float) -> float:
        return 100 * self.share(value)

    def ticks(self, wanted: int) -> list[float]:
        """About ``wanted`` round values between the ends."""
        if self._log:
            lowest, highest = math.ceil(self._low), math.floor(self._high)
            apart = max(1, math.ceil((highest - lowest + 1) / wanted))
            return [10.0**power for power in range(lowest, highest + 1, apart)]
        rough = (self._high - self._low) / wanted
        magnitude = 10.0 ** math.floor(math.log10(rough))
        stride = next(s * magnitude for s in (1, 2, 2.5, 5, 10) if s * magnitude >= rough * 0.999)
        first = math.ceil(self._low / stride - 1e-9)
        count = math.floor(self._high / stride + 1e-9) - first + 1
        return [round((first + at) * stride, 12) for at in range(count)]


def _y_axis(chart: Chart, curves: Sequence[Mapping[int, float]]) -> _Axis:
    values = [value for curve in curves for value in curve.values() if math.isfinite(value)]
    if chart.log:
        positive = [value for value in values if value > 0] or [1.0]
        low = 10.0 ** math.floor(math.log10(min(positive)))
        return _Axis(low, 10.0 ** math.ceil(math.log10(max(positive)) + 1e-9), log=True)
    low, high = min(values), max(values)
    # Room above the highest point, and below the lowest where zero is not the floor.
    room = 0.06 * (high - low or abs(high) or 1.0)
    floor = 0.0 if chart.stacked or 0 <= low < 0.6 * high else low - room
    fixed_low, fixed_high = chart.bounds
    return _Axis(
        floor if fixed_low is None else fixed_low,
        high + room if fixed_high is None else fixed_high,
        log=False,
    )


def _line(
    label: str,
    colour: int,
    last: str,
    curve: Mapping[int, float],
    x_axis: _Axis,
    y_axis: _Axis,
    *,
    smooth: bool,
) -> Line:
    path = _path(curve, x_axis, y_axis)
    if smooth:
        mean = _path(rolling_mean(curve), x_axis, y_axis)
        return Line(label=label, colour=colour, last=last, path=mean, faint=path)
    dots = _dots(curve, x_axis, y_axis) if len(curve) <= _MAX_DOTS else ""
    return Line(label=label, colour=colour, last=last, path=path, dots=dots)


def _path(curve: Mapping[int, float], x_axis: _Axis, y_axis: _Axis) -> str:
    parts, pen = [], "M"
    for step, value in curve.items():
        if not math.isfinite(value):
            pen = "M"
            continue
        parts.append(f"{pen}{_x(step, x_axis)} {_y(value, y_axis)}")
        pen = "L"
    return "".join(parts)


def _dots(curve: Mapping[int, float], x_axis: _Axis, y_axis: _Axis) -> str:
    # A line of no length with round ends is a dot that the stretched box cannot distort.
    return "".join(
        f"M{_x(step, x_axis)} {_y(value, y_axis)}h0"
        for step, value in curve.items()
        if math.isfinite(value)
    )


def _area(
    curve: Mapping[int, float], below: Mapping[int, float], x_axis: _Axis, y_axis: _Axis
) -> str:
    top = [f"{_x(step, x_axis)} {_y(value, y_axis)}" for step, value in curve.items()]
    bottom = [f"{_x(step, x_axis)} {_y(below[step], y_axis)}" for step in list(curve)[::-1]]
    return "M" + "L".join(top + bottom) + "Z"


def _x(step: float, axis: _Axis) -> str:
    return f"{BOX * axis.share(step):.1f}"


def _y(value: float, axis: _Axis) -> str:
    return f"{BOX * (1 - axis.share(value)):.1f}"


def _stack(series: Sequence[Series], steps: Sequence[int]) -> list[dict[int, float]]:
    totals, layers = dict.fromkeys(steps, 0.0), []
    for one in series:
        for step in steps:
            value = one.points.get(step, 0.0)
            totals[step] += value if math.isfinite(value) else 0.0
        layers.append(dict(totals))
    return layers


def rolling_mean(curve: Mapping[int, float]) -> dict[int, float]:
    """Smooth a curve.

    Args:
        curve: value at some of the steps; what is not finite is left out.

    Returns:
        Of each step the mean over a window around it, a twelfth of the run wide.
    """
    steps, values = list(curve), list(curve.values())
    half = max(2, len(steps) // 24)
    means = {}
    for at, step in enumerate(steps):
        window = [v for v in values[max(0, at - half) : at + half + 1] if math.isfinite(v)]
        means[step] = sum(window) / len(window) if window else math.nan
    return means


def _table(series: Sequence[Series], steps: Sequence[int]) -> list[list[str]]:
    stride = max(1, math.ceil(len(steps) / _MAX_TABLE_ROWS))
    shown = sorted({*steps[::stride], steps[-1]})
    return [[str(step), *(_cell(one, step) for one in series)] for step in shown]


def _cell(series: Series, step: int) -> str:
    return number(series.points[step]) if step in series.points else ""
