"""``slackwater run``."""

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slackwater.cli.pipeline_folders import pipeline_folder
from slackwater.cli.run_pages import answering, run_registry
from slackwater.command.connect_rest import ConnectRest
from slackwater.command.conversion import servers
from slackwater.command.invocation import required, setting, start_command
from slackwater.command.listening import http_settings
from slackwater.command.output import Output, show_findings
from slackwater.observe.stopping import stop_on_signals
from slackwater.observe.telemetry import sending_telemetry
from slackwater.protocol import format_position, user_cache
from slackwater.protocol.log_fields import set_log_fields
from slackwater.settings.model import RunOptions, Settings

if TYPE_CHECKING:  # Spark's libraries take a second to import; the help text does not need them
    from slackwater.pipeline import BatchProgress, RunSettings
    from slackwater.pipeline.connector_check import AskConnect

_ANSWER = timedelta(seconds=5)
SHOWN_SECONDS = 0.001
"""A part of a batch that took less is not in its line."""


@click.command()
@click.argument("pipeline", metavar="DIR")
@setting("kafka.bootstrap", "--bootstrap", metavar="HOST:PORT", help="The brokers of source and output.")
@setting("redis.url", "--redis-url", metavar="URL", help="redis://host:port, where the sidecar publishes.")
@setting(
    "postgres.url",
    "--postgres-url",
    metavar="URL",
    help="The source database, to watch its catalogue; secret.",
)
@setting("run.checkpoint", "--checkpoint", metavar="DIR", help="Location of the state: a folder, or s3://…")
@setting(
    "connect.url",
    "--connect-url",
    metavar="URL",
    help="Kafka Connect, where the connector runs: a wrong configuration is refused.",
)
@setting("run.available_now", "--available-now", is_flag=True, help="Process what exists now, then stop.")
@setting(
    "run.master",
    "--master",
    metavar="URL",
    help="Spark master.  [default: Spark's configuration, else local[*]]",
)
@setting(
    "run.max_events_per_batch",
    "--max-events-per-batch",
    type=int,
    metavar="N",
    help="Size at which a batch is closed, in change events; no transaction is split.  [default: 400000]",
)
@setting(
    "run.accept_changed_output",
    "--accept-changed-output",
    is_flag=True,
    help="Continue with outputs that lost documents or were changed; see docs/runbooks.md#output-changed.",
)
@setting(
    "run.allow_missing_tables",
    "--allow-missing-tables",
    is_flag=True,
    help="Treat declared tables without a topic as empty, instead of refusing to run.",
)
@setting("run.http", "--http", metavar="HOST:PORT", help="Serve /metrics, /healthz and /readyz.")
@click.option(
    "--copy-state-of",
    metavar="DIR",
    help="Start from a copy of the state of another revision, given by its folder, instead of reading the "
    "topics from the beginning.",
)
@click.option("--dry-run", is_flag=True, help="Check whether the pipeline can run, without writing anything.")
@click.pass_context
def run(ctx: click.Context, pipeline: str, copy_state_of: str | None, dry_run: bool) -> None:
    """Run the pipeline in DIR and publish its views to Kafka, PostgreSQL or a lake, exactly once.

    \b
    DIR contains
      pipeline.toml    name, source, output topics or tables, and which states are published
      schema.sql       CREATE TABLE statements of the tables (`slackwater schema pull` generates them)
      views/*.sql      one view per file: SELECT TRANSACTIONALLY ...

    Instead of a folder, DIR can be NAME or NAME==VERSION of a pipeline that is installed as a package.

    Runs until SIGTERM or Ctrl-C or, with --available-now, until everything that existed at the start has been
    processed. When started again with the same checkpoint, it resumes where it stopped. Only one run of a
    pipeline is active: a second run with the same checkpoint takes over from the first.

    \b
    Examples:
      slackwater run pipelines/orders --bootstrap localhost:9092 --redis-url redis://localhost:6379 \\
          --checkpoint /var/lib/slackwater/orders
      slackwater run pipelines/orders --available-now        the rest from slackwater.toml
      slackwater run revenue==1.2.0                          an installed package, in exactly this version
      slackwater run pipelines/orders --copy-state-of old/orders    a revision, from another one's state

    Passwords and TLS are settings under kafka. and redis. (see `slackwater config`). The locations of outputs
    are postgres.output_url for kind postgres, delta.location for kind delta, and iceberg.catalog for kind
    iceberg. For details see docs/views.md (the SQL of a view), docs/outputs.md (the content of outputs),
    docs/observability.md (the metrics of a run), docs/revisions.md (how a revision starts) and
    docs/runbooks.md#ended (what to do when a run ends).
    """
    from slackwater.pipeline import RunMonitor, batch_spans, labels_of, run_folder

    given = start_command(ctx)
    settings, output = _run_settings(given), Output()
    folder = pipeline_folder(pipeline)
    if copy_state_of is not None:
        settings = replace(settings, copy_state_of=pipeline_folder(copy_state_of))
    if dry_run:
        ctx.exit(_examine(folder, settings, output))
    name, source = labels_of(folder)
    set_log_fields(pipeline=name, source=source)
    monitor = RunMonitor(name, source)

    with (
        stop_on_signals(f"the run of {folder}") as stop,
        answering(http_settings("run.http", given.run.http, given.http), monitor, given.run.silent_after),
        sending_telemetry(given.telemetry, "run") as telemetry,
    ):
        if telemetry is not None:
            telemetry.send_metrics(run_registry(monitor))

        def tell(batch: "BatchProgress") -> None:
            monitor.record_batch(batch)
            if telemetry is not None:
                for span in batch_spans(batch, telemetry.trace_ratio):
                    telemetry.send(span)
            output.progress(batch_line(batch))

        def announce(step: str) -> None:
            monitor.record_turn()
            output.progress(step)

        try:
            run_folder(folder, settings, tell, stop=stop.event, on_step=announce, on_turn=monitor.record_turn)
        finally:
            output.end_progress()
    ctx.exit(stop.exit_code)


def _examine(folder: Path, settings: "RunSettings", output: Output) -> int:
    """Lists what a run would find; returns the exit code."""
    from slackwater.pipeline import load_pipeline
    from slackwater.pipeline.dry_run import examine_run

    return show_findings(examine_run(load_pipeline(folder), settings), output, "a run can begin")


def batch_line(batch: "BatchProgress") -> str:
    """Writes what is visible since a batch as one line."""
    delay_ms = batch.delay.total_seconds() * 1000
    return (
        f"{batch.pipeline}: batch {batch.batch_id} at {format_position(batch.commit_lsn)}: "
        f"{batch.events:,} events, {batch.documents:,} documents, "
        f"visible {delay_ms:,.0f} ms after its newest commit{_parts(batch.seconds)}"
    )


def _parts(seconds: Mapping[str, float]) -> str:
    """Names the parts of a batch one after the other; empty when nothing is known."""
    shown = [f"{name} {value:.3f} s" for name, value in seconds.items() if value >= SHOWN_SECONDS]
    return f" ({', '.join(shown)})" if shown else ""


def _run_settings(settings: Settings) -> "RunSettings":
    """Returns what a run of a pipeline needs.

    Raises:
        CommandConfigError: brokers or checkpoint were not given.
    """
    from slackwater.pipeline import RunSettings, default_class_archives
    from slackwater.sql.limits import StatementLimits

    run = settings.run
    options = {each.name: getattr(run, each.name) for each in fields(RunOptions)}
    required(run.checkpoint, "run.checkpoint", "--checkpoint", "where the state is kept")
    return RunSettings(
        **options,
        servers=servers(settings, "where source and output are"),
        source_database=settings.postgres.url,
        source_user=settings.connect.database_user,
        ask_connect=_ask_connect(settings),
        connector_properties=settings.connect.properties,
        timeline=settings.timeline,
        limits=StatementLimits(run.statement_memory, run.statement_seconds),
        local_index_root=default_index_root(os.environ),
        class_archives=default_class_archives(os.environ) if run.class_archive else None,
        replication_factor=settings.kafka.replication_factor,
        keep=settings.kafka.keep,
    )


def _ask_connect(settings: Settings) -> "AskConnect | None":
    """Returns how a run learns the configuration of its source's connector; None: not from Kafka Connect.

    Raises:
        CommandConfigError: connect.url is no address of HTTP.
    """
    if settings.connect.url is None:
        return None
    rest = ConnectRest(settings.connect.url, _ANSWER)

    def ask(source: str) -> Mapping[str, str] | None:
        name = rest.name_of(source)
        return None if name is None else rest.properties(name)

    return ask


def default_index_root(environment: Mapping[str, str]) -> Path | None:
    """Returns where indexes outlive a run on this machine, so that the next one need not rebuild them.

    The user's cache folder if it can be written; else None.
    """
    cache = user_cache(environment)
    if cache is None:
        return None
    root = cache / "indexes"
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return root if os.access(root, os.W_OK) else None
