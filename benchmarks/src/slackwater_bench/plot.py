"""Plots as SVG: the same bytes for the same results."""

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from slackwater_bench.results import PointSummary
from slackwater_bench.scenario import Scenario

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 4.6, 3.1
PANELS_IN_A_ROW = 2
LOGARITHMIC_X_FROM = 20.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""
LOGARITHMIC_Y_FROM = 100.0
SETTINGS: Any = {
    "svg.hashsalt": "slackwater",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#d9d9d9",
    "grid.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
}
COLOURS = ("#0b5c8a", "#c8553d", "#4f772d", "#6a4c93")

Line = tuple[str, list[float], list[float], list[tuple[float, float]]]
"""Label, x, y, lowest and highest y."""


def plot(scenario: Scenario, summaries: Sequence[PointSummary]) -> str | None:
    """The scenario's plot; None when there is nothing to compare: no axis or a single point."""
    axis = scenario.axis
    if axis is None or len({summary.parameters.get(axis) for summary in summaries}) < 2:
        return None
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    panels: list[tuple[str, str | None]] = [(scenario.unit, None)]
    panels += [(name.replace("_", " ").replace(".", " "), name) for name in scenario.curves]
    columns = min(len(panels), PANELS_IN_A_ROW)
    rows = -(-len(panels) // columns)
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(WIDTH * columns, HEIGHT * rows), layout="constrained")
        FigureCanvasSVG(figure)
        for number, (label, column) in enumerate(panels):
            axes = figure.add_subplot(rows, columns, number + 1)
            _draw(axes, _lines(scenario, summaries, axis, column), axis, label)
            _scale([float(s.parameters[axis]) for s in summaries], LOGARITHMIC_X_FROM, axes.set_xscale)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _lines(
    scenario: Scenario, summaries: Sequence[PointSummary], axis: str, column: str | None
) -> list[Line]:
    series = scenario.series
    names = list(dict.fromkeys(_label(series, summary) for summary in summaries))
    lines: list[Line] = []
    for name in names:
        line: Line = (name, [], [], [])
        for summary in summaries:
            y = summary.median if column is None else summary.column(column)
            if _label(series, summary) != name or y is None or axis not in summary.parameters:
                continue
            line[1].append(float(summary.parameters[axis]))
            line[2].append(y)
            line[3].append((min(summary.values), max(summary.values)) if column is None else (y, y))
        if line[1]:
            lines.append(line)
    return lines


def _label(series: str | None, summary: PointSummary) -> str:
    return f"{series}={summary.parameters.get(series, '')}" if series else ""


def _draw(axes: "Axes", lines: Sequence[Line], axis: str, label: str) -> None:
    for number, (name, x, y, bounds) in enumerate(lines):
        below = [middle - low for middle, (low, _) in zip(y, bounds, strict=True)]
        above = [high - middle for middle, (_, high) in zip(y, bounds, strict=True)]
        colour = COLOURS[number % len(COLOURS)]
        axes.errorbar(
            x, y, yerr=[below, above], marker="o", ms=4, lw=1.5, capsize=3, color=colour, label=name
        )
    ys = [value for line in lines for value in line[2]]
    if not _scale(ys, LOGARITHMIC_Y_FROM, axes.set_yscale) and ys:
        axes.set_ylim(0, 1.15 * max(*(high for line in lines for _, high in line[3]), 1e-9))
    axes.set_xlabel(axis)
    axes.set_title(label, fontsize=9, loc="left")
    if any(name for name, *_ in lines):
        axes.legend(frameon=False, fontsize=8)


def _scale(values: Sequence[float], limit: float, set_scale: Callable[[str], object]) -> bool:
    """Makes a scale logarithmic when the values span more than the limit; says whether."""
    is_logarithmic = bool(values) and min(values) > 0 and max(values) / min(values) >= limit
    if is_logarithmic:
        set_scale("log")
    return is_logarithmic
