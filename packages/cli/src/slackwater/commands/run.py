"""``slackwater run``."""

from pathlib import Path

import click

from slackwater.invocation import Invocation, given_flags, required, setting, stop_on_signals


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@setting("kafka.bootstrap", "--bootstrap", metavar="HOST:PORT", help="The brokers of source and output.")
@setting("redis.url", "--redis-url", metavar="URL", help="redis://host:port, where the sidecar publishes.")
@setting("run.checkpoint", "--checkpoint", metavar="DIR", help="Where Spark keeps offsets and state.")
@setting("run.available_now", "--available-now", is_flag=True, help="Process what is there, then end.")
@setting("run.master", "--master", metavar="URL", help="Spark master.  [default: local[*]]")
@click.pass_context
def run(ctx: click.Context, folder: Path) -> None:
    """Run the pipeline in DIR: maintain its view and write it to Kafka, exactly once.

    \b
    DIR holds
      pipeline.toml    name, source, output topic, what is emitted
      schema.sql       CREATE TABLE statements of the tables (`slackwater schema pull` writes them)
      views/*.sql      the view: SELECT TRANSACTIONALLY ...

    Runs until it gets SIGTERM or Ctrl-C, or, with --available-now, until everything is processed that was
    there at the start. Started again with the same checkpoint it goes on where it was. A pipeline runs once: a
    second run with the same checkpoint takes over from the first.

    \b
    Examples:
      slackwater run pipelines/orders --bootstrap localhost:9092 --redis-url redis://localhost:6379 \\
          --checkpoint /var/lib/slackwater/orders
      slackwater run pipelines/orders --available-now        the rest from slackwater.toml

    Passwords and TLS: settings under kafka. and redis., see `slackwater config`.
    """
    from slackwater_spark.pipeline import run_pipeline

    from slackwater.conversion import run_settings
    from slackwater.output import Output

    invocation: Invocation = ctx.obj
    settings, output = invocation.start(given_flags(ctx)), Output()
    required(settings.kafka.bootstrap, "kafka.bootstrap", "--bootstrap", "where source and output are")
    required(settings.redis.full_url(), "redis.url", "--redis-url", "where the sidecar publishes")
    required(settings.run.checkpoint, "run.checkpoint", "--checkpoint", "where Spark keeps offsets and state")
    with stop_on_signals() as stop:
        try:
            run_pipeline(folder, run_settings(settings), stop.event, output.progress)
        finally:
            output.end_progress()
    ctx.exit(stop.exit_code)
