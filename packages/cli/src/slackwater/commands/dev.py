"""``slackwater dev``: the local stack, and a look into topics."""

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from slackwater.dev_settings import write_settings
from slackwater.topics import read_to_end, record_line
from slackwater_command.conversion import kafka_settings
from slackwater_command.invocation import setting, start_command
from slackwater_command.loading import DEFAULT_FILE
from slackwater_command.output import Output

if TYPE_CHECKING:  # an extra brings it
    from slackwater_devstack import StackStatus


@click.group()
def dev() -> None:
    """Run a local stack: PostgreSQL, Kafka, Connect with Debezium, Redis.

    Starts real servers without containers, on free ports, with data and logs in one folder. Needs Java 17 or
    later. Jars are downloaded once into the user's cache. For development and tests, not for production.

    \b
    Example:
      slackwater dev up --table inventory.orders --table inventory.order_lines
      slackwater dev status
      slackwater dev down
    """


_FOLDER = setting("dev.folder", "--folder", metavar="DIR", help="Data and logs.  [default: .slackwater/dev]")


@dev.command()
@_FOLDER
@setting("source", "--source", metavar="NAME", help="The connector's topic.prefix.  [default: inv]")
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="SCHEMA.TABLE",
    help="Captured table; repeatable. [default: all]",
)
@click.option("--database", default="inventory", show_default=True, help="Database, created if missing.")
@click.option(
    "--no-connect", is_flag=True, help="Start no connector, for example because the tables do not exist yet."
)
@click.pass_context
def up(ctx: click.Context, tables: tuple[str, ...], database: str, no_connect: bool) -> None:
    """Start the servers that are not running yet, and leave them running.

    Returns when all servers are ready and the connector is running. The tables must exist. With --no-connect,
    the servers start without a connector, so that you can create the tables and then call `up` again.

    Writes a slackwater.toml to the current folder, so that all commands find the servers. If you have written
    this file yourself, it is not changed.
    """
    import slackwater_devstack as devstack

    settings, output = start_command(ctx), Output()
    wanted = devstack.DevStackSettings(
        folder=settings.dev.folder,
        prefix=settings.source or "inv",
        database=database,
        tables=tables,
        connect=not no_connect,
    )
    try:
        status = devstack.up(wanted, output.progress)
    finally:
        output.end_progress()
    output.table(_rows(status))
    output.line()
    values = _values(status)
    for line in _next_lines(
        values, is_written=write_settings(Path(DEFAULT_FILE), values), connects=not no_connect
    ):
        output.line(line)


@dev.command("status")
@_FOLDER
@click.pass_context
def status_(ctx: click.Context) -> None:
    """Show the servers and their addresses. The exit code is 1 if any server is not running."""
    import slackwater_devstack as devstack

    settings, output = start_command(ctx), Output()
    status = devstack.status(settings.dev.folder)
    if status is None:
        output.line(f"no stack has been started in {settings.dev.folder}; start one with `slackwater dev up`")
    else:
        output.table(_rows(status))
    ctx.exit(0 if status is not None and status.is_running else 1)


@dev.command()
@_FOLDER
@click.pass_context
def down(ctx: click.Context) -> None:
    """Stop all servers of the folder, and keep data, logs and ports for the next `up`."""
    import slackwater_devstack as devstack

    settings, output = start_command(ctx), Output()
    status = devstack.down(settings.dev.folder)
    if status is None:
        output.line(f"no stack has been started in {settings.dev.folder}")
    else:
        output.table(_rows(status))


@dev.command()
@click.argument("topic")
@setting("kafka.bootstrap", "--bootstrap", metavar="HOST:PORT", help="The brokers.")
@click.option("--last", type=click.IntRange(min=1), help="Only the last N records.  [default: all]")
@click.pass_context
def read(ctx: click.Context, topic: str, last: int | None) -> None:
    """Print the current records of a topic as a read_committed consumer sees them, one JSON line each.

    \b
    Example:
      slackwater dev read orders_with_lines --bootstrap localhost:9092 --last 5
    """
    settings, output = start_command(ctx), Output()
    kafka = kafka_settings(settings, "where to read from")
    messages = read_to_end(kafka.bootstrap, [topic], kafka.options)
    for message in messages if last is None else deque(messages, last):
        output.line(record_line(message))


def _values(status: "StackStatus") -> dict[str, str]:
    """Returns the settings with which commands find the servers, by path."""
    paths = {
        "kafka": "kafka.bootstrap",
        "redis": "redis.url",
        "postgres": "postgres.url",
        "connect": "connect.url",
    }
    found = {path: server.address for name, path in paths.items() if (server := status.server(name))}
    if (url := found.get("postgres.url")) is not None:
        found["connect.database_user"] = urlsplit(url).username or ""
    return {"source": status.prefix, **found, "dev.folder": str(status.folder.resolve())}


def _next_lines(values: dict[str, str], *, is_written: bool, connects: bool) -> Iterator[str]:
    """Says what commands know now, and which one comes next."""
    if is_written:
        yield f"{DEFAULT_FILE} was written: commands that you start in this folder use these servers"
    else:
        yield f"{DEFAULT_FILE} is your own file and was not changed; for these servers it needs:"
        yield from (f"  {path} = {value}" for path, value in values.items())
    if connects:
        yield "next: slackwater sidecar                  in a terminal of its own"
        yield "then: slackwater new DIR                 unless you have a pipeline already"
        yield "      slackwater run DIR --checkpoint .slackwater/checkpoint"
    else:
        yield f"next: create the tables (psql {values.get('postgres.url', 'URL')}), then slackwater dev up"


def _rows(status: "StackStatus") -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("server", "state", "version", "pid", "address", "log")]
    for server in status.servers:
        pid = str(server.pid) if server.pid else "-"
        rows.append(
            (server.name, server.state.value, server.version, pid, server.address, str(server.log_path))
        )
    return rows
