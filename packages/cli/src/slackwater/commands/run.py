"""``slackwater run``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from slackwater.invocation import setting, start_command, stop_on_signals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slackwater_spark.pipeline import BatchProgress

SHOWN_PARTS = 5
"""Parts of a batch's time in its line."""


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@setting("kafka.bootstrap", "--bootstrap", metavar="HOST:PORT", help="The brokers of source and output.")
@setting("redis.url", "--redis-url", metavar="URL", help="redis://host:port, where the sidecar publishes.")
@setting("run.checkpoint", "--checkpoint", metavar="DIR", help="Where Spark keeps offsets and state.")
@setting("run.available_now", "--available-now", is_flag=True, help="Process what is there, then end.")
@setting("run.master", "--master", metavar="URL", help="Spark master.  [default: local[*]]")
@setting(
    "run.max_events_per_batch",
    "--max-events-per-batch",
    type=int,
    metavar="N",
    help="Change events at which a batch is closed; a transaction is never split.  [default: 400000]",
)
@setting(
    "run.accept_changed_output",
    "--accept-changed-output",
    is_flag=True,
    help="Go on with output topics that lost documents or were changed; see docs/runbooks/output-changed.md.",
)
@click.pass_context
def run(ctx: click.Context, folder: Path) -> None:
    """Run the pipeline in DIR: maintain its view and write it to Kafka, exactly once.

    \b
    DIR holds
      pipeline.toml    name, source, output topic, what is emitted
      schema.sql       CREATE TABLE statements of the tables (`slackwater schema pull` writes them)
      views/*.sql      the view: SELECT TRANSACTIONALLY ...

    Runs until it gets SIGTERM or Ctrl-C, or, with --available-now, until everything is processed that was
    there at the start. Started again with the same checkpoint it goes on where it was. A pipeline runs
    once: a second run with the same checkpoint takes over from the first.

    \b
    Examples:
      slackwater run pipelines/orders --bootstrap localhost:9092 --redis-url redis://localhost:6379 \\
          --checkpoint /var/lib/slackwater/orders
      slackwater run pipelines/orders --available-now        the rest from slackwater.toml

    Passwords and TLS: settings under kafka. and redis., see `slackwater config`.
    """
    from slackwater.conversion import run_settings
    from slackwater.output import Output
    from slackwater_spark.pipeline import load_pipeline, run_pipeline

    settings, output = run_settings(start_command(ctx)), Output()
    with stop_on_signals(f"the run of {folder}") as stop:
        try:
            definition = load_pipeline(folder)
            run_pipeline(
                definition,
                settings,
                lambda batch: output.progress(batch_line(batch)),
                stop=stop.event,
                on_step=lambda step: output.progress(f"{definition.name}: {step}"),
            )
        finally:
            output.end_progress()
    ctx.exit(stop.exit_code)


def batch_line(batch: "BatchProgress") -> str:
    """One visible batch in a line."""
    from slackwater_protocol import format_position

    lag_ms = batch.lag.total_seconds() * 1000
    return (
        f"{batch.pipeline}: batch {batch.batch_id} at {format_position(batch.commit_lsn)}: "
        f"{batch.events:,} events, {batch.documents:,} documents, "
        f"visible {lag_ms:,.0f} ms after its newest commit{_parts(batch.seconds)}"
    )


def _parts(seconds: "Mapping[str, float]") -> str:
    """The parts of a batch that took longest, largest first; nothing when nothing is known."""
    longest = sorted(seconds.items(), key=lambda part: -part[1])[:SHOWN_PARTS]
    return f" ({', '.join(f'{name} {value:.2f} s' for name, value in longest)})" if longest else ""
