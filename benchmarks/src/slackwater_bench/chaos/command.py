"""``python -m slackwater_bench chaos``."""

import shutil
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import click

from slackwater.invocation import terminate_as_interrupt
from slackwater_bench.chaos.errors import ChaosError
from slackwater_bench.chaos.schedule import EXECUTORS, LOCAL, Round, random_schedule, short_schedule, text
from slackwater_bench.chaos.session import Outcome, keep, newest_table, run_session
from slackwater_bench.chaos.system import System, SystemSettings
from slackwater_bench.errors import BenchError
from slackwater_bench.workloads.registry import WORKLOADS
from slackwater_certify import CertifyError
from slackwater_devstack import DevStackError
from slackwater_protocol import SystemClock

SHOWN = 100
"""Rounds of an endless schedule that are printed."""
SIZE = 500
"""Main rows of the workload."""


@click.command()
@click.option("--minutes", type=click.FloatRange(min=0.1), default=30.0, show_default=True, help="Of faults.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the schedule and the workload.")
@click.option("--short", is_flag=True, help="Each fault once, as the tests do, instead of random ones.")
@click.option(
    "--rounds", "only", metavar="A-B", help="Only these rounds of the schedule, to look at a failure."
)
@click.option(
    "--show",
    type=click.Choice(["schedule", "table"]),
    help="Print the schedule, or the table of the newest run that was kept; do nothing.",
)
@click.option(
    "--rate", type=click.FloatRange(min=1), default=300.0, show_default=True, help="Row changes per second."
)
@click.option("--folder", type=click.Path(path_type=Path), help="Data and logs.  [default: a temporary one]")
def chaos(
    minutes: float,
    seed: int,
    short: bool,
    only: str | None,
    show: str | None,
    rate: float,
    folder: Path | None,
) -> None:
    """Kill, pause, fill, cut and delay the running product, then judge every record it published.

    Starts PostgreSQL, two brokers, Connect with Debezium, Redis, two sidecars and a pipeline; writers
    commit business transactions all the time. Whatever dies is started again after a second. At the end
    everything is healed, the last commit becomes visible, and the certifier compares each document with
    the committed states of the database.

    Faults, their times and the workload follow from the seed: the same seed gives the same schedule. The
    exit code is 0 only if nothing was torn, lost, repeated or late by minutes. Logs are kept when it is not.

    \b
    Examples:
      python -m slackwater_bench chaos --minutes 30 --seed 7
      python -m slackwater_bench chaos --short
      python -m slackwater_bench chaos --seed 7 --show schedule
    """  # noqa: D301 - a backslash-b keeps the lines of a help text
    if show == "table":
        _print_newest()
        return
    if show == "schedule":
        click.echo(text([*islice(_rounds(seed, short=short, only=only), SHOWN)]))
        return
    clock = SystemClock()
    place = folder or Path(tempfile.mkdtemp(prefix="slackwater-chaos-"))
    settings = SystemSettings(
        folder=place / "run",
        workload=WORKLOADS["orders"](seed, SIZE),
        changes_per_second=rate,
        master=LOCAL if short else EXECUTORS,
    )
    click.echo(f"seed {seed}; logs: {settings.logs}", err=True)
    rounds = _rounds(seed, short=short, only=only)
    try:
        with terminate_as_interrupt(), System(settings, clock) as system:
            seconds = float("inf") if short or only else minutes * 60
            outcome = run_session(system, rounds, lambda line: click.echo(line, err=True), seconds)
    except (BenchError, CertifyError, DevStackError) as error:
        raise click.ClickException(f"seed {seed}: {error}") from error
    if only is None:
        keep(outcome, seed=seed, kind="short" if short else f"{minutes:g} minutes", clock=clock)
    click.echo(outcome.text)
    _finish(outcome, seed, place, is_ours=folder is None)


def _print_newest() -> None:
    try:
        click.echo(newest_table())
    except ChaosError as error:
        raise click.ClickException(str(error)) from error


def _rounds(seed: int, *, short: bool, only: str | None) -> Iterator[Round]:
    rounds = iter(short_schedule(seed)) if short else random_schedule(seed)
    if only is None:
        return rounds
    first, _, last = only.partition("-")
    try:
        return islice(rounds, int(first) - 1, int(last or first))
    except ValueError:
        raise click.BadParameter(f"{only!r} is no range such as 5-8", param_hint="--rounds") from None


def _finish(outcome: Outcome, seed: int, place: Path, *, is_ours: bool) -> None:
    if not outcome.certificate.is_clean:
        raise click.ClickException(f"violations with seed {seed}; logs and data: {place}")
    if is_ours:
        shutil.rmtree(place, ignore_errors=True)
