"""``python -m slackwater_bench``: runs scenarios; other commands are loaded when they are called."""

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import click

from slackwater.protocol import SystemClock
from slackwater_bench.environment import Environment
from slackwater_bench.registry import SCENARIOS, scenario_named
from slackwater_bench.scenario import RunContext, Scenario, make_result, points_of, run_points
from slackwater_lab.errors import TestingError
from slackwater_lab.results import RESULTS, append

LATER = {
    "compare": "slackwater_bench.comparison:compare",
    "load": "slackwater_bench.load:load",
    "page": "slackwater_bench.page:page",
    "peers": "slackwater_bench.peers.command:peers",
}
"""Commands that are loaded when they are called, so that none keeps the others from running."""


class BenchGroup(click.Group):
    """Arguments that are no command are scenarios to run; commands of other modules are loaded late."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts ``run`` in front where the command is left out."""
        if not args or (args[0] not in self.list_commands(ctx) and args[0] != "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Lists the commands by name."""
        return sorted({*super().list_commands(ctx), *LATER})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command, or one that says why it is not there."""
        if cmd_name not in LATER:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = LATER[cmd_name].partition(":")
        try:
            command = getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            return _missing(cmd_name, str(error))
        return (
            command if isinstance(command, click.Command) else _missing(cmd_name, f"{module} is no command")
        )


def _missing(name: str, reason: str) -> click.Command:
    def fail() -> None:
        raise click.ClickException(f"{name} cannot be used in this environment: {reason}")

    return click.Command(name, callback=fail, help=f"Not available: {reason}")


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
        say("results are kept; `python -m slackwater_bench page` brings docs/performance.md up to date")


@main.command("list")
def list_scenarios() -> None:
    """List what can be measured, and what each number means."""
    for scenario in SCENARIOS.values():
        points = ", ".join(" ".join(f"{k}={v}" for k, v in point.items()) for point in scenario.points)
        click.echo(f"{scenario.name} (version {scenario.version}; {scenario.unit}, {scenario.direction})")
        click.echo(f"    {scenario.measures}\n    {scenario.why}\n    points: {points}\n")


def say(text: str) -> None:
    """Progress goes to standard error: standard output has the results."""
    click.echo(text, err=True)


def _run(
    scenario: Scenario, points: tuple[Mapping[str, int | float | str], ...], folder: Path | None
) -> None:
    clock = SystemClock()
    context = RunContext(environment=Environment.here(), clock=clock, say=say)
    for point, measured in run_points(scenario, points, context):
        result = make_result(scenario, point, measured, clock)
        click.echo(result.line())
        if folder is not None:
            append(result, folder)


def _is_wanted(point: Mapping[str, int | float | str], only: tuple[str, ...]) -> bool:
    wanted = (each.partition("=") for each in only)
    return all(name not in point or str(point[name]) == value for name, _, value in wanted)


if __name__ == "__main__":
    sys.exit(main())
