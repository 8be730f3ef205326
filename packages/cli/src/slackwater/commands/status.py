"""``slackwater status``."""

import click

from slackwater.invocation import required, setting, start_command


@click.command()
@setting("source", "--source", metavar="NAME", help="The connector's topic.prefix.")
@setting("redis.url", "--redis-url", metavar="URL", help="redis://host:port, where the sidecar publishes.")
@setting("timeline", "--timeline", type=int, help="Of the source's LSNs.  [default: 1]")
@click.pass_context
def status(ctx: click.Context) -> None:
    """Show a source: frontier, state, lag, open transactions, pipelines.

    Reads Redis only; `slackwater doctor` compares it with the cut log. `open transactions` lists what the
    frontier waits for: which transaction, how many of its change events have been read per table, and since
    when.

    \b
    Example:
      slackwater status --source inv --redis-url redis://localhost:6379
    """
    from slackwater.conversion import redis_settings
    from slackwater.output import Output
    from slackwater.status_report import status_lines
    from slackwater_markers import RedisMarkerStore
    from slackwater_protocol import SystemClock

    settings = start_command(ctx)
    source = required(settings.source, "source", "--source", "which source to show")
    redis = redis_settings(settings, "where the sidecar publishes")
    store = RedisMarkerStore.connect(redis.url, password=redis.password)
    try:
        lines, output = status_lines(store, source, settings.timeline, SystemClock().now()), Output()
        for line in lines:
            output.line(line)
    finally:
        store.close()
