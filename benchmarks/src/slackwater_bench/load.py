"""``python -m slackwater_bench load``: Locust on a real stack of database, connector and product."""

import csv
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from slackwater.pipeline import load_pipeline
from slackwater_bench.arrivals import ARRIVALS
from slackwater_bench.bed import SOURCE, Bed
from slackwater_bench.latencies import latencies_ms, summary
from slackwater_bench.scenario import RunContext
from slackwater_bench.scenarios.latency import committed
from slackwater_lab.database.statements import create_tables, write_first
from slackwater_lab.errors import ProgramEndedError, RunFailedError, TestingError
from slackwater_lab.watching import read_cuts
from slackwater_lab.workloads import WORKLOADS

LOCUSTFILE = Path(__file__).parents[2] / "locustfiles" / "business.py"
START_SECONDS = 180.0
SPARE_SECONDS = 90.0
"""For Locust to start and to stop."""
DRAIN_SECONDS = 5.0
"""How long Locust runs on after the last arrival."""
PERCENTILES = {"p50": "50%", "p90": "90%", "p99": "99%", "max": "100%"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """One run."""

    workload: str
    size: int
    """Main rows of the workload."""
    arrivals: str
    rate: float
    """Transactions per second, all clients together."""
    seconds: float
    clients: int
    seed: int = 1
    report: Path | None = None
    """Where Locust's report in HTML goes."""


def run_load(options: LoadOptions, context: RunContext) -> Mapping[str, object]:
    """Runs Locust to its end.

    Returns:
        ``commit_ms`` with the number of commits and failures, and ``visible_ms``: from the commit in the
        database to the commit record that covers it, which this process sees. Both are percentiles.

    Raises:
        TestingError: a part of the stack, or Locust itself, failed.
    """
    workload = WORKLOADS[options.workload](options.seed, options.size)
    definition = load_pipeline(workload.pipeline)
    with Bed(context, has_database=True) as bed:
        dsn = bed.stack.postgres.dsn()
        create_tables(dsn, workload)
        write_first(dsn, workload)
        bed.stack.start_connector(definition.tables)
        bed.stack.wait_until_streaming()
        bed.start_sidecar()
        bed.start_pipeline(workload.pipeline)
        context.say("waiting until the initial snapshot is visible")
        output = bed.watch(workload.pipeline)
        _wait(bed, lambda: output.newest_lsn > 0)
        since = context.clock.now().timestamp()
        context.say(f"Locust: {options.arrivals} arrivals")
        locust = bed.start("locust", locust_command(options, dsn, bed.folder))
        if locust.wait(options.seconds + SPARE_SECONDS):
            raise ProgramEndedError(locust.name, locust.log, locust.last_words())
        bed.stop("locust")
        if options.report is not None:
            options.report.write_bytes((bed.folder / "report.html").read_bytes())
        cuts = read_cuts(bed.bootstrap, SOURCE)
        _wait(bed, lambda: output.newest_lsn >= cuts[-1].cut.lsn)
        visible = [(commit.commit_lsn, commit.wall_ms / 1000) for commit in output.seen]
        delays = list(latencies_ms(committed(cuts), visible, since=since))
        return {**read_statistics(bed.folder / "load_stats.csv"), "visible_ms": summary(delays)}


def _wait(bed: Bed, is_visible: Callable[[], bool]) -> None:
    if not bed.wait_until(is_visible, START_SECONDS):
        raise RunFailedError("the view", f"does not show what was committed within {START_SECONDS:g} s")


def locust_command(options: LoadOptions, dsn: str, folder: Path) -> list[str]:
    """Locust without its web page; leaves its report and ``load_stats.csv`` in the folder."""
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary"]
    command += ["--users", str(options.clients), "--spawn-rate", str(options.clients)]
    command += ["--run-time", f"{options.seconds + DRAIN_SECONDS:g}s", "--stop-timeout", "10"]
    command += ["--html", str(folder / "report.html"), "--csv", str(folder / "load"), "--dsn", dsn]
    command += ["--workload", options.workload, "--size", str(options.size), "--seed", str(options.seed)]
    command += ["--arrivals", options.arrivals, "--rate", str(options.rate)]
    return [*command, "--clients", str(options.clients), "--seconds", str(options.seconds)]


def read_statistics(path: Path) -> Mapping[str, object]:
    """Reads percentiles of commits from Locust's table of requests.

    Raises:
        RunFailedError: nothing was committed.
    """
    with path.open(newline="") as file:
        rows = {row["Type"]: row for row in csv.DictReader(file)}
    row = rows.get("COMMIT")
    if row is None or int(row["Request Count"]) == 0:
        raise RunFailedError("Locust", f"reports no COMMIT; it has {json.dumps(sorted(rows))}")
    return {
        "commit_ms": {label: float(row[column]) for label, column in PERCENTILES.items()},
        "commit_count": int(row["Request Count"]),
        "commit_failures": int(row["Failure Count"]),
    }


@click.command()
@click.option("--workload", type=click.Choice(sorted(WORKLOADS)), default="orders", show_default=True)
@click.option("--size", default=1_000, show_default=True, help="Main rows of the workload.")
@click.option("--arrivals", type=click.Choice(sorted(ARRIVALS)), default="steady", show_default=True)
@click.option("--rate", default=100.0, show_default=True, help="Transactions per second, all clients.")
@click.option("--seconds", default=60.0, show_default=True)
@click.option("--clients", default=8, show_default=True, help="Connections to the database.")
@click.option("--seed", default=1, show_default=True)
@click.option("--report", type=click.Path(path_type=Path, dir_okay=False), help="Locust's report, HTML.")
def load(**given: Any) -> None:
    """Clients of a real database, driven by Locust; time from commit to visible.

    Starts PostgreSQL, Kafka, Connect with Debezium, Redis, sidecar and pipeline, then lets business
    transactions arrive at random times at the rate asked for, whether or not earlier ones are done.
    Prints percentiles as JSON.
    """
    try:
        click.echo(json.dumps(run_load(LoadOptions(**given), RunContext.here())))
    except TestingError as error:
        raise click.ClickException(str(error)) from error
