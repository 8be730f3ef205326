"""``python -m slackwater_bench page``: pages from the results.

docs/performance.md as a whole, and the comparison in docs/messaging.md. The same results give the same bytes.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from slackwater_bench.messaging.page import with_comparison
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

HEAD = """# Performance

Made by `python -m slackwater_bench page` from [`benchmarks/results/`](../benchmarks/results); do not edit.
[`benchmarks/README.md`](../benchmarks/README.md) explains how to run the benchmarks, and their limits.

Each number is the median of the newest runs (at most five) at that point; *spread* is the difference of the
largest and the smallest of them, relative to the median. Everything runs on one machine: the broker, Redis,
the sidecar and the pipeline share its cores, and so do PostgreSQL, Connect and the writers, if a scenario has
them. A commit with + had changes that were not committed. "Others" is the CPU time of processes that did not
belong to the run; on a quiet machine, it is close to zero.
"""
DOCS = REPOSITORY / "docs"


def page_text(measured: Sequence[tuple[Scenario, Sequence[PointSummary]]]) -> str:
    """The page."""
    parts = [HEAD]
    results = [run for _, points in measured for point in points for run in point.runs]
    if results:
        parts.append(_environments(results))
    for scenario, points in measured:
        parts.append("\n".join(_section(scenario, points)))
    return "\n".join(parts).rstrip() + "\n"


def _environments(results: Sequence[Result]) -> str:
    """Machines and versions: as a rule one of each."""
    machines = sorted({_machine(result.machine) for result in results})
    versions = sorted({_versions(result.versions) for result in results})
    lines = [*(f"- machine: {each}" for each in machines), *(f"- versions: {each}" for each in versions)]
    return "\n".join(lines) + "\n"


def _section(scenario: Scenario, points: Sequence[PointSummary]) -> Iterator[str]:
    yield f"## {scenario.name}\n"
    yield f"{scenario.measures} {scenario.why}\n"
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


def render(results: Path = RESULTS) -> str:
    """docs/performance.md; a pure function of the results.

    Raises:
        RunFailedError: a results file cannot be read.
    """
    measured = (
        (scenario, summaries(scenario, scenario_results(scenario, results)))
        for scenario in SCENARIOS.values()
    )
    return page_text([*measured])


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
    """Write docs/performance.md, and the comparison in docs/messaging.md, from the results."""
    performance, messaging = docs / "performance.md", docs / "messaging.md"
    try:
        docs.mkdir(parents=True, exist_ok=True)
        performance.write_text(render(results))
        if messaging.exists():
            messaging.write_text(render_comparison(messaging.read_text(), results))
    except TestingError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{performance}")
