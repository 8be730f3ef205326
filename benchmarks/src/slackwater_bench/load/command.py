"""``python -m slackwater_bench load``."""

import json
from pathlib import Path

import click

from slackwater_bench.errors import BenchError
from slackwater_bench.load.arrivals import ARRIVALS
from slackwater_bench.load.locust_run import LoadOptions, run_load
from slackwater_bench.scenario import RunContext
from slackwater_bench.subject import Subject
from slackwater_bench.workloads.registry import WORKLOADS
from slackwater_protocol import SystemClock


@click.command()
@click.option("--workload", type=click.Choice(sorted(WORKLOADS)), default="orders", show_default=True)
@click.option("--size", default=1_000, show_default=True, help="Main rows of the workload.")
@click.option("--arrivals", type=click.Choice(sorted(ARRIVALS)), default="steady", show_default=True)
@click.option("--rate", default=100.0, show_default=True, help="Transactions per second, all clients.")
@click.option("--seconds", default=60.0, show_default=True)
@click.option("--clients", default=8, show_default=True, help="Connections to the database.")
@click.option("--seed", default=1, show_default=True)
@click.option("--report", type=click.Path(path_type=Path, dir_okay=False), help="Locust's report, HTML.")
def load(  # noqa: PLR0913 - one parameter per option
    workload: str,
    size: int,
    arrivals: str,
    rate: float,
    seconds: float,
    clients: int,
    seed: int,
    report: Path | None,
) -> None:
    """Clients of a real database, driven by Locust; time from commit to visible by a process of its own.

    Starts PostgreSQL, Kafka, Connect with Debezium, Redis, sidecar and pipeline, then lets business
    transactions arrive at random times at the rate asked for, whether or not earlier ones are done.
    Prints percentiles as JSON. The scenario `arrivals` keeps results of three shapes.
    """
    options = LoadOptions(
        workload=workload,
        size=size,
        arrivals=arrivals,
        rate=rate,
        seconds=seconds,
        clients=clients,
        seed=seed,
        report=report,
    )
    context = RunContext(
        subject=Subject.here(), clock=SystemClock(), say=lambda text: click.echo(text, err=True)
    )
    try:
        click.echo(json.dumps(run_load(options, context)))
    except BenchError as error:
        raise click.ClickException(str(error)) from error
