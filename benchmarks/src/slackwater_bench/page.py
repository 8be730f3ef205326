"""``python -m slackwater_bench page``: pages and plots from the results.

docs/performance.md as a whole, and the comparison in docs/messaging.md. The same results give the same bytes.
"""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slackwater_bench.messaging.page import crash_tables, with_comparison
from slackwater_bench.registry import SCENARIOS
from slackwater_bench.scenario import (
    PointSummary,
    Scenario,
    missing_points,
    scenario_results,
    shown,
    summaries,
)
from slackwater_lab.errors import TestingError
from slackwater_lab.results import RESULTS, Result
from slackwater_lab.workloads.workload import REPOSITORY

if TYPE_CHECKING:
    from matplotlib.axes import Axes


HEAD = """# Performance

Made by `python -m slackwater_bench page` from [`benchmarks/results/`](../benchmarks/results); do not edit.
[`benchmarks/README.md`](../benchmarks/README.md) explains how to run the benchmarks, and their limits.

Each number is the median of the newest runs (at most five) at that point; *spread* is the difference of the
largest and the smallest of them, relative to the median. Everything runs on one machine: the broker, Redis,
the sidecar and the pipeline share its cores, and so do PostgreSQL, Connect and the writers, if a scenario has
them. A commit with + had changes that were not committed. "Others" is the CPU time of processes that did not
belong to the run; on a quiet machine, it is close to zero.
"""
_WIDTH, _HEIGHT = 4.6, 3.1
_PANELS_IN_A_ROW = 2
_LOGARITHMIC_X_FROM = 20.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""
_LOGARITHMIC_Y_FROM = 100.0
_SETTINGS: Any = {
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
_COLOURS = ("#0b5c8a", "#c8553d", "#4f772d", "#6a4c93")

_Line = tuple[str, list[float], list[float], list[tuple[float, float]]]
"""Label, x, y, lowest and highest y."""
DOCS = REPOSITORY / "docs"


def page_text(measured: Sequence[tuple[Scenario, Sequence[PointSummary], bool]]) -> str:
    """The page."""
    parts = [HEAD]
    results = [run for _, points, _ in measured for point in points for run in point.runs]
    if results:
        parts.append(_environments(results))
    for scenario, points, has_plot in measured:
        parts.append("\n".join(_section(scenario, points, has_plot)))
    return "\n".join(parts).rstrip() + "\n"


def _environments(results: Sequence[Result]) -> str:
    """Machines and versions: as a rule one of each."""
    machines = sorted({_machine(result.machine) for result in results})
    versions = sorted({_versions(result.versions) for result in results})
    lines = [*(f"- machine: {each}" for each in machines), *(f"- versions: {each}" for each in versions)]
    return "\n".join(lines) + "\n"


def _section(scenario: Scenario, points: Sequence[PointSummary], has_plot: bool) -> Iterator[str]:
    yield f"## {scenario.name}\n"
    yield f"{scenario.measures} {scenario.why}\n"
    if has_plot:
        yield f"![{scenario.name}](performance/{scenario.name}.svg)\n"
    if points:
        yield from _table(scenario, points)
        yield ""
    if points and scenario.name == "messaging-crashes":
        yield from crash_tables(points)
    missing = [shown(point) for point in missing_points(scenario, points)]
    if missing:
        yield f"Not run: {'; '.join(missing)}.\n"


def _table(scenario: Scenario, points: Sequence[PointSummary]) -> Iterator[str]:
    names = list(dict.fromkeys(name for point in points for name in point.parameters))
    titles = [column.replace("_", " ").replace(".", " ") for column in scenario.columns]
    head = [*names, f"{scenario.unit} ({scenario.direction})", "spread", *titles, "runs", "commit"]
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for point in points:
        cells = [_number(point.parameters.get(name, "")) for name in names]
        cells += [
            f"**{_number(point.median)}**",
            f"{100 * point.spread:.0f} %" if len(point.runs) > 1 else "",
        ]
        cells += [
            _number(value) if (value := point.column(name)) is not None else "" for name in scenario.columns
        ]
        cells += [str(len(point.runs)), ", ".join(dict.fromkeys(_commit(run) for run in point.runs))]
        yield f"| {' | '.join(cells)} |"


def _commit(result: Result) -> str:
    return f"{result.commit[:7]}{'+' if result.is_dirty else ''}"


def _number(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) or abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:,.4g}"


def _machine(machine: Mapping[str, Any]) -> str:
    size = f"{machine['cores']} cores, {machine['memory_gib']} GiB"
    return f"{size}, {machine['system']}, Python {machine['python']}"


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def render(results: Path = RESULTS) -> dict[str, str]:
    """All files of the page by their path below ``docs``; a pure function of the results.

    Raises:
        RunFailedError: a results file cannot be read.
    """
    files: dict[str, str] = {}
    measured = []
    for scenario in SCENARIOS.values():
        points = summaries(scenario, scenario_results(scenario, results))
        svg = _plot(scenario, points)
        if svg is not None:
            files[f"performance/{scenario.name}.svg"] = svg
        measured.append((scenario, points, svg is not None))
    files["performance.md"] = page_text(measured)
    return files


def render_comparison(page: str, results: Path = RESULTS) -> str:
    """Returns docs/messaging.md with the comparison that the results make.

    Raises:
        RunFailedError: A results file cannot be read, or the page has no place for it.
    """
    scenario = SCENARIOS["messaging"]
    return with_comparison(page, summaries(scenario, scenario_results(scenario, results)))


@click.command()
@click.option("--results", type=click.Path(path_type=Path, exists=True, file_okay=False), default=RESULTS)
@click.option("--docs", type=click.Path(path_type=Path, file_okay=False), default=DOCS)
def page(results: Path, docs: Path) -> None:
    """Write docs/performance.md, its plots, and the comparison in docs/messaging.md from the results."""
    messaging = docs / "messaging.md"
    try:
        files = render(results)
        if messaging.exists():
            messaging.write_text(render_comparison(messaging.read_text(), results))
    except TestingError as error:
        raise click.ClickException(str(error)) from error
    for name, text in files.items():
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
        (docs / name).write_text(text)
    for stale in set((docs / "performance").glob("*.svg")) - {docs / name for name in files}:
        stale.unlink()
    click.echo(f"{docs / 'performance.md'} and {len(files) - 1} plots")


def _plot(scenario: Scenario, summaries: Sequence[PointSummary]) -> str | None:
    """The scenario's _plot; None when there is nothing to compare: no axis or a single point."""
    axis = scenario.axis
    if axis is None or len({summary.parameters.get(axis) for summary in summaries}) < 2:
        return None
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    panels: list[tuple[str, str | None]] = [(scenario.unit, None)]
    panels += [(name.replace("_", " ").replace(".", " "), name) for name in scenario.curves]
    columns = min(len(panels), _PANELS_IN_A_ROW)
    rows = -(-len(panels) // columns)
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(_WIDTH * columns, _HEIGHT * rows), layout="constrained")
        FigureCanvasSVG(figure)
        for number, (label, column) in enumerate(panels):
            axes = figure.add_subplot(rows, columns, number + 1)
            _draw(axes, _lines(scenario, summaries, axis, column), axis, label)
            _scale([float(s.parameters[axis]) for s in summaries], _LOGARITHMIC_X_FROM, axes.set_xscale)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _lines(
    scenario: Scenario, summaries: Sequence[PointSummary], axis: str, column: str | None
) -> list[_Line]:
    series = scenario.series
    names = list(dict.fromkeys(_label(series, summary) for summary in summaries))
    lines: list[_Line] = []
    for name in names:
        line: _Line = (name, [], [], [])
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


def _draw(axes: "Axes", lines: Sequence[_Line], axis: str, label: str) -> None:
    for number, (name, x, y, bounds) in enumerate(lines):
        below = [middle - low for middle, (low, _) in zip(y, bounds, strict=True)]
        above = [high - middle for middle, (_, high) in zip(y, bounds, strict=True)]
        colour = _COLOURS[number % len(_COLOURS)]
        axes.errorbar(
            x, y, yerr=[below, above], marker="o", ms=4, lw=1.5, capsize=3, color=colour, label=name
        )
    ys = [value for line in lines for value in line[2]]
    if not _scale(ys, _LOGARITHMIC_Y_FROM, axes.set_yscale) and ys:
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
