"""``python -m slackwater_bench``: runs scenarios, and has the other commands."""

import sys
from collections.abc import Mapping
from pathlib import Path

import click

from slackwater_bench.comparison import compare
from slackwater_bench.load import load
from slackwater_bench.page import page
from slackwater_bench.peers.command import peers
from slackwater_bench.registry import SCENARIOS, scenario_named
from slackwater_bench.scenario import RunContext, Scenario, make_result, points_of, run_points
from slackwater_lab.errors import TestingError
from slackwater_lab.results import RESULTS, append


class BenchGroup(click.Group):
    """Arguments that are no command are scenarios to run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts ``run`` in front where the command is left out."""
        if not args or (args[0] not in self.list_commands(ctx) and args[0] != "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=BenchGroup)
def main() -> None:
    r"""Slackwater's benchmarks.

    \b
    python -m slackwater_bench                      every scenario at its default sizes
    python -m slackwater_bench throughput latency   these
    python -m slackwater_bench --quick              every scenario, less than a minute each; keeps no results
    python -m slackwater_bench list                 what there is, and what each means
    python -m slackwater_bench load --arrivals burst  clients of a real database, driven by Locust
    python -m slackwater_bench compare --base REV   two commits, by alternating runs
    python -m slackwater_bench page                 docs/performance.md from the results
    """


@main.command()
@click.argument("scenarios", nargs=-1, metavar="[SCENARIO]...")
@click.option("--quick", is_flag=True, help="Small sizes, less than a minute each; results are not kept.")
@click.option("--runs", default=1, show_default=True, help="How often each point is measured.")
@click.option("--max-keys", default=1_000_000, show_default=True, help="Leave out larger states.")
@click.option(
    "--only",
    "only",
    multiple=True,
    metavar="NAME=VALUE",
    help="Only points with this parameter, e.g. --only partitions=4; may be repeated.",
)
@click.option(
    "--results",
    type=click.Path(path_type=Path, file_okay=False),
    help=f"Folder of the results.  [default: {RESULTS.parent.name}/{RESULTS.name}; none with --quick]",
)
def run(
    scenarios: tuple[str, ...],
    quick: bool,
    runs: int,
    max_keys: int,
    only: tuple[str, ...],
    results: Path | None,
) -> None:
    """Measure scenarios (default: all); print and keep one JSON line per run."""
    try:
        chosen = [scenario_named(name) for name in scenarios] or list(SCENARIOS.values())
        for scenario in chosen:
            folder = results or (None if quick else RESULTS)
            points = points_of(scenario, is_quick=quick, limits={"keys": max_keys})
            points = tuple(point for point in points if _is_wanted(point, only))
            _run(scenario, points * runs, folder)
    except TestingError as error:
        raise click.ClickException(str(error)) from error
    if not quick and results is None:
        click.echo("results are kept; `python -m slackwater_bench page` makes docs/performance.md", err=True)


for command in (compare, load, page, peers):
    main.add_command(command)


@main.command("list")
def list_scenarios() -> None:
    """List what can be measured, and what each number means."""
    for scenario in SCENARIOS.values():
        points = ", ".join(" ".join(f"{k}={v}" for k, v in point.items()) for point in scenario.points)
        click.echo(f"{scenario.name} (version {scenario.version}; {scenario.unit}, {scenario.direction})")
        click.echo(f"    {scenario.measures}\n    {scenario.why}\n    points: {points}\n")


def _run(
    scenario: Scenario, points: tuple[Mapping[str, int | float | str], ...], folder: Path | None
) -> None:
    context = RunContext.here()
    for point, measured in run_points(scenario, points, context):
        result = make_result(scenario, point, measured, context.clock)
        click.echo(result.line())
        if folder is not None:
            append(result, folder)


def _is_wanted(point: Mapping[str, int | float | str], only: tuple[str, ...]) -> bool:
    wanted = (each.partition("=") for each in only)
    return all(name not in point or str(point[name]) == value for name, _, value in wanted)


if __name__ == "__main__":
    sys.exit(main())
