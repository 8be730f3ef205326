"""``python -m slackwater_bench compare``."""

import sys

import click

from slackwater_bench.comparison.alternation import PointComparison, compare_scenarios
from slackwater_bench.comparison.base import installed
from slackwater_bench.comparison.verdict import Verdict
from slackwater_bench.errors import BenchError
from slackwater_bench.registry import scenario_named
from slackwater_bench.running import points_of
from slackwater_bench.scenario import RunContext
from slackwater_bench.subject import Subject
from slackwater_protocol import SystemClock

DEFAULT_SCENARIOS = ("throughput", "latency", "sidecar", "sink-alone")


@click.command()
@click.option("--base", "revision", required=True, metavar="REV", help="The commit to compare with.")
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    metavar="NAME",
    help=f"May be repeated.  [default: {', '.join(DEFAULT_SCENARIOS)}]",
)
@click.option("--runs", default=3, show_default=True, type=click.IntRange(1), help="Runs of each commit.")
@click.option("--quick/--full", default=True, show_default=True, help="Small sizes or the default ones.")
def compare(revision: str, scenarios: tuple[str, ...], runs: int, quick: bool) -> None:
    """Compare the working tree with another commit; exit code 1 if something got worse.

    The other commit is checked out and installed in a temporary folder. This benchmark drives both, through
    the `slackwater` command of each: base, head, base, head ... What counts is the ratio of the medians; it
    has to exceed both 10 % (some scenarios: more) and the spread of the runs.
    """
    try:
        chosen = [scenario_named(name) for name in scenarios or DEFAULT_SCENARIOS]
        work = [(each, points_of(each, is_quick=quick, limits={})) for each in chosen]
        with installed(revision, _say) as base:
            context = RunContext(subject=Subject.here(), clock=SystemClock(), say=_say)
            found = compare_scenarios(work, (base, Subject.here()), runs, context, _tell)
    except BenchError as error:
        raise click.ClickException(str(error)) from error
    worse = [each for each in found if each.compared and each.compared.verdict is Verdict.WORSE]
    click.echo(f"{len(found)} points, {len(worse)} regressions")
    sys.exit(1 if worse else 0)


def _tell(comparison: PointComparison) -> None:
    click.echo(str(comparison))


def _say(text: str) -> None:
    click.echo(text, err=True)
