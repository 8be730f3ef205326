"""``slackwater sidecar``."""

import click

from slackwater.invocation import Invocation, given_flags, required, setting, stop_on_signals


@click.command()
@setting("source", "--source", metavar="NAME", help="The connector's topic.prefix.")
@setting("kafka.bootstrap", "--bootstrap", metavar="HOST:PORT", help="The brokers Debezium writes to.")
@setting("redis.url", "--redis-url", metavar="URL", help="redis://host:port, where cuts and markers go.")
@setting("timeline", "--timeline", type=int, help="Raise it when LSNs start over.  [default: 1]")
@click.pass_context
def sidecar(ctx: click.Context) -> None:
    """Find the moments at which all topics of a source agree, and publish them.

    Follows the source's data topics and its transaction topic, works out which transactions are complete,
    and publishes cuts and markers: to the topic NAME.slackwater.cuts, which keeps them, and to Redis, where
    pipelines look for them. Runs until it gets SIGTERM or Ctrl-C; several may run for one source. A new one
    goes on where the topic ends.

    The connector needs provide.transaction.metadata=true and, to know when an initial snapshot is complete,
    notification.enabled.channels=sink with notification.sink.topic.name=NAME.notifications.

    \b
    Examples:
      slackwater sidecar --source inv --bootstrap localhost:9092 --redis-url redis://localhost:6379
      SLACKWATER_SOURCE=inv SLACKWATER_BOOTSTRAP=... SLACKWATER_REDIS_URL=... slackwater sidecar

    Passwords and TLS: settings under kafka. and redis., see `slackwater config`.
    """
    from slackwater.conversion import sidecar_settings
    from slackwater.output import Output
    from slackwater_sidecar import format_status, run_sidecar

    invocation: Invocation = ctx.obj
    settings, output = invocation.start(given_flags(ctx)), Output()
    required(settings.redis.full_url(), "redis.url", "--redis-url", "where to publish")
    with stop_on_signals() as stop:
        try:
            run_sidecar(
                sidecar_settings(settings), stop.event, lambda status: output.progress(format_status(status))
            )
        finally:
            output.end_progress()
    ctx.exit(stop.exit_code)
