"""``python -m slackwater_bench``: runs scenarios, prints one JSON line each and appends it to the results."""

import sys
from dataclasses import replace

import click

from slackwater_bench.catchup import CatchUpOptions, run_catch_up
from slackwater_bench.live import run_live
from slackwater_bench.results import record
from slackwater_protocol import SystemClock


@click.group(invoke_without_command=True)
@click.pass_context
def main(context: click.Context) -> None:
    """Slackwater's benchmarks. Without a scenario: catch-up, large state, live."""
    if context.invoked_subcommand is None:
        context.invoke(catch_up)
        context.invoke(large_state)
        context.invoke(live)


@main.command()
@click.option("--orders", default=20_000, show_default=True, help="Orders in the state.")
@click.option("--events", default=1_000_000, show_default=True, help="Change events after the inserts.")
@click.option("--max-events-per-batch", type=int, help="Default: the pipeline's own.")
def catch_up(orders: int = 20_000, events: int = 1_000_000, max_events_per_batch: int | None = None) -> None:
    """Full topics, 20,000 orders, one million change events."""
    options = CatchUpOptions(orders=orders, events=events, max_events_per_batch=max_events_per_batch)
    click.echo(record("catch-up", SystemClock(), run_catch_up(options, _say)))


@main.command()
@click.option("--orders", default=1_000_000, show_default=True, help="Orders in the state.")
def large_state(orders: int = 1_000_000) -> None:
    """The same with one million orders in the state."""
    options = replace(CatchUpOptions(), orders=orders)
    click.echo(record("large-state", SystemClock(), run_catch_up(options, _say)))


@main.command()
@click.option("--seconds", default=60, show_default=True, help="How long to write.")
@click.option("--rate", default=3_000, show_default=True, help="Changes per second.")
def live(seconds: int = 60, rate: int = 3_000) -> None:
    """A real database and connector at a steady rate: time from commit to visible."""
    click.echo(record("live", SystemClock(), run_live(seconds, rate)))


def _say(text: str) -> None:
    click.echo(text, err=True)


if __name__ == "__main__":
    sys.exit(main())
