"""``slackwater dev``: the local stack, SQL in its database, and a look into topics."""

import json
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO
from urllib.parse import urlsplit

import click
import orjson
from confluent_kafka import Message

from slackwater.cdc.initial_snapshot import ALL_TABLES
from slackwater.cli.main import settings_group
from slackwater.cli.topics import read_to_end
from slackwater.command.invocation import kafka_settings, search_path_lines, setting
from slackwater.command.output import Output
from slackwater.protocol import InputError
from slackwater.settings.loading import DEFAULT_FILE
from slackwater.settings.model import Settings

if TYPE_CHECKING:  # an extra brings it
    from slackwater.dev import StackStatus

FIRST_LINE = "# Written by `slackwater dev up`, which overwrites it as long as this line is here."


@settings_group()
def dev() -> None:
    """Run a local stack: PostgreSQL, Kafka, Connect with Debezium, Redis.

    Starts real servers without containers, on free ports, with data and logs in one folder. Needs Java 17 or
    later. Jars are downloaded once into the user's cache. For development and tests, not for production.

    \b
    Example:
      slackwater dev up --source shop --database shop
      slackwater dev sql tables.sql
      slackwater dev status
      slackwater dev down
    """


_FOLDER = setting("dev.folder", "Data and logs.  [default: .slackwater/dev]", "--folder", metavar="DIR")


@dev.command()
@_FOLDER
@setting("source", "The connector's topic.prefix.  [default: inv]")
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="SCHEMA.TABLE",
    help="Capture only this table, which must exist; repeatable.  [default: all, also later ones]",
)
@click.option(
    "--database",
    metavar="NAME",
    help="Database, created if missing.  [default: that of the last start, or inventory]",
)
@click.option("--no-connect", is_flag=True, help="Start no connector.")
def up(settings: Settings, tables: tuple[str, ...], database: str | None, no_connect: bool) -> None:
    """Start the servers that are not running yet, and leave them running.

    Returns when all servers are ready and the connector is running. You can create your tables before or
    afterwards, for example with `slackwater dev sql`. The folder keeps the data and the ports, so after
    `slackwater dev down` or a restart of the machine, the same command continues where it stopped.

    Writes a slackwater.toml to the current folder, so that all commands find the servers. If you have written
    this file yourself, it is not changed.
    """
    import slackwater.dev as devstack

    output = Output()
    earlier = devstack.status(settings.dev.folder)
    wanted = devstack.DevStackSettings(
        folder=settings.dev.folder,
        prefix=settings.source or "inv",
        database=database or (earlier.database if earlier else "inventory"),
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
    is_written = _write_settings(Path(DEFAULT_FILE), values)
    output.lines(_next_lines(values, is_written=is_written, connects=not no_connect))


@dev.command()
@_FOLDER
@click.argument("file", type=click.File(encoding="utf-8"), default="-")
def sql(settings: Settings, file: TextIO) -> None:
    """Run the SQL statements in FILE, or from standard input, in the stack's database.

    Statements that are not between BEGIN and COMMIT are one transaction. Any other client of PostgreSQL does
    as well: `slackwater dev status` shows the address.

    \b
    Example:
      slackwater dev sql tables.sql
      echo "SELECT * FROM invoice" | slackwater dev sql
    """
    import slackwater.dev as devstack
    from slackwater.dev.postgres import run_sql

    output = Output()
    status = devstack.status(settings.dev.folder)
    server = None if status is None else status.server("postgres")
    if server is None or server.pid is None:
        raise InputError(
            f"no database is running in {settings.dev.folder}", "start it with `slackwater dev up`"
        )
    for rows in run_sql(server.address, file.name, file.read()):
        output.table(rows)


@dev.command("status")
@_FOLDER
def status_(settings: Settings) -> int:
    """Show the servers and their addresses. The exit code is 1 if any server is not running."""
    import slackwater.dev as devstack

    folder = settings.dev.folder
    status = devstack.status(folder)
    hint = "; start one with `slackwater dev up`"
    Output().table(_rows(status) if status else [(f"no stack has been started in {folder}{hint}",)])
    return 0 if status is not None and status.is_running else 1


@dev.command()
@_FOLDER
def down(settings: Settings) -> None:
    """Stop all servers of the folder, and keep data, logs and ports for the next `up`."""
    import slackwater.dev as devstack

    folder = settings.dev.folder
    status = devstack.down(folder)
    Output().table(_rows(status) if status else [(f"no stack has been started in {folder}",)])


@dev.command()
@click.argument("topic")
@setting("kafka.bootstrap", "The brokers.")
@click.option("--last", type=click.IntRange(min=1), help="Only the last N records.  [default: all]")
def read(settings: Settings, topic: str, last: int | None) -> None:
    """Print the current records of a topic as a read_committed consumer sees them, one JSON line each.

    \b
    Example:
      slackwater dev read orders_with_lines --bootstrap localhost:9092 --last 5
    """
    output = Output()
    kafka = kafka_settings(settings, "where to read from")
    messages = read_to_end(kafka, [topic])
    for message in messages if last is None else deque(messages, last):
        output.line(_record_line(message))


def _record_line(message: Message) -> str:
    """Returns a record as one line of JSON; key and value as JSON if they are, else as text."""
    headers = dict(message.headers() or {})
    return json.dumps(
        {
            "partition": message.partition(),
            "offset": message.offset(),
            "headers": {name: _readable(value) for name, value in headers.items()},
            "key": _readable(message.key()),
            "value": _readable(message.value()),
        },
        ensure_ascii=False,
    )


def _readable(data: str | bytes | None) -> object:
    if data is None:
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data if isinstance(data, str) else data.decode(errors="replace")


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
    # Its connector captures all tables from its beginning, so tables that it meets later are new.
    later = {"sidecar.complete_tables": ALL_TABLES}
    return {"source": status.prefix, **found, "dev.folder": str(status.folder.resolve()), **later}


def _next_lines(values: dict[str, str], *, is_written: bool, connects: bool) -> Iterator[str]:
    """Says what commands know now, and which one comes next."""
    if is_written:
        yield f"{DEFAULT_FILE} was written: commands that you start in this folder use these servers"
    else:
        yield f"{DEFAULT_FILE} is your own file and was not changed; for these servers it needs:"
        yield from (f"  {path} = {value}" for path, value in values.items())
    yield "next: slackwater dev sql FILE             create your tables, unless they exist"
    if not connects:
        yield "      slackwater dev up                   start the connector"
    yield "      slackwater sidecar                  in a terminal of its own"
    yield "then: slackwater new DIR                  unless you have a pipeline already"
    yield "      slackwater run DIR --checkpoint .slackwater/checkpoint"
    yield from search_path_lines()


def _rows(status: "StackStatus") -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("server", "state", "version", "pid", "address", "log")]
    for each in status.servers:
        pid = str(each.pid) if each.pid else "-"
        rows.append((each.name, each.state.value, each.version, pid, each.address, str(each.log)))
    return rows


def settings_text(values: Mapping[str, str]) -> str:
    """Returns the text of the settings file with which all commands find the servers.

    The values are by the path of the setting; those without a section come first.
    """
    lines, section = [FIRST_LINE], ""
    for path, value in values.items():
        own, _, key = path.rpartition(".")
        if own != section:
            lines += ["", f"[{own}]"]
            section = own
        lines.append(f"{key} = {orjson.dumps(value).decode()}")
    return "\n".join(lines) + "\n"


def _write_settings(path: Path, values: Mapping[str, str]) -> bool:
    """Writes the file, unless somebody else has written one; says if it did."""
    try:
        if path.exists() and not path.read_text(encoding="utf-8").startswith(FIRST_LINE):
            return False
        path.write_text(settings_text(values), encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"settings file {path}: {error}") from error
    return True
