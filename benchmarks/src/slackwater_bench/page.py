"""``python -m slackwater_bench page``: docs/performance.md from the results."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from slackwater_bench.plot import plot
from slackwater_bench.registry import SCENARIOS
from slackwater_bench.results import PointSummary, missing_points, scenario_results, summaries
from slackwater_bench.scenario import Scenario, shown
from slackwater_testing.errors import TestingError
from slackwater_testing.results import RESULTS, Result
from slackwater_testing.workloads.workload import REPOSITORY

HEAD = """# Performance

Made by `python -m slackwater_bench page` from [`benchmarks/results/`](../benchmarks/results); do not edit.
How to run, and what to keep in mind: [`benchmarks/README.md`](../benchmarks/README.md).

Each number is the median of the newest runs (at most five) at that point; *spread* is the difference of the
largest and the smallest of them, relative to the median. Everything runs on one machine: broker, Redis,
sidecar and pipeline share its cores, and where a scenario has them, PostgreSQL, Connect and the writers, too.
A commit with + had changes that were not committed. "Others" is CPU time of whatever did not belong to the
run: next to nothing on a quiet machine.
"""


def page_text(measured: Sequence[tuple[Scenario, Sequence[PointSummary], bool]]) -> str:
    """The page.

    Args:
        measured: Scenario, its points, and whether it has a plot.
    """
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


DOCS = REPOSITORY / "docs"


def render(results: Path = RESULTS) -> dict[str, str]:
    """All files of the page by their path below ``docs``; a pure function of the results.

    Raises:
        RunFailedError: a results file cannot be read.
    """
    files: dict[str, str] = {}
    measured = []
    for scenario in SCENARIOS.values():
        points = summaries(scenario, scenario_results(scenario, results))
        svg = plot(scenario, points)
        if svg is not None:
            files[f"performance/{scenario.name}.svg"] = svg
        measured.append((scenario, points, svg is not None))
    files["performance.md"] = page_text(measured)
    return files


@click.command()
@click.option("--results", type=click.Path(path_type=Path, exists=True, file_okay=False), default=RESULTS)
@click.option("--docs", type=click.Path(path_type=Path, file_okay=False), default=DOCS)
def page(results: Path, docs: Path) -> None:
    """Write docs/performance.md and its plots from the results."""
    try:
        files = render(results)
    except TestingError as error:
        raise click.ClickException(str(error)) from error
    for name, text in files.items():
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
        (docs / name).write_text(text)
    for stale in set((docs / "performance").glob("*.svg")) - {docs / name for name in files}:
        stale.unlink()
    click.echo(f"{docs / 'performance.md'} and {len(files) - 1} plots")
